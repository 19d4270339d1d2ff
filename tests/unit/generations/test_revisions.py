# SPDX-License-Identifier: Apache-2.0
"""Numbers of generations at their edges: hosts that differ, what is unknown, holds, and which upgrades are refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    DEPLOY,
    RESTART,
    ROLLBACK,
    UPGRADE,
    Hold,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    OpenRollout as OpenTrial,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.generations.bindings import (
    binding_warnings,
    ignored_texts,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.generations.revisions import (
    RevisionChange,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.generations.sources import (
    HELD,
    INVENTORY,
    ROLLED_BACK,
    RUNNING,
    DeploymentSource,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import Lock
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests.worlds.generations_world import BACK, States, bind, llama, only, planned, run, two, upgraded
from tests.worlds.generations_world import HELD as A_HOLD
from tests.worlds.generations_world import TRIAL as A_TRIAL
from tests.worlds.generations_world import turn as turn_of
from tests.worlds.plan_world import IMAGE, LOCK, actions, apply_to_state, deployment, fleet, state, workshop

Steps = dict[str, tuple[int | None, int | None, bool]]


def hosts(plan: FleetPlan, name: str = "llama") -> Steps:
    """By host: the lowest generation that runs, the one that is wanted, and whether it is recorded."""
    found = turn_of(plan, name)["hosts"]
    return {host: (step["from"], step["to"], step["record"]) for host, step in found.items()}


# ---- before and after, by host -----------------------------------------------------------------------


def mixed() -> States:
    """n1 runs 1, n2 runs 1 and 2, n3 runs 3; all keep all three."""
    three = ("n1", "n2", "n3")
    first = run(two(three), llama())
    second = run(first, llama(16))
    third = run(second, llama(32))
    found = copy.deepcopy(third)
    found["n1"]["instances"] = copy.deepcopy(first["n1"]["instances"])
    found["n2"]["instances"] = [
        copy.deepcopy(first["n2"]["instances"][0]),
        copy.deepcopy(second["n2"]["instances"][1]),
    ]
    return found


def bare(states: States) -> States:
    """And a host that has no record at all, and one that came with generation 3."""
    new = {
        name: found
        for name, found in run({**states, "n5": state(hostname="n5")}, llama(32)).items()
        if name == "n5"
    }
    return {**states, "n4": state(hostname="n4"), **new}


@pytest.mark.parametrize(
    ("operation", "choice", "before", "expected"),
    [
        (
            OperationRequest(ROLLBACK, frozenset(["llama"]), 2),
            "rollback",
            3,
            {"n1": (1, 2, False), "n2": (1, 2, False), "n3": (3, 2, False), "n5": (3, None, False)},
        ),
        (
            OperationRequest(RESTART),
            "running",
            3,
            {"n1": (1, 1, False), "n2": (1, 1, False), "n3": (3, 3, False), "n5": (3, 3, False)},
        ),
        (
            OperationRequest(UPGRADE),
            "inventory",
            3,
            {
                "n1": (1, 3, False),
                "n2": (1, 3, False),
                "n3": (3, 3, False),
                "n4": (None, 3, True),
                "n5": (3, 3, False),
            },
        ),
    ],
)
def test_every_host_from_what_it_runs_to_what_it_will(
    operation: OperationRequest, choice: str, before: int, expected: Steps
) -> None:
    plan = planned(bare(mixed()), llama(32), operation)
    reported = turn_of(plan)
    assert (reported["choice"], reported["before"], hosts(plan)) == (choice, before, expected)
    assert (reported["new"], reported["known"]) == (
        False,
        False,
    )  # it has a number already, and not on every host


@pytest.mark.parametrize("operation", [OperationRequest(), OperationRequest(RESTART)])
def test_before_is_nothing_where_nothing_runs(operation: OperationRequest) -> None:
    states = run(two(), llama())
    for found in states.values():
        found["instances"] = []
    reported = turn_of(planned(states, llama(), operation))
    assert (reported["before"], reported["hosts"]["n1"]["from"]) == (None, None)
    assert (turn_of(planned(two(), llama()))["before"], turn_of(planned(two(), llama()))["generation"]) == (
        None,
        1,
    )


def test_a_held_deployment_from_what_each_host_runs_to_what_is_held() -> None:
    states = bind(mixed(), "n1", "n2", "n3", held={**A_HOLD, "generation": 2})
    plan = planned(states, llama(32))
    assert hosts(plan) == {"n1": (1, 2, False), "n2": (1, 2, False), "n3": (3, 2, False)}
    assert (turn_of(plan)["choice"], turn_of(plan)["why"], turn_of(plan)["generation"]) == (
        "held",
        "slower",
        2,
    )


def test_what_a_generation_replaces_is_told_and_kept() -> None:
    """The record's action names the lowest generation that runs on that host; that one is not pruned meanwhile."""
    states = {**mixed(), "n4": state(hostname="n4")}
    data = planned(states, llama(64)).to_json()["hosts"]
    lines = {
        name: [
            (item["before"], item["after"]) for item in data[name]["actions"] if item["kind"] == "generation"
        ]
        for name in data
    }
    assert lines == {"n1": [("1", "4")], "n2": [("1", "4")], "n3": [("3", "4")], "n4": [("none", "4")]}
    needed = {name: [item["needed"] for item in data[name]["generations"]] for name in data}
    assert needed == {"n1": [[1]], "n2": [[1]], "n3": [[3]], "n4": [[]]}


