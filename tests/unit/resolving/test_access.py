# SPDX-License-Identifier: Apache-2.0
"""Whether nodes may have what they will fetch by pins that were made earlier, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError, Problem
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import Fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.fetching.pins import (
    absent_images,
    absent_models,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    ImagePin,
    Lock,
    ModelPin,
    model_key,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving import registry as asking
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.access import (
    REFRESH,
    check_access,
)

from lab.hub import make, server
from tests.helpers.eventually import GENEROUS, eventually
from tests.worlds import fake_registry
from tests.worlds.fake_registry import IMAGE, digest, running_registry
from tests.worlds.plan_world import LOCK, PULL, deployment, fleet, state

GONE = "sha256:" + "9" * 64


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is late would be a place that cannot be reached."""
    monkeypatch.setattr(asking, "TIMEOUT", GENEROUS)


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with running_registry() as host:
        yield host


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    root = tmp_path_factory.mktemp("hub")
    (commit,) = make.write_repo(root, make.OPEN, [make.Commit("one", {"config.json": b"{}"})])
    make.write_repo(root, make.GATED, [make.Commit("one", {"config.json": b"{}"})], gated=True)
    users = {
        make.TOKEN: {"name": "lab", "gated": [make.GATED]},
        make.STRANGER_TOKEN: {"name": "stranger", "gated": []},
    }
    (root / "hub.json").write_text(json.dumps({"tokens": users}), encoding="utf-8")
    return root, commit


@pytest.fixture
def hub(written: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[server.Hub]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", True)
    with server.Hub(written[0]) as running:
        yield running


def pinned(
    image: str, hub: str, commit: str, image_digest: str = digest(IMAGE), repo: str = make.OPEN
) -> Lock:
    models = {model_key(hub, repo, "main"): ModelPin(commit, (("config.json", 2),), {})}
    return Lock({image: ImagePin(image_digest, 1)}, models)


def check(hosts: Fleet, lock: Lock, tokens: Any = lambda host: None) -> tuple[list[str], tuple[str, ...]]:
    """(problems, warnings)."""
    try:
        return [], check_access(absent_images(hosts, lock), absent_models(hosts, lock), lock, tokens)
    except FleetError as error:
        return [problem.text() for problem in error.problems], ()


def test_what_may_be_had_is_asked_once(registry: str, hub: server.Hub, written: tuple[Path, str]) -> None:
    image = f"{registry}/lab/vllm:1"
    variables = {"vllm_image_registries": {registry: {"insecure": True}}, "hf_model_endpoint": hub.url}
    two = [
        deployment(image=image, model=make.OPEN),
        deployment(name="b", image=image, model=make.OPEN, port=9000),
    ]
    hosts = fleet({"n1": state(), "n2": state()}, two, **variables)
    assert check(hosts, pinned(image, hub.url, written[1])) == ([], ())
    eventually("the request", lambda: bool(hub.requests))  # the hub notes it after its answer
    assert [Path(item["path"]).name for item in hub.requests] == ["config.json"]


def test_nothing_is_asked_of_what_is_there() -> None:
    there = {"cache_dir": "/var/lib/instinct-fleet/hf", "repo": "lab/tiny-llama", "commit": "c" * 40,
             "complete": True, "bytes": 1, "files": 1}  # fmt: skip
    node = state(images=[{"id": "i", "tags": [], "digests": [PULL]}], models=[there])
    hosts = fleet({"n1": node}, [deployment()])
    assert list(absent_images(hosts, LOCK)) == list(absent_models(hosts, LOCK)) == []
    other = fleet(
        {"n1": state()}, [deployment(model="/srv/m", image=None, build={"repo": "/r", "ref": "v1"})]
    )
    assert list(absent_images(other, LOCK)) == list(absent_models(other, LOCK)) == []


def test_all_refusals_are_told_together(registry: str, hub: server.Hub, written: tuple[Path, str]) -> None:
    """An image that was removed, and a gated model whose access the account has lost."""
    image = f"{registry}/lab/vllm:1"
    variables = {"vllm_image_registries": {registry: {"insecure": True}}, "hf_model_endpoint": hub.url}
    hosts = fleet({"n1": state(), "n2": state()}, [deployment(image=image, model=make.GATED)], **variables)
    lock = pinned(image, hub.url, written[1], GONE, make.GATED)
    tokens = {"n1": make.TOKEN, "n2": make.STRANGER_TOKEN}
    problems, _ = check(hosts, lock, tokens.get)
    assert problems == [
        f"vllm_deployments[0].image (host n1): registry {registry} has no such digest: {registry}/lab/vllm@{GONE}. "
        + REFRESH,
        f"vllm_deployments[0].model (host n2): model {make.GATED} is gated on {hub.url}, and the token of "
        f"hf_model_token has no access to it. Ask for access at {hub.url}/{make.GATED} with the token's account, or "
        "use another token.",
    ]


def test_a_registry_that_wants_another_account(
    registry: str, hub: server.Hub, written: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fake_registry.MANIFESTS, "sha256:" + "5" * 64, b"")
    monkeypatch.setattr(fake_registry, "FAILURES", {"sha256:" + "5" * 64: 403})
    image = f"{registry}/lab/vllm:1"
    variables = {"vllm_image_registries": {registry: {"insecure": True}}, "hf_model_endpoint": hub.url}
    hosts = fleet({"n1": state()}, [deployment(image=image, model=make.OPEN)], **variables)
    problems, _ = check(hosts, pinned(image, hub.url, written[1], "sha256:" + "5" * 64))
    assert problems == [
        f"vllm_deployments[0].image (host n1): registry {registry} refuses access to lab/vllm. Set username and "
        f"password in vllm_image_registries: {{{registry}: …}}."
    ]


def test_what_cannot_be_reached_from_here_is_a_warning(written: tuple[Path, str]) -> None:
    """Nodes may have other networks than this machine; each place is tried once."""
    registry, hub = "127.0.0.1:1", "http://127.0.0.1:2"
    images = [f"{registry}/lab/vllm:{tag}" for tag in "12"]
    wanted = [
        deployment(name=f"d{i}", image=image, model=make.OPEN, port=8000 + i)
        for i, image in enumerate(images)
    ]
    hosts = fleet({"n1": state()}, wanted, hf_model_endpoint=hub)
    lock = pinned(images[0], hub, written[1]).merged(Lock({images[1]: ImagePin(GONE, 1)}))
    problems, warnings = check(hosts, lock)
    assert problems == []
    assert warnings == (
        f"could not check whether nodes may download from {registry}: registry {registry} cannot be reached from "
        "this machine (connection refused).",
        f"could not check whether nodes may download from {hub}: the hub at {hub} cannot be reached from this "
        "machine (connection refused).",
    )


def test_a_token_that_cannot_be_read_is_a_problem(hub: server.Hub, written: tuple[Path, str]) -> None:
    def token(host: str) -> str:
        raise FleetError([Problem(("hf_model_token_file",), "/x cannot be read: No such file or directory.")])

    hosts = fleet({"n1": state()}, [deployment(model=make.OPEN, image=PULL)], hf_model_endpoint=hub.url)
    lock = Lock({}, pinned("x", hub.url, written[1]).models)
    hosts_images: list[Any] = []
    with pytest.raises(FleetError) as error:
        check_access(hosts_images, absent_models(hosts, lock), lock, token)
    assert [problem.text() for problem in error.value.problems] == [
        "hf_model_token_file (host n1): /x cannot be read: No such file or directory."
    ]
    assert not hub.requests
