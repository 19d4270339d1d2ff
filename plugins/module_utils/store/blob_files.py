# SPDX-License-Identifier: Apache-2.0
"""Files of the content store: their hashes, and further names of them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

from ..common.abandoned import leave_if_abandoned
from ..common.module_main import NodeError

THREADS = 8  # files read at once
_CHUNK = 4 * 2**20
_POLL_SECONDS = 1.0
_COPY = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)


def hash_files(named: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of files, by the names given to them; several are read at once, large ones first."""
    stop = threading.Event()
    names = sorted(named, key=lambda name: -_size(named[name]))
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            futures = {name: pool.submit(hash_file, named[name], stop) for name in names}
            while wait(futures.values(), _POLL_SECONDS).not_done:
                leave_if_abandoned()
            return {name: future.result() for name, future in futures.items()}
        finally:
            stop.set()  # the threads end before the pool does


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:  # hash_file() says it
        return 0


def hash_file(path: str, stop: threading.Event | None = None) -> str:
    """Return the SHA-256 of a file's content in hex digits; the content is on disk afterwards."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            for part in _parts(file.fileno()):
                digest.update(part)
                if stop is not None and stop.is_set():
                    break
            os.fsync(file.fileno())
    except OSError as error:
        raise NodeError(
            f"{path} cannot be read back from disk: {error.strerror}. Check the disk and its file system (dmesg), and "
            "run again.",
            changed=True,
        ) from error
    return digest.hexdigest()


def _parts(descriptor: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_CHUNK))
    while True:
        count = os.readv(descriptor, [buffer])
        if not count:
            return
        yield buffer[:count]


@contextlib.contextmanager
def open_blob(path: str) -> Iterator[int]:
    """Open a file to read it. Raise NodeError for a link, a pipe and the like."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise NodeError(
            f"{path} is a link, and not a file of its own. Put the file there, and run again."
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NodeError(f"{path} is not a regular file. Remove it, and run again.")
        yield descriptor
    finally:
        os.close(descriptor)


def give_name(file: int, directory: int, name: str) -> bool:
    """Give an open file a name in an open directory, in place of what has it; copy it from another file system.

    Return whether it is the same file: a copy may differ from what was read before. The name appears complete.
    """
    temporary = f".{name[:200]}.{secrets.token_hex(8)}"
    try:
        try:
            # Of the descriptor: what has the file's name by now may be another one.
            os.link(f"/proc/self/fd/{file}", temporary, dst_dir_fd=directory, follow_symlinks=True)
            linked = True
        except OSError as error:
            if error.errno not in _COPY:
                raise
            _copy(file, directory, temporary)
            linked = False
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        return linked
    finally:
        with contextlib.suppress(FileNotFoundError):  # also what replace() leaves where both were one file
            os.unlink(temporary, dir_fd=directory)


def _copy(file: int, directory: int, name: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=directory), "wb") as stream:
        os.fchmod(stream.fileno(), stat.S_IMODE(os.fstat(file).st_mode) & 0o755)
        at = 0
        while part := os.pread(file, _CHUNK, at):
            stream.write(part)
            at += len(part)


def link_or_copy(source: str, target: str) -> None:
    """Give a file a second name; copy it where that is on another file system. `target` appears complete."""
    with open_blob(source) as file:
        directory = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            give_name(file, directory, os.path.basename(target))
        finally:
            os.close(directory)