@pytest.mark.parametrize(
    ("reached", "wanted", "expected"),
    [
        # The hosts that a first change reached, what is wanted then, and (number, whether it is new, who records it).
        (("n1",), llama(16), (2, False, ["n2", "n3"])),
        (("n2", "n3"), llama(16), (2, False, ["n1"])),
        (("n1", "n2", "n3"), llama(16), (2, False, [])),
        (("n1",), llama(32), (3, True, ["n1", "n2", "n3"])),
        (("n1",), llama(), (3, True, ["n1"])),
        ((), llama(16), (2, True, ["n1", "n2", "n3"])),
        (("n1",), [], (3, True, ["n1", "n2", "n3"])),
    ],
)
def test_which_hosts_join_a_number(
    reached: tuple[str, ...], wanted: Any, expected: tuple[int, bool, list[str]]
) -> None:
    """A run that was cut off, or that had a --limit, has left a number to some hosts: the others join it."""
    states = run(two(("n1", "n2", "n3")), llama())
    for name in reached:
        states = {**states, **run(only(states, name), llama(16))}
    reported = turn_of(planned(states, wanted))
    recording = [name for name, step in reported["hosts"].items() if step["record"]]
    assert (reported["generation"], reported["new"], recording) == expected


def test_reasons_of_hosts() -> None:
    """A host's own reason is in its record; the deployment's is that of the first host that records one."""
    states = {"n1": state(hostname="n1"), **only(mixed(), "n2")}
    data = planned(states, llama(64)).to_json()
    why = {name: [item["why"] for item in data["hosts"][name]["generations"]] for name in ("n1", "n2")}
    assert why == {"n1": ["first deployment"], "n2": ["--max-num-seqs 16 → 64"]}
    assert data["generations"][0]["why"] == "first deployment"


@pytest.mark.parametrize(("seqs", "why"), [(None, "generation 1 again"), (16, "generation 2 again")])
def test_a_definition_that_was_there_already(seqs: int | None, why: str) -> None:
    states = run(run(run(two(), llama()), llama(16)), llama(32))
    assert turn_of(planned(states, llama(seqs)))["why"] == why


def test_a_definition_that_was_there_twice_is_told_by_its_newest_number() -> None:
    states = run(run(run(run(two(), llama()), llama(16)), llama()), llama(32))
    assert turn_of(planned(states, llama()))["why"] == "generation 3 again"


def test_a_record_without_instances_is_followed_by_another_deployment() -> None:
    states = run(run(two(), llama()), [])
    assert turn_of(planned(states, llama(16)))["why"] == "deployed again"


@pytest.mark.parametrize(
    ("wanted", "recording"),
    [
        ([], ["n3"]),  # a host that was away has it removed, too
        (llama(16, hosts=["n3"]), ["n3"]),  # its way back is that the others do not have it
        (llama(16), ["n1", "n2", "n3"]),
    ],
)
def test_what_comes_again_has_another_number_than_its_removal(wanted: Any, recording: list[str]) -> None:
    states = run(two(("n1", "n2", "n3")), llama())
    states = {**states, **run({name: states[name] for name in ("n1", "n2")}, [])}
    plan = planned(states, wanted)
    assert turn_of(plan)["generation"] == 3
    assert (
        [name for name, step in hosts(plan).items() if step[1:] == (3, True)] == [*hosts(plan)] == recording
    )


# ---- what is not known -------------------------------------------------------------------------------

