# SPDX-License-Identifier: Apache-2.0
"""blob_verify: a flipped byte is found wherever it is, named, removed, and fetched again by the next run."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import ManifestFile, manifest_of
from ansible_collections.instinct.fleet.plugins.modules import blob_verify, hf_model

from tests.worlds.fake_docker import FakeDocker
from tests.worlds.weights_world import COMMIT, FILES, args, docker

__all__ = ["args", "docker"]  # fixtures

Args = dict[str, Any]
BIG = "model-00001-of-00002.safetensors"
LAYER = b"layer" * 500


@pytest.fixture
def node(args: Args, tmp_path: Path, run_module: Any) -> Args:
    """A node with a model in its cache, and an image in its store."""
    assert not run_module(hf_model.main, args)[1]
    store = Store(str(tmp_path / "store"))
    name = sha256(LAYER).hexdigest()
    store.put(LAYER, name)
    store.record(manifest_of("image sha256:1", [ManifestFile("layer", len(LAYER), name)]))
    return {"store": store.root, "cache_dirs": [args["cache_dir"], str(tmp_path / "none")]}


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _file(args: Args, name: str) -> Path:
    return Path(args["cache_dir"]) / f"hub/models--lab--tiny-llama/snapshots/{COMMIT}" / name


def test_what_is_right_stays(node: Args, run_module: Any) -> None:
    result, failed = run_module(blob_verify.main, node)
    assert not failed, result
    assert (result["changed"], result["wrong"]) == (False, [])
    assert (result["blobs"], result["snapshots"]) == (1, 1)
    assert result["bytes"] == len(LAYER) + sum(FILES.values())


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_of_weights(node: Args, args: Args, run_module: Any, name: str) -> None:
    _flip(_file(args, name))
    checked, failed = run_module(blob_verify.main, node, check=True)
    assert failed
    assert name in checked["msg"]
    assert _file(args, name).exists()
    result, failed = run_module(blob_verify.main, node)
    assert failed
    assert result["changed"]
    assert f"{name} of lab/tiny-llama" in result["msg"]
    assert "playbooks/deploy.yml" in result["msg"]
    assert not os.path.lexists(_file(args, name))
    assert not run_module(blob_verify.main, node)[1], "what is missing is not wrong"
    healed, failed = run_module(hf_model.main, args)
    assert (failed, healed["changed"]) == (False, True)
    assert _file(args, name).read_bytes() == b"x" * FILES[name]


def test_a_flipped_byte_of_an_image(node: Args, run_module: Any) -> None:
    store = Store(node["store"])
    blob = Path(store.path(sha256(LAYER).hexdigest()))
    _flip(blob)
    result, failed = run_module(blob_verify.main, node)
    assert failed
    assert str(blob) in result["msg"]
    assert "of image sha256:1" in result["msg"]
    assert (store.manifests(), store.blobs()) == ([], [])


def test_weights_without_hashes_are_named(
    node: Args, args: Args, docker: FakeDocker, run_module: Any
) -> None:
    marker = Path(args["cache_dir"]) / f"hub/models--lab--tiny-llama/.instinct-fleet/{COMMIT}.json"
    marker.write_text(marker.read_text().replace('"verified"', '"other"'))
    result, failed = run_module(blob_verify.main, node)
    assert not failed, result
    assert "lab/tiny-llama: no hashes are recorded" in "".join(result["warnings"])
