# SPDX-License-Identifier: Apache-2.0
"""Files below a directory in which a container writes as root: no link of its making is followed, nor any that it puts
there meanwhile.

`top` is the host's own path. `path`, below it, is the container's, and each of its parts is opened from the one before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from typing import IO

from ..common.module_main import NodeError

NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC


def refusal(path: str, what: str) -> NodeError:
    """Return the error about something that a container left where it must not be."""
    shown = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in path)
    return NodeError(
        f"{shown} {what}. A container could write there, so it was neither read nor changed. Find out what left it "
        "there, remove it, and run again.",
        changed=True,
    )


@contextlib.contextmanager
def directory_below(top: str, path: str = "", make: bool = False) -> Iterator[int]:
    """Open a directory; with `make` it is made if missing.

    Raise FileNotFoundError, or NodeError for a link or anything else that is not a directory.
    """
    descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        done = top
        for part in path.split("/") if path else ():
            done = os.path.join(done, part)
            try:
                child = _open_part(descriptor, part, make)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise refusal(done, f"is not a directory of its own ({error.strerror})") from error
            os.close(descriptor)
            descriptor = child
        yield descriptor
    finally:
        os.close(descriptor)


def _open_part(inside: int, part: str, make: bool) -> int:
    if part in ("", ".", ".."):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=inside)
    return os.open(part, os.O_RDONLY | os.O_DIRECTORY | NO_LINK, dir_fd=inside)


@contextlib.contextmanager
def file_below(top: str, path: str) -> Iterator[IO[bytes]]:
    """Open a file to read it. Raise FileNotFoundError, or NodeError for a link, a pipe and the like."""
    parent, name = os.path.split(path)
    with directory_below(top, parent) as inside:
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | NO_LINK, dir_fd=inside)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise refusal(os.path.join(top, path), f"is not a regular file ({error.strerror})") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refusal(os.path.join(top, path), "is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read_below(top: str, path: str, limit: int = 2**20) -> str | None:
    """Return a file's text; None if it does not exist. Raise NodeError for more than `limit` bytes, and for links."""
    try:
        with file_below(top, path) as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        return None
    if len(data) > limit:
        raise refusal(os.path.join(top, path), f"has more than {limit} bytes")
    return data.decode("utf-8", "replace")


def names_below(top: str, path: str = "") -> list[str]:
    """Return the names in a directory, sorted; none if it does not exist. Raise NodeError for a link."""
    try:
        with directory_below(top, path) as inside:
            return sorted(os.listdir(inside))
    except FileNotFoundError:
        return []


def remove_below(top: str, path: str) -> None:
    """Remove whatever has this name, a directory with all that it contains; do nothing if nothing has it."""
    parent, name = os.path.split(path)
    with contextlib.suppress(FileNotFoundError), directory_below(top, parent) as inside:
        try:
            os.unlink(name, dir_fd=inside)
        except IsADirectoryError:  # no link is followed there, and it is the open directory's path
            _remove(f"/proc/self/fd/{inside}/{name}", os.path.join(top, path))


def remove_tree(path: str) -> None:
    """Remove a directory in which a container wrote; do nothing if it does not exist. Raise NodeError if any stays."""
    _remove(path, path)


def _remove(path: str, shown: str) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except (OSError, RecursionError) as error:  # the second where it is nested too deeply
        what = error.strerror if isinstance(error, OSError) else "it is nested too deeply"
        raise NodeError(
            f"{shown} cannot be removed: {what}. Run rm -rf {shown} there, and run again."
        ) from error
