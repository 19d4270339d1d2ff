# SPDX-License-Identifier: Apache-2.0
"""Hosts without a way to registries and hubs: what content stores have is served, and everything else refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.content.transfer_names import (
    image_name,
    model_name,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    ImagePin,
    Lock,
    ModelPin,
    model_key,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.model_card import (
    CardTerms,
    ModelCard,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving import resolve
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.closure import (
    closure,
    lock_pins,
)

from tests.worlds.plan_world import (
    CONFIG,
    DIGEST,
    FILES_OF_REPO,
    GIB,
    IMAGE,
    LOCK,
    PULL,
    REPO,
    apply_to_state,
    deployment,
    fleet,
    plan,
    problems,
    state,
)

Json = dict[str, Any]
COMMIT = "c" * 40
IN_STORE = [image_name(DIGEST), model_name(REPO, COMMIT, dict(FILES_OF_REPO))]
LOCAL = f"127.0.0.1:29869/registry.lab_5000/lab/vllm@{DIGEST}"


def _hosts(*stored: list[str]) -> tuple[dict[str, Json], dict[str, Json]]:
    names = [f"n{number}" for number in range(1, len(stored) + 1)]
    states = {
        name: state(hostname=name, stored=has, libtorrent=True)
        for name, has in zip(names, stored, strict=True)
    }
    return states, {name: {"ansible_host": f"10.0.0.{at}"} for at, name in enumerate(names, 1)}


def _never(*_unused: Any) -> str:
    raise AssertionError("a hub was to be asked")


def test_a_host_that_has_everything_serves_by_itself() -> None:
    states, own = _hosts(IN_STORE)
    made = plan(states, [deployment()], own=own, air_gap=True)
    data = made.to_json()["hosts"]["n1"]
    assert data["images"][0]["pull"] == LOCAL
    assert data["images"][0]["offered"], "the blobs stay in the store"
    assert data["models"][0]["offline"]
    assert made.transfers == ()
    assert data["servers"]
    after = apply_to_state({**states["n1"]}, data)
    assert plan({"n1": after}, [deployment()], own=own, air_gap=True).changes == 0


def test_the_host_with_the_bundle_gives_it_to_the_others() -> None:
    states, own = _hosts([], IN_STORE, [])
    data = plan(states, [deployment(instances_per_host=1)], own=own, air_gap=True).to_json()
    found = data["transfers"]
    assert [(item["seed"], item["origin"], item["kind"]) for item in found] == [
        ("n2", None, "image"),
        ("n2", None, "model"),
    ]
    for item in found:
        assert [one["name"] for one in item["members"]] == ["n2", "n1", "n3"]


def test_a_host_that_serves_nothing_may_have_the_bundle() -> None:
    states, own = _hosts(IN_STORE, [])
    data = plan(states, [deployment(hosts=["n2"])], own=own, air_gap=True).to_json()
    assert [item["seed"] for item in data["transfers"]] == ["n1", "n1"]
    assert "distribution" in data["hosts"]["n1"]["todo"]


@pytest.mark.parametrize(
    ("stored", "missing"),
    [
        ([], ["image registry.lab:5000/lab/vllm:1", f"model {REPO}@{COMMIT[:12]}"]),
        (IN_STORE[:1], [f"model {REPO}@{COMMIT[:12]}"]),
        (IN_STORE[1:], ["image registry.lab:5000/lab/vllm:1"]),
    ],
)
def test_what_no_store_has_is_refused(stored: list[str], missing: list[str]) -> None:
    states, own = _hosts(stored, [])
    found = problems(states, [deployment(instances_per_host=1)], own=own, air_gap=True)
    assert len(found) == len(missing)
    for text, what in zip(found, missing, strict=True):
        assert f"{what} is in no content store" in text
        assert "bundle_load.yml" in text
    assert not problems(states, [deployment(instances_per_host=1)], own=own), "with a way out it is fetched"


def test_an_image_that_would_be_built_is_refused() -> None:
    states, own = _hosts(IN_STORE)
    wanted = deployment(image=None, build={"repo": "https://example.com/x", "ref": "main", "tag": "x:1"})
    (found,) = problems(states, [wanted], own=own, air_gap=True)
    assert "would be built" in found


def test_an_image_that_came_from_its_registry_before_stays() -> None:
    before = plan({"n1": state()}, [deployment()])
    after = apply_to_state(state(), before.to_json()["hosts"]["n1"])
    assert plan({"n1": after}, [deployment()], air_gap=True).changes == 0


@pytest.mark.parametrize(("lock", "refresh"), [(Lock(), False), (LOCK, True)])
def test_nothing_is_resolved(lock: Lock, refresh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving import registry

    monkeypatch.setattr(registry, "image_pin", _never)
    monkeypatch.setattr(registry, "model_pin", _never)
    states, own = _hosts([])
    with pytest.raises(FleetError) as raised:
        resolve.resolve_pins(fleet(states, [deployment()], own=own, air_gap=True), lock, refresh, _never)
    texts = [problem.text() for problem in raised.value.problems]
    assert len(texts) == (1 if refresh else 2)
    assert all("with air_gap no registry or hub is asked" in text for text in texts)


def test_access_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving import access

    monkeypatch.setattr(access, "check_access", _never)
    states, own = _hosts([])
    assert (
        resolve.access_warnings(fleet(states, [deployment()], own=own, air_gap=True), LOCK, Lock(), _never)
        == ()
    )


@pytest.mark.parametrize("linked", [True, False])
def test_stored_weights_need_no_second_room(linked: bool) -> None:
    disks = [
        {"path": "/var/lib/docker", "free_bytes": 500 * GIB, "total_bytes": 900 * GIB, "device": 1},
        {"path": "/var/lib/instinct-fleet/hf", "free_bytes": GIB, "total_bytes": 900 * GIB, "device": 2},
        {
            "path": "/var/lib/instinct-fleet",
            "free_bytes": GIB,
            "total_bytes": 900 * GIB,
            "device": 2 if linked else 3,
        },
    ]
    found = problems({"n1": state(stored=IN_STORE, disk=disks)}, [deployment()], air_gap=True)
    assert bool(found) is not linked
    assert linked or "not enough disk space" in found[0]


# ---- what a bundle has to have ---------------------------------------------------------------------------

DRAFT = "lab/draft"
FILES = (*FILES_OF_REPO, ("LICENSE", 7), ("USE_POLICY.md", 8))
CARD = ModelCard(CardTerms(REPO, ("llama3.1",)), (CardTerms("lab/base", name="own terms"),))
WHOLE = Lock(
    LOCK.images,
    {
        model_key("", REPO, "main"): ModelPin(COMMIT, FILES, CONFIG, card=CARD),
        model_key("", DRAFT, "main"): ModelPin("d" * 40, (("model.safetensors", 9),), CONFIG),
        model_key("", "lab/unused", "main"): ModelPin("e" * 40, (("x", 1),)),
    },
)
WITH_DRAFT = deployment(
    engine_args={"speculative_config": {"model": DRAFT, "num_speculative_tokens": 2}}, hosts=["n1"]
)


def test_a_closure_has_what_all_hosts_need_whatever_they_have() -> None:
    states, own = _hosts(IN_STORE, [])
    second = deployment(name="second", hosts=["n2"], port=9000)
    for offline in (True, False):
        found = closure(fleet(states, [WITH_DRAFT, second], own=own, offline=offline), WHOLE, "/cache")
        data = found.to_json()
        assert [item["image"]["pull"] for item in data["images"]] == [PULL]
        models = {item["model"]["repo"]: item["model"] for item in data["models"]}
        assert models.keys() == {REPO, DRAFT}
        assert models[REPO]["files"] == dict(FILES)
        assert {item["cache_dir"] for item in models.values()} == {"/cache"}
        assert data["pins"] == {
            "images": {IMAGE: DIGEST},
            "models": {model_key("", REPO, "main"): COMMIT, model_key("", DRAFT, "main"): "d" * 40},
        }
        assert data["about"]["deployments"] == ["llama", "second"]
        assert data["about"]["licenses"][REPO] == {
            "licenses": ["llama3.1", "own terms"],
            "files": ["LICENSE", "USE_POLICY.md"],
        }
        assert not found.warnings
    assert lock_pins(WHOLE)["models"].keys() == WHOLE.models.keys()


@pytest.mark.parametrize(
    ("lock", "what"),
    [
        (Lock(), [IMAGE, f"{REPO}@main", f"{DRAFT}@main"]),
        (replace(WHOLE, images={IMAGE: ImagePin(DIGEST)}), [IMAGE]),
        (
            replace(WHOLE, models={**WHOLE.models, model_key("", DRAFT, "main"): ModelPin("d" * 40)}),
            [f"{DRAFT}@main"],
        ),
    ],
)
def test_a_closure_needs_all_pins(lock: Lock, what: list[str]) -> None:
    states, own = _hosts([])
    with pytest.raises(FleetError) as raised:
        closure(fleet(states, [WITH_DRAFT], own=own), lock, "/cache")
    texts = [problem.text() for problem in raised.value.problems]
    assert len(texts) == len(what)
    for text, name in zip(texts, what, strict=True):
        assert f"{name} is not pinned in fleet.lock.json" in text


def test_what_a_bundle_cannot_have_is_said() -> None:
    states, own = _hosts([])
    built = deployment(image=None, build={"repo": "https://example.com/x", "ref": "main", "tag": "x:1"})
    local = deployment(name="local", model="/models/mine", port=9000)
    found = closure(fleet(states, [built, local], own=own), WHOLE, "/cache")
    assert ["builds its image" in text or "/models/mine" in text for text in found.warnings] == [True, True]
    assert not found.repositories


def test_models_that_were_made_on_the_fleet_are_in_it() -> None:
    states, own = _hosts([])
    path = f"/var/lib/instinct-fleet/models/llama-fp8/{'a' * 40}"
    names = ["one", "two"]
    wanted = [deployment(name=name, model=f"{path}/", port=9000 + 9 * at) for at, name in enumerate(names)]
    found = closure(fleet(states, wanted, own=own), WHOLE, "/cache")
    assert found.to_json()["repositories"] == [
        {"what": f"llama-fp8@{'a' * 12}", "repository": {"path": path}}
    ]
    assert not found.warnings
    assert not found.models
