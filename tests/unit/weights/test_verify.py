# SPDX-License-Identifier: Apache-2.0
"""hf_model compares what it downloaded by content, brings it to disk first, and says what is wrong, and from where."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import files as files_on_node
from ansible_collections.instinct.fleet.plugins.module_utils.common.abandoned import ControllerGone
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.weights import verify
from ansible_collections.instinct.fleet.plugins.module_utils.weights.snapshot import Snapshot
from ansible_collections.instinct.fleet.plugins.modules import hf_model

from tests.worlds.fake_docker import FakeContainer, FakeDocker, Program
from tests.worlds.weights_world import COMMIT, FILES, args, docker, download, mounts_of, put

__all__ = ["args", "docker"]  # fixtures

Args = dict[str, Any]
BIG = "model-00001-of-00002.safetensors"


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def git(content: bytes) -> str:
    return f"git-sha1:{hashlib.sha1(b'blob %d' % len(content) + bytes(1) + content).hexdigest()}"


HASHES = {name: (sha256 if name == BIG else git)(b"x" * size) for name, size in FILES.items()}


@pytest.fixture
def hashed(args: Args) -> Args:
    """A download of which the lock file knows every hash."""
    return {**args, "hashes": HASHES, "endpoint": "http://mirror.example"}


def marker(args: Args) -> Path:
    return Path(args["cache_dir"]) / f"hub/models--lab--tiny-llama/.instinct-fleet/{COMMIT}.json"


def snapshot(args: Args) -> Path:
    return Path(args["cache_dir"]) / f"hub/models--lab--tiny-llama/snapshots/{COMMIT}"


def spoiling(*names: str, blob: str = "") -> Program:
    """A download in which something on the way replaces bytes: these files have their length, and other content."""

    def program(container: FakeContainer) -> int:
        code = download()(container)
        for name in names:
            (snapshot({"cache_dir": mounts_of(container)["/hf"]}) / name).unlink()
            put(mounts_of(container)["/hf"], name, FILES[name], blob, b"\0")
        return code

    return program


def test_what_the_hub_lists_is_what_was_found(hashed: Args, run_module: Any) -> None:
    result, failed = run_module(hf_model.main, hashed)
    assert not failed, result
    assert json.loads(marker(hashed).read_text())["verified"] == HASHES
    assert "verify 3 files (2.0 KiB) by their content" in result["actions"]


@pytest.mark.parametrize("name", [BIG, "config.json"])
def test_wrong_bytes_of_the_right_length_are_no_success(
    name: str, docker: FakeDocker, hashed: Args, run_module: Any
) -> None:
    docker.programs["instinct-fetch-"] = spoiling(name)
    result, failed = run_module(hf_model.main, hashed)
    assert failed
    found = (sha256 if name == BIG else git)(b"\0" * FILES[name])
    for word in (
        "lab/tiny-llama@" + COMMIT, f"{name} is {found}, expected {HASHES[name]}", "from http://mirror.example",
        "Run again", "mirror or proxy",
    ):  # fmt: skip
        assert word in result["msg"]
    assert "playbooks/restart.yml" not in result["msg"]  # nothing can have loaded it
    assert not marker(hashed).exists()
    assert not (snapshot(hashed) / name).exists()
    assert not any(
        path.read_bytes().startswith(b"\0") for path in (snapshot(hashed).parents[1] / "blobs").iterdir()
    )
    docker.programs["instinct-fetch-"] = download()
    again, failed = run_module(hf_model.main, hashed)
    assert not failed, again
    assert (again["changed"], marker(hashed).exists()) == (True, True)


def test_many_wrong_files_are_counted(docker: FakeDocker, args: Args, run_module: Any) -> None:
    files = {f"m-{number}.bin": 10 for number in range(5)}
    docker.programs["instinct-fetch-"] = download(files)
    given = {**args, "files": files, "hashes": dict.fromkeys(files, sha256(b"other"))}
    result, failed = run_module(hf_model.main, given)
    assert failed
    assert "Wrong content in 5 of 5 files" in result["msg"]
    assert "m-2.bin" in result["msg"]
    assert "; and 2 more." in result["msg"]
    assert not any(path.exists() for path in snapshot(args).iterdir())


def test_without_hashes_the_name_of_a_large_blob_tells(
    docker: FakeDocker, args: Args, run_module: Any
) -> None:
    """With a lock file of an earlier version."""
    docker.programs["instinct-fetch-"] = spoiling(BIG, blob=HASHES[BIG].partition(":")[2])
    result, failed = run_module(hf_model.main, args)
    assert failed
    assert f"{BIG} is {sha256(bytes(2000))}, expected {HASHES[BIG]}" in result["msg"]


def older_marker(args: Args) -> None:
    """What an earlier version left: a marker without hashes."""
    data = json.loads(marker(args).read_text())
    del data["verified"]
    marker(args).write_text(json.dumps(data))


def test_weights_of_an_earlier_version_are_verified_once_and_not_fetched(
    docker: FakeDocker, hashed: Args, run_module: Any
) -> None:
    run_module(hf_model.main, hashed)
    older_marker(hashed)
    before = docker.changes()
    predicted, _ = run_module(hf_model.main, hashed, check=True)
    result, failed = run_module(hf_model.main, hashed)
    assert not failed, result
    assert [text.split()[0] for text in result["actions"]] == ["verify", "write"]
    assert predicted["actions"] == result["actions"]
    assert docker.changes() == before
    assert run_module(hf_model.main, hashed)[0]["actions"] == []


def test_asked_for_everything_is_read_again(docker: FakeDocker, hashed: Args, run_module: Any) -> None:
    run_module(hf_model.main, hashed)
    before, text = docker.changes(), marker(hashed).read_text()
    for check in (True, False):
        result, failed = run_module(hf_model.main, {**hashed, "verify": True}, check=check, diff=True)
        assert not failed, result
        assert (result["changed"], result["actions"]) == (
            False,
            ["verify 3 files (2.0 KiB) by their content"],
        )
        assert result["diff"]["before"] == result["diff"]["after"]
    put(hashed["cache_dir"], BIG, FILES[BIG], fill=b"\0")
    assert run_module(hf_model.main, hashed)[1] is False  # nobody reads it
    assert run_module(hf_model.main, {**hashed, "verify": True}, check=True)[1] is False
    assert (snapshot(hashed) / BIG).exists()
    result, failed = run_module(hf_model.main, {**hashed, "verify": True})
    assert failed
    assert f"{BIG} is {sha256(bytes(2000))}" in result["msg"]
    assert (
        "Instances that loaded them give wrong answers until they load good ones: playbooks/restart.yml"
        in result["msg"]
    )
    assert not (snapshot(hashed) / BIG).exists()
    assert (docker.changes(), marker(hashed).read_text()) == (before, text)


def test_files_that_replace_others_do_not_count_as_verified(
    docker: FakeDocker, hashed: Args, run_module: Any
) -> None:
    """Killed between the download and the comparison, a run leaves no marker."""
    run_module(hf_model.main, hashed)
    (snapshot(hashed) / BIG).unlink()
    seen: list[bool] = []
    docker.programs["instinct-fetch-"] = lambda container: (
        seen.append(marker(hashed).exists()) or download()(container)
    )
    result, failed = run_module(hf_model.main, hashed)
    assert not failed, result
    assert seen == [False]


def test_a_cut_off_file_is_gone_before_the_download_starts(
    docker: FakeDocker, args: Args, run_module: Any
) -> None:
    """The hub's client takes a file that exists for complete."""
    for name, size in FILES.items():
        put(args["cache_dir"], name, size - (7 if name == BIG else 0))
    blobs = snapshot(args).parents[1] / "blobs"
    seen: list[tuple[list[str], list[str]]] = []

    def program(container: FakeContainer) -> int:
        seen.append((sorted(path.name for path in blobs.iterdir()), sorted(os.listdir(snapshot(args)))))
        return download()(container)

    docker.programs["instinct-fetch-"] = program
    result, failed = run_module(hf_model.main, args)
    assert not failed, result
    assert seen == [(["config.json", "sub-tokenizer.json"], ["config.json", "sub"])]


