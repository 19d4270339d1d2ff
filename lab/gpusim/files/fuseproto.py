# SPDX-License-Identifier: Apache-2.0
"""A FUSE server for a small tree of attributes, which speaks the kernel's protocol on /dev/fuse itself.

No libfuse: a request costs a read, a dictionary look-up and a write, which is cheaper than a binding. Numbers and
structures are those of include/uapi/linux/fuse.h, protocol 7.31; all fields are little-endian, as on every machine that
runs this.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

MAX_WRITE = 4096
_BUFFER = 16384
_MNT_DETACH = 2
_MS_NOSUID_NODEV = 2 | 4

LOOKUP, FORGET, GETATTR, SETATTR, READLINK = 1, 2, 3, 4, 5
OPEN, READ, WRITE, STATFS, RELEASE, INIT = 14, 15, 16, 17, 18, 26
OPENDIR, READDIR, RELEASEDIR, CREATE, INTERRUPT, DESTROY, BATCH_FORGET = 27, 28, 29, 35, 36, 38, 42
FORBIDDEN = {6, 8, 9, 10, 11, 12, 13, 45}  # symlink mknod mkdir unlink rmdir rename link rename2
UNANSWERED = {FORGET, BATCH_FORGET, INTERRUPT}
DIRECT_IO = 1
_ATOMIC_O_TRUNC, _CACHE_SYMLINKS = 1 << 3, 1 << 23
_SIZE, _OWNER_OR_MODE = 1 << 3, 0b111

_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("<QQQQII")
_ATTR_OUT = struct.Struct("<QII")
_DIRENT = struct.Struct("<QQII")


@dataclass(frozen=True)
class Info:
    """The stat result of an entry. `valid`: seconds for which the kernel may cache it."""

    mode: int
    size: int
    valid: float = 0


class Tree(Protocol):
    """The tree that the server serves. Paths are relative to the mount point; errors are OSErrors."""

    def info(self, path: str) -> Info: ...
    def names(self, path: str) -> dict[str, int]: ...  # name -> mode
    def target(self, path: str) -> str: ...
    def open(self, path: str, flags: int) -> int: ...  # DIRECT_IO or 0
    def read(self, path: str) -> bytes: ...
    def write(self, path: str, data: bytes) -> None: ...
    def truncate(self, path: str) -> None: ...


class Server:
    """Mounts a tree and answers until it is unmounted. Writes run in threads, because they may take long."""

    def __init__(self, tree: Tree, point: str) -> None:
        self._tree = tree
        self._point = point
        self._fd = -1
        self._ids: dict[str, int] = {"": 1}
        self._paths: dict[int, str] = {1: ""}
        self._libc = ctypes.CDLL(None, use_errno=True)

    # ------------------------------------------------------------ life

    def mount(self) -> None:
        """Mount at the given directory. Raise OSError if the kernel refuses."""
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other"
        failed = self._libc.mount(
            b"gpusim", self._point.encode(), b"fuse", _MS_NOSUID_NODEV, options.encode()
        )
        if failed:
            number = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(number, f"cannot mount the simulated sysfs: {os.strerror(number)}", self._point)

    def unmount(self) -> None:
        """Detach the mount; serve() then returns."""
        self._libc.umount2(self._point.encode(), _MNT_DETACH)

    def serve(self) -> None:
        """Answer requests until unmounted."""
        while True:
            try:
                request = os.read(self._fd, _BUFFER)
            except OSError as e:
                if e.errno == errno.ENODEV:
                    break
                if e.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                raise
            length, opcode, unique, node, *_ = _IN.unpack_from(request)
            body = request[_IN.size : length]
            if opcode in UNANSWERED:
                continue
            if opcode == WRITE:
                threading.Thread(target=self._answer, args=(opcode, unique, node, body), daemon=True).start()
                continue
            self._answer(opcode, unique, node, body)
        os.close(self._fd)

    def _answer(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        failed, reply = 0, b""
        try:
            handler = self._handlers.get(opcode)
            if opcode in FORBIDDEN:
                failed = errno.EPERM
            elif handler is None:
                failed = errno.ENOSYS
            else:
                reply = handler(self, node, body)
        except OSError as e:
            failed = e.errno or errno.EIO
        except Exception:  # an unanswered request would hang its caller forever
            traceback.print_exc()
            failed = errno.EIO
        # A request that was interrupted is gone, and so is the mount at the end: both are harmless.
        try:
            os.write(self._fd, _OUT.pack(_OUT.size + len(reply), -failed, unique) + reply)
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ENODEV, errno.EBADF):
                raise

    # ------------------------------------------------------------ requests

    def _path(self, node: int) -> str:
        return self._paths[node]

    def _child(self, node: int, name: str) -> tuple[int, str]:
        path = f"{self._paths[node]}/{name}"
        number = self._ids.get(path)
        if number is None:
            number = self._ids[path] = len(self._ids) + 1
            self._paths[number] = path
        return number, path

    @staticmethod
    def _attributes(node: int, info: Info) -> bytes:
        links = 2 if stat.S_ISDIR(info.mode) else 1
        return _ATTR.pack(node, info.size, 0, 0, 0, 0, 0, 0, 0, info.mode, links, 0, 0, 0, 4096, 0)

    def _init(self, node: int, body: bytes) -> bytes:
        _, minor, readahead, flags = struct.unpack_from("<IIII", body)
        wanted = flags & (_ATOMIC_O_TRUNC | _CACHE_SYMLINKS)
        return struct.pack(
            "<IIIIHHIIHHI28x", 7, min(minor, 31), readahead, wanted, 12, 9, MAX_WRITE, 1, 1, 0, 0
        )

    def _lookup(self, node: int, body: bytes) -> bytes:
        name = body.split(b"\0", 1)[0].decode()
        info = self._tree.info(f"{self._path(node)}/{name}")
        number, _ = self._child(node, name)
        seconds, nanos = int(info.valid), int(info.valid % 1 * 1e9)
        return _ENTRY.pack(number, 0, seconds, seconds, nanos, nanos) + self._attributes(number, info)

    def _getattr(self, node: int, body: bytes) -> bytes:
        info = self._tree.info(self._path(node))
        return _ATTR_OUT.pack(int(info.valid), int(info.valid % 1 * 1e9), 0) + self._attributes(node, info)

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid = struct.unpack_from("<I", body)[0]
        if valid & _OWNER_OR_MODE:
            raise PermissionError(errno.EPERM, "attributes are the driver's")
        if valid & _SIZE:
            self._tree.truncate(self._path(node))
        return self._getattr(node, body)

    def _readlink(self, node: int, body: bytes) -> bytes:
        return self._tree.target(self._path(node)).encode()

    def _open(self, node: int, body: bytes) -> bytes:
        flags = struct.unpack_from("<I", body)[0]
        return struct.pack("<QII", 0, self._tree.open(self._path(node), flags), 0)

    def _opendir(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        return self._tree.read(self._path(node))[offset : offset + size]

    def _write(self, node: int, body: bytes) -> bytes:
        size = struct.unpack_from("<QQI", body)[2]
        self._tree.write(self._path(node), body[40 : 40 + size])
        return struct.pack("<II", size, 0)

    def _readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        entries = [(".", stat.S_IFDIR), ("..", stat.S_IFDIR), *self._tree.names(self._path(node)).items()]
        found = bytearray()
        for number, (name, mode) in enumerate(entries[offset:], offset + 1):
            raw = name.encode()
            entry = _DIRENT.pack(number + 1, number, len(raw), stat.S_IFMT(mode) >> 12) + raw
            entry += b"\0" * (-len(entry) % 8)
            if len(found) + len(entry) > size:
                break
            found += entry
        return bytes(found)

    def _create(self, node: int, body: bytes) -> bytes:
        raise PermissionError(errno.EACCES, "nothing can be created here")

    def _statfs(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)

    def _nothing(self, node: int, body: bytes) -> bytes:
        return b""

    _handlers: ClassVar[dict[int, Callable[[Server, int, bytes], bytes]]] = {
        INIT: _init,
        LOOKUP: _lookup,
        GETATTR: _getattr,
        SETATTR: _setattr,
        READLINK: _readlink,
        OPEN: _open,
        READ: _read,
        WRITE: _write,
        OPENDIR: _opendir,
        READDIR: _readdir,
        CREATE: _create,
        STATFS: _statfs,
        RELEASE: _nothing,
        RELEASEDIR: _nothing,
        DESTROY: _nothing,
    }
