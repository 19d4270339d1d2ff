# SPDX-License-Identifier: Apache-2.0
"""The repositories of the lab's hub on disk, as lab.hub.make writes them:

hub.json                            {"tokens": {"hf_…": {"name": "lab", "gated": ["org/name"]}}}
<org>/<name>/meta.json              {"gated": false | "auto" | "manual", "card": {…}, "security": {…}}
<org>/<name>/refs.json              {"branches": {"main": sha}, "tags": {"v1": sha}}
<org>/<name>/commits/<sha>/commit.json     {"title", "date", "parent"}
<org>/<name>/commits/<sha>/declared.json   optional: {path: {"size", "sha256"}}, listed but missing
<org>/<name>/commits/<sha>/files/…
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any


class HubError(Exception):
    """An answer other than success. `code` is the X-Error-Code that huggingface_hub evaluates."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(frozen=True)
class File:
    """One file of a commit. `path` is None if it is only declared."""

    name: str
    size: int
    blob_id: str  # git's SHA-1: of the content, or of the LFS pointer
    sha256: str | None  # of the content, for LFS files
    path: Path | None

    @property
    def etag(self) -> str:
        return self.sha256 or self.blob_id


def git_blob_id(content: bytes) -> str:
    """Return the id that git gives to `content`."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    """Return the text that git itself stores for an LFS file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def _lfs_file(name: str, size: int, sha256: str, path: Path | None) -> File:
    return File(name, size, git_blob_id(lfs_pointer(sha256, size)), sha256, path)


def read_json(path: Path, default: Any) -> Any:
    """Return the content of a JSON file, or `default` if it does not exist."""
    return json.loads(path.read_text()) if path.exists() else default


@lru_cache(maxsize=64)
def commit_files(commit: Path) -> dict[str, File]:
    """Return the files of a commit's directory, name to File, ordered by name. A commit never changes."""
    root = commit / "files"
    attributes = root / ".gitattributes"
    lines = attributes.read_text().splitlines() if attributes.exists() else []
    patterns = [line.split()[0] for line in lines if "filter=lfs" in line]
    found = {
        name: _lfs_file(name, entry["size"], entry["sha256"], None)
        for name, entry in read_json(commit / "declared.json", {}).items()
    }
    for path in root.rglob("*"):
        if path.is_file():
            name, content = path.relative_to(root).as_posix(), path.read_bytes()
            if any(fnmatch(path.name, pattern) for pattern in patterns):
                found[name] = _lfs_file(name, len(content), hashlib.sha256(content).hexdigest(), path)
            else:
                found[name] = File(name, len(content), git_blob_id(content), None, path)
    return dict(sorted(found.items()))


class Repository:
    """One repository of the root, read again for each request."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.directory = directory
        about = read_json(directory / "meta.json", {})
        self.gated = about.get("gated", False)
        self.card: dict[str, Any] | None = about.get("card")
        self.security: dict[str, Any] | None = about.get("security")
        refs = read_json(directory / "refs.json", {})
        self.branches: dict[str, str] = refs.get("branches", {})
        self.tags: dict[str, str] = refs.get("tags", {})

    def commit(self, revision: str) -> str:
        """Return the commit for a branch, a tag, a commit id or its unambiguous prefix (7 digits or more)."""
        known = self.branches.get(revision) or self.tags.get(revision)
        if known is None and re.fullmatch("[0-9a-f]{7,40}", revision):
            matches = list((self.directory / "commits").glob(revision + "*"))
            known = matches[0].name if len(matches) == 1 else None
        if known is None:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return known

    def files(self, commit: str) -> dict[str, File]:
        return commit_files(self.directory / "commits" / commit)

    def history(self, commit: str) -> list[dict[str, Any]]:
        """Return the commit and its ancestors, newest first."""
        out: list[dict[str, Any]] = []
        current: str | None = commit
        while current:
            entry = read_json(self.directory / "commits" / current / "commit.json", {})
            out.append({"id": current, **entry})
            current = entry.get("parent")
        return out
