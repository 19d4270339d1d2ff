# SPDX-License-Identifier: Apache-2.0
"""Who pushes a built image to the operator's registry, who pulls it, and what is pinned of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError, Problem
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.fetching.pushes import pinned_pushes
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    ImagePin,
    Lock,
    parse_lock,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.prune_roots import kept_images
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.closure import (
    closure,
    lock_pins,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.todo import (
    restrict_to,
    todo_hosts,
)

from tests.unit.fetching.test_builds import BUILD, LOCK, ONE, OTHER, TAG, _image, _lock
from tests.worlds.plan_world import GIB, deployment, fleet, plan, problems, state, workshop

Json = dict[str, Any]
PLACE = "registry.example/vllm"
FIRST, SECOND = f"{PLACE}@sha256:{'a' * 64}", f"{PLACE}@sha256:{'b' * 64}"
WANTED = [
    deployment(image=None, build={**BUILD, "push_to": PLACE}, vllm_version="0.11.1", instances_per_host=1)
]


def _here(*digests: str, image_id: str = ONE) -> Json:
    return {**_image(image_id), "digests": list(digests)}


def _pushed(name: str = FIRST) -> Lock:
    known = _lock()
    return replace(known, builds={TAG: replace(known.builds[TAG], pushed=name, pushed_bytes=7 * GIB)})


def _plan(
    images: dict[str, list[Json]], lock: Lock = LOCK, again: list[str] | None = None, **more: Any
) -> Any:
    own = {name: {"ansible_host": f"10.0.0.{at}"} for at, name in enumerate(images, 1)}
    states = {name: state(hostname=name, images=found) for name, found in images.items()}
    checked = check_fleet(fleet(states, WANTED, own=own, **more))
    return plan_fleet(checked, workshop(lock), again=again)


def _steps(found: Any) -> dict[str, str]:
    """What each host does, in short."""
    steps = {}
    for name, host in found.to_json()["hosts"].items():
        done = host.get("builds", {"build": [], "push": [], "load": []})
        words = [
            *("build" for _unused in done["build"]),
            *("push" for _unused in done["push"]),
            *("pull" if item["pull"] else "receive" for item in done["load"]),
        ]
        steps[name] = " ".join(words)
    return steps


@pytest.mark.parametrize(
    ("images", "lock", "steps"),
    [
        ({"n1": []}, LOCK, {"n1": "build push"}),
        ({"n1": [], "n2": [], "n3": []}, LOCK, {"n1": "build push", "n2": "", "n3": ""}),
        # Built before there was push_to, or the push failed: what is there is pushed, and nothing built.
        ({"n1": [], "n2": [_here()]}, _lock(), {"n1": "", "n2": "push"}),
        ({"n1": [_here()], "n2": [_here()]}, _lock(), {"n1": "push", "n2": ""}),
        ({"n1": [_here(FIRST)], "n2": []}, _pushed(), {"n1": "", "n2": "pull"}),
        ({"n1": [], "n2": []}, _pushed(), {"n1": "pull", "n2": "pull"}),
        ({"n1": [_here(image_id=OTHER)], "n2": [_here(FIRST)]}, _pushed(), {"n1": "pull", "n2": ""}),
        ({"n1": [_here(FIRST)], "n2": [_here()]}, _pushed(), {"n1": "", "n2": ""}),
        # Of another registry than the one that is wanted now.
        ({"n1": [_here(FIRST)]}, _pushed(f"other.example/vllm@sha256:{'a' * 64}"), {"n1": "push"}),
    ],
)
def test_who_does_what(images: dict[str, list[Json]], lock: Lock, steps: dict[str, str]) -> None:
    found = _plan(images, lock)
    assert _steps(found) == steps
    assert not [item for item in found.transfers if item.kind == "build"], "the registry passes it on"


def test_what_is_built_is_the_same_with_and_without() -> None:
    without = plan(
        {"n1": state()}, [deployment(image=None, build=BUILD, vllm_version="0.11.1", instances_per_host=1)]
    )
    one, other = (item.to_json()["hosts"]["n1"] for item in (without, _plan({"n1": []})))
    assert one["servers"] == other["servers"]
    assert one["builds"]["build"] == other["builds"]["build"]
    assert other["builds"]["push"] == [{"ref": TAG, "push_to": PLACE, "registry": "registry.example"}]


def test_what_the_plan_says() -> None:
    found = _plan({"n1": [], "n2": []})
    after = {
        host.host.name: [item.after for item in host.actions if item.target == TAG] for host in found.hosts
    }
    built = f"built from {BUILD['repo']} at {BUILD['ref']}, docker/Dockerfile.rocm"
    assert after == {
        "n1": [built, f"pushed to {PLACE}"],
        "n2": [f"pulled from {PLACE}, to which n1 pushes it"],
    }
    assert [("git" in host.packages) for host in found.hosts] == [True, False]
    assert f"pushed to {PLACE}" in explain(found, False)
    data = found.to_json()
    groups = {item["name"]: item["groups"] for item in todo_hosts(found, (), data)}
    assert all({"fleet_builds", "fleet_pushed", "fleet_partial"} <= set(names) for names in groups.values())
    pulled = _plan({"n1": [], "n2": [_here(FIRST)]}, _pushed())
    (step,) = pulled.to_json()["hosts"]["n1"]["builds"]["load"]
    assert (step["ref"], step["pull"], step["bytes"], step["registry"], step["build"]) == (
        TAG, FIRST, 7 * GIB, "registry.example", None,
    )  # fmt: skip
    groups = {item["name"]: item["groups"] for item in todo_hosts(pulled, (), pulled.to_json())}
    assert "fleet_builds" in groups["n1"]
    assert "fleet_pushed" not in groups["n1"]


def test_hosts_share_what_they_pull() -> None:
    found = _plan({"n1": [], "n2": [], "n3": []}, _pushed())
    (moved,) = [item for item in found.to_json()["transfers"] if item["kind"] == "image"]
    assert (moved["origin"], moved["seed"], moved["bytes"]) == ("registry.example", "n1", 7 * GIB)
    for host in found.to_json()["hosts"].values():
        assert host["builds"]["transfers"] == [moved["name"]]
        assert moved["name"] not in host["transfers"], "it is moved once"


def test_a_mirror_passes_on_what_was_pushed() -> None:
    found = _plan({"n1": []}, _pushed(), registry_override={"registry.example": "mirror.example/far"})
    (step,) = found.to_json()["hosts"]["n1"]["builds"]["load"]
    assert step["pull"] == FIRST.replace("registry.example/", "mirror.example/far/")


def test_the_second_plan_of_a_run_builds_and_pushes_nothing() -> None:
    found = _plan({"n1": [], "n2": []}, again=["n2"])  # building failed on n1, which is out
    assert f"was not pushed to {PLACE}" in dict(found.excluded)["n2"]
    groups = {item["name"]: item["groups"] for item in todo_hosts(found, (), found.to_json())}
    assert groups["n2"] == ["fleet_excluded"]


def test_the_second_plan_speaks_of_its_own_hosts() -> None:
    found = replace(_plan({"n1": [], "n2": []}), excluded=(("n1", "a reason"), ("n3", "another")))
    own = restrict_to(found, ["n2", "n3"])
    assert [host.host.name for host in own.hosts] == ["n2"]
    assert own.excluded == (("n3", "another"),)
    held = _plan({"n1": [_here()], "n2": []}, _lock(), again=["n2"])
    assert dict(held.excluded).keys() == {"n2"}
    assert _steps(_plan({"n1": [_here(FIRST)], "n2": []}, _pushed(), again=["n1", "n2"])) == {
        "n1": "",
        "n2": "pull",
    }


@pytest.mark.parametrize(
    "place", ["registry.example/vllm:tag", "registry.example", "https://registry.example/vllm", 5]
)
def test_what_is_no_repository(place: Any) -> None:
    wanted = deployment(image=None, build={**BUILD, "push_to": place}, vllm_version="0.11.1")
    assert any("push_to" in text for text in problems({"n1": state()}, [wanted]))


# ---- pins --------------------------------------------------------------------------------------------


class _Registry:
    """Has some images; counts what it is asked."""

    def __init__(self, *names: str, down: bool = False) -> None:
        self.names, self.down, self.asked = names, down, list[str]()

    def __call__(self, name: str, _path: Any, host: Any) -> ImagePin | None:
        self.asked.append(name)
        if self.down:
            raise FleetError([Problem((), "it is down.", "", (host.name,))])
        return ImagePin(name.partition("@")[2], 7 * GIB) if name in self.names else None


def _pinned(
    images: dict[str, list[Json]], lock: Lock, registry: _Registry, check: bool = False, **more: Any
) -> Lock:
    states = {name: state(hostname=name, images=found) for name, found in images.items()}
    return pinned_pushes(fleet(states, WANTED, **more), lock, check, registry)


@pytest.mark.parametrize(
    ("images", "lock", "there", "pushed", "asked"),
    [
        ({"n1": [_here(FIRST)]}, _lock(), [FIRST], FIRST, 1),
        ({"n1": [_here()]}, _lock(), [], "", 0),
        ({"n1": [_here("docker.io/x@sha256:1")]}, _lock(), [], "", 0),
        ({"n1": [_here(FIRST, SECOND)]}, _lock(), [SECOND], SECOND, 2),
        ({"n1": [_here(FIRST, image_id=OTHER)]}, _lock(), [FIRST], "", 0),  # of another build
        ({"n1": [_here(FIRST)]}, _pushed(), [], FIRST, 0),  # nothing to do: no registry is asked
        ({"n1": [_here(FIRST)], "n2": []}, _pushed(), [FIRST], FIRST, 1),
        ({"n1": [_here(FIRST)], "n2": []}, _pushed(), [], "", 1),  # the registry lost it
        ({"n1": [_here(SECOND)], "n2": []}, _pushed(), [SECOND], SECOND, 2),
        ({"n1": []}, LOCK, [], None, 0),
    ],
)
def test_what_is_pinned(
    images: dict[str, list[Json]], lock: Lock, there: list[str], pushed: str | None, asked: int
) -> None:
    registry = _Registry(*there)
    found = _pinned(images, lock, registry)
    pin = found.builds.get(TAG)
    assert (pin.pushed if pin else None) == pushed
    assert len(registry.asked) == asked
    assert parse_lock(found.to_json()) == found
    if pin and pin.pushed:
        assert pin.pushed_bytes == 7 * GIB
        assert pin.pushed in kept_images(found, ())


def test_what_a_registry_lost_is_found_when_it_is_asked_to() -> None:
    lost = _pinned({"n1": [_here(FIRST)]}, _pushed(), _Registry(), check=True)
    assert lost.builds[TAG].pushed == ""
    assert _steps(_plan({"n1": [_here(FIRST)]}, lost)) == {"n1": "push"}
    same = _pushed()
    assert _pinned({"n1": [_here(FIRST)]}, same, _Registry(FIRST), check=True) is same


def test_a_registry_that_does_not_answer() -> None:
    same = _pushed()
    assert _pinned({"n1": [_here(FIRST)], "n2": []}, same, _Registry(down=True)) is same, "it was there"
    with pytest.raises(FleetError) as refused:
        _pinned({"n1": [_here(FIRST)]}, _lock(), _Registry(down=True))
    assert "it is down" in refused.value.problems[0].text()


def test_no_registry_is_asked_where_there_is_none() -> None:
    registry = _Registry()
    _pinned({"n1": [_here(FIRST)]}, _pushed(), registry, check=True, air_gap=True)
    assert registry.asked == []


def test_a_bundle_has_what_was_pushed() -> None:
    states = {"n1": state(images=[_here(FIRST)])}
    found = closure(fleet(states, WANTED), _pushed(), "/cache")
    assert [item["image"] for item in found.images.values()] == [{"pull": FIRST}]
    assert found.pins["images"] == {TAG: FIRST.partition("@")[2]}
    assert found.pins["images"].items() <= lock_pins(_pushed())["images"].items()
    assert not found.warnings
    assert "set build.push_to" in next(iter(closure(fleet(states, WANTED), _lock(), "/cache").warnings))
