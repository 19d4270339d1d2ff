# SPDX-License-Identifier: Apache-2.0
"""An image that one node built: from its engine into the store, and from the store into another node's engine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.content.transfer_names import build_name
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.modules import blob_fetch, vllm_image

from tests.worlds.fake_docker import FakeDocker

Args = dict[str, Any]
TAG = "own/vllm:1-0123456789ab"
LAYERS = [b"layer one" * 9000, b"layer two" * 7000]


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


CONFIG = json.dumps(
    {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"diff_ids": [f"sha256:{_hash(item)}" for item in LAYERS]},
    }
).encode()
IMAGE_ID = f"sha256:{_hash(CONFIG)}"


def _archive(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def _old(config: bytes = CONFIG) -> bytes:
    """As Docker 20.10 saves: directories of layers; the third layer is the first one again."""
    name = f"{_hash(config)}.json"
    listed = {"Config": name, "RepoTags": None, "Layers": ["a/layer.tar", "b/layer.tar", "c/layer.tar"]}
    files = {"a/VERSION": b"1.0", "a/layer.tar": LAYERS[0], "b/layer.tar": LAYERS[1], name: config,
             "manifest.json": json.dumps([listed]).encode()}  # fmt: skip
    return _archive(files, {"c/layer.tar": "../a/layer.tar"})


def _new(config: bytes = CONFIG) -> bytes:
    """As Docker 25 and later saves: an OCI layout, with the old manifest beside it."""
    blobs = {f"blobs/sha256/{_hash(item)}": item for item in (config, *LAYERS)}
    config_name, *layers = blobs
    listed = {"Config": config_name, "RepoTags": None, "Layers": [*layers, layers[0]]}
    return _archive({**blobs, "index.json": b"{}", "manifest.json": json.dumps([listed]).encode()})


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(paths, "DATA_DIR", str(tmp_path / "data"))
    with FakeDocker(tmp_path) as fake:
        yield fake


@pytest.fixture
def offer(docker: FakeDocker, tmp_path: Path) -> Args:
    """The arguments of the node that has built it."""
    docker.add_image(TAG, Id=IMAGE_ID)
    docker.saved[IMAGE_ID] = _old()
    return {"built": TAG, "docker_socket": docker.path, "store": str(tmp_path / "store")}


@pytest.fixture
def take(docker: FakeDocker, tmp_path: Path) -> Args:
    """The arguments of a node that gets it."""
    build = {"repo": "https://git.example/vllm.git", "ref": "v1", "tag": TAG, "from_store": True}
    return {"build": build, "docker_socket": docker.path, "program": "x", "store": str(tmp_path / "store")}


def _pulling(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch, pulled: list[str]) -> None:
    """The engine really fetches from the loopback interface, compares every blob, and derives the id of the image."""

    def get(url: str, digest: str) -> bytes:
        with urllib.request.urlopen(url, timeout=10) as response:
            content: bytes = response.read()
        if f"sha256:{_hash(content)}" != digest:
            raise ValueError(digest)
        return content

    def pull(http: Any, query: dict[str, str]) -> None:
        name, digest = query["fromImage"], query["tag"]
        pulled.append(name)
        host, _unused, path = name.partition("/")
        try:
            manifest = json.loads(get(f"http://{host}/v2/{path}/manifests/{digest}", digest))
            for item in (manifest["config"], *manifest["layers"]):
                get(f"http://{host}/v2/{path}/blobs/{item['digest']}", item["digest"])
        except ValueError as error:
            line = json.dumps({"error": f"filesystem layer verification failed for digest {error}"}).encode()
            docker.stream(http, [line])
            return
        docker.stream(http, [b"{}\r\n"])
        docker.add_image(f"{name}@{digest}", Id=manifest["config"]["digest"])

    monkeypatch.setattr(docker, "_pull", pull)


@pytest.mark.parametrize("saved", [_old, _new])
def test_what_is_offered_follows_from_the_image(
    docker: FakeDocker, offer: Args, run_module: Any, saved: Callable[[], bytes]
) -> None:
    docker.saved[IMAGE_ID] = saved()
    predicted, failed = run_module(blob_fetch.main, offer, check=True)
    assert not failed, predicted
    assert (predicted["changed"], predicted["manifest"]) == (True, None)
    assert not Path(offer["store"]).exists()
    result, failed = run_module(blob_fetch.main, offer)
    assert not failed, result
    assert result["manifest"]["name"] == build_name(TAG)
    files = {item["path"]: item["sha256"] for item in result["manifest"]["files"]}
    assert f"sha256:{files['config']}" == IMAGE_ID
    assert [files[f"layer {at:03d}"] for at in range(3)] == [
        _hash(LAYERS[0]),
        _hash(LAYERS[1]),
        _hash(LAYERS[0]),
    ]
    assert not list(Path(offer["store"]).glob("incoming/*"))
    again, _unused = run_module(blob_fetch.main, offer)
    assert (again["changed"], again["fetched"], again["manifest"]) == (False, 0, result["manifest"])


def test_every_node_that_has_it_offers_the_same(
    docker: FakeDocker, offer: Args, run_module: Any, tmp_path: Path
) -> None:
    first, _unused = run_module(blob_fetch.main, offer)
    docker.saved[IMAGE_ID] = _new()
    second, _unused = run_module(blob_fetch.main, {**offer, "store": str(tmp_path / "another")})
    assert first["manifest_id"] == second["manifest_id"]


def test_it_is_built_here_and_has_the_same_id_there(
    docker: FakeDocker, offer: Args, take: Args, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_module(blob_fetch.main, offer)
    docker.images.clear()  # another node now, to which the store's content was moved
    pulled: list[str] = []
    _pulling(docker, monkeypatch, pulled)
    want = {**take, "build": {**take["build"], "image_id": IMAGE_ID}}
    predicted, _unused = run_module(vllm_image.main, want, check=True)
    assert pulled == []
    result, failed = run_module(vllm_image.main, want)
    assert not failed, result
    assert result["actions"] == predicted["actions"]
    assert result["image_id"] == IMAGE_ID
    assert [name.partition(":")[0] for name in pulled] == ["127.0.0.1"], "no registry was asked"
    assert not [name for name in docker.images if name.startswith("127.0.0.1")]
    assert Store(take["store"]).blobs() == [], "the engine has them now"
    again, _unused = run_module(vllm_image.main, want)
    assert again["changed"] is False
    assert len(pulled) == 1


def test_an_image_of_another_id_gives_way(
    docker: FakeDocker, offer: Args, take: Args, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_module(blob_fetch.main, offer)
    docker.images.clear()
    docker.add_image(TAG, Id="sha256:" + "5" * 64)
    _pulling(docker, monkeypatch, [])
    kept, failed = run_module(vllm_image.main, take)
    assert not failed, kept
    assert kept["image_id"] == "sha256:" + "5" * 64, "nothing says which one it should be"
    result, failed = run_module(vllm_image.main, {**take, "build": {**take["build"], "image_id": IMAGE_ID}})
    assert not failed, result
    assert result["image_id"] == docker.images[TAG]["Id"] == IMAGE_ID


def test_what_did_not_arrive_is_not_built_here(docker: FakeDocker, take: Args, run_module: Any) -> None:
    result, failed = run_module(vllm_image.main, take)
    assert failed
    assert "is built on another node, and did not arrive here" in result["msg"]
    assert docker.changes() == []


def test_a_wrong_blob_is_named_and_removed(
    docker: FakeDocker, offer: Args, take: Args, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_module(blob_fetch.main, offer)
    docker.images.clear()
    _pulling(docker, monkeypatch, [])
    store = Store(take["store"])
    wrong = _hash(LAYERS[1])
    Path(store.path(wrong)).write_bytes(b"x" + LAYERS[1][1:])
    result, failed = run_module(vllm_image.main, take)
    assert failed
    assert wrong in result["msg"]
    assert store.size(wrong) is None
    assert TAG not in docker.images


def test_a_later_build_takes_the_place_of_an_earlier_one(
    docker: FakeDocker, offer: Args, run_module: Any
) -> None:
    run_module(blob_fetch.main, offer)
    other = CONFIG.replace(b"linux", b"linux ")
    docker.images.clear()
    docker.add_image(TAG, Id=f"sha256:{_hash(other)}")
    docker.saved[f"sha256:{_hash(other)}"] = _new(other)
    result, failed = run_module(blob_fetch.main, offer)
    assert not failed, result
    (manifest,) = Store(offer["store"]).manifests()
    assert manifest.id == result["manifest_id"]
    assert _hash(CONFIG) not in manifest.blobs


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (_archive({"manifest.json": b"[]"}), "has an unknown form"),
        (_archive({"manifest.json": b"nonsense"}), "has an unknown form"),
        (_archive({"other": b"x"}), "has an unknown form"),
        (_old(b'{"os": "linux"}'), "keeps images in containerd"),
        (_old()[:70000], "broke off"),
    ],
)
def test_an_image_that_cannot_be_saved(
    docker: FakeDocker, offer: Args, run_module: Any, saved: bytes, words: str
) -> None:
    docker.saved[IMAGE_ID] = saved
    result, failed = run_module(blob_fetch.main, offer)
    assert failed
    assert words in result["msg"]
    assert Store(offer["store"]).manifests() == []
    assert not list(Path(offer["store"]).glob("incoming/*"))


def test_an_image_that_is_not_there(docker: FakeDocker, offer: Args, run_module: Any) -> None:
    docker.images.clear()
    result, failed = run_module(blob_fetch.main, offer)
    assert failed
    assert f"The engine has no image {TAG}" in result["msg"]
