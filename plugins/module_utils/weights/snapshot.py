# SPDX-License-Identifier: Apache-2.0
"""A model at a commit in the Hugging Face cache of a node: which files it must have, and which of them are missing."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..common.module_main import NodeError
from ..disk.hub_files import MARKERS, HubRepository

VERIFIED = "verified"  # the marker's key of the hashes

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
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
    def repository(self) -> HubRepository:
        """Return its repository in the cache."""
        return HubRepository(self.cache_dir, "models--" + self.repo.replace("/", "--"))

    @property
    def repo_dir(self) -> str:
        """Return the path of the repository, for messages: containers write there."""
        return os.path.join(self.cache_dir, self.repository.place)

    @property
    def path(self) -> str:
        """Return the path of the snapshot, for messages and containers."""
        return os.path.join(self.repo_dir, "snapshots", self.commit)

    def place(self, name: str) -> str:
        """Return where the repository has a file of the snapshot, mostly a link to a blob."""
        return f"snapshots/{self.commit}/{name}"

    @property
    def marker_place(self) -> str:
        """Return where the repository has the marker, which lists the files of a completely downloaded snapshot."""
        return f"{MARKERS}/{self.commit}.json"

    @property
    def ref_place(self) -> str:
        """Return where the hub's client maps a branch or tag to a commit; "" if the revision is a commit."""
        return "" if self.revision == self.commit else f"refs/{self.revision}"

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
    """Return the size on disk of every required file; None if it is missing. Raise NodeError for links elsewhere."""
    return {name: snapshot.repository.size(snapshot.place(name)) for name in snapshot.files}


def wrong(snapshot: Snapshot, found: Mapping[str, int | None]) -> list[str]:
    """Return existing files of a wrong size: truncated or corrupt, and never repaired by the hub's client."""
    return [name for name, size in sorted(found.items()) if size is not None and size != snapshot.files[name]]


def missing_files(snapshot: Snapshot, found: Mapping[str, int | None]) -> list[str]:
    """Return files that are missing or have a wrong size."""
    return [name for name, size in sorted(snapshot.files.items()) if found[name] != size]


def remove_file(snapshot: Snapshot, name: str) -> None:
    """Remove a file of the snapshot and the blob behind it, so that it is downloaded again."""
    repository, place = snapshot.repository, snapshot.place(name)
    with contextlib.suppress(FileNotFoundError, NodeError):  # of a link elsewhere only the link goes
        repository.remove(repository.behind(place))
    repository.remove(place)
