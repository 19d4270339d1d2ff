# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face cache of a node: a snapshot's files, which of them are missing, and the marker of a complete one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..common.files import read_text, sync_directory, write_atomic
from ..common.module_main import NodeError

VERIFIED = "verified"  # the marker's key of the hashes

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
_UNIQUE = re.compile(r"\.[0-9a-f]{8}\.incomplete$")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Snapshot:
    """A model at a commit in a cache; `files` are the paths and sizes (bytes) that it must have.

    hashes: of the files' content, as far as the hub stated them, "sha256:…" or "git-sha1:…".
    """

    cache_dir: str
    repo: str
    revision: str
    commit: str
    files: Mapping[str, int]
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    hashes: Mapping[str, str] = field(default_factory=dict)

    @property
    def repo_dir(self) -> str:
        """Return hub/models--org--name in the cache."""
        return os.path.join(self.cache_dir, "hub", "models--" + self.repo.replace("/", "--"))

    @property
    def path(self) -> str:
        """Return the snapshot's directory, whose files are links into blobs/."""
        return os.path.join(self.repo_dir, "snapshots", self.commit)

    @property
    def marker_path(self) -> str:
        """Return the path of the marker, which lists the files of a completely downloaded snapshot."""
        return os.path.join(self.repo_dir, ".instinct-fleet", f"{self.commit}.json")

    @property
    def ref_path(self) -> str:
        """Return the hub client's file that maps a branch or tag to a commit; "" if the revision is a commit."""
        return "" if self.revision == self.commit else os.path.join(self.repo_dir, "refs", self.revision)

    @property
    def bytes(self) -> int:
        """Return the sum of all sizes."""
        return sum(self.files.values())

    @property
    def marker(self) -> dict[str, Any]:
        """Return the marker's content, but for the hashes that were found."""
        return {
            "repo": self.repo,
            "commit": self.commit,
            "revision": self.revision,
            "files": dict(sorted(self.files.items())),
            "include": list(self.include),
            "exclude": list(self.exclude),
            "bytes": self.bytes,
        }


def check_snapshot(snapshot: Snapshot) -> None:
    """Raise NodeError for names that lead outside the cache, and for a snapshot without files."""
    if not _REPO.fullmatch(snapshot.repo) or ".." in snapshot.repo:
        raise NodeError(f"repo: {snapshot.repo!r} is neither a repository (org/name) nor an absolute path.")
    if not _COMMIT.fullmatch(snapshot.commit):
        raise NodeError(
            f"commit: {snapshot.commit!r} is not a commit of 40 hex digits. Weights are fetched by commit, "
            "so that every node has the same; fleet.lock.json has it, written by playbooks/plan.yml."
        )
    if not snapshot.files:
        raise NodeError(
            f"files: no file of {snapshot.repo} is wanted. Check the include and exclude patterns of the "
            "deployment."
        )
    for name in [*snapshot.files, snapshot.revision]:
        if name.startswith("/") or ".." in name.split("/"):
            raise NodeError(f"{name!r} leads outside the model's directory.")


def sizes(snapshot: Snapshot) -> dict[str, int | None]:
    """Return the size on disk of every required file; None if it is missing."""
    found: dict[str, int | None] = {}
    for name in snapshot.files:
        try:
            found[name] = os.stat(os.path.join(snapshot.path, name)).st_size
        except (FileNotFoundError, NotADirectoryError):
            found[name] = None
    return found


def wrong(snapshot: Snapshot, found: Mapping[str, int | None]) -> list[str]:
    """Return existing files of a wrong size: truncated or corrupt, and never repaired by the hub's client."""
    return [name for name, size in sorted(found.items()) if size is not None and size != snapshot.files[name]]


def missing(snapshot: Snapshot, found: Mapping[str, int | None]) -> list[str]:
    """Return files that are missing or have a wrong size."""
    return [name for name, size in sorted(snapshot.files.items()) if found[name] != size]