SPANNING = {"nodes": 2, "tensor_parallel_size": 2, "pipeline_parallel_size": 2}
OWN = {"own": {"n1": {"ansible_host": "10.0.0.1"}, "n2": {"ansible_host": "10.0.0.2"}}}


def test_a_host_whose_mate_is_missing_records_nothing() -> None:
    """What it would have is not known: that it has no instances now does not mean that nobody wants them."""
    other = deployment(name="other", gpus=[7], port=9000)
    states = run(two(), [deployment(**SPANNING), other], **OWN)
    alone: dict[str, Any] = {**states, "n2": None}
    changed = [deployment(**SPANNING, engine_args={"seed": 1}), {**other, "engine_args": {"seed": 1}}]
    plan = planned(alone, changed, **OWN)
    assert (hosts(plan), turn_of(plan)["known"]) == ({}, False)
    # The other deployment of that host is known.
    assert hosts(plan, "other") == {"n1": (1, 2, True)}
    assert actions(plan.to_json()["hosts"]["n1"]) == ["generation other", "server other-0"]


def test_a_host_whose_image_is_yet_to_be_asked_records_nothing() -> None:
    pin = replace(LOCK.images[IMAGE], software=None)
    unasked = Lock({IMAGE: pin}, LOCK.models)
    plan = plan_fleet(check_fleet(fleet(two(), llama())), workshop(unasked))
    data = plan.to_json()
    assert data["hosts"]["n1"]["unknown_images"] == [IMAGE]
    assert (turn_of(plan)["hosts"], turn_of(plan)["generation"], turn_of(plan)["new"]) == ({}, None, False)
    # Nor is what it runs already thought to be unwanted.
    there = run(two(), llama())
    plan = plan_fleet(check_fleet(fleet(there, llama(16))), workshop(unasked))
    assert (hosts(plan), turn_of(plan)["generation"]) == ({}, 1)
    assert [
        item["kind"] for item in plan.to_json()["hosts"]["n1"]["actions"] if item["kind"] == "generation"
    ] == []


# ---- holds that are set and lifted -------------------------------------------------------------------


def test_holding_what_runs_leaves_nothing_out() -> None:
    """A rollback to the newest generation holds that one: its definition is not what was turned back."""
    states = run(upgraded(), llama(16), OperationRequest(ROLLBACK, frozenset(["llama"]), 2))
    assert states["n1"]["generations"][0]["held"]["generation"] == 2
    plan = planned(states, llama(16), OperationRequest(UPGRADE))
    assert actions(plan.to_json()["hosts"]["n1"]) == ["hold llama"]


def hold_of(plan: FleetPlan, host: str = "n1") -> list[tuple[str, str, str]]:
    found = plan.to_json()["hosts"][host]["actions"]
    return [(item["before"], item["after"], item["reason"]) for item in found if item["kind"] == "hold"]


NOT_UNDONE = "site.yml must not undo the rollback"
LIFTED = "the inventory's definition is what runs"
CHANGED = "the inventory's definition is no longer the one that was turned back"
RETRIED = "the operator retries it (retry=true)"
RETRY = OperationRequest(UPGRADE, retry=True)


@pytest.mark.parametrize(
    ("changes", "wanted", "operation", "expected"),
    [
        ({}, llama(16), BACK, [("free", "at generation 1", NOT_UNDONE)]),
        ({"held": {**A_HOLD, "generation": 2}}, llama(16), BACK, [("at generation 2", "at generation 1", NOT_UNDONE)]),
        ({"held": A_HOLD}, llama(16), BACK, [("at generation 1", "at generation 1", NOT_UNDONE)]),
        ({"held": {**A_HOLD, "why": "answers got worse"}}, llama(16), BACK, []),
        ({"held": A_HOLD}, llama(32), OperationRequest(UPGRADE), [("at generation 1", "free", CHANGED)]),
        ({"held": A_HOLD}, llama(32), OperationRequest(), [("at generation 1", "free", CHANGED)]),
        ({"held": A_HOLD}, llama(16), OperationRequest(UPGRADE), []),
        ({"held": A_HOLD}, llama(16), RETRY, [("at generation 1", "free", RETRIED)]),
        ({"held": A_HOLD}, llama(), OperationRequest(), [("at generation 1", "free", LIFTED)]),
        ({"held": A_HOLD}, [], OperationRequest(), [("at generation 1", "free", "the inventory no longer defines it")]),
        ({"held": A_HOLD}, llama(16), OperationRequest(RESTART), []),
        ({"trial": A_TRIAL}, llama(16), OperationRequest(), []),
    ],
    ids=["rolled back", "held elsewhere", "for another reason", "held so already", "upgraded to another",
         "deployed, another", "upgraded to the same", "retry", "what is held is wanted", "nobody wants it", "restarted",
         "on trial"],
)  # fmt: skip
def test_holds(
    changes: dict[str, Any], wanted: Any, operation: OperationRequest, expected: list[tuple[str, str, str]]
) -> None:
    states = upgraded() if operation.operation != DEPLOY or not wanted else run(upgraded(), llama(16), BACK)
    states = bind(states, "n1", "n2", **changes) if changes else states
    assert hold_of(planned(states, wanted, operation)) == expected


