# SPDX-License-Identifier: Apache-2.0
"""An image goes from its registry into the store, hashed as it arrives; and from there to an engine."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import parse_ref
from ansible_collections.instinct.fleet.plugins.module_utils.store import image_source, registry_client
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.image_source import fetch_blobs, list_image
from ansible_collections.instinct.fleet.plugins.module_utils.store.local_registry import serve_image
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import Manifest
from ansible_collections.instinct.fleet.plugins.module_utils.store.registry_client import (
    RegistryAccess,
    RegistryClient,
)

from tests.worlds.blob_registry import ACCOUNT, BlobRegistry, digest

OPEN = RegistryAccess(insecure=True)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (registry_client, image_source):
        monkeypatch.setattr(module, "PAUSES", (0.0, 0.0))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def registry() -> Iterator[BlobRegistry]:
    with BlobRegistry().running() as world:
        yield world


def _fetch(store: Store, registry: BlobRegistry, access: RegistryAccess = OPEN) -> tuple[Manifest, int]:
    client = RegistryClient(parse_ref(registry.ref), access)
    manifest = list_image(store, client)
    came = fetch_blobs(store, client, manifest)
    store.record(manifest)
    return manifest, came


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("redirect", [True, False])
def test_every_blob_comes_once_and_is_what_the_digest_says(
    store: Store, listed: bool, redirect: bool
) -> None:
    with BlobRegistry(listed=listed, redirect=redirect).running() as registry:
        manifest, came = _fetch(store, registry)
        assert manifest.name == f"image {digest(registry.top)}"
        assert {f"sha256:{sha256}" for sha256 in manifest.blobs} == registry.contents.keys()
        assert manifest.bytes == sum(map(len, registry.contents.values()))
        assert came == sum(map(len, (*registry.layers, registry.config)))
        assert store.verify() == {}
        before = registry.sent.total()
        assert _fetch(store, registry)[1] == 0
        assert registry.sent.total() == before


def test_a_cut_answer_is_continued_where_it_ended(store: Store, registry: BlobRegistry) -> None:
    layer = registry.layers[0]
    registry.cut.add(digest(layer))
    _fetch(store, registry)
    assert registry.sent[digest(layer)] == len(layer) - len(layer) // 2
    assert store.verify() == {}


@pytest.mark.parametrize("ranges", [True, False])
def test_what_a_killed_run_left_is_continued(store: Store, ranges: bool) -> None:
    with BlobRegistry(ranges=ranges).running() as registry:
        client, layer = RegistryClient(parse_ref(registry.ref), OPEN), registry.layers[1]
        manifest = list_image(store, client)
        begun = Path(store.incoming(manifest)) / digest(layer)[7:]
        begun.write_bytes(layer[:1000])
        fetch_blobs(store, client, manifest)
        assert registry.sent[digest(layer)] == len(layer) - (1000 if ranges else 0)
        assert Path(store.path(digest(layer)[7:])).read_bytes() == layer


def test_a_byte_flipped_on_the_way_is_refused_by_name_and_source(
    store: Store, registry: BlobRegistry
) -> None:
    layer = digest(registry.layers[0])
    registry.flip.add(layer)
    with pytest.raises(NodeError, match=f"{registry.host} sent wrong content for blob {layer}"):
        _fetch(store, registry)
    assert store.size(layer[7:]) is None
    assert store.manifests() == []
    _fetch(store, registry)
    assert store.verify() == {}


def test_a_flipped_beginning_of_a_killed_run_is_not_kept(store: Store, registry: BlobRegistry) -> None:
    client, layer = RegistryClient(parse_ref(registry.ref), OPEN), registry.layers[1]
    manifest = list_image(store, client)
    (Path(store.incoming(manifest)) / digest(layer)[7:]).write_bytes(b"z" + layer[1:1000])
    with pytest.raises(NodeError, match="sent wrong content"):
        fetch_blobs(store, client, manifest)
    fetch_blobs(store, client, manifest)
    assert store.missing(manifest) == {}


def test_a_manifest_other_than_its_digest_is_refused(store: Store, registry: BlobRegistry) -> None:
    registry.contents[digest(registry.top)] = registry.image
    with pytest.raises(NodeError, match=digest(registry.top)[7:]):
        _fetch(store, registry)
    assert store.blobs() == []


def test_a_registry_that_limits_requests_is_asked_again(store: Store, registry: BlobRegistry) -> None:
    registry.limited = 2
    _fetch(store, registry)
    registry.limited = 100
    with pytest.raises(NodeError, match=r"cannot be reached.*status 429"):
        list_image(store, RegistryClient(parse_ref(registry.ref[:-1] + "0"), OPEN))


@pytest.mark.parametrize("login", ["basic", "token"])
def test_an_account_is_never_sent_in_clear_text(store: Store, login: str) -> None:
    with BlobRegistry(login=login).running() as registry:
        with pytest.raises(NodeError, match="requires a login, but does not offer TLS") as caught:
            _fetch(store, registry, RegistryAccess(*ACCOUNT, insecure=True))
        assert ACCOUNT[1] not in str(caught.value)
        assert {given for _unused, given in registry.authorizations} == {""}


def test_a_private_registry_without_an_account_says_what_to_set(store: Store) -> None:
    with (
        BlobRegistry(login="basic").running() as registry,
        pytest.raises(NodeError, match="vllm_image_registries"),
    ):
        _fetch(store, registry)


def test_a_registry_that_is_not_there(store: Store, registry: BlobRegistry) -> None:
    ref = parse_ref(registry.ref.replace(str(registry.port), "1"))
    with pytest.raises(NodeError, match=r"Registry 127.0.0.1:1 cannot be reached.*Connection refused"):
        list_image(store, RegistryClient(ref, OPEN))


@pytest.mark.parametrize(
    ("no_proxy", "used"),
    [
        ("", True),
        ("other.example", True),
        ("registry.example", False),
        (".example", False),
        ("*", False),
    ],
)
def test_which_hosts_go_through_the_proxy(no_proxy: str, used: bool) -> None:
    found = registry_client._proxies(
        {"https_proxy": "http://p:1", "no_proxy": no_proxy}, "registry.example:5000"
    )
    assert bool(found) is used


def test_the_engine_gets_the_same_bytes_from_the_loopback_interface(
    store: Store, registry: BlobRegistry
) -> None:
    manifest, _unused = _fetch(store, registry)
    store.put(b"of another image", digest(b"of another image")[7:])
    with serve_image(store, manifest) as address:
        asked = {
            "/v2/": (200, b""),
            f"/v2/lab/vllm/manifests/{digest(registry.top)}": (200, registry.top),
            f"/v2/lab/vllm/blobs/{digest(registry.layers[0])}": (200, registry.layers[0]),
            f"/v2/lab/vllm/blobs/{digest(b'of another image')}": (404, b""),
            "/v2/lab/vllm/manifests/latest": (404, b""),
            "/v2/lab/vllm/blobs/sha256:../../../etc/passwd": (404, b""),
        }
        client = http.client.HTTPConnection(address, timeout=5)
        for path, (status, content) in asked.items():
            for method in ("HEAD", "GET"):
                client.request(method, path)
                response = client.getresponse()
                read = response.read()
                assert (response.status, read) == (status, content if method == "GET" else b""), path
        client.request("HEAD", f"/v2/lab/vllm/manifests/{digest(registry.top)}")
        response = client.getresponse()
        response.read()
        assert response.headers["Content-Type"] == json.loads(registry.top)["mediaType"]
        assert response.headers["Docker-Content-Digest"] == digest(registry.top)
        client.close()
    with pytest.raises(OSError, match="refused"):
        http.client.HTTPConnection(address, timeout=5).connect()
    assert os.path.exists(store.manifest_path(manifest.id))
