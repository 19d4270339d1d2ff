# SPDX-License-Identifier: Apache-2.0
"""blob_bundle between real stores: what was written is read by tar, a cut run goes on, wrong content is refused."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.bundles import bundle_read, bundle_write
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import (
    Manifest,
    ManifestFile,
    manifest_of,
)
from ansible_collections.instinct.fleet.plugins.modules import blob_bundle

Json = dict[str, Any]
MIB = 2**20
PINS = {"images": {"lab/x:1": "sha256:1"}, "models": {"|lab/m@main": "c" * 40}}
CONTENT = {
    "config.json": b"{}",
    "empty": b"",
    **{f"layer {number}": random.Random(number).randbytes(400_000) for number in range(4)},
    "model.safetensors": random.Random(9).randbytes(3 * MIB + 77),  # over four volumes
}
NAMES = [f"volume-{number:04d}.tar" for number in range(1, 6)]


def _killed(call: Callable[[], Any]) -> None:
    """Call it in a process of its own, which kills itself on the way."""
    child = os.fork()
    if not child:
        try:
            call()
        finally:
            os._exit(1)
    _pid, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it ended before it was killed"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(autouse=True)
def _locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "run"))


def _fill(store: Store, content: dict[str, bytes], name: str = "model lab/m@1") -> Manifest:
    files = []
    for path, data in content.items():
        store.put(data, sha256(data).hexdigest())
        files.append(ManifestFile(path, len(data), sha256(data).hexdigest()))
    manifest = manifest_of(name, files)
    store.record(manifest)
    return manifest


@pytest.fixture
def source(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "source"))
    _fill(store, CONTENT)
    return store


@pytest.fixture
def create(source: Store, tmp_path: Path, run_module: Any) -> Callable[..., Json]:
    def run(place: str = "bundle", fails: bool | None = False, check: bool = False, **given: Any) -> Json:
        args = {
            "state": "created",
            "path": str(tmp_path / place),
            "manifests": [item.to_json() for item in source.manifests()],
            "about": {"release": "1", "deployments": ["llama"], "licenses": {}},
            "lock": "the lock",
            "pins": PINS,
            "volume_size": MIB,
            "store": source.root,
        }
        result, failed = run_module(blob_bundle.main, {**args, **given}, check=check)
        assert fails in (failed, None), result
        return dict(result)

    return run


@pytest.fixture
def load(tmp_path: Path, run_module: Any) -> Callable[..., Json]:
    def run(place: str = "bundle", fails: bool = False, check: bool = False, **given: Any) -> Json:
        args = {
            "state": "loaded",
            "path": str(tmp_path / place),
            "pins": PINS,
            "store": str(tmp_path / "target"),
        }
        result, failed = run_module(blob_bundle.main, {**args, **given}, check=check)
        assert failed is fails, result
        return dict(result)

    return run


@pytest.fixture
def verify(tmp_path: Path, run_module: Any) -> Callable[..., Json]:
    def run(fails: bool = False, **given: Any) -> Json:
        args = {"state": "verified", "path": str(tmp_path / "bundle"), **given}
        before = _tree(tmp_path / "bundle")
        result, failed = run_module(blob_bundle.main, args)
        assert failed is fails, result
        assert _tree(tmp_path / "bundle") == before, "nothing is changed"
        return dict(result)

    return run


@pytest.fixture
def target(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "target"))


def _tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _assert_same(source: Store, target: Store) -> None:
    assert target.manifests() == source.manifests()
    assert target.blobs() == source.blobs()
    assert target.verify() == {}
    assert os.listdir(os.path.join(target.root, "incoming")) == []


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_there_and_back(
    create: Any, verify: Any, load: Any, source: Store, target: Store, tmp_path: Path
) -> None:
    predicted = create(check=True)
    assert not (tmp_path / "bundle").exists()
    made = create()
    assert (made["volumes"], made["actions"]) == (NAMES, predicted["actions"])
    assert all(os.path.getsize(tmp_path / "bundle" / name) <= MIB for name in NAMES)
    assert sorted(os.listdir(tmp_path / "bundle")) == ["bundle.json", "fleet.lock.json", *NAMES]
    assert verify()["bytes"] == made["bytes"]
    foretold = load(check=True)
    assert not os.path.exists(target.root)
    assert load()["actions"] == foretold["actions"]
    _assert_same(source, target)
    assert load()["changed"] is False
    assert create()["changed"] is False


def test_standard_tar_reads_the_volumes(create: Any, source: Store, tmp_path: Path) -> None:
    create()
    out = tmp_path / "out"
    out.mkdir()
    for name in NAMES:
        subprocess.run(["tar", "-xf", str(tmp_path / "bundle" / name), "-C", str(out)], check=True)
    found: dict[str, bytes] = {}
    for path in sorted((out / "blobs/sha256").iterdir()):
        found[path.name[:64]] = found.get(path.name[:64], b"") + path.read_bytes()
    assert {name: sha256(data).hexdigest() for name, data in found.items()} == {
        name: name for name in source.blobs()
    }


@pytest.mark.parametrize("after", [1, 3, 6, 9])
def test_a_creation_that_is_killed_goes_on(
    create: Any, source: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    whole = create("other")
    left = iter(range(after))

    def kill() -> None:
        if next(left, None) is None:
            _die()

    monkeypatch.setattr(bundle_write, "leave_if_abandoned", kill)
    _killed(create)
    monkeypatch.undo()
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "run"))
    assert not (tmp_path / "bundle/bundle.json").exists()
    there = {path.name: path.stat().st_ino for path in (tmp_path / "bundle").glob("volume-*.tar")}
    create()
    assert _tree(tmp_path / "bundle") == _tree(tmp_path / "other"), whole
    kept = {name: (tmp_path / "bundle" / name).stat().st_ino for name in there}
    assert kept == there, "what was whole is not written again"


@pytest.mark.parametrize("volume", [0, 2, 4])
@pytest.mark.parametrize("after", [1, 5])
def test_a_load_that_is_killed_goes_on(
    create: Any,
    load: Any,
    source: Store,
    target: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    volume: int,
    after: int,
) -> None:
    create()
    read, seen = bundle_read._read, iter(range(volume))

    def count(one: Any, directory: str, take: Any) -> Any:
        if next(seen, None) is None:
            left = iter(range(after))

            def kill() -> None:
                if next(left, None) is None:
                    _die()

            monkeypatch.setattr(bundle_read, "leave_if_abandoned", kill)
        return read(one, directory, take)

    monkeypatch.setattr(bundle_read, "_CHUNK", 100_000)
    monkeypatch.setattr(bundle_read, "_read", count)
    _killed(load)
    assert target.manifests() == []
    assert target.verify() == {}
    monkeypatch.undo()
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "run"))
    load()
    _assert_same(source, target)


@pytest.mark.parametrize("name", NAMES)
def test_a_corrupt_volume_is_refused_by_name(
    create: Any, verify: Any, load: Any, source: Store, target: Store, tmp_path: Path, name: str
) -> None:
    create()
    _flip(tmp_path / "bundle" / name, 600)  # in the first blob that is not empty, or a header
    said = verify(fails=True)
    assert [text.partition(" ")[0] for text in said["wrong"]] == [name]
    assert "sha256:" in said["msg"]
    refused = load(fails=True)
    assert name in refused["msg"]
    assert "continues" in refused["msg"]
    assert target.verify() == {}
    _flip(tmp_path / "bundle" / name, 600)
    load()
    _assert_same(source, target)


def test_a_corrupt_piece_leaves_nothing_behind(
    create: Any, load: Any, source: Store, target: Store, tmp_path: Path
) -> None:
    create()
    _flip(tmp_path / "bundle" / NAMES[-1], 512 + 20)
    load(fails=True)
    _flip(tmp_path / "bundle" / NAMES[-1], 512 + 20)
    assert target.manifests() == []
    assert load()["bytes"] == len(CONTENT["model.safetensors"]), "the others stayed"
    _assert_same(source, target)


def test_what_is_missing_is_named_before_anything_is_loaded(
    create: Any, verify: Any, load: Any, target: Store, tmp_path: Path
) -> None:
    create()
    (tmp_path / "bundle" / NAMES[1]).unlink()
    os.truncate(tmp_path / "bundle" / NAMES[2], 1000)
    (tmp_path / "bundle/fleet.lock.json").unlink()
    wanted = [f"{NAMES[1]} is missing", f"{NAMES[2]} has 1000 bytes instead of {MIB}"]
    for said in (verify(fails=True), load(fails=True)):
        assert all(text in said["msg"] for text in wanted)
        assert "Copy these files" in said["msg"]
    assert "fleet.lock.json is missing" in verify(fails=True)["msg"]
    assert not os.path.exists(target.root)


def test_a_bundle_that_is_not_whole_yet_is_none(create: Any, verify: Any, load: Any, tmp_path: Path) -> None:
    create()
    os.rename(tmp_path / "bundle/bundle.json", tmp_path / "bundle/bundle.partial.json")
    for said in (verify(fails=True), load(fails=True)):
        assert "run bundle_create.yml again" in said["msg"]


def test_a_difference_is_as_large_as_what_changed(
    create: Any, load: Any, source: Store, target: Store, tmp_path: Path
) -> None:
    create()
    changed = {**CONTENT, "model.safetensors": random.Random(3).randbytes(2 * MIB)}
    second = _fill(source, changed, "model lab/m@2")
    create("second", manifests=[second.to_json()], base=str(tmp_path / "bundle"))
    size = sum(path.stat().st_size for path in (tmp_path / "second").iterdir())
    assert size <= 2 * MIB * 1.01, size
    said = load("second", fails=True)
    assert "Load the earlier bundle" in said["msg"]
    assert not os.path.exists(target.root)
    load()
    load("second")
    _assert_same(source, target)


def test_a_bundle_for_another_lock_says_what_differs(create: Any, load: Any, target: Store) -> None:
    create()
    said = load(fails=True, pins={**PINS, "images": {"lab/x:1": "sha256:2"}})
    assert "image lab/x:1: the bundle has sha256:1, the lock sha256:2" in said["msg"]
    assert not os.path.exists(target.root)


@pytest.mark.parametrize("module", [bundle_write, bundle_read])
def test_a_full_disk_is_said_before(
    create: Any, load: Any, target: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    if module is bundle_read:
        create()
    monkeypatch.setattr(module, "free_bytes", lambda _path: 5 * MIB)
    said = (load if module is bundle_read else create)(fails=True)
    assert "Not enough disk for the bundle" in said["msg"]
    assert "5.0 MiB free" in said["msg"]
    assert not os.path.exists(target.root)
    assert (tmp_path / "bundle").exists() is (module is bundle_read)


@pytest.mark.parametrize("module", [bundle_write, bundle_read])
def test_what_the_disk_refuses_is_told_with_the_volume(
    create: Any, load: Any, source: Store, target: Store, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    if module is bundle_read:
        create()

    def refuse() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(module, "leave_if_abandoned", refuse)
        said = (load if module is bundle_read else create)(fails=True)
    assert f"{NAMES[0]} cannot be copied" in said["msg"]
    assert "Input/output error" in said["msg"]
    create()
    load()
    _assert_same(source, target)


def test_a_directory_that_cannot_be_made_is_named(create: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "file/bundle cannot be copied" in create("file/bundle", fails=True)["msg"]


def test_another_bundle_is_not_overwritten(create: Any, source: Store, tmp_path: Path) -> None:
    create()
    before = _tree(tmp_path / "bundle")
    other = _fill(source, {"x": b"x"}, "model lab/other@1")
    said = create(fails=True, manifests=[other.to_json()])
    assert "holds another bundle, of llama" in said["msg"]
    assert _tree(tmp_path / "bundle") == before


def test_a_damaged_volume_is_written_again(create: Any, verify: Any, tmp_path: Path) -> None:
    create()
    _flip(tmp_path / "bundle" / NAMES[3], 5000)
    assert create()["actions"] == [
        f"write {tmp_path}/bundle/{NAMES[3]} (1.0 MiB)",
        f"write {tmp_path}/bundle/bundle.json",
    ]
    verify()


def test_a_wrong_blob_of_the_store_does_not_get_into_a_bundle(
    create: Any, source: Store, tmp_path: Path
) -> None:
    blob = sha256(CONTENT["model.safetensors"]).hexdigest()
    _flip(Path(source.path(blob)), 2 * MIB)
    said = create(fails=True)
    assert blob in said["msg"]
    assert source.size(blob) is None
    assert not (tmp_path / "bundle/bundle.json").exists()
    assert "is missing 1 blobs" in create(fails=True, manifests=json.loads(json.dumps(_manifests())))["msg"]


BLOB = sha256(CONTENT["model.safetensors"]).hexdigest()


def test_a_piece_is_not_written_again_from_a_wrong_blob(
    create: Any, verify: Any, source: Store, tmp_path: Path
) -> None:
    """The blob's last piece, at which it is compared, was written by an earlier run."""
    create()
    right = _tree(tmp_path / "bundle")
    index = json.loads(right["bundle.json"])
    first = next(
        volume for volume in index["volumes"] if [BLOB, 0] in [piece[:2] for piece in volume["pieces"]]
    )
    _flip(tmp_path / "bundle" / first["name"], first["bytes"] - 5000)
    _flip(Path(source.path(BLOB)), 100)
    said = create(fails=True)
    assert f"{source.path(BLOB)} of model lab/m@1 does not match the hash in its name" in said["msg"]
    assert source.size(BLOB) is None
    _fill(source, CONTENT)
    create()
    assert _tree(tmp_path / "bundle") == right
    verify()


