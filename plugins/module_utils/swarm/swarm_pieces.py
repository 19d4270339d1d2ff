# SPDX-License-Identifier: Apache-2.0
"""How a manifest is cut into pieces: the torrent's description, who asks for which pieces first, and what is there.

Each blob begins a piece of its own, so that its pieces depend on its content alone: blobs are hashed and received
independently of each other. The gap up to the next piece is a padding file of zeros, which no engine transfers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

from ..store.manifest import Manifest

SMALLEST, LARGEST = 16 * 2**10, 16 * 2**20
# Enough pieces for dozens of members to have many to pass on, and few enough that a piece is worth a request.
PIECES = 2048
_MARK, _NOBODYS = "mark", "nobodys"
Bencoded = Union[int, str, bytes, list["Bencoded"], dict[str, "Bencoded"]]


@dataclass(frozen=True)
class PieceSlot:
    """A blob's place in the torrent: its file's number there (padding files count), and its pieces."""

    sha256: str
    size: int
    file: int
    first: int
    count: int

    @property
    def pieces(self) -> range:
        """Return the numbers of its pieces."""
        return range(self.first, self.first + self.count)


@dataclass(frozen=True)
class PieceLayout:
    """The pieces of a manifest: equal on all nodes."""

    piece_size: int
    slots: tuple[PieceSlot, ...]
    files: tuple[tuple[str, int], ...]  # of the torrent: (SHA-256, size); no SHA-256 for padding

    @property
    def count(self) -> int:
        """Return the number of pieces: those of blobs, one that only sources have, and one that nobody has.

        A member with all pieces would not count towards the availability of any. Thus the first one counts the sources.
        """
        return self.mark + 2

    @property
    def mark(self) -> int:
        """Return the number of the piece that only sources have."""
        return self.slots[-1].first + self.slots[-1].count if self.slots else 0

    def slot(self, sha256: str) -> PieceSlot:
        """Return a blob's place."""
        return next(slot for slot in self.slots if slot.sha256 == sha256)


def layout(manifest: Manifest) -> PieceLayout:
    """Return how a manifest is cut. Empty blobs are left out: they have no pieces."""
    blobs = sorted((sha256, size) for sha256, size in manifest.blobs.items() if size)
    piece, first = piece_size(sum(size for sha256, size in blobs)), 0
    slots: list[PieceSlot] = []
    files: list[tuple[str, int]] = []
    for sha256, size in blobs:
        count = -(-size // piece)
        slots.append(PieceSlot(sha256, size, len(files), first, count))
        files.append((sha256, size))
        gap = count * piece - size
        if gap:
            files.append(("", gap))
        first += count
    files += [(_MARK, piece), (_NOBODYS, 1)]
    return PieceLayout(piece, tuple(slots), tuple(files))


def piece_size(total: int) -> int:
    """Return the size of a piece for so many bytes: a power of two."""
    size = SMALLEST
    while size < LARGEST and size * PIECES < total:
        size *= 2
    return size


def torrent(cut: PieceLayout, hashes: Mapping[str, bytes], name: str, key: str) -> dict[str, Bencoded]:
    """Return the description of the torrent; `hashes` has the SHA-1 of each blob's pieces, one after the other.

    The key makes its hash unguessable, which members prove to each other that they know.
    """
    entries: list[Bencoded] = [
        {"length": size, "path": [sha256]}
        if sha256
        else {"attr": "p", "length": size, "path": [".pad", str(number)]}
        for number, (sha256, size) in enumerate(cut.files)
    ]
    secret = hashlib.sha256(f"swarm {key}".encode()).hexdigest()
    return {
        "files": entries,
        "name": name,
        "piece length": cut.piece_size,
        "pieces": b"".join(hashes[slot.sha256] for slot in cut.slots) + bytes(40),
        "private": 1,
        "x-run": secret,
    }


def bencode(value: Bencoded) -> bytes:
    """Return a value in BitTorrent's encoding."""
    if isinstance(value, int):
        return b"i%de" % value
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return b"%d:%s" % (len(value), value)
    if isinstance(value, list):
        return b"l" + b"".join(map(bencode, value)) + b"e"
    return b"d" + b"".join(bencode(name) + bencode(value[name]) for name in sorted(value)) + b"e"


def right_pieces(slot: PieceSlot, piece_size: int, found: bytes, size: int, hashes: bytes) -> list[bool]:
    """Return which pieces of a blob are right in a file of so many bytes; `found` has the hashes of its pieces."""
    whole = slot.count if size == slot.size else size // piece_size
    return [
        number < whole and found[20 * number : 20 * number + 20] == hashes[20 * number : 20 * number + 20]
        for number in range(slot.count)
    ]
