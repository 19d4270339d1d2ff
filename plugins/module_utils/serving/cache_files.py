# SPDX-License-Identifier: Apache-2.0
"""The files of an instance's caches as one archive: the same files make the same bytes.

A container's root writes below the cache directory, so nothing here follows its links, and no name in an archive
leads out of it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from ..common.module_main import NodeError
from ..disk.beneath import NO_LINK, directory_below, file_below
from ..disk.untrusted_tree import walk

ROOTS = (
    "aiter",
    "triton",
    "vllm/modelinfos",
    "vllm/rocm_segmented_attention",
    "vllm/startup_plan",
    "vllm/torch_compile_cache",
)
"""What is worth copying to another node, below the cache directory. Left out: what vLLM found out about the links
between this node's GPUs."""
REPLACED = "vllm/startup_plan/"
"""Names there do not express all that the content depends on; everywhere else they do, and existing files stay."""

COMMAND = f"{REPLACED}command.sha256"
"""The supervisor's note to which command a plan belongs (warm_start.py); without a plan it is nothing to keep."""

_LEFT_OUT = re.compile(
    r"aiter/[^/]+/build(/|$)|(^|/)(lock_[^/]*|[^/]*\.lock|tmp\.[^/]*|[^/]*\.tmp(\.[^/]*)?)(/|$)"
)


@dataclass(frozen=True)
class PackedArchive:
    """An archive. content: bytes of the files in it."""

    sha256: str
    bytes: int
    content: int
    files: int


class TooLarge(NodeError):
    """The caches are larger than the operator wants to move."""


class _Hashed:
    """A stream that hashes what is written to it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.digest, self.bytes = stream, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        """Write, as a file does."""
        self.digest.update(data)
        self.bytes += len(data)
        return self._stream.write(data)

    def flush(self) -> None:
        """Flush, as a file does."""
        self._stream.flush()


def pack(directory: str, stream: IO[bytes], limit: int) -> PackedArchive:
    """Write the archive of a cache directory. Raise TooLarge above `limit` bytes of content."""
    hashed = _Hashed(stream)
    content = files = 0
    # Neither the time nor a name is in the header, nor are owners and times of files in what follows.
    with contextlib.ExitStack() as ends:
        packed: Any = ends.enter_context(gzip.GzipFile("", "wb", 1, hashed, mtime=0))
        archive = ends.enter_context(tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT))
        for path, opened, found in _files(directory):
            content += found.st_size
            if content > limit:
                raise TooLarge(f"{directory} has more than {limit} bytes of caches (vllm_serve_bundle_limit)")
            item = tarfile.TarInfo(path)
            item.size, item.mode = found.st_size, 0o755 if found.st_mode & 0o100 else 0o644
            archive.addfile(item, opened)
            files += 1
    return PackedArchive(hashed.digest.hexdigest(), hashed.bytes, content, files)


def _files(directory: str) -> Iterator[tuple[str, IO[bytes], os.stat_result]]:
    """Yield every regular file below the roots, in the order of paths; incomplete files are left out."""
    wanted = [path for path in sorted(_names(directory)) if not _LEFT_OUT.search(path)]
    for path in wanted if wanted != [COMMAND] else ():
        # It may be gone, or replaced meanwhile.
        with contextlib.suppress(FileNotFoundError, NodeError), file_below(directory, path) as opened:
            yield path, opened, os.fstat(opened.fileno())


def _names(directory: str) -> Iterator[str]:
    for root in ROOTS:
        with contextlib.suppress(FileNotFoundError, NodeError):  # a link in place of it
            files = (entry for entry in walk(directory, root) if entry.is_kind(stat.S_IFREG))
            yield from (f"{root}/{entry.path}" for entry in files)


def check_archive(source: str) -> None:
    """Raise NodeError for an archive that pack() did not write."""
    with tarfile.open(source, "r|gz") as archive:
        for item in archive:
            _check(item)


def unpack(source: str, directory: str) -> int:
    """Write a checked archive's files below a cache directory; return how many were not there before."""
    written = 0
    with tarfile.open(source, "r|gz") as archive:
        for item in archive:
            _check(item)
            content = archive.extractfile(item)
            if content is not None:
                written += _write(directory, item, content)
    return written


def _check(item: tarfile.TarInfo) -> None:
    parts = item.name.split("/")
    inside = any(item.name.startswith(f"{root}/") for root in ROOTS)
    if not item.isreg() or not inside or not {"", ".", ".."}.isdisjoint(parts):
        raise NodeError(f"{item.name!r} is not a file of a cache")


def _write(directory: str, item: tarfile.TarInfo, content: IO[bytes]) -> bool:
    parent, name = os.path.split(item.name)
    with directory_below(directory, parent, make=True) as inside:
        if not item.name.startswith(REPLACED):
            with contextlib.suppress(FileNotFoundError):
                os.stat(name, dir_fd=inside, follow_symlinks=False)
                return False
        temporary = f".{name[:200]}.{os.getpid()}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o600, dir_fd=inside)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                shutil.copyfileobj(content, stream, 2**20)
                os.fchmod(descriptor, item.mode & 0o755)
            os.replace(temporary, name, src_dir_fd=inside, dst_dir_fd=inside)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=inside)
            raise
    return True
