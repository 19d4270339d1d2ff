# SPDX-License-Identifier: Apache-2.0
"""What a bundle of the content store holds, and in which volumes: the file bundle.json. Pure.

A volume is a tar file whose members are blobs, or pieces of blobs that are larger than the rest of a volume. The order
and the sizes follow from the list of blobs alone, so that a second run writes the same volumes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..common.hashing import canonical, text_hash
from ..common.module_main import NodeError
from ..store.manifest import HEX, Manifest, parse_manifest

SCHEMA = 1
BLOCK = 512  # a tar file's unit: a header takes one, content is filled up to whole ones
END = 2 * BLOCK  # that many zeros end a tar file
LEAST = 2**20  # bytes of the smallest volume
_LEAST_PIECE = 64 * BLOCK  # what is too small for the rest of a volume begins the next one


@dataclass(frozen=True)
class Piece:
    """A member of a volume: bytes of a blob from an offset on. whole: it is all of the blob."""

    sha256: str
    offset: int
    size: int
    whole: bool = True

    @property
    def name(self) -> str:
        """Return the member's name; pieces of a blob sort by their offsets."""
        return f"blobs/sha256/{self.sha256}" + ("" if self.whole else f".{self.offset:016d}")

    @property
    def padding(self) -> int:
        """Return the zeros after the content."""
        return -self.size % BLOCK


@dataclass(frozen=True)
class Volume:
    """A tar file of the bundle. sha256: of the whole file; "" until it is written."""

    name: str
    pieces: tuple[Piece, ...]
    sha256: str = ""

    @property
    def size(self) -> int:
        """Return the size of the tar file in bytes."""
        return sum(BLOCK + piece.size + piece.padding for piece in self.pieces) + END


