# SPDX-License-Identifier: Apache-2.0
"""Compare a snapshot's files on disk with what the hub lists: their sizes, and their content by its hash."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

from ..common.abandoned import leave_if_abandoned
from ..common.module_main import NodeError
from ..disk.beneath import directory_below
from .snapshot import Snapshot, missing_files, remove_file, sizes

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
    try:
        blob = os.path.basename(snapshot.repository.behind(snapshot.place(name)))
    except FileNotFoundError:
        return ""
    return f"{SHA256}:{blob}" if _LFS_BLOB.fullmatch(blob) else ""


def check_sizes(snapshot: Snapshot) -> None:
    """Raise NodeError unless every file exists with its size."""
    found = sizes(snapshot)
    absent = missing_files(snapshot, found)
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
        remove_file(snapshot, name)
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
        f"{source}: {'; '.join(parts)}. They were removed from {snapshot.path}. Run again to download them; if they "
        "are wrong again, a mirror or proxy on the way alters them, or this node's disk or memory does (dmesg)."
    )
    if used:
        text += (
            " Instances that loaded them give wrong answers until they load good ones: playbooks/restart.yml."
        )
    return text


def hash_snapshot(snapshot: Snapshot, kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the hash of each file, of the given kind, read by several threads; large files first."""
    stop = threading.Event()
    names = sorted(kinds, key=lambda name: -snapshot.files[name])
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            futures = {name: pool.submit(_hash_file, snapshot, name, kinds[name], stop) for name in names}
            while wait(futures.values(), _POLL_SECONDS).not_done:
                leave_if_abandoned()
            return {name: future.result() for name, future in futures.items()}
        finally:
            stop.set()  # the threads end before the pool does


def _hash_file(snapshot: Snapshot, name: str, kind: str, stop: threading.Event) -> str:
    """Return the hash of a file's content, which is on disk afterwards."""
    try:
        with snapshot.repository.opened(snapshot.place(name)) as file:
            if kind == SHA256:
                digest = hashlib.sha256()
            else:  # git's, which begins with the size
                digest = hashlib.sha1(
                    f"blob {os.fstat(file.fileno()).st_size}\0".encode(), usedforsecurity=False
                )
            buffer = memoryview(bytearray(_CHUNK))
            while not stop.is_set():
                count = os.readv(file.fileno(), [buffer])
                if not count:
                    break
                digest.update(buffer[:count])
            os.fsync(file.fileno())
    except OSError as error:
        raise NodeError(
            f"{snapshot.path}/{name} cannot be read back from disk: {error.strerror}. Check the disk and its file "
            "system (dmesg), and run again.",
            changed=True,
        ) from error
    return f"{kind}:{digest.hexdigest()}"


def _sync_directories(snapshot: Snapshot) -> None:
    """Bring the names to disk: after a power cut, a marker must not stand for files that are gone."""
    for directory in dict.fromkeys(_directories(snapshot)):
        snapshot.repository.sync(directory)
    for directory in ("hub", ""):
        with directory_below(snapshot.cache_dir, directory) as inside:
            os.fsync(inside)


def _directories(snapshot: Snapshot) -> Iterator[str]:
    for place in map(snapshot.place, snapshot.files):
        yield os.path.dirname(snapshot.repository.behind(place))
        parts = place.split("/")
        yield from ("/".join(parts[:count]) for count in range(len(parts)))
