# SPDX-License-Identifier: Apache-2.0
"""image_push: what the engine pushes is read back from the registry, once; and what is said when it is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.store.image_push import explain_push, parse_push
from ansible_collections.instinct.fleet.plugins.modules import image_push

from tests.helpers.module_docs import documented_by
from tests.worlds.blob_registry import ACCOUNT, BlobRegistry, digest
from tests.worlds.fake_docker import CUT, FakeDocker

Args = dict[str, Any]
TAG = "own/vllm:1-0123456789ab"
SECRET = "canary-Zq81-secret"


@pytest.fixture
def registry() -> Iterator[BlobRegistry]:
    """One to which the fake engine's push brings its image."""
    with BlobRegistry(listed=False).running() as world:
        yield world


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: BlobRegistry) -> Iterator[FakeDocker]:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "run"))
    with FakeDocker(tmp_path) as fake:
        fake.add_image(TAG, Id=digest(registry.config))
        fake.push_to = registry
        registry.contents.clear()
        yield fake


@pytest.fixture
def args(docker: FakeDocker, registry: BlobRegistry) -> Args:
    place = f"{registry.host}/lab/vllm"
    return {"ref": TAG, "push_to": place, "insecure": True, "docker_socket": docker.path}


def _pushes(docker: FakeDocker) -> list[str]:
    return [item for item in docker.changes() if "/push" in item]


def test_it_is_pushed_once_and_read_back(
    docker: FakeDocker, registry: BlobRegistry, args: Args, run_module: Any
) -> None:
    predicted, failed = run_module(image_push.main, args, check=True)
    assert not failed, predicted
    assert (predicted["changed"], predicted["image"], docker.changes()) == (True, None, [])
    result, failed = run_module(image_push.main, args)
    assert not failed, result
    assert result["image"] == registry.ref
    assert result["bytes"] == len(registry.config) + sum(map(len, registry.layers))
    assert result["actions"] == predicted["actions"]
    assert docker.images[TAG]["RepoDigests"] == [registry.ref], "what node_state reports"
    assert _pushes(docker) == result["actions"]
    for check in (False, True):
        again, failed = run_module(image_push.main, args, check=check)
        assert not failed
        assert (again["changed"], again["actions"], again["image"]) == (False, [], registry.ref)
    assert len(_pushes(docker)) == 1


def test_what_the_registry_lost_is_pushed_again(
    docker: FakeDocker, registry: BlobRegistry, args: Args, run_module: Any
) -> None:
    run_module(image_push.main, args)
    registry.contents.clear()
    # Compressed anew, its layers may be other bytes: the engine then lists both digests.
    registry.image = registry.image + b"\n"
    registry.top = registry.image
    result, failed = run_module(image_push.main, args)
    assert not failed, result
    assert result["image"] == registry.ref
    assert docker.images[TAG]["RepoDigests"] == [registry.ref]


def test_it_is_there_and_the_engine_does_not_know(
    docker: FakeDocker, registry: BlobRegistry, args: Args, run_module: Any
) -> None:
    registry.contents[digest(registry.image)] = registry.image
    result, failed = run_module(image_push.main, args)
    assert not failed, result
    assert docker.images[TAG]["RepoDigests"] == [registry.ref]


@pytest.mark.parametrize("case", ["other image", "not listed", "lost"])
def test_what_is_not_read_back_is_no_success(
    docker: FakeDocker, registry: BlobRegistry, args: Args, run_module: Any, case: str
) -> None:
    if case == "other image":
        registry.image = registry.image.replace(digest(registry.config).encode(), b"sha256:" + b"9" * 64)
        registry.top = registry.image
    elif case == "not listed":
        docker.push_lists = False
    else:
        docker.push_to = None
    result, failed = run_module(image_push.main, args)
    assert failed
    assert "Then run again" in result["msg"]
    assert ("does not list it" if case == "not listed" else "has another image there") in result["msg"]