@dataclass(frozen=True)
class BundleIndex:
    """The content of a bundle.

    about: release, deployments, licenses, for people. lock: SHA-256 of the bundle's fleet.lock.json. pins: digests of
    images by reference, and commits of models by key of the lock. base: the id of the bundle whose blobs this one
    leaves out, "" without one. volume_size: bytes of a volume at most.
    """

    manifests: tuple[Manifest, ...]
    volumes: tuple[Volume, ...]
    about: Mapping[str, Any]
    lock: str
    pins: Mapping[str, Mapping[str, str]]
    base: str
    volume_size: int

    @property
    def blobs(self) -> dict[str, int]:
        """Return all blobs with their sizes, those of the base too."""
        return {sha256: size for item in self.manifests for sha256, size in item.blobs.items()}

    @property
    def carried(self) -> set[str]:
        """Return the blobs that are in the volumes."""
        return {piece.sha256 for volume in self.volumes for piece in volume.pieces}

    @property
    def planned(self) -> BundleIndex:
        """Return the index as it was before a volume was written."""
        return replace(self, volumes=tuple(replace(volume, sha256="") for volume in self.volumes))

    @property
    def id(self) -> str:
        """Return the SHA-256 of the canonical text of what was planned: equal content has the same."""
        return text_hash(self.planned.text)

    @property
    def text(self) -> str:
        """Return the canonical text, which is the content of bundle.json."""
        return canonical(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the data of bundle.json."""
        volumes = [
            {
                "name": volume.name,
                "bytes": volume.size,
                "sha256": volume.sha256,
                "pieces": [[piece.sha256, piece.offset, piece.size] for piece in volume.pieces],
            }
            for volume in self.volumes
        ]
        return {
            "schema": SCHEMA,
            "about": dict(self.about),
            "lock": self.lock,
            "pins": {kind: dict(found) for kind, found in self.pins.items()},
            "base": self.base,
            "volume_size": self.volume_size,
            "manifests": [item.to_json() for item in self.manifests],
            "volumes": volumes,
        }


def plan_bundle(
    manifests: Sequence[Manifest],
    about: Mapping[str, Any],
    lock_text: str,
    pins: Mapping[str, Mapping[str, str]],
    volume_size: int,
    base: BundleIndex | None = None,
) -> BundleIndex:
    """Return the index of a bundle with all blobs of the manifests that the base does not have. Write no volume."""
    if not manifests:
        raise NodeError(
            "The bundle would be empty: no deployment has an image or a model that can be put into it."
        )
    if volume_size < LEAST:
        raise NodeError(f"volume_size is {volume_size} bytes; a volume must have at least {LEAST}.")
    ordered = tuple(sorted({item.id: item for item in manifests}.values(), key=lambda item: item.name))
    index = BundleIndex(ordered, (), about, text_hash(lock_text), pins, base.id if base else "", volume_size)
    known = base.blobs if base else {}
    added = {sha256: size for sha256, size in index.blobs.items() if sha256 not in known}
    return replace(index, volumes=tuple(plan_volumes(added, volume_size)))


def plan_volumes(blobs: Mapping[str, int], volume_size: int) -> Iterable[Volume]:
    """Yield the volumes of blobs in their order, each as full as it can be; what does not fit continues in the next."""
    number, free = 1, volume_size - END
    pieces: list[Piece] = []
    for sha256, size in blobs.items():
        offset = 0
        while True:
            left, room = size - offset, (free - BLOCK) // BLOCK * BLOCK
            if pieces and room < min(left, _LEAST_PIECE):
                yield Volume(_name(number), tuple(pieces))
                number, pieces, free = number + 1, [], volume_size - END
                continue
            piece = Piece(sha256, offset, min(left, room), left <= room and not offset)
            pieces.append(piece)
            free -= BLOCK + piece.size + piece.padding
            offset += piece.size
            if offset == size:
                break
    if pieces:
        yield Volume(_name(number), tuple(pieces))


def parse_index(text: str, where: str) -> BundleIndex:
    """Return the index of bundle.json. Raise NodeError for other text, and for an index that contradicts itself."""
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise NodeError(
                f"{where} has schema {data['schema']!r}, but this release reads {SCHEMA}. Use the release that "
                f"wrote it ({data.get('about', {}).get('release')})."
            )
        manifests = tuple(parse_manifest(item) for item in data["manifests"])
        blobs = {sha256: size for item in manifests for sha256, size in item.blobs.items()}
        volumes = tuple(_volume(item, blobs) for item in data["volumes"])
        pins = {
            kind: {str(key): str(value) for key, value in data["pins"][kind].items()}
            for kind in ("images", "models")
        }
        index = BundleIndex(
            manifests,
            volumes,
            dict(data["about"]),
            str(data["lock"]),
            pins,
            str(data["base"]),
            int(data["volume_size"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise NodeError(
            f"{where} is not the index of a bundle ({type(error).__name__}: {error}). Copy it again from where "
            "the bundle was made."
        ) from error
    ends: dict[str, int] = {}
    for piece in (piece for volume in volumes for piece in volume.pieces):
        if piece.offset != ends.get(piece.sha256, 0):
            break
        ends[piece.sha256] = piece.offset + piece.size
    if any(end != blobs[sha256] for sha256, end in ends.items()) or ends.keys() != index.carried:
        raise NodeError(f"{where}: the pieces in its volumes are not whole blobs. Copy the bundle again.")
    return index


def different_pins(
    bundle: Mapping[str, Mapping[str, str]], lock: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Return in words where a lock pins other content than a bundle has, or does not pin it."""
    found = []
    for kind, pins in sorted(bundle.items()):
        known = lock.get(kind) or {}
        for name, pin in sorted(pins.items()):
            if known.get(name) != pin:
                what = name.partition("|")[2] if kind == "models" else name
                found.append(
                    f"{kind[:-1]} {what}: the bundle has {pin}, the lock {known.get(name) or 'no pin'}"
                )
    return found


def _volume(data: Mapping[str, Any], blobs: Mapping[str, int]) -> Volume:
    pieces = tuple(
        Piece(str(sha256), int(offset), int(size), int(offset) == 0 and int(size) == blobs[sha256])
        for sha256, offset, size in data["pieces"]
    )
    name, sha256 = str(data["name"]), str(data["sha256"])
    volume = Volume(name, pieces, sha256)
    if (
        not name.endswith(".tar")
        or "/" in name
        or name.startswith(".")
        or not (sha256 == "" or HEX.fullmatch(sha256))
    ):
        raise ValueError(f"volume {name!r}")
    if volume.size != int(data["bytes"]):
        raise ValueError(f"{name} has {data['bytes']} bytes by its entry, and {volume.size} by its pieces")
    return volume


def _name(number: int) -> str:
    return f"volume-{number:04d}.tar"
