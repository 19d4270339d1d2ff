# SPDX-License-Identifier: Apache-2.0
"""Image references by Docker's rules, and the software that a probe found in an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

DEFAULT_REGISTRY = "docker.io"
STORE_REGISTRY = "127.0.0.1:29869"
"""Where a node serves its own content store to its engine during a pull, in a network without registries."""

BUILD_LABEL = "instinct-fleet.build"
"""The label of an image that a host has built; its value is the hash of what it was built from."""


@dataclass(frozen=True)
class ImageRef:
    """An image reference, registry/path:tag@digest, with Docker's defaults filled in."""

    registry: str
    path: str
    tag: str
    digest: str

    @property
    def repository(self) -> str:
        """Return the name under which Docker lists it: Docker Hub's host and library/ are omitted."""
        if self.registry != DEFAULT_REGISTRY:
            return f"{self.registry}/{self.path}"
        return self.path[len("library/") :] if self.path.startswith("library/") else self.path


@lru_cache(maxsize=1024)  # the same few are asked for by every host
def parse_ref(ref: str) -> ImageRef:
    """Split a reference by Docker's rules: a first part with a dot, a colon, or "localhost" is a registry."""
    name, _unused, digest = ref.partition("@")
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        registry, path = first, rest
    else:
        registry, path = DEFAULT_REGISTRY, name
    tag = ""
    if ":" in path:
        path, _unused, tag = path.rpartition(":")
    if registry in ("index.docker.io", "registry-1.docker.io"):
        registry = DEFAULT_REGISTRY
    if registry == DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    return ImageRef(registry, path, tag or ("" if digest else "latest"), digest)


@dataclass(frozen=True)
class ImageSoftware:
    """The software that a probe on a node found in an image.

    Attributes:
        vllm: the whole version as vLLM prints it, "" if the image has no vLLM
        platform: rocm, cpu, cuda, or "" if unknown
        gfx: the architectures that it was built for

    None means unknown.
    """

    vllm: str
    platform: str = ""
    rocm: str | None = None
    pytorch: str | None = None
    python: str | None = None
    gfx: tuple[str, ...] | None = None
    aiter: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it in the form of fleet.lock.json and the node's file."""
        return {
            "vllm": self.vllm,
            "platform": self.platform,
            "rocm": self.rocm,
            "pytorch": self.pytorch,
            "python": self.python,
            "gfx": None if self.gfx is None else list(self.gfx),
            **({"aiter": self.aiter} if self.aiter else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ImageSoftware:
        """Build it from what to_json returned. Raise KeyError or TypeError for other data."""
        rocm, pytorch, python = (
            None if data[key] is None else str(data[key]) for key in ("rocm", "pytorch", "python")
        )
        gfx = None if data["gfx"] is None else tuple(str(name) for name in data["gfx"])
        aiter = str(data["aiter"]) if data.get("aiter") else None
        return cls(str(data["vllm"]), str(data["platform"]), rocm, pytorch, python, gfx, aiter)