def test_a_piece_of_a_wrong_blob_does_not_stay_when_the_blob_was_fetched_again(
    create: Any, verify: Any, source: Store, tmp_path: Path
) -> None:
    create("other")
    _flip(Path(source.path(BLOB)), 100)
    create(fails=True)  # at the blob's end, when the volumes before it are written
    assert len(list((tmp_path / "bundle").glob("*.tar"))) > 1
    _fill(source, CONTENT)
    create()
    assert _tree(tmp_path / "bundle") == _tree(tmp_path / "other")
    verify()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(1, 6))])
def test_whatever_is_damaged_meanwhile_a_bundle_that_is_made_is_right(
    create: Any, verify: Any, source: Store, tmp_path: Path, seed: int
) -> None:
    """Volumes and blobs are damaged between runs, and blobs fetched again, in any order."""
    rng = random.Random(seed)
    create("other")
    right = _tree(tmp_path / "other")
    made = 0
    for _run in range(6):
        volumes = sorted((tmp_path / "bundle").glob("*.tar")) if rng.random() < 0.7 else []
        for path in rng.sample(volumes, min(len(volumes), 2)):
            _flip(path, rng.randrange(512, path.stat().st_size - 1024))
        sizes = {name: size for name in source.blobs() if (size := source.size(name))}
        wrong = rng.sample(sorted(sizes), 1) if rng.random() < 0.5 else []
        for name in wrong:
            _flip(Path(source.path(name)), rng.randrange(sizes[name]))
        if "msg" in create(fails=None):
            if (tmp_path / "bundle/bundle.json").exists():  # of the earlier run, with volumes damaged since
                verify(fails=True)
        else:
            made += 1
            assert _tree(tmp_path / "bundle") == right
            verify()
        for name in wrong:
            source.remove(name)
        _fill(source, CONTENT)
    assert made


