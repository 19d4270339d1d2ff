# SPDX-License-Identifier: Apache-2.0
"""The files of a model that is quantized: of an operator's directory, or of a snapshot in the hub's cache."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass

from ..common.files import read_text
from ..common.module_main import NodeError
from ..disk.hub_files import HubRepository
from ..disk.untrusted_tree import walk

_SNAPSHOT = re.compile(r"(?P<cache>.*)/hub/(?P<name>models--[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})")


@dataclass(frozen=True)
class LocalSource:
    """A directory of the operator's, whose links to files are followed."""

    path: str

    def read(self, name: str) -> str | None:
        """Return the text of a file; None if it does not exist."""
        return read_text(os.path.join(self.path, name))

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files by their paths. Raise NodeError."""
        found = {}
        for top, _names, files in os.walk(self.path):
            for path in (os.path.join(top, name) for name in files):
                try:
                    found[os.path.relpath(path, self.path)] = os.stat(path).st_size
                except FileNotFoundError as error:
                    raise NodeError(
                        f"{path} is a link that leads nowhere. Remove it or put its file there, and run again."
                    ) from error
        return found


@dataclass(frozen=True)
class SnapshotSource:
    """A snapshot of the hub's cache, where containers write: its links may lead to blobs of its repository."""

    repository: HubRepository
    commit: str

    def read(self, name: str) -> str | None:
        """Return the text of a file; None if it does not exist. Raise NodeError."""
        place = f"snapshots/{self.commit}/{name}"
        try:
            return self.repository.read(self.repository.behind(place))
        except FileNotFoundError:
            return None

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files by their paths. Raise NodeError."""
        top = f"snapshots/{self.commit}"
        entries = walk(self.repository.cache_dir, f"{self.repository.place}/{top}")
        names = [entry.path for entry in entries if not entry.is_kind(stat.S_IFDIR)]
        return {name: self.repository.size(f"{top}/{name}") or 0 for name in names}


def source_of(path: str) -> LocalSource | SnapshotSource:
    """Return the source at a path. Raise NodeError if there is none."""
    if not os.path.isdir(path):
        raise NodeError(f"The model {path} is not a directory of this node.")
    found = _SNAPSHOT.fullmatch(os.path.abspath(path))
    if found is None:
        return LocalSource(path)
    return SnapshotSource(HubRepository(found["cache"], found["name"]), found["commit"])
