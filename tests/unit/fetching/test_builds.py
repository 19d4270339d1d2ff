# SPDX-License-Identifier: Apache-2.0
"""Who builds an image, who gets it, what is pinned of it, and what keeps a host from having the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import ImageSoftware
from ansible_collections.instinct.fleet.plugins.module_utils.content.transfer_names import build_name
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.fetching.builds import (
    drop_lost_builds,
    merge_built,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    BuildPin,
    Lock,
    parse_lock,
)

from tests.worlds.plan_world import GIB, LOCK, deployment, fleet, plan, state

Json = dict[str, Any]
COMMIT = "c" * 40
BUILD = {"repo": "https://git.example/vllm.git", "ref": COMMIT, "tag": "own/vllm:1"}
WANTED = [deployment(image=None, build=BUILD, vllm_version="0.11.1", instances_per_host=1)]
ONE, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64
SOFTWARE = {"vllm": "0.11.1", "platform": "rocm", "rocm": "7.0.0", "pytorch": "2.9.0", "python": "3.12",
            "gfx": ["gfx942"], "aiter": "0.1.5"}  # fmt: skip


def _tag() -> str:
    return str(plan({"n1": state()}, WANTED).to_json()["hosts"]["n1"]["builds"]["build"][0]["ref"])


TAG = _tag()
NAME = build_name(TAG)


def _image(image_id: str, **labels: str) -> Json:
    built = {"hash": "h", "inputs": "i", "commit": COMMIT, "bases": '{"a:1": "a@sha256:9"}', **labels}
    return {
        "id": image_id,
        "tags": [TAG],
        "digests": [],
        "bytes": 20 * GIB,
        "software": SOFTWARE,
        "build": built,
    }


def _lock(image_id: str = ONE) -> Lock:
    pin = BuildPin(
        image_id, "i", COMMIT, (("a:1", "a@sha256:9"),), 20 * GIB, ImageSoftware.from_json(SOFTWARE)
    )
    return Lock(LOCK.images, LOCK.models, {TAG: pin})


def _plan(images: dict[str, list[Json]], lock: Lock = LOCK, **more: Any) -> Any:
    """Hosts by the images that they have."""
    own = {name: {"ansible_host": f"10.0.0.{at}", **more.get(name, {})} for at, name in enumerate(images, 1)}
    states = {name: state(hostname=name, images=found) for name, found in images.items()}
    return plan(states, WANTED, lock, own=own)


def _ways(found: Any) -> dict[str, str]:
    """How each host comes to the image: it builds it, gets it from another, or has it."""
    data = found.to_json()
    ways = {}
    for name, host in data["hosts"].items():
        done = host.get("builds", {"build": [], "load": []})
        assert all(item["build"]["from_store"] for item in done["load"])
        ways[name] = "builds" if done["build"] else "gets" if done["load"] else "has"
    return ways


@pytest.mark.parametrize(
    ("images", "lock", "ways", "seed"),
    [
        ({"n1": []}, LOCK, {"n1": "builds"}, None),
        ({"n1": [], "n2": [], "n3": []}, LOCK, {"n1": "builds", "n2": "gets", "n3": "gets"}, "n1"),
        ({"n1": [], "n2": [_image(ONE)], "n3": []}, LOCK, {"n1": "gets", "n2": "has", "n3": "gets"}, "n2"),
        ({"n1": [_image(ONE)], "n2": [_image(ONE)]}, _lock(), {"n1": "has", "n2": "has"}, None),
        ({"n1": [], "n2": [_image(ONE)]}, _lock(), {"n1": "gets", "n2": "has"}, "n2"),
        # What a host built by itself gives way to what is pinned.
        ({"n1": [_image(OTHER)], "n2": [_image(ONE)]}, _lock(), {"n1": "gets", "n2": "has"}, "n2"),
    ],
)
def test_who_builds(
    images: dict[str, list[Json]], lock: Lock, ways: dict[str, str], seed: str | None
) -> None:
    found = _plan(images, lock)
    assert _ways(found) == ways
    moved = found.to_json().get("transfers", [])
    assert [item["seed"] for item in moved if item["kind"] == "build"] == ([seed] if seed else [])


def test_what_moves_and_what_the_plan_says() -> None:
    found = _plan({"n1": [], "n2": [], "n3": []})
    (moved,) = found.to_json()["transfers"][-1:]
    assert (moved["name"], moved["kind"], moved["bytes"], moved["origin"]) == (
        NAME,
        "build",
        0,
        BUILD["repo"],
    )
    assert moved["offer"] == {"built": TAG}
    assert [(item["name"], item["address"], item["serves"]) for item in moved["members"]] == [
        ("n1", "10.0.0.1", True), ("n2", "10.0.0.2", False), ("n3", "10.0.0.3", False),
    ]  # fmt: skip
    text = " ".join(explain(found, False).split())
    assert f"image {TAG}: n1 builds it, then between hosts, to n2, n3" in text
    hosts = found.to_json()["hosts"]
    after = {
        name: [item["after"] for item in host["actions"] if item["kind"] == "image"]
        for name, host in hosts.items()
    }
    assert after["n1"] == [f"built from {BUILD['repo']} at {COMMIT}, docker/Dockerfile.rocm"]
    assert after["n2"] == after["n3"] == ["received from n1, which builds it once"]
    assert [("git" in host["packages"]) for host in hosts.values()] == [True, False, False], (
        "the builder's tools"
    )
    known = _plan({"n1": [], "n2": [_image(ONE)]}, _lock())
    text = " ".join(explain(known, False).split())
    assert f"image {TAG}: n2 has it, then 20.0 GiB between hosts, to n1" in text
    (step,) = known.to_json()["hosts"]["n1"]["builds"]["load"]
    assert (step["build"]["from_store"], step["build"]["image_id"]) == (True, ONE)


def test_two_builds_have_ports_of_their_own() -> None:
    second = deployment(name="b", image=None, build={**BUILD, "args": {"A": "2"}}, vllm_version="0.11.1", port=9000,
                        gpus=[1])  # fmt: skip
    own = {name: {"ansible_host": f"10.0.0.{at}"} for at, name in enumerate(("n1", "n2"), 1)}
    states = {name: state(hostname=name) for name in own}
    data = plan(states, [*WANTED, second], own=own).to_json()
    ports = {item["members"][0]["port"] for item in data["transfers"] if item["kind"] == "build"}
    assert len(ports) == 2
    assert all(29870 + 400 <= port < 29870 + 520 for port in ports)


@pytest.mark.parametrize(
    ("images", "lock", "own", "left", "words"),
    [
        # No builder may make other bytes of what is pinned.
        (
            {"n1": [], "n2": []},
            _lock(),
            {},
            {"n1", "n2"},
            "no host of this run has it. Include a host that has it",
        ),
        (
            {"n1": [], "n2": []},
            LOCK,
            {"n2": {"ansible_host": "localhost"}},
            {"n2"},
            "which another host builds",
        ),
        (
            {"n1": [_image(ONE)], "n2": []},
            _lock(),
            {"n1": {"ansible_host": "localhost"}},
            {"n2"},
            "from n1, the only ones that have it",
        ),
    ],
)
def test_a_host_that_cannot_have_the_same_bytes_is_left_out(
    images: dict[str, list[Json]], lock: Lock, own: Json, left: set[str], words: str
) -> None:
    try:
        excluded = dict(_plan(images, lock, **own).excluded)
    except FleetError as error:
        excluded = {name: problem.text() for problem in error.problems for name in problem.hosts}
    assert excluded.keys() == left
    assert all(words in text for text in excluded.values()), excluded


# ---- pins --------------------------------------------------------------------------------------------


def _merged(images: dict[str, list[Json]], lock: Lock) -> Lock:
    states = {name: state(hostname=name, images=found) for name, found in images.items()}
    return merge_built(fleet(states, WANTED), lock)


def test_what_a_host_built_is_pinned() -> None:
    found = _merged({"n1": [_image(ONE)], "n2": []}, LOCK)
    assert found == _lock()
    assert parse_lock(found.to_json()) == found
    assert _merged({"n1": [_image(ONE)]}, found) is found, "nothing new"
    assert "builds" not in LOCK.to_json()


@pytest.mark.parametrize(
    ("images", "pinned", "chosen"),
    [
        ({"n1": [_image(OTHER)], "n2": [_image(ONE)]}, ONE, ONE),
        ({"n1": [_image(OTHER)], "n2": []}, ONE, OTHER),  # nobody has the pinned one any more
        ({"n1": [], "n2": []}, ONE, ONE),
        ({"n1": [_image(ONE)], "n2": [_image(OTHER)], "n3": [_image(OTHER)]}, "", OTHER),
    ],
)
def test_which_image_stays_pinned(images: dict[str, list[Json]], pinned: str, chosen: str) -> None:
    lock = _lock(pinned) if pinned else LOCK
    assert _merged(images, lock).builds[TAG].image_id == chosen


def test_an_image_that_only_has_the_tag_is_not_pinned() -> None:
    strange = {**_image(ONE), "build": {}}
    assert _merged({"n1": [strange]}, LOCK) is LOCK
    odd = _merged({"n1": [_image(ONE, bases="[")]}, LOCK)
    assert odd.builds[TAG].bases == ()


def test_refreshed_is_what_no_host_has() -> None:
    there = fleet({"n1": state(images=[_image(ONE)])}, WANTED)
    assert drop_lost_builds(there, _lock()) == _lock()
    gone = drop_lost_builds(fleet({"n1": state()}, WANTED), _lock())
    assert gone.builds == {}
    assert _ways(_plan({"n1": [], "n2": []}, gone)) == {"n1": "builds", "n2": "gets"}


def test_another_run_loses_no_pin() -> None:
    read, mine = LOCK, _lock()
    assert read.rebased(read, mine, False) == mine
    assert mine.rebased(read, read, False) == mine
