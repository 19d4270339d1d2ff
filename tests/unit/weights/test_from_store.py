# SPDX-License-Identifier: Apache-2.0
"""Weights that a node's store has need no hub; weights of a cache are shared over the store."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.observe.storage import read_model
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.weights import download, in_store
from ansible_collections.instinct.fleet.plugins.module_utils.weights.snapshot import Snapshot
from ansible_collections.instinct.fleet.plugins.modules import hf_model

from tests.worlds.fake_docker import FakeDocker
from tests.worlds.weights_world import COMMIT, FILES, args, docker, put

__all__ = ["args", "docker"]  # fixtures

Args = dict[str, Any]
BIG = "model-00001-of-00002.safetensors"


def _content(name: str) -> bytes:
    return b"x" * FILES[name]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git(content: bytes) -> str:
    return hashlib.sha1(b"blob %d" % len(content) + bytes(1) + content).hexdigest()


HASHES = {
    name: f"sha256:{_sha256(_content(name))}" if name == BIG else f"git-sha1:{_git(_content(name))}"
    for name in FILES
}


@pytest.fixture
def receiver(args: Args, tmp_path: Path) -> Args:
    """A node that lacks the model; its store is empty."""
    return {**args, "hashes": HASHES, "store": str(tmp_path / "store")}


def _snapshot(given: Args) -> Snapshot:
    defaults = {name: option.get("default") for name, option in hf_model.argument_spec().items()}
    return download.fetch_of({**defaults, **given}).snapshot


def _shared(given: Args) -> Store:
    """Another node's cache has the model, and its store has become this node's."""
    seed = {**given, "cache_dir": f"{given['cache_dir']}-seed"}
    for name, size in FILES.items():
        put(seed["cache_dir"], name, size)
    store = Store(given["store"])
    in_store.share(store, _snapshot(seed))
    return store


def _path(given: Args, name: str) -> Path:
    return Path(given["cache_dir"]) / f"hub/models--lab--tiny-llama/snapshots/{COMMIT}/{name}"


def test_what_the_store_has_needs_neither_hub_nor_image(
    docker: FakeDocker, receiver: Args, run_module: Any
) -> None:
    store = _shared(receiver)
    docker.images.clear()
    result, failed = run_module(hf_model.main, receiver)

    assert not failed, result
    assert result["changed"]
    assert result["actions"][0] == (f"link lab/tiny-llama@{COMMIT} from {store.root} (3 files, 2.0 KiB)")
    assert docker.changes() == []
    for name in FILES:
        blob = store.path(_sha256(_content(name)))
        assert os.path.samefile(_path(receiver, name), blob), "one file under two names"
        assert os.path.basename(os.path.realpath(_path(receiver, name))) == HASHES[name].partition(":")[2]
    marker = f"{receiver['cache_dir']}/hub/models--lab--tiny-llama/.instinct-fleet/{COMMIT}.json"
    assert json.loads(Path(marker).read_text())["verified"] == HASHES
    assert read_model(marker, receiver["cache_dir"])["complete"]
    again, failed = run_module(hf_model.main, receiver)
    assert (failed, again["changed"], again["actions"]) == (False, False, [])


def test_check_mode_tells_the_same_and_touches_nothing(
    docker: FakeDocker, receiver: Args, run_module: Any
) -> None:
    _shared(receiver)
    predicted, failed = run_module(hf_model.main, receiver, check=True)
    assert not failed, predicted
    assert not os.path.exists(receiver["cache_dir"])
    assert run_module(hf_model.main, receiver)[0]["actions"] == predicted["actions"]


@pytest.mark.parametrize("name", [BIG, "config.json"])
def test_a_byte_flipped_in_the_store_is_refused_and_comes_from_the_hub(
    docker: FakeDocker, receiver: Args, run_module: Any, name: str
) -> None:
    store = _shared(receiver)
    blob = Path(store.path(_sha256(_content(name))))
    blob.unlink()  # the seed's cache has the same file
    blob.write_bytes(b"y" + _content(name)[1:])

    result, failed = run_module(hf_model.main, receiver)

    assert not failed, result
    assert name in "".join(result["warnings"])
    assert _path(receiver, name).read_bytes() == _content(name)
    assert not blob.exists()
    assert store.manifests() == []
    assert docker.changes(), "it was downloaded"
    assert run_module(hf_model.main, receiver)[0]["changed"] is False


@pytest.mark.parametrize(
    "differs",
    [
        {"hashes": {**HASHES, BIG: f"sha256:{'0' * 64}"}},
        {"files": {**FILES, "config.json": 12}},
        {"commit": COMMIT[::-1]},
        {"repo": "lab/other"},
    ],
)
def test_other_files_than_the_lock_says_are_not_taken(
    docker: FakeDocker, receiver: Args, run_module: Any, differs: Args
) -> None:
    _shared(receiver)
    predicted, failed = run_module(hf_model.main, {**receiver, **differs}, check=True)
    assert not failed, predicted
    assert "/containers/create" in predicted["actions"][0]


def test_a_small_file_that_the_seed_had_wrong_is_refused_and_not_taken_again(
    docker: FakeDocker, receiver: Args, run_module: Any
) -> None:
    """Its SHA-256 was the seed's own; the lock knows git's."""
    store = _shared({**receiver, "hashes": {}})
    wrong = {**HASHES, "config.json": f"git-sha1:{_git(b'z' * 11)}"}
    result, failed = run_module(hf_model.main, {**receiver, "hashes": wrong})
    assert failed
    assert "config.json is git-sha1:" in result["msg"]
    assert store.root in result["msg"]
    assert store.manifests() == []


def test_files_of_a_wrong_size_give_way(docker: FakeDocker, receiver: Args, run_module: Any) -> None:
    _shared(receiver)
    put(receiver["cache_dir"], BIG, 5)
    result, failed = run_module(hf_model.main, receiver)
    assert not failed, result
    assert _path(receiver, BIG).read_bytes() == _content(BIG)


def test_a_cache_with_a_flipped_byte_is_not_shared(receiver: Args) -> None:
    for name, size in FILES.items():
        put(receiver["cache_dir"], name, size)
    os.truncate(_path(receiver, BIG), 0)
    _path(receiver, BIG).write_bytes(b"y" + _content(BIG)[1:])
    store = Store(receiver["store"])
    with pytest.raises(NodeError, match=f"{BIG} is sha256:.*from|Wrong content"):
        in_store.share(store, _snapshot(receiver))
    assert store.manifests() == []
    assert store.blobs() == []


def test_sharing_replaces_what_the_store_had_wrong(receiver: Args) -> None:
    store = _shared(receiver)
    blob = Path(store.path(_sha256(_content(BIG))))
    blob.unlink()
    blob.write_bytes(b"y" + _content(BIG)[1:])
    _shared(receiver)
    assert store.verify() == {}


@pytest.mark.parametrize("stored", ["nothing", "a wrong byte"])
def test_offline_no_hub_is_asked_for_what_the_store_lacks(
    docker: FakeDocker, receiver: Args, run_module: Any, stored: str
) -> None:
    if stored != "nothing":
        blob = Path(_shared(receiver).path(_sha256(_content(BIG))))
        blob.unlink()
        blob.write_bytes(b"y" + _content(BIG)[1:])
    result, failed = run_module(hf_model.main, {**receiver, "offline": True})
    assert failed
    assert "no hub is asked" in result["msg"]
    assert BIG in result["msg"] or stored == "nothing"
    assert "bundle_load.yml" in result["msg"]
    assert docker.changes() == []


def test_offline_the_store_is_enough(docker: FakeDocker, receiver: Args, run_module: Any) -> None:
    _shared(receiver)
    result, failed = run_module(hf_model.main, {**receiver, "offline": True})
    assert not failed, result
    assert docker.changes() == []
