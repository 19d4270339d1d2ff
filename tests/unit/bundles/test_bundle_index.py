# SPDX-License-Identifier: Apache-2.0
"""What goes into which volume, and which indexes are refused: pure tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.bundles.bundle_index import (
    BLOCK,
    END,
    LEAST,
    BundleIndex,
    different_pins,
    parse_index,
    plan_bundle,
    plan_volumes,
)
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import (
    Manifest,
    ManifestFile,
    manifest_of,
)

NO_PINS: dict[str, dict[str, str]] = {"images": {}, "models": {}}
MIB = 2**20


def _hex(name: str) -> str:
    return sha256(name.encode()).hexdigest()


def _manifest(name: str, **sizes: int) -> Manifest:
    return manifest_of(name, [ManifestFile(path, size, _hex(path)) for path, size in sizes.items()])


def _bundle(*manifests: Manifest, base: BundleIndex | None = None) -> BundleIndex:
    return plan_bundle(manifests, {"deployments": ["a"]}, "lock", NO_PINS, LEAST, base)


def _shape(blobs: dict[str, int], size: int) -> list[list[tuple[str, int, int]]]:
    volumes = plan_volumes(blobs, size)
    return [[(piece.sha256, piece.offset, piece.size) for piece in volume.pieces] for volume in volumes]


@pytest.mark.parametrize(
    ("blobs", "volumes"),
    [
        ({}, []),
        ({"a": 0}, [[("a", 0, 0)]]),
        ({"a": 10, "b": 20}, [[("a", 0, 10), ("b", 0, 20)]]),
        # A volume that is exactly full, and one byte more.
        ({"a": MIB - END - BLOCK}, [[("a", 0, MIB - END - BLOCK)]]),
        (
            {"a": MIB - END - BLOCK + 1},
            [[("a", 0, MIB - END - BLOCK)], [("a", MIB - END - BLOCK, 1)]],
        ),
        # What does not fit goes on in the next volume, as often as it takes.
        (
            {"a": 100, "b": 2 * MIB},
            [
                [("a", 0, 100), ("b", 0, MIB - END - 3 * BLOCK)],
                [("b", MIB - END - 3 * BLOCK, MIB - END - BLOCK)],
                [("b", 2 * MIB - 2 * END - 4 * BLOCK, 2 * END + 4 * BLOCK)],
            ],
        ),
        # A rest that is too small for a piece stays free.
        (
            {"a": MIB - END - 10 * BLOCK, "b": MIB // 2},
            [[("a", 0, MIB - END - 10 * BLOCK)], [("b", 0, MIB // 2)]],
        ),
    ],
)
def test_volumes(blobs: dict[str, int], volumes: list[list[tuple[str, int, int]]]) -> None:
    assert _shape(blobs, MIB) == volumes


@pytest.mark.parametrize("size", [LEAST, LEAST + 1, 3 * LEAST + 700])
def test_volumes_are_within_their_size_and_have_every_byte_once(size: int) -> None:
    blobs = {_hex(str(number)): number * 7919 * 31 % (5 * MIB) for number in range(40)}
    volumes = list(plan_volumes(blobs, size))
    assert max(volume.size for volume in volumes) <= size
    for name, wanted in blobs.items():
        pieces = [piece for volume in volumes for piece in volume.pieces if piece.sha256 == name]
        assert sum(piece.size for piece in pieces) == wanted
        assert [piece.offset for piece in pieces] == [
            sum(piece.size for piece in pieces[:at]) for at in range(len(pieces))
        ]
    names = [piece.name for volume in volumes for piece in volume.pieces]
    assert len(set(names)) == len(names)


def test_a_difference_has_what_the_base_lacks_and_knows_everything() -> None:
    first = _bundle(_manifest("image 1", config=10, base=1000), _manifest("model 1", weights=500))
    second = _bundle(
        _manifest("image 2", config=10, base=1000, top=70),
        _manifest("model 1", weights=500),
        base=first,
    )
    assert second.carried == {_hex("top")}
    assert second.blobs.keys() == first.blobs.keys() | {_hex("top")}
    assert second.base == first.id
    third = _bundle(_manifest("image 2", config=10, base=1000, top=70), base=second)
    assert (third.carried, third.volumes) == (set(), ()), "a difference against a difference"


def test_the_same_content_has_the_same_id_whatever_is_written() -> None:
    one, two = _manifest("model 1", a=1), _manifest("model 2", b=2)
    assert _bundle(one, two).id == _bundle(two, one, one).id
    assert _bundle(one).id != _bundle(two).id


@pytest.mark.parametrize(
    ("manifests", "size", "text"),
    [
        ((), LEAST, "would be empty"),
        ((_manifest("model 1", a=1),), LEAST - 1, "volume_size is 1048575 bytes"),
    ],
)
def test_what_cannot_be_planned(manifests: tuple[Manifest, ...], size: int, text: str) -> None:
    with pytest.raises(NodeError, match=text):
        plan_bundle(manifests, {}, "lock", NO_PINS, size)


def test_an_index_is_read_as_it_was_written() -> None:
    index = _bundle(_manifest("model 1", a=1, b=3 * MIB))
    assert parse_index(index.text, "here") == index


def _dropped_piece(data: Any) -> None:
    volume = data["volumes"][1]
    volume["bytes"] -= sum(piece[2] + BLOCK + -piece[2] % BLOCK for piece in volume["pieces"][:1])
    del volume["pieces"][0]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: data.update(schema=2), "has schema 2, but this release reads 1"),
        (lambda data: data.pop("volumes"), "is not the index of a bundle"),
        (lambda data: data["volumes"][0].update(name="../../etc/x.tar"), "is not the index of a bundle"),
        (lambda data: data["volumes"][0].update(bytes=7), "7 bytes by its entry"),
        (lambda data: data["manifests"][0]["files"][0].update(path="../x"), "leads outside"),
        (_dropped_piece, "are not whole blobs"),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(change: Callable[[Any], Any], text: str) -> None:
    data = json.loads(_bundle(_manifest("model 1", a=1, b=3 * MIB)).text)
    change(data)
    with pytest.raises(NodeError, match=text):
        parse_index(json.dumps(data), "here")


@pytest.mark.parametrize(
    ("lock", "different"),
    [
        ({"images": {"x:1": "sha256:a"}, "models": {"|o/m@main": "c1"}}, []),
        ({"images": {"x:1": "sha256:a", "y:1": "sha256:b"}, "models": {"|o/m@main": "c1"}}, []),
        (
            {"images": {"x:1": "sha256:b"}, "models": {}},
            [
                "image x:1: the bundle has sha256:a, the lock sha256:b",
                "model o/m@main: the bundle has c1, the lock no pin",
            ],
        ),
    ],
)
def test_pins_of_another_lock(lock: dict[str, dict[str, str]], different: list[str]) -> None:
    assert different_pins({"images": {"x:1": "sha256:a"}, "models": {"|o/m@main": "c1"}}, lock) == different
