# SPDX-License-Identifier: Apache-2.0
"""Derive an image's software from its reference, and determine what must be probed in the image itself.

The data is catalog/images.yml; nothing here reads a file. A name is trusted only if a document defines its meaning:
exact tags, and the v0.0.0 tags of vLLM's own images. Everything else must be probed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....module_utils.engines.versions import version_key
from ..vllm.findings import BAD_VALUE, DEPRECATED, NO_EFFECT, Finding

CUDA = "cuda"


@dataclass(frozen=True)
class ImageFacts:
    """An image's software; None for what is unknown.

    basis: how the reference was recognized: tag, family, repository or unknown (tuning/image_software.py adds declared
    and image). platform: rocm, cpu, cuda, or "" if unknown. fork: its vLLM is this fork of forks.yml. floating: the tag
    moves, so that the image must be probed.
    """

    ref: str
    basis: str
    vllm: str | None = None
    rocm: str | None = None
    pytorch: str | None = None
    python: str | None = None
    gfx: tuple[str, ...] | None = None
    entrypoint: str | None = None
    floating: bool = False
    deprecated: bool = False
    serves: bool = True
    fork: str = ""
    notes: tuple[str, ...] = ()
    source: str = ""
    platform: str = ""


def split_reference(ref: str) -> tuple[str, str, str]:
    """Return repository, tag and digest of a reference, without a leading Docker Hub name."""
    rest, _unused, digest = ref.partition("@")
    repository, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        repository, tag = rest, ""
    for hub in ("docker.io/", "index.docker.io/", "registry-1.docker.io/"):
        if repository.startswith(hub):
            repository = repository[len(hub) :]
    return repository, tag, digest


def look_up(data: Mapping[str, Any], ref: str) -> ImageFacts:
    """Return what the catalogue knows of an image; a digest alone or one that contradicts the tag says nothing."""
    repository, tag, digest = split_reference(ref)
    base = data["repositories"].get(repository)
    if base is None:
        return ImageFacts(ref, "unknown")
    common = {
        "entrypoint": base["entrypoint"],
        "deprecated": base["deprecated"],
        "notes": (base["note"],) if base["deprecated"] or "platform" in base else (),
        "source": base["source"],
        "platform": base.get("platform", "rocm"),
    }
    entry = data["tags"].get(f"{repository}:{tag}") if tag else None
    if entry is not None:
        prefix = entry.get("digest_prefix", "")
        if not (digest and prefix and not digest.startswith(prefix)):
            return _of_tag(ref, entry, common)
    for family in data["families"]:
        found = re.fullmatch(family["pattern"], tag) if family["repository"] == repository else None
        if found and version_key(found["vllm"]) >= version_key(family["since"]):
            vllm = found["vllm"]
            common["source"] = family["source"]
            rocm = family["rocm_by_vllm"].get(vllm)
            return ImageFacts(ref, "family", vllm=vllm, rocm=rocm, python=family["python"], **common)
    floating = not digest and re.fullmatch(data["moving"], tag or "latest") is not None
    return ImageFacts(ref, "repository", floating=floating, **common)


def _of_tag(ref: str, entry: Mapping[str, Any], common: Mapping[str, Any]) -> ImageFacts:
    gfx = entry["gfx"]
    notes = (*common["notes"], entry["note"]) if "note" in entry else common["notes"]
    return ImageFacts(
        ref,
        "tag",
        vllm=entry["vllm"],
        rocm=entry["rocm"],
        pytorch=entry["pytorch"],
        python=entry["python"],
        gfx=None if gfx is None else tuple(gfx),
        entrypoint=common["entrypoint"],
        floating=entry.get("floating", False),
        deprecated=common["deprecated"],
        serves=entry.get("serves", True),
        fork=entry.get("fork", ""),
        notes=notes,
        source=entry["source"],
        platform=common["platform"],
    )


def check_image(data: Mapping[str, Any], facts: ImageFacts, gfx: str, gpu: str = "") -> tuple[Finding, ...]:
    """Check whether an image runs on a GPU: built for it, with a ROCm release that supports it, and with vLLM."""
    found: list[Finding] = []
    if not facts.serves:
        fix = "Use an image that contains vLLM."
        found.append(Finding(facts.ref, BAD_VALUE, "does not contain vLLM", fix, facts.source))
    if facts.gfx is not None and gfx not in facts.gfx:
        what = f"was built for {', '.join(facts.gfx)}, and the GPUs are {gfx}"
        found.append(
            Finding(facts.ref, BAD_VALUE, what, "Use the image for this architecture.", facts.source)
        )
    if facts.rocm:
        for item in data["gpus"]:
            known = item["gfx"] == gfx and (not gpu or item["name"] == gpu)
            if known and version_key(facts.rocm) < version_key(item["rocm"]):
                what = f"has ROCm {facts.rocm}, and {item['name']} needs {item['rocm']} or newer"
                # AMD names the release of the host's driver; an image of the same series has the same kernels.
                near = _series(facts.rocm) == _series(item["rocm"])
                fix = "Use a newer image."
                found.append(Finding(facts.ref, BAD_VALUE, what, fix, item["source"], harmless=near))
                break
    if facts.deprecated:
        note = facts.notes[0] if facts.notes else "is no longer recommended"
        found.append(Finding(facts.ref, DEPRECATED, note, "", facts.source))
    return tuple(found)


def check_driver(data: Mapping[str, Any], rocm: str, module: str | None) -> Finding | None:
    """Return a finding if a node's amdgpu driver is too old for the ROCm release in an image; None if not or unknown.

    `module` is the text of /sys/module/amdgpu/version. None, or a text that is not a version (the kernel's own driver),
    cannot be checked.
    """
    if not module or not re.fullmatch(r"\d+\.\d+\.\d+", module):
        return None
    entry = needed_driver(data, rocm)
    if entry is None or entry["module"] is None or version_key(module) >= version_key(entry["module"]):
        return None
    basis = {"listed": "lists", "rule": "asks for", "tested": "has published results with"}[entry["basis"]]
    what = f"{module} is older than {entry['module']}, the oldest that AMD {basis} for ROCm {rocm}"
    return Finding(
        "amdgpu driver", NO_EFFECT, what, "Update the driver, or use an older image.", entry["source"]
    )


def needed_driver(data: Mapping[str, Any], rocm: str) -> Mapping[str, Any] | None:
    """Return the entry of images.yml for the oldest driver of a ROCm release, or None if it is not listed."""
    return next((item for item in data["drivers"] if item["rocm"] == _series(rocm)), None)


def _series(rocm: str) -> str:
    return ".".join(rocm.split(".")[:2])
