# SPDX-License-Identifier: Apache-2.0
"""Image references by Docker's rules, and what an image said of its software."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_REGISTRY = "docker.io"


@dataclass(frozen=True)
class ImageRef:
    """registry/path:tag@digest, with Docker's defaults filled in."""

    registry: str
    path: str
    tag: str
    digest: str

    @property
    def repository(self) -> str:
        """The name under which a Docker engine lists it: Docker Hub's host and library/ are not written."""
        if self.registry != DEFAULT_REGISTRY:
            return f"{self.registry}/{self.path}"
        return self.path[len("library/") :] if self.path.startswith("library/") else self.path


def parse_ref(ref: str) -> ImageRef:
    """Split a reference by Docker's rules: a first part with a dot, a colon, or "localhost" is a registry."""
    name, _, digest = ref.partition("@")
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        registry, path = first, rest
    else:
        registry, path = DEFAULT_REGISTRY, name
    tag = ""
    if ":" in path:
        path, _, tag = path.rpartition(":")
    if registry in ("index.docker.io", "registry-1.docker.io"):
        registry = DEFAULT_REGISTRY
    if registry == DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    return ImageRef(registry, path, tag or ("" if digest else "latest"), digest)


@dataclass(frozen=True)
class ImageSoftware:
    """What an image said of itself when it was asked on a node.

    vllm: the whole version as vLLM prints it, "" when no vLLM was found. platform: rocm, cpu, cuda or "" (the
    image did not tell). gfx: the architectures that it was built for. None: the image did not tell.
    """

    vllm: str
    platform: str = ""
    rocm: str | None = None
    pytorch: str | None = None
    python: str | None = None
    gfx: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """As fleet.lock.json and the node's file have it."""
        return {
            "vllm": self.vllm,
            "platform": self.platform,
            "rocm": self.rocm,
            "pytorch": self.pytorch,
            "python": self.python,
            "gfx": None if self.gfx is None else list(self.gfx),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ImageSoftware:
        """The reverse of to_json; KeyError and TypeError mean that it is not such data."""
        rocm, pytorch, python = (
            None if data[key] is None else str(data[key]) for key in ("rocm", "pytorch", "python")
        )
        gfx = None if data["gfx"] is None else tuple(str(name) for name in data["gfx"])
        return cls(str(data["vllm"]), str(data["platform"]), rocm, pytorch, python, gfx)
