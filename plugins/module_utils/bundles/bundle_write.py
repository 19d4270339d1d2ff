# SPDX-License-Identifier: Apache-2.0
"""Write a bundle: the volumes, of blobs of the content store, and then the index, which completes it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..common.abandoned import leave_if_abandoned
from ..common.disk_space import free_bytes, human_size
from ..common.files import read_text, sync_directory, write_atomic
from ..common.hashing import text_hash
from ..common.module_main import NodeError
from ..store.blob_files import hash_file
from ..store.blobs import Store
from .bundle_index import END, BundleIndex, Piece, Volume, parse_index
from .bundle_pieces import agreeing, parts, refuse_wrong

INDEX, LOCK = "bundle.json", "fleet.lock.json"
SIGNATURE = "bundle.json.sig"
PARTIAL = "bundle.partial.json"  # the index of a bundle that is being written
DISK_MARGIN = 16 * 2**20


def read_index(place: str) -> BundleIndex:
    """Return the index of a bundle, by its directory or its bundle.json. Raise NodeError."""
    path = os.path.join(place, INDEX) if os.path.isdir(place) else place
    text = read_text(path)
    if text is None:
        begun = os.path.exists(os.path.join(os.path.dirname(path), PARTIAL))
        fix = (
            "It was interrupted before it was complete: run bundle_create.yml again, which continues."
            if begun
            else "Name the directory of a bundle, and copy bundle.json with the volumes."
        )
        raise NodeError(f"{path} is not there, so this is not a complete bundle. {fix}")
    return parse_index(text, path)


def write_bundle(
    store: Store, index: BundleIndex, lock_text: str, directory: str, check: bool
) -> dict[str, Any]:
    """Write what is not there yet of a bundle, and return the module's result. Raise NodeError.

    A volume that is there with the hash that an earlier run recorded stays as it is.
    """
    begun = _begun(index, directory)
    missing = {sha256: size for sha256, size in index.blobs.items() if not store.has(sha256, size)}
    lacking = sorted(index.carried & missing.keys())
    if lacking:
        raise NodeError(
            f"{store.root} is missing {len(lacking)} blobs of the bundle, such as sha256:{lacking[0]}. Run again to "
            "fetch them."
        )
    volumes = agreeing(store, [_whole(volume, directory) for volume in begun.volumes], directory)
    left = [volume for volume in volumes if not volume.sha256]
    absent = [
        name for name in (LOCK, INDEX) if not _written(name, index, directory) or (left and name == INDEX)
    ]
    need, free = sum(volume.size for volume in left) + DISK_MARGIN, free_bytes(directory)
    if left and free < need:
        raise NodeError(
            f"Not enough disk for the bundle: {directory} has {human_size(free)} free, and "
            f"{human_size(need)} are needed. Choose "
            "another bundle_dir, or make room; volumes that are already written stay."
        )
    actions = [f"write {os.path.join(directory, volume.name)} ({human_size(volume.size)})" for volume in left]
    actions += [f"write {os.path.join(directory, name)}" for name in absent]
    result = {
        "changed": bool(actions),
        "actions": actions,
        "bundle_id": index.id,
        "volumes": [volume.name for volume in volumes],
        "bytes": sum(volume.size for volume in volumes),
        "diff": {"before": {"complete": not absent}, "after": {"complete": True}},
    }
    if check or not absent:
        return result
    with disk_errors(directory):
        os.makedirs(directory, mode=0o755, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # a volume of it has to be written again
        os.unlink(os.path.join(directory, INDEX))
    writer = _Writer(store, directory)
    done = list(volumes)
    _record(replace(begun, volumes=tuple(done)), directory, PARTIAL)
    for number, volume in enumerate(volumes):
        if not volume.sha256:
            done[number] = replace(volume, sha256=writer.write(volume))
            _record(replace(begun, volumes=tuple(done)), directory, PARTIAL)
    write_atomic(os.path.join(directory, LOCK), lock_text, 0o644)
    _record(replace(begun, volumes=tuple(done)), directory, INDEX)
    os.unlink(os.path.join(directory, PARTIAL))
    return result


def read_identity(directory: str) -> dict[str, Any]:
    """Return the id of a bundle and its signature, "" without one."""
    signature = read_text(os.path.join(directory, SIGNATURE))
    return {
        "changed": False,
        "actions": [],
        "bundle_id": read_index(directory).id,
        "signature": signature or "",
    }


def write_signature(directory: str, signature: str) -> dict[str, Any]:
    """Put a signature next to a bundle, and return the module's result."""
    path = os.path.join(directory, SIGNATURE)
    changed = read_text(path) != signature
    if changed:
        with disk_errors(path):
            write_atomic(path, signature, 0o644)
            sync_directory(directory)
    return {**read_identity(directory), "changed": changed, "actions": [f"write {path}"] if changed else []}


