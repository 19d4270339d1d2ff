# SPDX-License-Identifier: Apache-2.0
"""Models that were made on the fleet: who gets them from whom, and what keeps a host from having the right bytes."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.factory import ModelSource
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.local_repositories import (
    ObservedRepository,
    is_local_repository,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet

from tests.worlds.plan_world import CONFIG, GIB, LOCK, deployment, fleet, state, workshop

Json = dict[str, Any]
COMMIT, OTHER = "a" * 40, "b" * 40
PATH = f"/var/lib/instinct-fleet/models/llama-ptpc-fp8/{COMMIT}"
MARK, SECOND = "1" * 12, "2" * 12
SOURCES = {"m": ModelSource(CONFIG)}
WANTED = [deployment(model=PATH, model_config="m", served_model_name="llama", instances_per_host=1)]


def copy(**changes: Any) -> Json:
    """What node_state says of a copy that is as it was made."""
    made = {
        "path": PATH, "commit": COMMIT, "signature": MARK, "bytes": 5 * GIB, "wrong": [], "verified": True,
    }  # fmt: skip
    return {**made, **changes}


GOOD, UNSIGNED, TOUCHED = copy(), copy(signature=""), copy(verified=False)
WRONG = copy(wrong=["model.safetensors"], verified=False)
FOREIGN, BARE = copy(commit=OTHER), copy(commit="", signature="", verified=False)


def planned(copies: dict[str, Json | None], wanted: Any = None, **own: Any) -> Any:
    """The plan of hosts by what they have at the path."""
    there = {name: {"ansible_host": f"10.0.0.{at}", **own.get(name, {})} for at, name in enumerate(copies, 1)}
    states = {
        name: state(
            hostname=name, libtorrent=True, repositories=[found] if found else [], **own.get("state", {})
        )
        for name, found in copies.items()
    }
    found = fleet(states, WANTED if wanted is None else wanted, own=there)
    return plan_fleet(check_fleet(found), workshop(LOCK, SOURCES))


def moved(plan: Any) -> tuple[str, list[str]] | None:
    """The seed and the receivers of the only repository that moves."""
    found = [item for item in plan.transfers if item.kind == "repository"]
    if not found:
        return None
    (item,) = found
    return item.seed.host.name, [member.host.name for member in item.receivers]


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([GOOD, GOOD], None),
        ([GOOD, None, None], ("n1", ["n2", "n3"])),
        ([None, GOOD], ("n2", ["n1"])),
        ([GOOD, WRONG], ("n1", ["n2"])),
        ([WRONG, GOOD], ("n2", ["n1"])),
        # Its files changed since they were hashed: hashed again, and received if they are wrong.
        ([TOUCHED, GOOD], ("n2", ["n1"])),
        ([TOUCHED, TOUCHED], ("n1", ["n2"])),
        ([TOUCHED, None], ("n1", ["n2"])),
        ([TOUCHED], None),
        # A signature is a part of it.
        ([UNSIGNED, GOOD], ("n2", ["n1"])),
        ([UNSIGNED, UNSIGNED], None),
        ([UNSIGNED, None], ("n1", ["n2"])),
        # Without a manifest it is the operator's own affair, unless a host has it with one.
        ([BARE, BARE], None),
        ([BARE, GOOD], ("n2", ["n1"])),
        # Two signatures of the same files: whose is meant matters to those that get one.
        ([GOOD, copy(signature=SECOND)], None),
    ],
)
def test_who_gives_it_to_whom(copies: list[Json | None], expected: tuple[str, list[str]] | None) -> None:
    plan = planned({f"n{at}": found for at, found in enumerate(copies, 1)})
    assert plan.excluded == ()
    assert moved(plan) == expected


@pytest.mark.parametrize(
    ("copies", "left", "words"),
    [
        (
            [None, None],
            {"n1", "n2"},
            "is on no host of this run. Include a host that has the original (--limit)",
        ),
        ([WRONG, None], {"n1", "n2"}, "every host that has it: n1 (model.safetensors). Include a host"),
        (
            [FOREIGN, GOOD],
            {"n1"},
            "has the manifest of commit bbbbbbbbbbbb, but its path says aaaaaaaaaaaa, which n2",
        ),
        ([FOREIGN, None], {"n1", "n2"}, "these are different models. Move it to the path of its own commit"),
        (
            [GOOD, copy(signature=SECOND), None],
            {"n3"},
            f"signed differently on n1 ({MARK}) and n2 ({SECOND})",
        ),
    ],
)
def test_what_keeps_a_host_from_it(copies: list[Json | None], left: set[str], words: str) -> None:
    plan = planned({f"n{at}": found for at, found in enumerate(copies, 1)})
    why = dict(plan.excluded)
    assert set(why) == left
    assert words in why[min(left)]
    assert moved(plan) is None


@pytest.mark.parametrize(
    ("quota", "copies", "left"),
    [
        (17, [GOOD, None], set()),  # with 12 for the image
        (16, [GOOD, None], {"n2"}),  # the one that gives it has it already
        (12, [GOOD, TOUCHED], set()),  # nothing comes if its hashes are right
        (12, [GOOD, WRONG], {"n2"}),
        (0, [GOOD, None], set()),  # no limit
    ],
)
def test_a_quota_holds_for_them(quota: int, copies: list[Json | None], left: set[str]) -> None:
    own = {name: {"store_quota": quota * GIB} for name in ("n1", "n2")}
    plan = planned({f"n{at}": found for at, found in enumerate(copies, 1)}, **own)
    words = "(image registry.lab:5000/lab/vllm:1 12.0 GiB, model llama-ptpc-fp8@aaaaaaaaaaaa 5.0 GiB), the toolkit has"
    assert {name for name, why in plan.excluded if words in why} == left
    assert {name for name, _why in plan.excluded} == left


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (
            {"n2": {"ansible_host": "n2", "distribution_interface": "bond9"}},
            "bond9 is not up with an address there",
        ),
        (
            {"n1": {"ansible_host": "n1"}},
            "from n1, the only ones that have it: no address of theirs is known",
        ),
        (
            {
                "state": {
                    "disk": [{"path": "/var/lib", "free_bytes": 16 * GIB, "total_bytes": GIB, "device": 1}]
                }
            },
            "not enough disk space for /var/lib/docker and /var/lib/instinct-fleet: 17.0 GiB are needed (image "
            "registry.lab:5000/lab/vllm:1 12.0 GiB, model llama-ptpc-fp8@aaaaaaaaaaaa 5.0 GiB), 16.0 GiB are free",
        ),
    ],
)
def test_bytes_that_cannot_come_are_said_before_anything_changes(own: Json, words: str) -> None:
    plan = planned({"n1": GOOD, "n2": None}, **own)
    assert words in dict(plan.excluded)["n2"]
    if "state" not in own:  # one that may be right needs no other host
        assert planned({"n1": GOOD, "n2": TOUCHED}, **own).excluded == ()


def test_what_the_plan_says() -> None:
    plan = planned({"n1": GOOD, "n2": None, "n3": WRONG})
    (item,) = (item.to_json() for item in plan.transfers if item.kind == "repository")
    assert (item["kind"], item["what"], item["bytes"], item["origin"]) == (
        "repository", f"llama-ptpc-fp8@{COMMIT[:12]}", 5 * GIB, None,
    )  # fmt: skip
    assert item["offer"] == {"repository": {"path": PATH, "name": item["name"]}}
    assert item["name"] == f"model {PATH.rpartition('/')[0]}@{COMMIT} {MARK}"
    ports = {member["port"] for member in item["members"]}
    assert len(ports) == 1
    assert 29870 + 520 <= min(ports) < 29870 + 640
    text = " ".join(explain(plan, False).split())
    assert f"model llama-ptpc-fp8@{COMMIT[:12]}: n1 has it, then 5.0 GiB between hosts, to n2, n3" in text
    before = {
        host.host.name: [step.before for step in host.actions if step.target.startswith("model ")]
        for host in plan.hosts
    }
    assert before == {"n1": ["present"], "n2": ["absent"], "n3": ["other content (model.safetensors)"]}
    assert all("distribution" in host.todo for host in plan.hosts)
    brought = {name: host.get("repositories") for name, host in plan.to_json()["hosts"].items()}
    assert brought == {"n1": None, "n2": [item["offer"]["repository"]], "n3": [item["offer"]["repository"]]}


def test_a_host_that_gives_it_need_not_serve_it() -> None:
    plan = planned({"n1": GOOD, "n2": None}, n1={"vllm_deployments": []})
    assert moved(plan) == ("n1", ["n2"])


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (PATH, True),
        (f"{PATH}/", True),
        ("/mnt/weka/llama", False),
        ("/var/lib/instinct-fleet/models/llama", False),
        (f"/var/lib/instinct-fleet/models/.work/{COMMIT}", False),
        (f"/mnt/models/llama/{COMMIT}", False),
    ],
)
def test_which_paths_are_passed_on(model: str, expected: bool) -> None:
    assert is_local_repository(model) is expected
    if not expected and model.count("/") < 5:
        wanted = [{**WANTED[0], "model": model}]
        states = {name: state(hostname=name) for name in ("n1", "n2")}
        found = plan_fleet(check_fleet(fleet(states, wanted)), workshop(LOCK, SOURCES))
        assert (found.excluded, found.transfers) == ((), ()), "an operator's path stays as it is"


@pytest.mark.parametrize(
    "changes",
    [{"signature": "x y"}, {"commit": "../.."}, {"bytes": -1}, {"wrong": ["a\nb"]}, {"path": "\x1b[2J"}],
)
def test_what_a_node_says_of_it_is_read_strictly(changes: Json) -> None:
    with pytest.raises(ValueError, match="local repository"):
        ObservedRepository.from_json(copy(**changes))
