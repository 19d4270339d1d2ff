# SPDX-License-Identifier: Apache-2.0
"""The content store of a node: nothing gets a name before it is complete and its hash compared."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.common.transfer_names import model_name
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import (
    Store,
    WrongContent,
    link_or_copy,
)
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import (
    Manifest,
    ManifestFile,
    manifest_of,
    parse_manifest,
)

GOOD = b"weights" * 1000
OTHER = b"config"


def _hex(content: bytes) -> str:
    return sha256(content).hexdigest()


def _file(path: str, content: bytes) -> ManifestFile:
    return ManifestFile(path, len(content), _hex(content))


def _manifest(name: str = "model lab/m@1", **files: bytes) -> Manifest:
    return manifest_of(name, [_file(path, content) for path, content in files.items()])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def _source(tmp_path: Path, content: bytes, name: str = "source") -> str:
    path = tmp_path / name
    path.write_bytes(content)
    return str(path)


def _names(store: Store) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(top, name), store.root)
        for top, _unused, names in os.walk(store.root)
        for name in names
    )


def test_a_file_is_linked_after_its_hash_was_compared(store: Store, tmp_path: Path) -> None:
    source = _source(tmp_path, GOOD)
    os.chmod(source, 0o600)

    store.add(source, _hex(GOOD), len(GOOD))

    assert os.path.samefile(source, store.path(_hex(GOOD)))
    assert os.stat(source).st_mode & 0o777 == 0o644, "every container's user can read it"
    assert _names(store) == [f"blobs/sha256/{_hex(GOOD)}"]


def test_a_link_is_followed_to_the_file(store: Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(_source(tmp_path, GOOD))
    store.add(str(tmp_path / "link"), _hex(GOOD), len(GOOD))
    assert not os.path.islink(store.path(_hex(GOOD)))


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EMLINK, errno.EPERM])
def test_from_another_file_system_it_is_copied(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def link(_source: str, _target: str) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    source = _source(tmp_path, GOOD)
    store.add(source, _hex(GOOD), len(GOOD))
    target = tmp_path / "cache"
    link_or_copy(store.path(_hex(GOOD)), str(target))

    assert not os.path.samefile(source, store.path(_hex(GOOD)))
    assert Path(store.path(_hex(GOOD))).read_bytes() == target.read_bytes() == GOOD
    assert _names(store) == [f"blobs/sha256/{_hex(GOOD)}"]


@pytest.mark.parametrize("content", [GOOD[:-1], GOOD[:-1] + b"x", b""], ids=["cut", "flipped", "empty"])
@pytest.mark.parametrize("way", ["add", "put"])
def test_other_content_never_gets_the_name(store: Store, tmp_path: Path, content: bytes, way: str) -> None:
    source = _source(tmp_path, content)
    ways = {
        "add": lambda: store.add(source, _hex(GOOD), len(GOOD)),
        "put": lambda: store.put(content, _hex(GOOD)),
    }
    with pytest.raises(WrongContent, match=_hex(GOOD)):
        ways[way]()
    assert _names(store) == []
    assert Path(source).read_bytes() == content, "who gave it decides what becomes of it"


def test_a_manifest_is_there_only_when_every_blob_is(store: Store, tmp_path: Path) -> None:
    manifest = _manifest(config=OTHER, weights=GOOD, copy=GOOD)
    store.put(OTHER, _hex(OTHER))
    assert store.missing(manifest) == {_hex(GOOD): len(GOOD)}
    with pytest.raises(NodeError, match="1 of 2 blobs are missing"):
        store.record(manifest)
    assert store.manifests() == []

    store.add(_source(tmp_path, GOOD), _hex(GOOD), len(GOOD))
    store.record(manifest)

    assert store.manifest("model lab/m@1") == manifest
    assert os.listdir(os.path.join(store.root, "manifests")) == [f"{manifest.id}.json"]


def test_what_was_received_is_taken_and_what_is_wrong_is_received_again(store: Store) -> None:
    manifest = _manifest(config=OTHER, weights=GOOD)
    directory = Path(store.incoming(manifest))
    (directory / _hex(OTHER)).write_bytes(OTHER)
    (directory / _hex(GOOD)).write_bytes(b"x" + GOOD[1:])

    assert store.adopt(manifest) == [_hex(GOOD)]
    assert store.missing(manifest) == {_hex(GOOD): len(GOOD)}
    assert os.listdir(directory) == ["manifest.json"]

    (directory / _hex(GOOD)).write_bytes(GOOD)
    assert store.adopt(manifest) == []
    store.record(manifest)
    assert not directory.exists()


def test_a_flipped_byte_is_found_and_its_manifests_go_before_it(store: Store) -> None:
    first, second = _manifest(config=OTHER, weights=GOOD), _manifest("model lab/n@1", config=OTHER)
    for content in (GOOD, OTHER):
        store.put(content, _hex(content))
    store.record(first)
    store.record(second)
    Path(store.path(_hex(GOOD))).write_bytes(b"x" + GOOD[1:])

    assert store.has(_hex(GOOD), len(GOOD)), "sizes do not show it"
    assert store.verify() == {_hex(GOOD): _hex(b"x" + GOOD[1:])}
    assert store.remove(_hex(GOOD)) == ["model lab/m@1"]
    assert store.verify() == {}
    assert [item.name for item in store.manifests()] == ["model lab/n@1"]


def test_dropping_a_manifest_keeps_what_others_have(store: Store) -> None:
    first, second = _manifest(config=OTHER, weights=GOOD), _manifest("model lab/n@1", config=OTHER)
    for content in (GOOD, OTHER):
        store.put(content, _hex(content))
    store.record(first)
    store.record(second)
    store.drop(first)
    assert store.blobs() == [_hex(OTHER)]


def test_the_id_is_of_the_content_alone() -> None:
    files = [_file("b", GOOD), _file("a", OTHER)]
    assert manifest_of("x", files).id == manifest_of("x", reversed(files)).id
    assert manifest_of("x", files).id != manifest_of("y", files).id
    assert parse_manifest(manifest_of("x", files).to_json()) == manifest_of("x", files)


def test_a_models_name_tells_its_files_apart() -> None:
    assert model_name("a/b", "c", {"x": 1, "y": 2}) == model_name("a/b", "c", {"y": 2, "x": 1})
    assert model_name("a/b", "c", {"x": 1}) != model_name("a/b", "c", {"x": 1, "y": 2})


def _changed(**change: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["files"][0].update(change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_changed(path="/etc/passwd"), "leads outside"),
        (_changed(path="../x"), "leads outside"),
        (_changed(path="a//b"), "leads outside"),
        (_changed(sha256="../../x"), "not a SHA-256"),
        (_changed(sha256="A" * 64), "not a SHA-256"),
        (_changed(size=-1), "cannot be true"),
        (_changed(size="many"), "needs a name and files"),
        (lambda data: data["files"].append({**data["files"][0], "path": "z", "size": 1}), "cannot be true"),
        (lambda data: data["files"].append(data["files"][0]), "twice"),
        (lambda data: data["files"].clear(), "no files"),
        (lambda data: data.pop("name"), "needs a name"),
    ],
)
def test_a_manifest_from_elsewhere_is_checked(change: Callable[[dict[str, Any]], None], said: str) -> None:
    data = _manifest(weights=GOOD).to_json()
    change(data)
    with pytest.raises(NodeError, match=said):
        parse_manifest(data)
