# SPDX-License-Identifier: Apache-2.0
"""vllm_image takes an image's layers from the node's store, and says what was wrong there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.content.transfer_names import image_name
from ansible_collections.instinct.fleet.plugins.module_utils.docker import images
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store import engine_pull
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import ManifestFile, manifest_of
from ansible_collections.instinct.fleet.plugins.modules import vllm_image

from tests.worlds.blob_registry import BlobRegistry, digest
from tests.worlds.fake_docker import FakeDocker

Args = dict[str, Any]
WORLD = BlobRegistry()
PULL = f"registry.example:5000/lab/vllm@{digest(WORLD.top)}"


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(paths, "DATA_DIR", str(tmp_path / "data"))
    with FakeDocker(tmp_path) as fake:
        yield fake


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "store"))
    files = []
    for name, content in WORLD.contents.items():
        store.put(content, name[7:])
        files.append(ManifestFile(name[7:20], len(content), name[7:]))
    store.record(manifest_of(image_name(digest(WORLD.top)), files))
    return store


@pytest.fixture
def args(docker: FakeDocker, store: Store) -> Args:
    ref = PULL.partition("@")[0] + ":1"
    return {"pull": PULL, "ref": ref, "docker_socket": docker.path, "program": "x", "store": store.root}


def _pulls(docker: FakeDocker) -> list[str]:
    found = [item for item in docker.changes() if "/images/create" in item]
    return [item.partition("fromImage=")[2].partition("&")[0] for item in found]


@pytest.mark.parametrize("keep", [True, False])
def test_the_layers_come_from_the_store_and_the_name_from_the_registry(
    docker: FakeDocker, args: Args, store: Store, run_module: Any, keep: bool
) -> None:
    predicted, _unused = run_module(vllm_image.main, {**args, "keep_blobs": keep}, check=True)
    result, failed = run_module(vllm_image.main, {**args, "keep_blobs": keep})
    assert not failed, result
    assert result["actions"] == predicted["actions"]
    assert result["actions"][0].startswith(f"load the layers of {PULL} from {store.root}")
    near, registry = _pulls(docker)
    assert near.startswith("127.0.0.1:")
    assert near.endswith("/lab/vllm")
    assert registry == "registry.example:5000/lab/vllm"
    assert not [name for name in docker.images if name.startswith("127.0.0.1")], "the name of no use is gone"
    assert bool(store.blobs()) is bool(store.manifests()) is keep
    assert run_module(vllm_image.main, args)[0]["changed"] is False


def test_without_it_nothing_is_different(
    docker: FakeDocker, args: Args, store: Store, run_module: Any
) -> None:
    store.remove(digest(WORLD.layers[0])[7:])
    run_module(vllm_image.main, args)
    assert _pulls(docker) == ["registry.example:5000/lab/vllm"]


def test_a_blob_that_the_engine_refuses_is_named_and_removed(
    docker: FakeDocker, args: Args, store: Store, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = digest(WORLD.layers[0])
    Path(store.path(layer[7:])).write_bytes(b"x" + WORLD.layers[0][1:])
    refused = [{"error": "filesystem layer verification failed"}]
    answers = iter([refused, []])
    whole = docker._pull

    def pull(http: Any, query: dict[str, str]) -> None:
        docker.pull_events = next(answers)
        whole(http, query)

    monkeypatch.setattr(docker, "_pull", pull)
    result, failed = run_module(vllm_image.main, args)

    assert not failed, result
    text = "".join(result["warnings"])
    assert layer in text
    assert "pulled from registry.example:5000" in text
    assert store.size(layer[7:]) is None
    assert store.manifests() == []


# ---- where no registry is asked --------------------------------------------------------------------------

LOCAL = f"127.0.0.1:29869/registry.example_5000/lab/vllm@{digest(WORLD.top)}"


def test_the_store_is_the_registry_where_there_is_no_other(
    docker: FakeDocker, args: Args, store: Store, run_module: Any
) -> None:
    given = {**args, "pull": LOCAL, "keep_blobs": True}
    result, failed = run_module(vllm_image.main, given)
    assert not failed, result
    assert _pulls(docker) == ["127.0.0.1:29869/registry.example_5000/lab/vllm"]
    assert store.manifests(), "it stays for other hosts"
    assert run_module(vllm_image.main, given)[0]["changed"] is False


def test_no_registry_is_asked_for_what_the_store_lacks(
    docker: FakeDocker, args: Args, store: Store, run_module: Any
) -> None:
    store.remove(digest(WORLD.layers[0])[7:])
    result, failed = run_module(vllm_image.main, {**args, "pull": LOCAL})
    assert failed
    assert "not in this node's content store" in result["msg"]
    assert "bundle_load.yml" in result["msg"]
    assert _pulls(docker) == []


def test_a_wrong_blob_is_named_and_removed_and_nothing_else_is_asked(
    docker: FakeDocker, args: Args, store: Store, run_module: Any
) -> None:
    layer = digest(WORLD.layers[0])
    Path(store.path(layer[7:])).write_bytes(b"x" + WORLD.layers[0][1:])
    docker.pull_events = [{"error": "filesystem layer verification failed"}]
    result, failed = run_module(vllm_image.main, {**args, "pull": LOCAL})
    assert failed
    assert layer in result["msg"]
    assert "Load the bundle again" in result["msg"]
    assert store.size(layer[7:]) is None


def test_a_port_in_use_is_named(
    docker: FakeDocker, args: Args, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        registry = f"127.0.0.1:{port}"
        for module in (engine_pull, images):
            monkeypatch.setattr(module, "STORE_REGISTRY", registry)
        result, failed = run_module(
            vllm_image.main, {**args, "pull": LOCAL.replace("127.0.0.1:29869", registry)}
        )
    assert failed
    assert f"Port {port} of 127.0.0.1 cannot be used" in result["msg"]