def test_a_hold_of_what_nothing_is_left_of() -> None:
    """The inventory has it no longer, and neither has the host."""
    states = run(upgraded(), [])
    states = bind(states, "n1", held=A_HOLD)
    for found in states.values():
        found["generations"][0]["kept"] = []
    assert hold_of(planned(states, [])) == [("at generation 1", "free", "the inventory no longer defines it")]


def test_a_hold_follows_to_hosts_that_were_away() -> None:
    states = bind(upgraded(), "n1", held=A_HOLD)
    plan = planned(states, llama(16))
    assert (hold_of(plan), hold_of(plan, "n2")) == (
        [],
        [("free", "at generation 1", "it is held on the deployment's other hosts")],
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (
            DeploymentSource(HELD, 1, Hold(1, "slower", "s")),
            ["deployment llama is held at generation 1 since s (slower)"],
        ),
        (
            DeploymentSource(HELD, 0, Hold(0, "slower", "s", (1, 2))),
            [
                "deployment llama is held, and not started, since s: generations 1, 2 were turned back (slower)"
            ],
        ),
        (DeploymentSource(HELD, 1, Hold(1, "slower", "s", (2,)), ignored=True), []),  # said before all else
        (
            DeploymentSource(INVENTORY, None, Hold(1, "slower", "s"), OpenTrial(2, "more", "s")),
            ["deployment llama has an unfinished upgrade to generation 2 since s (more), and the inventory"],
        ),
        (
            DeploymentSource(INVENTORY, None, None, OpenTrial(1, "more", "s")),
            [
                "deployment llama has an unfinished upgrade to generation 1 since s (more): site.yml, deploy.yml"
            ],
        ),
        (DeploymentSource(INVENTORY, None, Hold(1, "slower", "s")), []),
        (DeploymentSource(ROLLED_BACK, 1, None, OpenTrial(2, "more", "s")), []),
        # A restart, for example: it leaves each instance as it runs.
        (
            DeploymentSource(RUNNING, None, None, OpenTrial(2, "more", "s")),
            [
                "deployment llama has an unfinished upgrade to generation 2 since s (more): site.yml, deploy.yml"
            ],
        ),
        (DeploymentSource(ROLLED_BACK, 1, Hold(1, "slower", "s")), []),
    ],
)
def test_what_does_not_follow_the_inventory_is_told(choice: DeploymentSource, expected: list[str]) -> None:
    revisions = [RevisionChange("llama", choice, 1, 1, False, False, "")]
    lines = binding_warnings(revisions)
    assert len(ignored_texts(revisions)) == int(choice.ignored)
    assert len(lines) == len(expected)
    assert all(text.startswith(start) for text, start in zip(lines, expected, strict=True))


def test_hosts_of_one_kind_share_a_record_and_others_do_not() -> None:
    """n2 has other GPUs for it: its record is its own, under the same number."""
    own = {"n2": {"vllm_deployments": llama(gpus=[4, 5])}}
    data = planned(two(("n1", "n2", "n3")), llama(), own=own).to_json()["hosts"]
    found = {
        name: [(item["generation"], item["members"][0]["render_nodes"]) for item in data[name]["generations"]]
        for name in data
    }
    assert found == {"n1": [(1, ["renderD128"])], "n2": [(1, ["renderD160"])], "n3": [(1, ["renderD128"])]}


def test_what_runs_and_is_not_recorded_is_from_nowhere() -> None:
    states = run(two(), llama())
    for item in states["n1"]["instances"]:
        item.update(spec_hash="9" * 64, artefact_hash="9" * 64)
    plan = planned(states, llama(16))
    assert hosts(plan) == {"n1": (None, 2, True), "n2": (1, 2, True)}
    data = apply_to_state(states["n1"], plan.to_json()["hosts"]["n1"])
    assert [item["generation"] for item in data["generations"][0]["kept"]] == [1, 2]
