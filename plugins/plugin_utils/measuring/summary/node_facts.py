# SPDX-License-Identifier: Apache-2.0
"""Describe a measured node: what must be the same on another node for comparable figures, and the versions in use."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....module_utils.content.image_ref import ImageSoftware
from ...knowledge.catalog.images import look_up
from ...planning.pins.lockfile import Lock

VERSIONS = ("vllm", "torch", "rocm", "aiter", "rccl", "driver", "vbios")
"""What a row names the versions of; `rocm` is that of the image."""

_GPU_FACTS = ("index", "bdf", "gfx", "unique_id", "vram_total", "numa_node", "link_speed", "link_width")
_GPU_MODES = ("compute_partition", "memory_partition")


@dataclass(frozen=True)
class SoftwareSources:
    """Sources for the software of images in addition to the nodes: the lock file and catalog/images.yml."""

    lock: Lock = field(default_factory=Lock)
    images: Mapping[str, Any] = field(default_factory=dict)


def versions(
    plan: Mapping[str, Any], image: str, states: Sequence[Mapping[str, Any]], sources: SoftwareSources
) -> dict[str, str | None]:
    """Return the versions with which an instance was measured, None where unknown.

    `plan` is its INSTANCE, `states` are node_states of its node, the best first. What a probe found in the image takes
    precedence over the catalogue's documents.
    """
    found: dict[str, str | None] = dict.fromkeys(VERSIONS)
    refs = [
        ref
        for ref, pin in sources.lock.images.items()
        if "@" in image and pin.digest == image.partition("@")[2]  # whose name may be that of a mirror
    ]
    probed = _probed(image, states) or next(
        (pin.software for ref in refs if (pin := sources.lock.images[ref]).software), None
    )
    documented = [
        look_up(sources.images, f"{ref}@{image.partition('@')[2]}") for ref in refs if sources.images
    ]
    documented += [look_up(sources.images, image)] if sources.images else []
    facts = next((item for item in documented if item.vllm and not item.floating), None)
    found["vllm"] = plan.get("vllm") or (probed and probed.vllm) or (facts and facts.vllm) or None
    found["torch"] = (probed and probed.pytorch) or (facts and facts.pytorch) or None
    found["rocm"] = (probed and probed.rocm) or (facts and facts.rocm) or None
    found["driver"] = next((driver for state in states if (driver := _driver(state))), None)
    found["vbios"] = _joined(gpu.get("vbios") for state in states[:1] for gpu in state.get("gpus") or ())
    return found


def _probed(image: str, states: Sequence[Mapping[str, Any]]) -> ImageSoftware | None:
    for state in states:
        for item in state.get("images") or ():
            if item.get("software") and image in (*(item.get("digests") or ()), *(item.get("tags") or ())):
                with contextlib.suppress(KeyError, TypeError):
                    return ImageSoftware.from_json(item["software"])
    return None


def _driver(state: Mapping[str, Any]) -> str | None:
    version = (state.get("driver") or {}).get("version")
    return str(version) if version else None


def host_facts(state: Mapping[str, Any], gpu_models: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts of a node_state that must be the same on another node for comparable figures."""

    def get(*path: str) -> Any:
        value: Any = state
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    gpus = [_gpu(gpu, gpu_models) for gpu in get("gpus") or []]
    return {
        "os": get("os", "pretty_name"),
        "kernel": get("kernel"),
        "cmdline": get("cmdline"),
        "rocm": get("rocm", "version"),
        "driver": get("driver", "version"),
        "docker": get("docker", "version"),
        "cpu": get("cpu"),
        "memory_bytes": get("memory_bytes"),
        "numa_nodes": len(get("numa_nodes")) if get("numa_nodes") is not None else None,
        "numa_balancing": get("numa_balancing", "runtime"),
        "virtual_machine": get("virtual_machine"),
        "compute_partition": _joined(gpu["compute_partition"] for gpu in gpus),
        "memory_partition": _joined(gpu["memory_partition"] for gpu in gpus),
        "gpus": gpus,
    }


def _gpu(gpu: Mapping[str, Any], models: Mapping[str, str]) -> dict[str, Any]:
    vendor, device = gpu.get("vendor_id"), gpu.get("device_id")
    pci_id = f"{vendor:04x}:{device:04x}" if isinstance(vendor, int) and isinstance(device, int) else None
    return {
        "model": models.get(pci_id or ""),
        "pci_id": pci_id,
        **{key: gpu.get(key) for key in (*_GPU_FACTS, *_GPU_MODES)},
        "partitions": len(gpu.get("partitions") or []),
    }


def _joined(values: Iterable[str | None]) -> str | None:
    """Return the partition mode of a node: "SPX", or "CPX, SPX" if its GPUs differ; None if there is none."""
    found = sorted({re.sub(r"\s+", " ", str(value)) for value in values if value})
    return ", ".join(found) or None
