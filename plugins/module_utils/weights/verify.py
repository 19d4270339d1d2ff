# SPDX-License-Identifier: Apache-2.0
"""Compare a snapshot's files on disk with what the hub lists: their sizes, and their content by its hash."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

from ..common.abandoned import leave_if_abandoned
from ..common.files import sync_directory
from ..common.module_main import NodeError
from . import cache
from .cache import Snapshot

SHA256, GIT = "sha256", "git-sha1"
THREADS = 8  # files read at once
HASH = re.compile(rf"{SHA256}:[0-9a-f]{{64}}|{GIT}:[0-9a-f]{{40}}")


_LFS_BLOB = re.compile(r"[0-9a-f]{64}")
_CHUNK = 4 * 2**20
_POLL_SECONDS = 1.0
_NAMED = 3  # wrong files that a message names


def expected_hash(snapshot: Snapshot, name: str) -> str:
    """Return the hash that a file must have, or "" if nobody stated one.

    A lock file of an earlier version has no hashes. The hub's client then still has those of large files: it names a
    blob as the hub does, and the hub names these by their SHA-256.
    """
    if name in snapshot.hashes:
        return snapshot.hashes[name]
    blob = os.path.basename(os.path.realpath(os.path.join(snapshot.path, name)))
    return f"{SHA256}:{blob}" if _LFS_BLOB.fullmatch(blob) else ""


def check_sizes(snapshot: Snapshot) -> None:
    """Raise NodeError unless every file exists with its size."""
    found = cache.sizes(snapshot)
    absent = cache.missing(snapshot, found)
    if not absent:
        return
    first = absent[0]
    have = "is missing" if found[first] is None else f"has {found[first]} bytes"
    raise NodeError(
        f"The download of {snapshot.repo}@{snapshot.commit} ended, but {len(absent)} of "
        f"{len(snapshot.files)} files are not as the hub listed them: {first} {have}, expected "
        f"{snapshot.files[first]} bytes. Run again to repeat their download; if that fails, run playbooks/plan.yml "
        "-e refresh=true, and check the exclude patterns.",
        changed=True,
    )


def check_content(
    snapshot: Snapshot, source: str, used: bool, known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Bring every file to disk, compare its content, and return the hashes; remove wrong files, and raise NodeError.

    source: where the files came from. used: instances may have loaded them. known: hashes that were found just now.
    """
    expected = {name: expected_hash(snapshot, name) for name in snapshot.files}
    kinds = {name: text.partition(":")[0] or SHA256 for name, text in expected.items()}
    found = {name: text for name, text in (known or {}).items() if text.startswith(f"{kinds[name]}:")}
    found |= hash_snapshot(snapshot, {name: kind for name, kind in kinds.items() if name not in found})
    _sync_directories(snapshot)
    wrong = [name for name, text in sorted(expected.items()) if text and found[name] != text]
    if not wrong:
        return found
    for name in wrong:
        cache.remove_file(snapshot, name)
    raise NodeError(_wrong_content(snapshot, wrong, expected, found, source, used), changed=True)


def _wrong_content(
    snapshot: Snapshot,
    wrong: list[str],
    expected: Mapping[str, str],
    found: Mapping[str, str],
    source: str,
    used: bool,
) -> str:
    parts = [f"{name} is {found[name]}, expected {expected[name]}" for name in wrong[:_NAMED]]
    if len(wrong) > _NAMED:
        parts.append(f"and {len(wrong) - _NAMED} more")
    text = (
        f"Wrong content in {len(wrong)} of {len(snapshot.files)} files of {snapshot.repo}@{snapshot.commit}, from "
        f"{source}: {'; '.join(parts)}. They are removed from {snapshot.path}. Run again to download them; if they "
        "are wrong again, a mirror or proxy on the way alters them, or this node's disk or memory does (dmesg)."
    )
    if used:
        text += " Instances that loaded them answer wrongly until they load good ones: playbooks/restart.yml."
    return text


def hash_snapshot(snapshot: Snapshot, kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the hash of each file, of the given kind, read by several threads; large files first."""
    stop = threading.Event()
    names = sorted(kinds, key=lambda name: -snapshot.files[name])
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            paths = {name: os.path.join(snapshot.path, name) for name in names}
            futures = {name: pool.submit(_hash_file, path, kinds[name], stop) for name, path in paths.items()}
            while wait(futures.values(), _POLL_SECONDS).not_done:
                leave_if_abandoned()
            return {name: future.result() for name, future in futures.items()}
        finally:
            stop.set()  # the threads end before the pool does


def _hash_file(path: str, kind: str, stop: threading.Event) -> str:
    """Return the hash of a file's content, which is on disk afterwards."""
    try:
        with open(path, "rb", buffering=0) as file:
            if kind == SHA256:
                digest = hashlib.sha256()
            else:  # git's, which begins with the size
                digest = hashlib.sha1(
                    f"blob {os.fstat(file.fileno()).st_size}\0".encode(), usedforsecurity=False
                )
            buffer = memoryview(bytearray(_CHUNK))
            while not stop.is_set():
                count = file.readinto(buffer)
                if not count:
                    break
                digest.update(buffer[:count])
            os.fsync(file.fileno())
    except OSError as error:
        raise NodeError(
            f"{path} cannot be read back from disk: {error.strerror}. Check the disk and its file system (dmesg), and "
            "run again.",
            changed=True,
        ) from error
    return f"{kind}:{digest.hexdigest()}"


def _sync_directories(snapshot: Snapshot) -> None:
    """Bring the names to disk: after a power cut, a marker must not stand for files that are gone."""
    for directory in dict.fromkeys(_directories(snapshot)):
        sync_directory(directory)


def _directories(snapshot: Snapshot) -> Iterable[str]:
    for name in snapshot.files:
        path = os.path.join(snapshot.path, name)
        yield os.path.dirname(os.path.realpath(path))  # of the blob
        yield from _up_to(snapshot.cache_dir, os.path.dirname(path))


def _up_to(top: str, directory: str) -> Iterator[str]:
    while len(directory) >= len(top):
        yield directory
        directory = os.path.dirname(directory)