def test_everything_is_on_disk_before_the_marker(
    hashed: Args, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    result, failed = run_module(hf_model.main, hashed)
    assert not failed, result
    repo = snapshot(hashed).parents[1]
    written = next(at for at, path in enumerate(synced) if f".{COMMIT}.json" in path)
    assert {
        *(str(repo / "blobs" / name.replace("/", "-")) for name in FILES),
        *map(
            str,
            (
                repo / "blobs",
                repo,
                repo / "snapshots",
                snapshot(hashed),
                snapshot(hashed) / "sub",
                repo.parent,
            ),
        ),
    } <= set(synced[:written])
    assert str(repo / ".instinct-fleet") in synced[written:]


def test_a_file_that_the_disk_does_not_give_back(
    hashed: Args, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        if "blobs/model" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(files_on_node.os, "fsync", fsync)
    result, failed = run_module(hf_model.main, hashed)
    assert failed
    assert f"{snapshot(hashed) / BIG} cannot be read back from disk: Input/output error" in result["msg"]
    assert not marker(hashed).exists()


def test_files_are_read_by_several_threads_the_largest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet, order = threading.Barrier(verify.THREADS), []
    read = verify._hash_file

    def hash_file(made: Snapshot, name: str, kind: str, stop: threading.Event) -> str:
        order.append(int(name))
        meet.wait(20)
        return read(made, name, kind, stop)

    monkeypatch.setattr(verify, "_hash_file", hash_file)
    files = {str(size): size for size in range(2 * verify.THREADS)}
    made = Snapshot(str(tmp_path), "a/b", "main", COMMIT, files, (), ())
    os.makedirs(made.path)
    for name, size in files.items():
        Path(made.path, name).write_bytes(b"x" * size)
    found = verify.hash_snapshot(made, dict.fromkeys(files, "sha256"))
    assert found == {name: sha256(b"x" * size) for name, size in files.items()}
    assert min(order[: verify.THREADS]) >= verify.THREADS


def test_nothing_is_read_to_the_end_for_a_controller_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> None:
        raise ControllerGone("gone")

    monkeypatch.setattr(verify, "leave_if_abandoned", gone)
    monkeypatch.setattr(verify, "_POLL_SECONDS", 0.05)
    made = Snapshot(str(tmp_path), "a/b", "main", COMMIT, {"endless": 1}, (), ())
    os.makedirs(made.path)
    Path(made.path, "endless").write_bytes(b"x")
    monkeypatch.setattr(verify.os, "readv", lambda _descriptor, buffers: len(buffers[0]))  # it never ends
    with pytest.raises(ControllerGone):
        verify.hash_snapshot(made, {"endless": "sha256"})


@pytest.mark.parametrize("text", ["md5:" + "1" * 32, "sha256:" + "1" * 40, "sha256:" + "G" * 64, "", 7])
def test_a_hash_that_is_none(text: Any, args: Args, docker: FakeDocker, run_module: Any) -> None:
    result, failed = run_module(hf_model.main, {**args, "hashes": {"config.json": text}})
    assert failed
    assert "of config.json is neither sha256:… nor git-sha1:…" in result["msg"]
    assert docker.requests == []


def test_an_error_of_reading_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="gone cannot be read back from disk: No such file"):
        verify._hash_file(
            Snapshot(str(tmp_path), "a/b", "main", COMMIT, {}, (), ()), "gone", "sha256", threading.Event()
        )
