# SPDX-License-Identifier: Apache-2.0
"""Look at every file below a directory in which a container wrote, refuse what must not be there, and set modes.

Nothing outside of the tree is touched: entries are opened from the descriptor of their directory, and links are not
followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Callable

from ..common.module_main import NodeError
from .beneath import NO_LINK, directory_below, refusal

DEEPEST = 64  # directories in one another: a descriptor is open for each
_KINDS = {
    stat.S_IFLNK: "is a link",
    stat.S_IFIFO: "is a pipe",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
}


@dataclass(frozen=True)
class TreeEntry:
    """What has a name in a tree. path: below the tree's top. inside: descriptor of its directory, open for now."""

    top: str
    path: str
    inside: int
    status: os.stat_result

    @property
    def name(self) -> str:
        """Return its name in its directory."""
        return os.path.basename(self.path)

    @property
    def full(self) -> str:
        """Return the path for messages."""
        return os.path.join(self.top, self.path)

    def is_kind(self, kind: int) -> bool:
        """Return whether it is a directory (stat.S_IFDIR), a regular file (stat.S_IFREG), and so on."""
        return stat.S_IFMT(self.status.st_mode) == kind

    def link(self) -> str:
        """Return where a link leads."""
        return os.readlink(self.name, dir_fd=self.inside)


Accepts = Callable[[TreeEntry], bool]


def never(_entry: TreeEntry) -> bool:
    """Accept nothing but directories, and regular files with one name."""
    return False


def walk(top: str, path: str = "") -> Iterator[TreeEntry]:
    """Yield everything below a directory, which is not a link itself; a directory comes before what it contains.

    Raise NodeError for what is nested too deeply, FileNotFoundError if the directory does not exist.
    """
    with directory_below(top, path) as inside:
        yield from _below(os.path.join(top, path) if path else top, "", inside, 0)


def _below(top: str, path: str, inside: int, depth: int) -> Iterator[TreeEntry]:
    for name in sorted(os.listdir(inside)):
        with contextlib.suppress(FileNotFoundError):  # gone meanwhile
            status = os.stat(name, dir_fd=inside, follow_symlinks=False)
            entry = TreeEntry(top, os.path.join(path, name), inside, status)
            yield entry
            if entry.is_kind(stat.S_IFDIR):
                if depth >= DEEPEST:
                    raise refusal(entry.full, f"is more than {DEEPEST} directories deep")
                child = _opened(entry, os.O_DIRECTORY)
                try:
                    yield from _below(top, entry.path, child, depth + 1)
                finally:
                    os.close(child)


def checked_entries(top: str, path: str = "", accepts: Accepts = never) -> Iterator[TreeEntry]:
    """Yield what walk() does. Raise NodeError for anything but directories and regular files with one name.

    accepts: other entries that may be there.
    """
    for entry in walk(top, path):
        plain = entry.is_kind(stat.S_IFDIR) or (entry.is_kind(stat.S_IFREG) and entry.status.st_nlink == 1)
        if not plain and not accepts(entry):
            other = f"has {entry.status.st_nlink} names (hard links)"
            raise refusal(entry.full, _KINDS.get(stat.S_IFMT(entry.status.st_mode), other))
        yield entry


def set_mode(entry: TreeEntry, mode: int) -> None:
    """Set the mode of the very file or directory of an entry. Raise NodeError if something else has its name by now."""
    descriptor = _opened(entry, 0)
    try:
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def publish_tree(top: str, path: str = "", programs: bool = False) -> dict[str, int]:
    """Make a tree that a container wrote this process's own, and readable for all; return its files' sizes by path.

    programs: files that their owner may execute stay executable. Raise NodeError, before anything is changed, for what
    is neither a directory nor a regular file with one name.
    """
    for _entry in checked_entries(top, path):
        pass
    sizes = {}
    for entry in checked_entries(top, path):
        descriptor = _opened(entry, 0)
        try:
            program = programs and entry.status.st_mode & stat.S_IXUSR
            _publish(descriptor, entry.full, 0o755 if program or entry.is_kind(stat.S_IFDIR) else 0o644)
        finally:
            os.close(descriptor)
        if entry.is_kind(stat.S_IFREG):
            sizes[entry.path] = entry.status.st_size
    with directory_below(top, path) as inside:
        _publish(inside, os.path.join(top, path), 0o755)
    return sizes


def _publish(descriptor: int, name: str, mode: int) -> None:
    try:
        os.fchown(descriptor, os.geteuid(), os.getegid())
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    except OSError as error:
        raise NodeError(
            f"{name} cannot be brought to disk: {error.strerror}. Check the disk and its file system (dmesg), and run "
            "again.",
            changed=True,
        ) from error


def _opened(entry: TreeEntry, flags: int) -> int:
    """Return a descriptor of an entry. Raise NodeError if something else has its name by now."""
    try:
        descriptor = os.open(entry.name, os.O_RDONLY | os.O_NONBLOCK | NO_LINK | flags, dir_fd=entry.inside)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise refusal(entry.full, f"was replaced while it was being checked ({error.strerror})") from error
    found = os.fstat(descriptor)
    if (found.st_dev, found.st_ino) != (entry.status.st_dev, entry.status.st_ino):
        os.close(descriptor)
        raise refusal(entry.full, "was replaced while it was being checked")
    return descriptor
