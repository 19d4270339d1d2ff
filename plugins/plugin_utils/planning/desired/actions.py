# SPDX-License-Identifier: Apache-2.0
"""Define the actions of a plan: one change to one object of a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...base.json_record import JsonRecord, Text
from ..observed.node_state import NodeState

# Docker's states of a container that uses its GPUs and port, or may do so soon.
ALIVE = ("running", "restarting", "paused")
DEBIAN = ("debian", "ubuntu")
Role = Literal[
    "host_prep", "distribution", "vllm_image", "hf_model", "instance_key", "gpu_partition", "vllm_serve",
    "load_balancer",
]  # fmt: skip
Kind = Literal[
    "docker_engine", "build_tools", "numa_balancing", "stop_server", "compute_partition", "memory_partition",
    "partition_change", "gpu_clean", "transfer", "image", "push", "model", "verify_model", "instance_key", "generation",
    "hold", "remove_server", "server", "restart_policy", "haproxy", "keepalived", "drain", "balancer", "undrain",
    "remove_balancer",
]  # fmt: skip


@dataclass(frozen=True)
class Action(JsonRecord):
    """One change on a host: of what (kind, target), by which role, from which state to which, and why."""

    kind: Kind
    role: Role
    target: Text
    before: Text
    after: Text
    reason: Text
    source: Text


def has_image(state: NodeState | None, ref: str) -> bool:
    """Return whether the host's Docker has an image under this reference, a tag or a digest."""
    return state is not None and any(ref in image.digests or ref in image.tags for image in state.images)


def has_build(state: NodeState | None, tag: str, image_id: str) -> bool:
    """Return whether the host's Docker has this image under the tag of a build; image_id: "" for any."""
    return state is not None and any(
        tag in image.tags and image_id in ("", image.id) for image in state.images
    )


def size(count: int | None) -> str:
    """Return a number of bytes as text with a binary unit."""
    if count is None:
        return "unknown size"
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
