# SPDX-License-Identifier: Apache-2.0
"""blob_fetch: one node gets an image or a model into its store, and returns the list of its blobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.content.transfer_names import (
    image_name,
    model_name,
)
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store import image_source, registry_client
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import parse_manifest
from ansible_collections.instinct.fleet.plugins.modules import blob_fetch

from tests.helpers.module_docs import documented_by
from tests.worlds.blob_registry import ACCOUNT, BlobRegistry, digest
from tests.worlds.weights_world import COMMIT, FILES, put

Args = dict[str, Any]
BIG = "model-00001-of-00002.safetensors"


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "lock"))
    for module in (registry_client, image_source):
        monkeypatch.setattr(module, "PAUSES", (0.0,))


@pytest.fixture
def registry() -> Iterator[BlobRegistry]:
    with BlobRegistry().running() as world:
        yield world


@pytest.fixture
def image(registry: BlobRegistry, tmp_path: Path) -> Args:
    return {"image": {"pull": registry.ref, "insecure": True}, "store": str(tmp_path / "store")}


@pytest.fixture
def model(tmp_path: Path) -> Args:
    cache = tmp_path / "hf"
    for name, size in FILES.items():
        put(cache, name, size)
    given = {"repo": "lab/tiny-llama", "commit": COMMIT, "files": FILES, "cache_dir": str(cache)}
    return {"model": given, "store": str(tmp_path / "store")}


def test_an_image_is_fetched_once(image: Args, registry: BlobRegistry, run_module: Any) -> None:
    predicted, failed = run_module(blob_fetch.main, image, check=True)
    assert not failed, predicted
    assert (predicted["changed"], predicted["manifest"]) == (True, None)
    assert not os.path.exists(image["store"])
    result, failed = run_module(blob_fetch.main, image)
    assert not failed, result
    assert result["manifest"]["name"] == image_name(digest(registry.top))
    assert result["manifest_id"] == parse_manifest(result["manifest"]).id
    assert result["fetched"] == sum(map(len, (*registry.layers, registry.config)))
    before = registry.sent.total()
    again, _unused = run_module(blob_fetch.main, image)
    assert (again["changed"], again["actions"], again["manifest"]) == (False, [], result["manifest"])
    assert registry.sent.total() == before
    assert result.keys() - {"diff", "changed", "invocation"} <= yaml.safe_load(blob_fetch.RETURN).keys()


def test_documentation_is_the_argument_spec() -> None:
    documented = documented_by(blob_fetch)["options"]
    spec = blob_fetch.argument_spec()
    assert set(documented) == set(spec)
    for name, option in spec.items():
        assert set(documented[name].get("suboptions", {})) == set(option.get("options", {}))


@pytest.mark.parametrize("kind", ["image", "model"])
def test_a_byte_flipped_in_the_store_is_fetched_again(
    image: Args, model: Args, registry: BlobRegistry, run_module: Any, kind: str
) -> None:
    given = {"image": image, "model": model}[kind]
    first, _unused = run_module(blob_fetch.main, given)
    sha256 = max(first["manifest"]["files"], key=lambda item: item["size"])["sha256"]
    blob = Path(given["store"]) / "blobs/sha256" / sha256
    content = blob.read_bytes()
    blob.unlink()
    blob.write_bytes(b"?" + content[1:])
    again, failed = run_module(blob_fetch.main, given)
    assert not failed, again
    assert again["changed"]
    assert again["manifest"] == first["manifest"]
    assert blob.read_bytes() == content
    assert Store(given["store"]).verify() == {}


def test_a_model_is_offered_without_a_copy(model: Args, run_module: Any) -> None:
    predicted, _unused = run_module(blob_fetch.main, model, check=True)
    result, failed = run_module(blob_fetch.main, model)
    assert not failed, result
    assert result["actions"] == predicted["actions"]
    assert result["manifest"]["name"] == model_name("lab/tiny-llama", COMMIT, FILES)
    for item in result["manifest"]["files"]:
        path = (
            Path(model["model"]["cache_dir"])
            / f"hub/models--lab--tiny-llama/snapshots/{COMMIT}/{item['path']}"
        )
        assert path.samefile(Path(model["store"]) / "blobs/sha256" / item["sha256"])
    assert run_module(blob_fetch.main, model)[0]["changed"] is False


def test_an_incomplete_model_is_not_offered(model: Args, run_module: Any) -> None:
    (Path(model["model"]["cache_dir"]) / f"hub/models--lab--tiny-llama/snapshots/{COMMIT}/{BIG}").unlink()
    result, failed = run_module(blob_fetch.main, model)
    assert failed
    assert f"is missing 1 of 3 files of lab/tiny-llama@{COMMIT} (such as {BIG})" in result["msg"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pull": "registry.example/lab/vllm:latest"}, "does not end in @sha256"),
        ({"username": ACCOUNT[0]}, "belong together"),
        ({"username": ACCOUNT[0], "password": "pw"}, "image.password"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_asked(
    image: Args, registry: BlobRegistry, run_module: Any, change: Args, said: str
) -> None:
    result, failed = run_module(blob_fetch.main, {**image, "image": {**image["image"], **change}})
    assert failed
    assert said in result["msg"]
    assert not registry.authorizations


def test_the_password_is_nowhere_in_the_answer(image: Args, run_module: Any) -> None:
    with BlobRegistry(login="token").running() as registry:
        given = {"pull": registry.ref, "username": ACCOUNT[0], "password": ACCOUNT[1], "insecure": True}
        result, failed = run_module(blob_fetch.main, {**image, "image": given})
    assert failed
    assert ACCOUNT[1] not in str(result)
