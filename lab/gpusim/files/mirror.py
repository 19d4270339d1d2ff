# SPDX-License-Identifier: Apache-2.0
"""The part of the sysfs tree that only changes with the state, as plain files on a tmpfs.

Reading a plain file takes microseconds; a file system in Python takes a hundred times as long, and programs that
inspect a node's GPUs read hundreds of files. Live entries are links into the served file system.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterator
from pathlib import Path

from .entries import Entry, File, Link
from .sysfs import View

Item = tuple[str, bytes]  # kind (d, f or l) and contents or target


class Mirror:
    """Keeps a directory in line with a View, changing only the differences from the last time."""

    def __init__(self, root: Path, served: Path) -> None:
        self._root = str(root)
        self._served = str(served)
        self._have: dict[str, Item] = {"": ("d", b"")}
        self._fixed: dict[str, Hashable] = {}
        self._lock = threading.Lock()

    def apply(self, view: View) -> None:
        """Write the view's permanent part; removed entries go first, deepest first."""
        with self._lock:
            fixed: dict[str, Hashable] = {}
            want = dict(self._walk("", view.root, fixed))
            have = self._have
            kept = tuple(f"{path}/" for path in fixed if fixed[path] == self._fixed.get(path))
            gone = (p for p in have if (p not in want or want[p][0] != have[p][0]) and not p.startswith(kept))
            for path in sorted(gone, reverse=True):
                self._remove(path, have[path][0])
            made: dict[bytes, str] = {}
            for path, item in want.items():
                if have.get(path) != item:
                    self._make(path, item, made)
            self._have = {p: item for p, item in have.items() if p.startswith(kept)} | want if kept else want
            self._fixed = fixed

    def _walk(self, path: str, entry: Entry, fixed: dict[str, Hashable]) -> Iterator[tuple[str, Item]]:
        """Yield everything below an entry, except for fixed parts that have been written already."""
        if isinstance(entry, Link):
            yield path, ("l", entry.target.encode())
        elif entry.live:
            yield path, ("l", f"{self._served}{path}".encode())
        elif isinstance(entry, File):
            yield path, ("f", entry.data())
        else:
            yield path, ("d", b"")
            if entry.fixed is not None:
                fixed[path] = entry.fixed
                if self._fixed.get(path) == entry.fixed:
                    return
            for name, child in entry.entries.items():
                yield from self._walk(f"{path}/{name}", child, fixed)

    def _remove(self, path: str, kind: str) -> None:
        if kind == "d":
            os.rmdir(self._root + path)
        else:
            os.unlink(self._root + path)

    def _make(self, path: str, item: Item, made: dict[bytes, str]) -> None:
        """Create files and links atomically: under another name, then renamed.

        Files that are `made` at the same time with the same contents are one file with many names: hundreds of CPUs
        share contents.
        """
        kind, content = item
        full = self._root + path
        if kind == "d":
            os.mkdir(full, 0o755)
            return
        new = f"{full}.new"
        if kind == "l":
            os.symlink(content, new)
        elif content in made:
            os.link(made[content], new)
        else:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
            try:
                os.write(descriptor, content)
            finally:
                os.close(descriptor)
            made[content] = full
        os.rename(new, full)