def remove_file(snapshot: Snapshot, name: str) -> None:
    """Remove a file of the snapshot and the blob behind it, so that it is downloaded again."""
    path = os.path.join(snapshot.path, name)
    blob = os.path.realpath(path)
    if blob != path and os.path.dirname(blob) == os.path.realpath(os.path.join(snapshot.repo_dir, "blobs")):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(blob)
    os.unlink(path)


def partial_bytes(snapshot: Snapshot) -> int:
    """Return the bytes of interrupted downloads that the next one can continue."""
    return sum(size for name, size in _unfinished(snapshot).items() if not _UNIQUE.search(name))


def abandoned(snapshot: Snapshot) -> dict[str, int]:
    """Return paths and sizes of unfinished files that no download will continue.

    huggingface_hub since 2.x writes to <etag>.<random>.incomplete, which a killed download leaves behind
    (huggingface/huggingface_hub#4228); earlier versions write to <etag>.incomplete, which the next download continues.
    """
    blobs = os.path.join(snapshot.repo_dir, "blobs")
    found = _unfinished(snapshot)
    return {os.path.join(blobs, name): size for name, size in sorted(found.items()) if _UNIQUE.search(name)}


def _unfinished(snapshot: Snapshot) -> dict[str, int]:
    with (
        contextlib.suppress(FileNotFoundError),
        os.scandir(os.path.join(snapshot.repo_dir, "blobs")) as entries,
    ):
        return {entry.name: entry.stat().st_size for entry in entries if entry.name.endswith(".incomplete")}
    return {}


def has_marker(snapshot: Snapshot) -> bool:
    """Return whether the marker exists with the right content, hashes of all files included.

    That of an earlier version has none: these files were compared by their sizes only.
    """
    try:
        found = json.loads(read_text(snapshot.marker_path) or "")
        verified = found.pop(VERIFIED, {})
        return bool(found == snapshot.marker and set(snapshot.files) <= set(verified))
    except (ValueError, TypeError, AttributeError):
        return False


def write_marker(snapshot: Snapshot, verified: Mapping[str, str]) -> None:
    """Record that the snapshot is complete. verified: the hashes of its files."""
    directory = os.path.dirname(snapshot.marker_path)
    os.makedirs(directory, mode=0o755, exist_ok=True)
    marker = {**snapshot.marker, VERIFIED: verified}
    write_atomic(snapshot.marker_path, json.dumps(marker, indent=1, sort_keys=True) + "\n", 0o644)
    sync_directory(directory)


def remove_marker(snapshot: Snapshot) -> None:
    """Remove the marker: files that replace others must not count as verified before they are."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(snapshot.marker_path)


def has_ref(snapshot: Snapshot) -> bool:
    """Return whether the cache maps the revision's name to this commit."""
    return not snapshot.ref_path or (read_text(snapshot.ref_path) or "").strip() == snapshot.commit


def write_ref(snapshot: Snapshot) -> None:
    """Record the commit of the revision's name: a download by commit does not, and look-ups by name need it."""
    os.makedirs(os.path.dirname(snapshot.ref_path), mode=0o755, exist_ok=True)
    write_atomic(snapshot.ref_path, snapshot.commit, 0o644)


def make_readable(snapshot: Snapshot) -> None:
    """Let a serving container of any user read the model."""
    for directory, names, files in os.walk(snapshot.repo_dir):
        for name in [*names, *files]:
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                continue
            wanted = mode | (0o555 if stat.S_ISDIR(mode) else 0o444)
            if wanted != mode:
                os.chmod(path, stat.S_IMODE(wanted))
    os.chmod(snapshot.repo_dir, stat.S_IMODE(os.stat(snapshot.repo_dir).st_mode) | 0o555)


def local_model(path: str, names: Sequence[str] = ("config.json", "params.json")) -> None:
    """Check that a directory contains a model. Raise NodeError if it does not."""
    if not os.path.isdir(path):
        raise NodeError(
            f"The model {path} is not a directory of this node. A model given by path is not fetched: put "
            "it there, or give a repository of the hub (org/name)."
        )
    if not any(os.path.isfile(os.path.join(path, name)) for name in names):
        raise NodeError(f"The directory {path} holds no model: it has neither {' nor '.join(names)}.")
