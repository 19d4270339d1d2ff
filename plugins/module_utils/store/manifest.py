# SPDX-License-Identifier: Apache-2.0
"""The list of the blobs that belong together: an image's, or a model's files. It is what is moved between nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..common.hashing import canonical, text_hash
from ..common.module_main import NodeError

HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ManifestFile:
    """A file: its path within the whole, its size in bytes, and the SHA-256 of its content, in hex digits."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What belongs together. name: what it is, as content/transfer_names.py forms it."""

    name: str
    files: tuple[ManifestFile, ...]

    @property
    def id(self) -> str:
        """Return the SHA-256 of the canonical text."""
        return text_hash(self.text)

    @property
    def text(self) -> str:
        """Return the canonical text: equal manifests have the same."""
        return canonical(self.to_json())

    @property
    def blobs(self) -> dict[str, int]:
        """Return the size of each blob by its SHA-256; files of the same content share one."""
        return {item.sha256: item.size for item in self.files}

    @property
    def bytes(self) -> int:
        """Return the size of all blobs."""
        return sum(self.blobs.values())

    def to_json(self) -> dict[str, Any]:
        """Return it as modules take and return it."""
        files = [{"path": item.path, "size": item.size, "sha256": item.sha256} for item in self.files]
        return {"name": self.name, "files": files}


def manifest_of(name: str, files: Iterable[ManifestFile]) -> Manifest:
    """Return the manifest of these files, in the order of their paths."""
    return Manifest(name, tuple(sorted(files, key=lambda item: item.path)))


def parse_manifest(data: object) -> Manifest:
    """Return the manifest of to_json(). Raise NodeError if it is malformed, or leads out of a directory."""
    try:
        if not isinstance(data, Mapping):
            raise TypeError("it is not a map")
        files = [
            ManifestFile(str(item["path"]), int(item["size"]), str(item["sha256"])) for item in data["files"]
        ]
        found = manifest_of(str(data["name"]), files)
    except (KeyError, TypeError, ValueError) as error:
        raise NodeError(
            f"manifest: it needs a name and files, each with path, size and sha256 ({type(error).__name__}: {error})."
        ) from error
    sizes: dict[str, int] = {}
    for item in found.files:
        if not HEX.fullmatch(item.sha256):
            raise NodeError(f"manifest: {item.sha256!r} of {item.path} is not a SHA-256 of 64 hex digits.")
        if item.path.startswith("/") or not {"", ".", ".."}.isdisjoint(item.path.split("/")):
            raise NodeError(f"manifest: {item.path!r} leads outside the directory of {found.name}.")
        if item.size < 0 or sizes.setdefault(item.sha256, item.size) != item.size:
            raise NodeError(
                f"manifest: the size of {item.path} is {item.size}, which cannot be true of its content."
            )
    if not found.files or len({item.path for item in found.files}) != len(found.files):
        raise NodeError(f"manifest: {found.name} has no files, or one of them twice.")
    return found
