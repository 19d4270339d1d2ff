# SPDX-License-Identifier: Apache-2.0
"""The sysfs tree of sysfs.py as a file system, with sysfs's errors.

Reads are answered from the state, which is cached by its file's time; processes are scanned at most a few times a
second, and always before a write. An attribute without write permission answers EACCES even to root, files cannot be
created or removed, and a write reaches the driver's rules as a whole.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from ..driver import faults
from ..driver.holders import Scanner
from ..machine.paths import CONTROL
from ..machine.store import FileStore
from .entries import Dir, Entry, File, Link
from .fuseproto import DIRECT_IO, Info
from .mirror import Mirror
from .sysfs import View

PAGE = 4096
_SYNC = f"/{CONTROL}"
# The live files of GPUs and CPUs: their names are permanent, so the kernel may cache them. Opening a file, which is
# never cached, shows whether it is gone or may not be written.
_LASTING = ("/devices/pci0000:00", "/devices/system")


class SysFs:
    """Operations on the tree, for the FUSE server. Paths are relative to the mount point."""

    def __init__(self, store: FileStore, holders: Scanner, mirror: Mirror | None = None) -> None:
        self._store = store
        self._holders = holders
        self._mirror = mirror
        self._view: View | None = None

    def _now(self) -> View:
        node = self._store.read()
        view = self._view
        if view is None or view.node is not node:
            view = self._view = View(node, self._holders)
        return view

    def refresh(self) -> None:
        """Bring the mirror in line with the state."""
        if self._mirror is not None:
            self._mirror.apply(self._now())

    def _entry(self, path: str) -> Entry:
        entry = self._now().find(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, path)
        return entry

    def _file(self, path: str) -> File:
        entry = self._entry(path)
        if isinstance(entry, Dir):
            raise IsADirectoryError(errno.EISDIR, path)
        if isinstance(entry, Link):
            raise OSError(errno.EINVAL, path)
        return entry

    def info(self, path: str) -> Info:
        if path == _SYNC:
            return Info(stat.S_IFREG | 0o200, 0)
        entry = self._entry(path)
        lasting = path in ("", "/devices") or path.startswith(_LASTING)
        valid = 3600.0 if lasting else 0.0
        if isinstance(entry, Dir):
            return Info(stat.S_IFDIR | 0o755, 0, valid)
        if isinstance(entry, Link):
            return Info(stat.S_IFLNK | 0o777, len(entry.target), valid)
        return Info(stat.S_IFREG | entry.mode, PAGE, valid if entry.live else 0.0)

    def names(self, path: str) -> dict[str, int]:
        entry = self._entry(path)
        if not isinstance(entry, Dir):
            raise NotADirectoryError(errno.ENOTDIR, path)
        kinds = {Dir: stat.S_IFDIR, Link: stat.S_IFLNK, File: stat.S_IFREG}
        return {name: kinds[type(child)] for name, child in entry.entries.items()}

    def target(self, path: str) -> str:
        entry = self._entry(path)
        if not isinstance(entry, Link):
            raise OSError(errno.EINVAL, path)
        return entry.target

    def open(self, path: str, flags: int) -> int:
        if path != _SYNC:
            entry = self._file(path)
            if flags & os.O_ACCMODE != os.O_RDONLY and entry.write is None:
                raise PermissionError(errno.EACCES, path)
        return DIRECT_IO

    def read(self, path: str) -> bytes:
        return self._file(path).data()

    def write(self, path: str, data: bytes) -> None:
        if path == _SYNC:
            self.refresh()
            return
        file = self._file(path)
        write = file.write
        if write is None:
            raise PermissionError(errno.EACCES, path)
        text = data.decode(errors="replace").strip()
        holders = [] if file.alone else self._holders.fresh()
        if path.endswith("/current_compute_partition"):
            time.sleep(faults.delay(self._store.read()))
        failed = self._store.change(lambda node: write(node, text, holders), tell=not file.alone)
        if failed:
            raise OSError(failed, path)

    def truncate(self, path: str) -> None:
        if path != _SYNC and self._file(path).write is None:
            raise PermissionError(errno.EACCES, path)
