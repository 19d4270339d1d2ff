# SPDX-License-Identifier: Apache-2.0
"""Read a bundle: compare its volumes with its index, or load their blobs into a node's content store."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Optional

from ..common.abandoned import leave_if_abandoned
from ..common.disk_space import free_bytes, human_size
from ..common.module_main import NodeError
from ..store.blobs import Store, WrongContent
from ..store.repository import repositories_of
from .bundle_checks import (
    NAMED,
    absent_volume,
    first_items,
    lock_problems,
    refuse_other_bundle,
    refuse_other_lock,
    refuse_without_base,
)
from .bundle_index import BLOCK, BundleIndex, Piece, Volume
from .bundle_pieces import PieceChain
from .bundle_write import DISK_MARGIN, disk_errors, read_index
from .control_files import files_of, hide, private_blobs

_CHUNK = 4 * 2**20

Take = Callable[[Piece], Optional[BinaryIO]]
"""Opens the file that a piece's content is written to; None if nobody wants it."""


@dataclass
class _Found:
    """What was read of a volume. wrong: whole blobs with other content."""

    sha256: str = ""
    wrong: list[str] = field(default_factory=list)


def verify_bundle(directory: str, wanted: str = "") -> dict[str, Any]:
    """Hash everything; change nothing. Raise NodeError with what is missing or wrong, by volume.

    wanted: the bundle's id; "" if it is not known, when nothing says who made it.
    """
    index = read_index(directory)
    refuse_other_bundle(index, wanted, directory)
    wrong, chain, odd = lock_problems(index, directory), PieceChain(index.blobs), set[str]()
    for volume in index.volumes:
        problems = absent_volume(volume, directory)
        if not problems:
            problems = _corrupt(volume, _read(volume, directory, lambda _piece: None, chain))
        odd |= {volume.name} if problems else set()
        wrong += problems
    wrong += [
        f"sha256:{sha256} in {' and '.join(names)} does not match its hash and was written so: make the bundle again"
        for sha256, names in chain.wrong.items()
        if odd.isdisjoint(names)
    ]
    result: dict[str, Any] = {
        "changed": False,
        "actions": [],
        "bundle_id": index.id,
        "volumes": [volume.name for volume in index.volumes],
        "bytes": sum(volume.size for volume in index.volumes),
        "wrong": wrong,
    }
    if wrong:
        raise NodeError(
            f"The bundle in {directory} is incomplete: {first_items(wrong)}. Copy these files again from "
            "where it was made "
            "(bundle_verify.yml there says whether they are complete), and run again.",
            **result,
        )
    return result


def load_bundle(
    store: Store, directory: str, pins: Mapping[str, Mapping[str, str]], check: bool, wanted: str = ""
) -> dict[str, Any]:
    """Load a bundle's blobs into the store, each once its hash is verified, and return the module's result.

    pins: of the lock next to the inventory. wanted: the bundle's id, as in verify_bundle(). What is loaded stays if
    something is missing or wrong, and the next run continues. Raise NodeError.
    """
    index = read_index(directory)
    refuse_other_bundle(index, wanted, directory)
    refuse_other_lock(index, pins, directory)
    missing = {sha256: size for sha256, size in index.blobs.items() if not store.has(sha256, size)}
    refuse_without_base(index, missing, store)
    needed = [volume for volume in index.volumes if any(piece.sha256 in missing for piece in volume.pieces)]
    absent = [text for volume in needed for text in absent_volume(volume, directory)]
    if absent:
        raise NodeError(
            f"The bundle in {directory} is incomplete: {first_items(absent)}. Copy these files there from where it "
            "was made, and run again; nothing is loaded twice."
        )
    known = {item.id for item in store.manifests()}
    fresh = [item for item in index.manifests if item.id not in known or missing.keys() & item.blobs.keys()]
    amount = sum(missing.values())
    _refuse_without_space(store, amount)
    actions = [
        f"load {os.path.join(directory, volume.name)} ({human_size(volume.size)})" for volume in needed
    ]
    actions += [f"record {item.name} in {store.root}" for item in fresh]
    result: dict[str, Any] = {
        "changed": bool(actions),
        "actions": actions,
        "bundle_id": index.id,
        "volumes": [volume.name for volume in needed],
        "bytes": amount,
        "repositories": [
            {"path": path, "name": name}
            for path, name in repositories_of(item.name for item in index.manifests).items()
        ],
        "files": files_of(index.manifests),
        "diff": {"before": {"missing": len(missing)}, "after": {"missing": 0}},
    }
    if check or not actions:
        return result
    store.private = private_blobs([*index.manifests, *store.manifests()])
    loader = _Loader(store, index, missing)
    wrong = [text for volume in needed for text in loader.load(volume, directory)]
    if wrong:
        raise NodeError(
            f"Wrong content in the bundle in {directory}: {first_items(wrong)}. It was refused; the rest is "
            "loaded. Copy these files again from where the bundle was made, and run again, which continues.",
            **{**result, "wrong": wrong},
        )
    for item in fresh:
        store.record(item)
    hide(store)
    loader.close()
    return result


