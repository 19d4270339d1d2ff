# SPDX-License-Identifier: Apache-2.0
"""Which holds end: what the inventory defines, against what was turned back and what is held."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    DEPLOY,
    UPGRADE,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests.worlds.generations_world import (
    BACK,
    HELD,
    TRIAL,
    States,
    bind,
    llama,
    only,
    planned,
    run,
    turn,
    two,
    upgraded,
)
from tests.worlds.plan_world import actions, deployment, state

FAILED = {**HELD, "failed": [2]}
"""A verdict on generation 2; generation 1 serves."""


def turned_back() -> States:
    """Two hosts that run generation 1, as generation 2 failed its verdict."""
    back = run(upgraded(), llama(16), BACK)
    return bind(back, *back, held=FAILED)


def choice(plan: FleetPlan, name: str = "llama") -> tuple[str, bool]:
    found = turn(plan, name)
    return found["choice"], found["ignored"]


STAYS, ENDS, UNKNOWN = ("held", True), ("inventory", False), ("held", False)


@pytest.mark.parametrize("operation", [DEPLOY, UPGRADE])
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (llama(16), STAYS),
        (llama(), ENDS),
        (llama(32), ENDS),
        (llama(16, image="registry.lab:5000/lab/vllm:new"), ENDS),  # nobody knows yet what it holds
        (llama(16, gpus=[4, 5]), ENDS),
        ([deployment(instances_per_host=3, engine_args={"max_num_seqs": 16})], STAYS),
        ([deployment(instances_per_host=1, engine_args={"max_num_seqs": 16})], STAYS),
        ([deployment(instances_per_host=3)], ENDS),
        ([], ENDS),
    ],
    ids=["the same", "what serves", "another flag", "another image", "other GPUs", "more of the same",
         "fewer of the same", "more of what serves", "none"],
)  # fmt: skip
def test_a_hold_ends_with_another_definition(operation: str, wanted: Any, expected: tuple[str, bool]) -> None:
    assert choice(planned(turned_back(), wanted, OperationRequest(operation))) == expected


@pytest.mark.parametrize("operation", [DEPLOY, UPGRADE])
def test_retry_tries_the_same_again(operation: str) -> None:
    plan = planned(turned_back(), llama(16), OperationRequest(operation, retry=True))
    assert choice(plan) == ENDS
    assert {tuple(actions(plan.to_json()["hosts"][name])) for name in ("n1", "n2")} == {
        ("hold llama", "server llama-0", "server llama-1")
    }


def test_a_hold_that_another_run_has_set_for_something_else_says_nothing_of_this_definition() -> None:
    """Of generations 2 to 4 the last one failed; the second failed too, and was given up for the third."""
    third = run(upgraded(), llama(32), OperationRequest(UPGRADE))
    fourth = run(third, llama(64), OperationRequest(UPGRADE))
    states = bind(fourth, *fourth, held={**FAILED, "generation": 3, "failed": [4]})
    assert choice(planned(states, llama(64))) == STAYS
    assert choice(planned(states, llama(16))) == ENDS
    assert choice(planned(states, llama(32))) == ENDS
    old = bind(fourth, *fourth, held={**HELD, "generation": 2})  # a record that does not say what failed
    assert [choice(planned(old, llama(number))) for number in (16, 32, 64, 128)] == [ENDS, STAYS, STAYS, ENDS]


# ---- where a run does not see everything -------------------------------------------------------------


def both_alike(states: States) -> States:
    """n2 has the same in both generations, as its own variables define it."""
    found = {name: {**item} for name, item in states.items()}
    history = found["n2"]["generations"][0]
    newest = {**history["kept"][0], "generation": 2}
    found["n2"]["generations"] = [{**history, "kept": [history["kept"][0], newest]}]
    return found


OWN: dict[str, Any] = {"own": {"n2": {"vllm_deployments": llama()}}}


def test_a_limit_to_hosts_that_are_alike_in_both_ends_nothing() -> None:
    states = both_alike(turned_back())
    assert choice(planned(states, llama(16), **OWN)) == STAYS
    assert choice(planned(states, llama(), **OWN)) == ENDS
    alone = planned(only(states, "n2"), llama(16), groups={"instinct": ["n1", "n2"]}, **OWN)
    assert (choice(alone), alone.changes, alone.ignored) == (UNKNOWN, 0, [])
    assert choice(planned(only(states, "n1"), llama(16))) == STAYS
    assert choice(planned(only(states, "n1"), llama())) == ENDS


@pytest.mark.parametrize(
    ("wanted", "request_"),
    [
        (llama(), OperationRequest(DEPLOY)),
        (llama(), OperationRequest(UPGRADE)),
        (llama(32), OperationRequest(DEPLOY)),
        (llama(16), OperationRequest(UPGRADE, retry=True)),
    ],
    ids=["put back, site.yml", "put back, upgrade.yml", "another definition", "retry"],
)
def test_a_host_that_is_down_forgets_the_hold_when_it_is_back(
    wanted: Any, request_: OperationRequest
) -> None:
    states = turned_back()
    later: States = run({**states, "n2": None}, wanted, request_)
    assert (later["n1"]["generations"][0]["held"], later["n2"]) == (None, None)
    later["n1"]["generations"][0]["lifted"] = "2026-11-22T10:00:00Z"
    back = {**later, "n2": states["n2"]}
    plan = planned(back, wanted)
    assert choice(plan) == ENDS
    (entry,) = plan.to_json()["hosts"]["n2"]["bindings"]
    assert entry == {"deployment": "llama", "held": None}
    assert planned(run(back, wanted), wanted).changes == 0


def test_a_host_that_was_down_when_it_was_turned_back_holds_it_too_and_ends_its_rollout() -> None:
    states = upgraded()
    back = {**run(only(states, "n1"), llama(16), BACK)}
    found = {**states, **bind(back, "n1", held=FAILED)}
    found = bind(found, "n2", trial=TRIAL)
    plan = planned(found, llama(16))
    (entry,) = plan.to_json()["hosts"]["n2"]["bindings"]
    assert entry == {"deployment": "llama", "held": {**FAILED, "together": []}, "trial": None}


def test_a_host_that_came_later_does_not_end_a_hold() -> None:
    states = {**turned_back(), "n3": state(hostname="n3")}
    plan = planned(states, llama(16))
    assert choice(plan) == STAYS
    assert not [item for item in actions(plan.to_json()["hosts"]["n3"]) if "llama" in item]
    assert actions(planned(states, llama()).to_json()["hosts"]["n3"])[-2:] == [
        "server llama-0",
        "server llama-1",
    ]


def test_a_host_whose_record_is_lost_keeps_what_it_has() -> None:
    """What of it was turned back is not known; a host that records only what was turned back has that removed."""
    states = turned_back()
    states["n1"]["generations"] = []
    plan = planned(states, llama(16))
    assert actions(plan.to_json()["hosts"]["n1"]) == []
    assert "llama is held, but has no record of its generations here: it is left as it is" in explain(plan)
    states = upgraded()
    (history,) = states["n1"]["generations"]
    history["kept"] = [made for made in history["kept"] if made["generation"] == 2]
    plan = planned(bind(states, *states, held=FAILED), llama(16))
    assert actions(plan.to_json()["hosts"]["n1"]) == ["remove_server llama-0", "remove_server llama-1"]


def test_an_engine_of_which_a_host_is_down_stays_held() -> None:
    wanted = deployment(nodes=2, tensor_parallel_size=2, pipeline_parallel_size=2)
    keys = {"own": {"n1": {"ansible_host": "10.0.0.1"}, "n2": {"ansible_host": "10.0.0.2"}}}
    changed = {**wanted, "engine_args": {"seed": 1}}
    states = run(run(two(), [wanted], **keys), [changed], **keys)
    states = run(states, [changed], BACK, **keys)
    alone: dict[str, Any] = {**states, "n2": None}
    for definition in (wanted, changed, {**wanted, "engine_args": {"seed": 2}}):
        assert choice(planned(alone, [definition], **keys)) == UNKNOWN
    assert choice(planned(states, [changed], **keys)) == STAYS
    assert choice(planned(states, [wanted], **keys)) == ENDS


# ---- deployments that were turned back together ------------------------------------------------------

CHAT = deployment(name="chat", instances_per_host=2)


def renamed(seqs: int | None = None) -> States:
    """llama was renamed to chat in the inventory, and chat was turned back."""
    chat = {**CHAT, **({"engine_args": {"max_num_seqs": seqs}} if seqs else {})}
    states = run(run(two(), llama()), [chat])
    holds = {
        "chat": {
            "generation": 0,
            "why": "slower",
            "since": HELD["since"],
            "failed": [1],
            "together": ["llama"],
        },
        "llama": {**HELD, "failed": [2], "together": ["chat"]},
    }
    for found in states.values():
        for history in found["generations"]:
            history["held"] = holds[history["deployment"]]
        (old,) = [item for item in found["generations"] if item["deployment"] == "llama"]
        found["instances"] = [
            {**found["instances"][number], "name": member["name"], "deployment": "llama",
             "spec_hash": member["spec_hash"], "artefact_hash": member["spec_hash"]}
            for number, member in enumerate(old["kept"][0]["members"])
        ]  # fmt: skip
    return states


def choices(plan: FleetPlan) -> list[tuple[str, bool]]:
    return [choice(plan, name) for name in ("llama", "chat")]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([CHAT], [STAYS, STAYS]),
        (llama(), [ENDS, ENDS]),
        (llama(32), [ENDS, ENDS]),
        ([{**CHAT, "engine_args": {"max_num_seqs": 64}}], [ENDS, ENDS]),
        ([*llama(), {**CHAT, "gpus": [4, 5], "port": 9000}], [ENDS, ENDS]),
        ([], [ENDS, ENDS]),
    ],
    ids=["the same", "the name put back", "back and changed", "chat is changed", "both beside each other", "neither"],
)  # fmt: skip
def test_what_was_turned_back_together_is_held_together(
    wanted: Any, expected: list[tuple[str, bool]]
) -> None:
    plan = planned(renamed(), wanted)
    assert choices(plan) == expected
    if expected == [STAYS, STAYS]:
        assert plan.changes == 0
        assert [line.partition(" since")[0] for line in plan.ignored] == [
            "chat is held, and not started,",
            "llama is held at generation 1",
        ]
    else:
        later = run(renamed(), wanted)
        assert planned(later, wanted).changes == 0
        assert {item["held"] for found in later.values() for item in found["generations"]} == {None}


def test_a_hold_that_only_one_of_them_knows_of_is_no_hold_of_the_other() -> None:
    """As a later run has held llama for something else."""
    states = renamed()
    for found in states.values():
        for history in found["generations"]:
            if history["deployment"] == "llama":
                history["held"] = {**history["held"], "together": []}
    plan = planned(states, [{**CHAT, "engine_args": {"max_num_seqs": 64}, "gpus": [4, 5], "port": 9000}])
    assert choices(plan) == [STAYS, ENDS]


def test_what_the_inventory_no_longer_has_serves_on_with_its_name() -> None:
    plan = planned(renamed(), [CHAT])
    names: Iterable[str] = (item.name for host in plan.hosts for item in host.instances)
    assert list(names) == ["llama-0", "llama-1"] * 2
    crashed = renamed()
    crashed["n1"]["instances"][0].update(state="exited", exit_code=1)
    assert actions(planned(crashed, [CHAT]).to_json()["hosts"]["n1"]) == ["server llama-0"]


def test_an_instance_of_what_was_not_started_is_removed_if_it_is_there() -> None:
    states = renamed()
    record = next(item for item in states["n1"]["generations"] if item["deployment"] == "chat")
    spec = record["kept"][0]["members"][0]["spec_hash"]
    states["n1"]["instances"].append(
        {**states["n1"]["instances"][0], "name": "chat-0", "deployment": "chat", "spec_hash": spec}
    )
    assert actions(planned(states, [CHAT]).to_json()["hosts"]["n1"]) == ["remove_server chat-0"]