def test_pieces_of_no_blob_are_found_although_each_volume_is_as_the_index_says(
    create: Any, verify: Any, load: Any, tmp_path: Path
) -> None:
    """As an earlier release could write it: the other side of an air gap has nothing to fetch it from."""
    create()
    path = tmp_path / "bundle/bundle.json"
    index = json.loads(path.read_text())
    volumes = [item for item in index["volumes"] if BLOB in [piece[0] for piece in item["pieces"]]]
    _flip(tmp_path / "bundle" / volumes[1]["name"], 5000)
    volumes[1]["sha256"] = sha256((tmp_path / "bundle" / volumes[1]["name"]).read_bytes()).hexdigest()
    path.write_text(json.dumps(index))
    names = " and ".join(item["name"] for item in volumes)
    expected = f"sha256:{BLOB} in {names} does not match its hash and was written so: make the bundle again"
    assert verify(fails=True)["wrong"] == [expected]
    assert BLOB in load(fails=True)["msg"]


def test_a_lock_file_that_was_lost_is_written_again(create: Any, verify: Any, tmp_path: Path) -> None:
    create()
    right = _tree(tmp_path / "bundle")
    for damage in (Path.unlink, lambda path: path.write_text("another")):
        damage(tmp_path / "bundle/fleet.lock.json")
        assert verify(fails=True)
        assert create()["actions"] == [f"write {tmp_path}/bundle/fleet.lock.json"]
        assert _tree(tmp_path / "bundle") == right
        verify()
    assert not create()["changed"]


def test_another_bundle_than_the_wanted_one_is_refused(
    create: Any, load: Any, verify: Any, target: Store, tmp_path: Path
) -> None:
    own = create()["bundle_id"]
    other = "f" * 64
    for run in (load, verify):
        said = run(fails=True, id=other)["msg"]
        assert f"has the id {own}, but {other} was expected" in said
    assert not os.path.exists(target.root)
    # Whatever is changed in the index, the id is another one.
    path = tmp_path / "bundle/bundle.json"
    for key, value in (
        ("about", {"release": "2"}),
        ("lock", "0" * 64),
        ("pins", {"images": {}, "models": {}}),
    ):
        text = path.read_text()
        path.write_text(json.dumps({**json.loads(text), key: value}))
        assert "was expected" in verify(fails=True, id=own)["msg"]
        path.write_text(text)
    verify(id=own)
    assert load(id=own)["changed"]


def _manifests() -> list[Json]:
    files = [ManifestFile(path, len(data), sha256(data).hexdigest()) for path, data in CONTENT.items()]
    return [manifest_of("model lab/m@1", files).to_json()]