@contextlib.contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Raise NodeError for what the disk refuses while `path` is read or written."""
    try:
        yield
    except OSError as error:
        raise NodeError(
            f"{path} cannot be copied to or from this host: {error.strerror}. Check the disk, its space and how it is "
            "mounted (df, dmesg), and run again, which continues.",
            changed=True,
        ) from error


def private_opener(path: str, flags: int) -> int:
    """Open a file that only root reads; restrict one that an earlier run left."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, flags, 0o600)


def header(piece: Piece) -> bytes:
    """Return the header of a member, the same in every run."""
    info = tarfile.TarInfo(piece.name)
    info.size, info.mode = piece.size, 0o644
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def _begun(index: BundleIndex, directory: str) -> BundleIndex:
    """Return the index with the hashes of volumes that an earlier run wrote. Raise NodeError for another bundle."""
    for name in (INDEX, PARTIAL):
        path = os.path.join(directory, name)
        text = read_text(path)
        if text is not None:
            there = parse_index(text, path)
            if there.id != index.id:
                names = ", ".join(map(str, there.about.get("deployments") or ())) or "no deployment"
                raise NodeError(
                    f"{directory} holds another bundle, of {names}. Choose another bundle_dir; to write only what has "
                    f"changed since, name this one as bundle_base."
                )
            return there
    return index


def _written(name: str, index: BundleIndex, directory: str) -> bool:
    """Return whether the index or the lock file is there, the lock file with the bundle's content."""
    text = read_text(os.path.join(directory, name))
    return text is not None and (name != LOCK or text_hash(text) == index.lock)


def _whole(volume: Volume, directory: str) -> Volume:
    """Return the volume, without its hash if it has to be written."""
    path = os.path.join(directory, volume.name)
    if volume.sha256 and os.path.exists(path) and os.path.getsize(path) == volume.size:
        leave_if_abandoned()
        if hash_file(path) == volume.sha256:
            return volume
    return replace(volume, sha256="")


def _record(index: BundleIndex, directory: str, name: str) -> None:
    write_atomic(os.path.join(directory, name), index.text + "\n", 0o644)
    sync_directory(directory)


class _Writer:
    """Writes volumes one after the other, and hashes each blob on its way into them."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store, self._directory = store, directory
        self._digest, self._at = hashlib.sha256(), ("", 0)  # of the blob that is being copied, so far

    def write(self, volume: Volume) -> str:
        """Write a volume, and return its hash; it gets its name when it is on disk."""
        path = os.path.join(self._directory, volume.name)
        whole = hashlib.sha256()
        # It may have the users' own texts, so only root reads it.
        with disk_errors(path), open(f"{path}.partial", "wb", opener=private_opener) as file:
            for part in self._content(volume):
                whole.update(part)
                file.write(part)
                leave_if_abandoned()
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.partial", path)
        sync_directory(self._directory)
        return whole.hexdigest()

    def _content(self, volume: Volume) -> Iterator[bytes]:
        for piece in volume.pieces:
            yield header(piece)
            yield from self._blob(piece)
            yield bytes(piece.padding)
        yield bytes(END)

    def _blob(self, piece: Piece) -> Iterator[bytes]:
        """Yield a piece's content; at the blob's end it is compared with its hash."""
        size = self._store.size(piece.sha256) or 0
        with open(self._store.path(piece.sha256), "rb") as file:
            if self._at != (piece.sha256, piece.offset):  # an earlier run wrote what is before it
                self._digest = hashlib.sha256()
                for part in parts(file, piece.offset):
                    self._digest.update(part)
            file.seek(piece.offset)
            for part in parts(file, piece.size):
                self._digest.update(part)
                yield part
        self._at = (piece.sha256, piece.offset + piece.size)
        if self._at[1] == size and self._digest.hexdigest() != piece.sha256:
            refuse_wrong(self._store, piece.sha256)
