# SPDX-License-Identifier: Apache-2.0
"""Blobs that are larger than the rest of a volume, and so in pieces in several: are the pieces those of one blob?"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

from ..common.abandoned import leave_if_abandoned
from ..common.module_main import NodeError
from ..store.blob_files import hash_file
from ..store.blobs import Store
from .bundle_index import BLOCK, Piece, Volume

_CHUNK = 4 * 2**20


class PieceChain:
    """Hashes blobs over their pieces, while volumes are read one after the other.

    wrong: blobs with other content, with the volumes in which their pieces are.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.wrong: dict[str, tuple[str, ...]] = {}
        self._sizes = sizes
        self._begun: dict[str, tuple[Any, int, tuple[str, ...]]] = {}  # digest, its end, volumes

    def follow(self, piece: Piece, volume: str) -> Any | None:
        """Return the digest that takes a piece's content; None where what comes before it was not read."""
        begun = (hashlib.sha256(), 0, ()) if not piece.offset else self._begun.pop(piece.sha256, None)
        if begun is None or begun[1] != piece.offset:
            return None
        digest, end, volumes = begun[0], piece.offset + piece.size, (*begun[2], volume)
        self._begun[piece.sha256] = (digest, end, volumes)
        return digest

    def end(self, piece: Piece) -> None:
        """Compare a blob with its hash when its last piece was read."""
        if piece.offset + piece.size < self._sizes[piece.sha256]:
            return
        digest, _end, volumes = self._begun.pop(piece.sha256, (None, 0, ()))
        if digest is not None and digest.hexdigest() != piece.sha256:
            self.wrong[piece.sha256] = volumes


def agreeing(store: Store, volumes: Sequence[Volume], directory: str) -> tuple[Volume, ...]:
    """Return the volumes; one whose piece is not that of the store loses its hash, so that it is written again.

    Volumes without a hash will be written from the store, and others of the same blob stay. Raise NodeError for such a
    blob that does not match the hash in its name: nobody would notice, as no piece has a hash of its own.
    """
    found, hashed = list(volumes), set[str]()
    while True:
        written = _split(volume for volume in found if not volume.sha256)
        odd = [
            number
            for number, volume in enumerate(found)
            if volume.sha256
            and written & _split([volume])
            and not _same(store, volume, directory, written, hashed)
        ]
        if not odd:
            return tuple(found)
        for number in odd:
            found[number] = replace(found[number], sha256="")


def refuse_wrong(store: Store, sha256: str) -> None:
    """Remove a blob of the store that does not match the hash in its name, and raise NodeError."""
    names = store.remove(sha256)
    raise NodeError(
        f"{store.path(sha256)} of {', '.join(names) or 'the content store'} does not match the hash in its name. It "
        "was removed; run again to fetch it. Check this node's disk and memory (dmesg).",
        changed=True,
    )


def parts(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the next bytes of a file. Raise NodeError if it ends before."""
    while size:
        part = file.read(min(size, _CHUNK))
        if not part:
            raise NodeError(
                f"{file.name} is shorter than it was when the bundle was begun. Run again.", changed=True
            )
        size -= len(part)
        yield part


def _split(volumes: Any) -> set[str]:
    return {piece.sha256 for volume in volumes for piece in volume.pieces if not piece.whole}


def _same(store: Store, volume: Volume, directory: str, written: set[str], hashed: set[str]) -> bool:
    """Return whether the pieces in a volume are those of the store, of blobs of which another piece is written."""
    at = 0
    with open(os.path.join(directory, volume.name), "rb") as file:
        for piece in volume.pieces:
            at += BLOCK
            if piece.sha256 in written and not piece.whole:
                path = store.path(piece.sha256)
                if piece.sha256 not in hashed and hash_file(path) != piece.sha256:
                    refuse_wrong(store, piece.sha256)
                hashed.add(piece.sha256)
                file.seek(at)
                if not _equal(file, path, piece):
                    return False
            at += piece.size + piece.padding
    return True


def _equal(file: BinaryIO, path: str, piece: Piece) -> bool:
    """Return whether a piece, where the volume is read next, is that of a blob's file."""
    with open(path, "rb") as blob:
        blob.seek(piece.offset)
        for own, theirs in zip(parts(file, piece.size), parts(blob, piece.size)):
            leave_if_abandoned()
            if own != theirs:
                return False
    return True
