# SPDX-License-Identifier: Apache-2.0
"""Which hosts have a part in a run: those that take its lease, those that record a hold, and those that hold."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    DEPLOY,
    UPGRADE,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.todo import todo_hosts

from tests.worlds import edited_fleet
from tests.worlds.edited_fleet import Inventory
from tests.worlds.generations_world import BACK, HELD, States, bind, llama, only, run, upgraded
from tests.worlds.generations_world import planned as plan_of
from tests.worlds.plan_world import deployment, state
from tests.worlds.rollout_balancer_world import PAIR, SEQS, planned, served

CHANGED = [deployment(gpus=[0, 1], instances_per_host=2, **SEQS)]


@pytest.mark.parametrize(
    ("wanted", "held", "leased"),
    [
        (CHANGED, (), {"n1", "n2", "lb"}),
        (CHANGED, ("n9",), {"n1", "n2", "lb", "n9"}),  # of a run that is taken over
        (CHANGED, None, set()),  # a run that only looks
        (PAIR, (), set()),  # nothing to do
    ],
    ids=["it changes", "it takes over", "it looks", "nothing to do"],
)
def test_who_takes_the_lease(wanted: object, held: Collection[str] | None, leased: set[str]) -> None:
    states, balancers = served(PAIR)
    plan = planned(states, wanted, balancers, OperationRequest(DEPLOY))
    todo = todo_hosts(plan, plan.balancers, plan.to_json(), None, held)
    assert {item["name"] for item in todo if "todo_lease" in item["groups"]} == leased


# ---- with batches ------------------------------------------------------------------------------------

FLEET = {"n1": "192.0.2.11", "n2": "192.0.2.12"}
BASE = Inventory(FLEET, {"n1": FLEET["n1"]}, (deployment(gpus=[0, 1], instances_per_host=2),))


def part(host: str, **changes: Any) -> dict[str, Any]:
    """A host's part of a deploy after an edit."""
    done = edited_fleet.planned(edited_fleet.edited(BASE, **changes), edited_fleet.settled(BASE))
    return next(item["plan"] for item in done.todo if item["name"] == host)


def test_an_upgrade_is_recorded_on_every_host_that_has_the_deployment() -> None:
    for host in FLEET:
        bindings = part(host, deployments=tuple(CHANGED))["bindings"]
        assert [(item["deployment"], item["trial"]["before"]) for item in bindings] == [("llama", 1)]


def test_what_comes_back_after_a_change_of_modes_is_what_no_batch_starts() -> None:
    found = part("n2", modes={"n2": "CPX"})
    assert found["partition"]["into"] == [{"balancer": "n1", "servers": found["into"][0]["servers"]}]
    assert len(found["partition"]["into"][0]["servers"]) == 2


# ---- holds -------------------------------------------------------------------------------------------


def turned_back() -> States:
    """Two hosts that run generation 1, as generation 2 failed its verdict, and a third one that came later."""
    back = run(upgraded(), llama(16), BACK)
    return {**bind(back, *back, held={**HELD, "failed": [2]}), "n3": state(hostname="n3")}


def groups(states: States, wanted: Any, request: OperationRequest) -> dict[str, list[str]]:
    plan = plan_of(states, wanted, request)
    return {item["name"]: item["groups"] for item in todo_hosts(plan, (), plan.to_json())}


@pytest.mark.parametrize("operation", [DEPLOY, UPGRADE])
@pytest.mark.parametrize("down", [False, True], ids=["all", "with --limit, or a host down"])
def test_a_hold_ends_where_no_instance_changes(operation: str, down: bool) -> None:
    """Its hosts are of the play that records generations, so they do what the plan says."""
    states = only(turned_back(), "n1") if down else {**turned_back(), "n3": None}
    found = groups(states, llama(), OperationRequest(operation))
    assert found == {name: ["todo_vllm_serve"] for name in (["n1"] if down else ["n1", "n2"])}
    later = run(states, llama(), OperationRequest(operation))
    assert groups(later, llama(), OperationRequest(operation)) == {}


@pytest.mark.parametrize("operation", [DEPLOY, UPGRADE])
def test_hosts_that_hold_say_so_and_have_nothing_to_do(operation: str) -> None:
    settled = run(turned_back(), llama(16), OperationRequest(operation))
    for states in (settled, {**settled, "n3": None}):
        found = groups(states, llama(16), OperationRequest(operation))
        assert found == {"n1": ["fleet_held"], "n2": ["fleet_held"]}
