# SPDX-License-Identifier: Apache-2.0
"""The content store of a node: nothing gets a name before it is complete and its hash compared."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.content.transfer_names import model_name
from ansible_collections.instinct.fleet.plugins.module_utils.store import blob_files, blobs
from ansible_collections.instinct.fleet.plugins.module_utils.store.blob_files import (
    hash_file,
    hash_files,
    link_or_copy,
)
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store, WrongContent
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


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("kind", "words"), [("link", "is a link"), ("pipe", "is not a regular file")])
def test_what_is_no_file_is_not_taken(store: Store, tmp_path: Path, kind: str, words: str) -> None:
    """A container may have put it there, and others would get what it leads to."""
    path = tmp_path / "x"
    if kind == "link":
        path.symlink_to(_source(tmp_path, GOOD))
    else:
        os.mkfifo(path)
    with pytest.raises(NodeError, match=f"{path} {words}"):
        store.add(str(path), _hex(GOOD), len(GOOD))
    with pytest.raises(NodeError, match=f"{path} {words}"):
        link_or_copy(str(path), str(tmp_path / "y"))
    assert _names(store) == []


def test_an_open_file_is_taken_whatever_has_its_name_by_now(store: Store, tmp_path: Path) -> None:
    source = Path(_source(tmp_path, GOOD))
    with source.open("rb") as file:
        source.unlink()
        source.symlink_to("/etc/passwd")
        with pytest.raises(FileNotFoundError):  # a file without any name has no second one
            store.add_open(file.fileno(), str(source), _hex(GOOD), len(GOOD), hashed=True)
    assert _names(store) == []
    renamed = Path(_source(tmp_path, GOOD, "renamed"))
    with renamed.open("rb") as file:
        renamed.rename(tmp_path / "elsewhere")
        renamed.symlink_to("/etc/passwd")
        store.add_open(file.fileno(), str(renamed), _hex(GOOD), len(GOOD), hashed=True)
    assert os.path.samefile(store.path(_hex(GOOD)), tmp_path / "elsewhere")


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP])
def test_from_another_file_system_it_is_copied(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def link(_source: str, _target: str, **_more: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    source = _source(tmp_path, GOOD)
    store.add(source, _hex(GOOD), len(GOOD))
    target = tmp_path / "cache"
    link_or_copy(store.path(_hex(GOOD)), str(target))

    assert not os.path.samefile(source, store.path(_hex(GOOD)))
    assert Path(store.path(_hex(GOOD))).read_bytes() == target.read_bytes() == GOOD
    assert _names(store) == [f"blobs/sha256/{_hex(GOOD)}"]


def test_where_it_cannot_be_linked_for_another_reason_nothing_stays(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(_source: str, _target: str, **_more: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="read-only"):
        store.add(_source(tmp_path, GOOD), _hex(GOOD), len(GOOD))
    assert _names(store) == []


def test_a_second_name_that_is_there_already_stays_alone(tmp_path: Path) -> None:
    source, target = _source(tmp_path, GOOD), str(tmp_path / "target")
    for _unused in range(2):
        link_or_copy(source, target)
    assert sorted(os.listdir(tmp_path)) == ["source", "target"]


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


def _no_link(_source: str, _target: str, **_more: object) -> None:
    raise OSError(errno.EXDEV, "another file system")


@pytest.mark.parametrize("way", ["link", "copy", "size"])
def test_a_callers_word_that_it_has_hashed_it_is_taken_for_a_link_alone(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    source = _source(tmp_path, GOOD[:-1] + b"x")
    if way == "copy":  # which may be wrong
        monkeypatch.setattr(os, "link", _no_link)
        with pytest.raises(WrongContent, match="it has SHA-256"):
            store.add(source, _hex(GOOD), len(GOOD), hashed=True)
    elif way == "size":
        with pytest.raises(WrongContent, match="it has 7000 bytes instead of 7001"):
            store.add(source, _hex(GOOD), len(GOOD) + 1, hashed=True)
    else:
        store.add(source, _hex(GOOD), len(GOOD), hashed=True)
    assert store.blobs() == ([_hex(GOOD)] if way == "link" else [])


@pytest.mark.parametrize("way", ["add", "put"])
def test_until_it_is_hashed_it_is_in_incoming(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Another file system than that of its name would not do, and prune.yml removes there what a killed run left."""
    seen: list[list[str]] = []
    hashed = blobs.hash_file

    def looked(path: str) -> str:
        seen.append(_names(store))
        return hashed(path)

    monkeypatch.setattr(blobs, "hash_file", looked)
    if way == "put":
        store.put(GOOD, _hex(GOOD))
    else:
        store.add(_source(tmp_path, GOOD), _hex(GOOD), len(GOOD))
    (names,) = seen
    assert [os.path.dirname(name) for name in names] == ["incoming"]
    assert _names(store) == [f"blobs/sha256/{_hex(GOOD)}"]


def test_everybody_may_look_at_what_is_complete_and_only_root_at_the_rest(store: Store) -> None:
    manifest = _manifest(weights=GOOD)
    mask = os.umask(0o022)
    try:
        received = store.incoming(manifest)
        private = os.path.join(received, "manifest.json")
        modes = {path: os.stat(path).st_mode & 0o777 for path in (received, private)}
        store.put(GOOD, _hex(GOOD))
        store.record(manifest)
    finally:
        os.umask(mask)
    assert modes == {received: 0o700, private: 0o600}
    places = ("blobs", "blobs/sha256", "incoming", "manifests")
    assert {os.stat(os.path.join(store.root, name)).st_mode & 0o777 for name in places} == {0o755}
    files = (store.manifest_path(manifest.id), store.path(_hex(GOOD)))
    assert {os.stat(name).st_mode & 0o777 for name in files} == {0o644}