def _refuse_without_space(store: Store, amount: int) -> None:
    """Raise NodeError where a store's disk cannot take so many more bytes."""
    need, free = amount + DISK_MARGIN, free_bytes(store.root)
    if amount and free < need:
        raise NodeError(
            f"Not enough disk for the bundle: {store.root} has {human_size(free)} free, and {human_size(need)} are "
            "needed. Make room (playbooks/prune.yml), and run again."
        )


class _Loader:
    """Puts pieces together below incoming/, where nothing counts as present, and hands over complete blobs."""

    def __init__(self, store: Store, index: BundleIndex, missing: Mapping[str, int]) -> None:
        self._store, self._missing = store, missing
        self._directory = store.workspace(f"bundle-{index.id[:16]}")

    def load(self, volume: Volume, directory: str) -> list[str]:
        """Read a volume, and return in words what is wrong with it."""
        found = _read(volume, directory, self._take)
        wrong = _corrupt(volume, found)
        for piece in volume.pieces:
            if piece.sha256 in self._missing:
                wrong += self._finish(volume, piece, bool(wrong), piece.sha256 in found.wrong)
        return wrong

    def close(self) -> None:
        """Remove what is left of receiving."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _path(self, piece: Piece) -> str:
        return os.path.join(self._directory, piece.sha256)

    def _take(self, piece: Piece) -> BinaryIO | None:
        if piece.sha256 not in self._missing or self._store.has(piece.sha256, self._missing[piece.sha256]):
            return None
        there = os.path.getsize(self._path(piece)) if os.path.exists(self._path(piece)) else 0
        if not piece.whole and there != piece.offset and not piece.offset < there < piece.offset + piece.size:
            return None  # it is there already, or what comes before it is not
        file = open(self._path(piece), "r+b" if there else "wb")  # noqa: SIM115  # _read() closes it
        file.truncate(0 if piece.whole else piece.offset)
        file.seek(0, os.SEEK_END)
        return file

    def _finish(self, volume: Volume, piece: Piece, corrupt: bool, wrong: bool) -> list[str]:
        """Hand over a blob that is complete; keep nothing of a piece in a corrupt volume."""
        path, size = self._path(piece), self._missing[piece.sha256]
        if not os.path.exists(path):
            return []
        if wrong:
            os.unlink(path)
        elif corrupt and not piece.whole:
            os.truncate(path, min(piece.offset, os.path.getsize(path)))
        elif os.path.getsize(path) == size and piece.offset + piece.size == size:
            _sync(path)
            try:
                self._store.add(path, piece.sha256, size, move=True, hashed=piece.whole)
            except WrongContent:
                os.unlink(path)
                return [f"{volume.name} or one before it: sha256:{piece.sha256} has wrong content"]
        return []


def _read(volume: Volume, directory: str, take: Take, chain: PieceChain | None = None) -> _Found:
    """Read a volume once, and pass its content on. chain: of the volumes that are read one after the other."""
    found, whole = _Found(), hashlib.sha256()
    path = os.path.join(directory, volume.name)
    with disk_errors(path), open(path, "rb") as file:
        for piece in volume.pieces:
            whole.update(file.read(BLOCK))
            digest = hashlib.sha256() if piece.whole else None
            if chain and not piece.whole:
                digest = chain.follow(piece, volume.name)
            target = take(piece)
            with target or contextlib.nullcontext():
                takers: list[Callable[[bytes], object]] = [whole.update]
                takers += [digest.update] if digest else []
                takers += [target.write] if target else []
                _pass_on(file, piece.size, takers)
            if digest is not None and piece.whole and digest.hexdigest() != piece.sha256:
                found.wrong.append(piece.sha256)
            if chain and not piece.whole:
                chain.end(piece)
            whole.update(file.read(piece.padding))
        whole.update(file.read())
    found.sha256 = whole.hexdigest()
    return found


def _pass_on(file: BinaryIO, size: int, takers: Sequence[Callable[[bytes], object]]) -> None:
    """Read so many bytes, or what is there of them, and give them to each taker."""
    while size:
        part = file.read(min(size, _CHUNK))
        if not part:
            return
        for take in takers:
            take(part)
        size -= len(part)
        leave_if_abandoned()


def _corrupt(volume: Volume, found: _Found) -> list[str]:
    """Say what is wrong with a volume that was read."""
    if found.sha256 == volume.sha256:
        return []
    wrong = found.wrong or [piece.sha256 for piece in volume.pieces if not piece.whole]
    blobs = f" in {', '.join(f'sha256:{sha256}' for sha256 in wrong[:NAMED])}" if wrong else ""
    return [f"{volume.name} has wrong content{blobs} (SHA-256 {found.sha256}, expected {volume.sha256})"]


def _sync(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