def test_the_account_goes_to_the_engine_alone_where_there_is_no_tls(
    docker: FakeDocker, registry: BlobRegistry, args: Args, run_module: Any
) -> None:
    given = {**args, "username": "pusher", "password": SECRET}
    result, failed = run_module(image_push.main, given)
    assert not failed, result
    (sent,) = [item["X-Registry-Auth"] for item in docker.headers if "X-Registry-Auth" in item]
    assert json.loads(base64.urlsafe_b64decode(sent))["password"] == SECRET
    assert SECRET not in json.dumps(result)
    assert SECRET not in "".join(docker.requests)
    assert {account for _path, account in registry.authorizations} == {""}
    registry.login = "basic"
    given = {**given, "username": ACCOUNT[0], "password": ACCOUNT[1], "push_to": f"{registry.host}/lab/other"}
    result, failed = run_module(image_push.main, given)
    assert failed
    assert "does not offer TLS" in result["msg"]
    assert len(_pushes(docker)) == 1


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("denied: requested access to the resource is denied", "Give an account that may write there"),
        ("unauthorized: authentication required", "refuses the account 'pusher'"),
        ("received unexpected HTTP status: 403 Forbidden", "refuses the account"),
        ("unsupported: The operation is unsupported.", "is read-only, or a mirror"),
        ("received unexpected HTTP status: 405 Method Not Allowed", "is read-only, or a mirror"),
        ("received unexpected HTTP status: 507 Insufficient Storage", "has no space for it"),
        ("write /srv/registry/x: no space left on device", "has no space for it"),
        ("adding 5 GiB of storage resource exceeds the quota", "has no space for it"),
        ("received unexpected HTTP status: 413 Request Entity Too Large", "client_max_body_size"),
        ("tag invalid: the image tag is immutable", "does not let it be replaced"),
        ("http: server gave HTTP response to HTTPS client", "insecure-registries"),
        ("x509: certificate signed by unknown authority", "/etc/docker/certs.d/registry.example/ca.crt"),
        ("toomanyrequests: slow down", "limits requests"),
        ("name unknown: repository name not known to registry", "Create it there"),
        ("dial tcp: connection refused", "cannot be reached from this node"),
        ("received unexpected HTTP status: 500 Internal Server Error", "its log says why"),
        ("something else", "something else"),
    ],
)
def test_a_refused_push_says_why_and_what_to_do(message: str, words: str) -> None:
    want = parse_push(TAG, "registry.example/vllm", None, "pusher", SECRET)
    text = explain_push(message, want)
    assert words in text
    assert text.startswith(f"Cannot push {TAG} to registry.example/vllm: ")
    assert "The built image is kept: run again, which only pushes." in text
    assert message in text
    assert SECRET not in text


def test_a_refusal_of_the_engine(docker: FakeDocker, args: Args, run_module: Any) -> None:
    docker.push_error = "denied: requested access to the resource is denied"
    result, failed = run_module(image_push.main, args)
    assert failed
    assert "refuses a push without a login" in result["msg"]
    assert docker.images[TAG]["RepoDigests"] == []
    docker.push_error = ""
    docker.faults["POST /images/"] = CUT
    result, failed = run_module(image_push.main, args)
    assert failed
    assert "was interrupted" in result["msg"]
    docker.faults.clear()
    result, failed = run_module(image_push.main, args)
    assert not failed, result


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ref": "own/vllm:absent"}, "has no image own/vllm:absent to push. Run again to build it."),
        ({"image_id": "sha256:" + "5" * 64}, "should be pushed"),
        ({"username": "pusher"}, "username and password belong together"),
        ({"push_to": "registry.example/vllm:1"}, "Give the repository alone"),
        ({"password": "x", "username": "pusher"}, "too short for a real secret"),
    ],
)
def test_what_cannot_be_pushed(
    docker: FakeDocker, args: Args, run_module: Any, change: Args, words: str
) -> None:
    result, failed = run_module(image_push.main, {**args, **change})
    assert failed
    assert words in result["msg"]
    assert _pushes(docker) == []


def test_a_registry_that_is_not_there_is_named_before_anything_is_sent(
    docker: FakeDocker, args: Args, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ansible_collections.instinct.fleet.plugins.module_utils.store.registry_client.PAUSES", ()
    )
    result, failed = run_module(image_push.main, {**args, "push_to": "127.0.0.1:1/lab/vllm"})
    assert failed
    assert "Registry 127.0.0.1:1 cannot be reached from this node" in result["msg"]
    assert docker.changes() == []


def test_an_image_that_is_built_in_this_run(docker: FakeDocker, args: Args, run_module: Any) -> None:
    result, failed = run_module(image_push.main, {**args, "ref": "own/vllm:later"}, check=True)
    assert not failed
    assert (result["changed"], result["image"]) == (True, None)


def test_documentation() -> None:
    documented, spec = documented_by(image_push)["options"], image_push.argument_spec()
    assert set(documented) == set(spec)
    assert {name for name, item in documented.items() if item.get("required")} == {"ref", "push_to"}