def test_a_file_is_hashed_whole_unless_it_is_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_files, "_CHUNK", 10)
    path, stop = _source(tmp_path, GOOD), threading.Event()
    assert hash_file(path) == hash_file(path, stop) == _hex(GOOD)
    stop.set()
    assert hash_file(path, stop) == _hex(GOOD[:10])


def test_a_disk_that_does_not_give_back_what_was_written(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(
        NodeError, match=r"cannot be read back from disk: Input/output error\. Check the disk"
    ):
        store.put(GOOD, _hex(GOOD))
    assert _names(store) == []


class _Abandoned(Exception):
    pass


def test_who_hashes_ends_with_the_run_that_wanted_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def parts(descriptor: int) -> Iterator[memoryview]:
        for _unused in range(1000):  # it would take ten seconds
            read.append(descriptor)
            time.sleep(0.01)
            yield memoryview(b"x")

    def leave() -> None:
        raise _Abandoned

    monkeypatch.setattr(blob_files, "_parts", parts)
    monkeypatch.setattr(blob_files, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(blob_files, "leave_if_abandoned", leave)
    with pytest.raises(_Abandoned):
        hash_files({"a": _source(tmp_path, GOOD)})
    assert 0 < len(read) < 1000


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


def test_names_are_on_disk_when_it_returns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        blobs, "sync_directory", lambda path: synced.append(os.path.relpath(path, store.root))
    )
    manifest = _manifest(weights=GOOD)
    store.put(GOOD, _hex(GOOD))
    assert synced == ["blobs/sha256"]
    store.record(manifest)
    assert synced == ["blobs/sha256", "manifests"]
    store.drop(manifest)
    assert synced == ["blobs/sha256", "manifests", "manifests"]


def test_what_is_there_already_is_left_as_it_is(store: Store, tmp_path: Path) -> None:
    store.put(GOOD, _hex(GOOD))
    before = os.stat(store.path(_hex(GOOD)))
    store.add(_source(tmp_path, GOOD), _hex(GOOD), len(GOOD))
    assert os.path.samestat(before, os.stat(store.path(_hex(GOOD))))


def test_what_others_put_among_the_blobs_is_none(store: Store) -> None:
    store.put(GOOD, _hex(GOOD))
    Path(store.path("notes.txt")).write_text("x")
    assert store.blobs() == [_hex(GOOD)]


def test_a_manifest_is_recorded_where_all_were_deleted(store: Store) -> None:
    manifest = _manifest(weights=GOOD)
    store.put(GOOD, _hex(GOOD))
    os.rmdir(os.path.join(store.root, "manifests"))
    store.record(manifest)
    assert store.manifests() == [manifest]


def test_a_damaged_manifest_or_one_of_another_name_is_none(store: Store) -> None:
    manifest = _manifest(weights=GOOD)
    store.put(GOOD, _hex(GOOD))
    store.record(manifest)
    path = Path(store.manifest_path(manifest.id))
    (path.parent / f"{'0' * 64}.json").write_text(path.read_text())
    (path.parent / f"{'1' * 64}.json").write_text("{")
    assert store.manifests() == [manifest]


def test_whether_files_can_have_a_name_in_both(store: Store, tmp_path: Path) -> None:
    assert store.beside(str(tmp_path / "not/there/yet")) is True
    assert store.beside("/proc/self") is False


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


def test_what_has_not_come_yet_is_no_fault(store: Store) -> None:
    manifest = _manifest(config=OTHER, weights=GOOD)
    (Path(store.incoming(manifest)) / _hex(GOOD)).write_bytes(GOOD)
    assert store.adopt(manifest) == []
    assert store.missing(manifest) == {_hex(OTHER): len(OTHER)}


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


def test_wrong_blobs_of_a_manifest_are_removed_and_no_others_read(store: Store) -> None:
    first, second = _manifest(config=OTHER, weights=GOOD), _manifest("model lab/n@1", config=b"third")
    for content in (GOOD, OTHER, b"third"):
        store.put(content, _hex(content))
    store.record(first)
    store.record(second)
    for content in (GOOD, b"third"):
        Path(store.path(_hex(content))).write_bytes(b"x" + content[1:])
    assert store.verify([_hex(OTHER), "0" * 64]) == {}
    assert store.remove_wrong(first) == [_hex(GOOD)]
    assert store.blobs() == sorted([_hex(OTHER), _hex(b"third")])
    assert store.manifest("model lab/m@1") is None
    assert store.manifest("model lab/n@1") == second


def test_a_store_without_anything(store: Store) -> None:
    assert (store.manifests(), store.blobs(), store.unfinished(), store.used()) == ([], [], {}, set())


def test_what_was_begun_is_given_up(store: Store) -> None:
    manifest = _manifest(config=OTHER, weights=GOOD)
    written = os.stat(os.path.join(store.incoming(manifest), "manifest.json"))
    assert os.path.samestat(written, os.stat(os.path.join(store.incoming(manifest), "manifest.json")))  # once
    store.put(OTHER, _hex(OTHER))
    store.put(GOOD, _hex(GOOD))
    store.record(_manifest("model lab/n@1", config=OTHER))
    killed = Path(store.root) / "incoming/tmp1"
    killed.write_bytes(b"a part")
    store.workspace("unknown")
    assert store.unfinished() == {manifest.id: manifest, "tmp1": None, "unknown": None}
    for name in ("tmp1", "unknown"):
        store.abandon(name)
    assert store.unfinished() == {manifest.id: manifest}
    assert store.blobs() == sorted([_hex(OTHER), _hex(GOOD)])
    store.abandon(manifest.id)
    assert store.unfinished() == {}
    assert store.blobs() == [_hex(OTHER)]


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
