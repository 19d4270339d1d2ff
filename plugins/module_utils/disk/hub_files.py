# SPDX-License-Identifier: Apache-2.0
"""A repository in the hub's cache, in whose directory containers write that download:

    hub/models--org--name/blobs/<hash>               content
    hub/models--org--name/snapshots/<commit>/<path>  links to blobs

A link may lead to a blob of its own repository, and to nothing else.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from .beneath import directory_below, file_below, names_below, read_below, refusal, remove_below

MARKERS = ".instinct-fleet"


def is_blob(path: str, target: str) -> bool:
    """Return whether a link leads to a blob. path: of the link, below the repository's directory."""
    found = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return not target.startswith("/") and os.path.dirname(found) == "blobs"


@dataclass(frozen=True)
class HubRepository:
    """A repository of a cache; all paths are below its directory. `name` is models--org--name."""

    cache_dir: str
    name: str

    @property
    def place(self) -> str:
        """Return its directory, below that of the cache."""
        return f"hub/{self.name}"

    def behind(self, path: str) -> str:
        """Return the path of the blob to which a link leads, or that of a file that is not a link.

        Raise FileNotFoundError, or NodeError for a link that leads elsewhere.
        """
        parent, name = os.path.split(path)
        with directory_below(self.cache_dir, f"{self.place}/{parent}".rstrip("/")) as inside:
            if not stat.S_ISLNK(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
                return path
            target = os.readlink(name, dir_fd=inside)
        if not is_blob(path, target):
            raise refusal(
                os.path.join(self.cache_dir, self.place, path), "is a link that does not lead to a blob"
            )
        return os.path.normpath(os.path.join(parent, target))

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file, or the blob behind a link. Raise FileNotFoundError, or NodeError for anything else."""
        with file_below(self.cache_dir, f"{self.place}/{self.behind(path)}") as file:
            yield file

    def size(self, path: str) -> int | None:
        """Return the size of a file; None if it does not exist. Raise NodeError."""
        try:
            with self.opened(path) as file:
                return os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, none if it does not exist. Raise NodeError."""
        return names_below(self.cache_dir, f"{self.place}/{path}")

    def read(self, path: str) -> str | None:
        """Return a file's text, None if it does not exist. Raise NodeError."""
        return read_below(self.cache_dir, f"{self.place}/{path}", 64 * 2**20)

    def remove(self, path: str) -> None:
        """Remove a name, and what is behind it if it is a directory. Raise NodeError."""
        remove_below(self.cache_dir, f"{self.place}/{path}")

    def sync(self, path: str) -> None:
        """Bring a directory's names to disk. Raise NodeError."""
        with directory_below(self.cache_dir, f"{self.place}/{path}".rstrip("/")) as inside:
            os.fsync(inside)
