# SPDX-License-Identifier: Apache-2.0
"""From a plan to batches: what every host does, and the way back; also after a run that was cut off."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    DEPLOY,
    RESTART,
    ROLLBACK,
    STOP,
    UPGRADE,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.plan import (
    RolloutPlan,
    plan_rollout_steps,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.policy import RolloutRequest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.text import explain_rollout

from tests.worlds.plan_world import (
    COMMIT,
    PULL,
    REPO,
    SCHEMA,
    apply_to_state,
    deployment,
    fleet,
    state,
    workshop,
)

States = dict[str, dict[str, Any]]


def planned(states: States, wanted: list[dict[str, Any]], operation: str = DEPLOY, **keys: Any) -> FleetPlan:
    there = fleet(states, wanted)
    return plan_fleet(check_fleet(there, OperationRequest(operation, **keys)), workshop())


def deployed(wanted: list[dict[str, Any]], hosts: int = 2, states: States | None = None) -> States:
    """The hosts as they are when this was deployed."""
    states = states or {f"n{number}": state(hostname=f"n{number}") for number in range(1, hosts + 1)}
    data = planned(states, wanted).to_json()
    return {name: apply_to_state(found, data["hosts"][name]) for name, found in states.items()}


def rolled(
    states: States, wanted: list[dict[str, Any]], operation: str = UPGRADE, **keys: Any
) -> tuple[RolloutPlan, list[str]]:
    plan = planned(states, wanted, operation, **keys)
    made, problems = plan_rollout_steps(
        plan, RolloutRequest(operation, deployment=next(iter(keys.values()), None), at_once=operation == STOP)
    )
    return made, [problem.text() for problem in problems]


def llama(**keys: Any) -> list[dict[str, Any]]:
    return [deployment(instances_per_host=2, **keys)]


OLD, NEW = llama(engine_args={"max_num_seqs": 64}), llama(engine_args={"max_num_seqs": 128})


def record(states: States, wanted: list[dict[str, Any]]) -> tuple[States, RolloutPlan]:
    """The hosts after an upgrade recorded its generation and began its trial, and was cut off."""
    plan = planned(states, wanted, UPGRADE)
    data = plan.to_json()
    made, problems = plan_rollout_steps(plan, RolloutRequest(UPGRADE))
    assert problems == ()
    after = {}
    for name, found in states.items():
        after[name] = copy.deepcopy(found)
        for history in after[name]["generations"]:
            kept = [
                item
                for item in data["hosts"][name]["generations"]
                if item["deployment"] == history["deployment"]
            ]
            history["kept"] += [{**copy.deepcopy(item), "made": "2026-11-21T23:00:00Z"} for item in kept]
            for trial in made.trials.get(name, ()):
                history["trial"] = {**trial["trial"], "since": "2026-11-21T23:00:00Z"}
    return after, made


def has_new(states: States, wanted: list[dict[str, Any]], host: str, name: str) -> None:
    """An instance was replaced, and generated tokens."""
    data = planned(states, wanted, UPGRADE).to_json()
    spec = next(item for item in data["hosts"][host]["instances"] if item["name"] == name)["spec_hash"]
    for item in states[host]["instances"]:
        if item["name"] == name:
            item.update(spec_hash=spec, artefact_hash=spec)


def test_every_instance_in_turn_with_the_way_back() -> None:
    made, problems = rolled(deployed(OLD), NEW)
    assert problems == []
    assert [batch["units"] for batch in made.batches] == [
        [["n1/llama-0"]], [["n2/llama-0"]], [["n1/llama-1"]], [["n2/llama-1"]],
    ]  # fmt: skip
    assert [batch["canary"] for batch in made.batches] == ["n1/llama-0", "", "", ""]
    first = {phase: step.args for phase, step in made.steps["n1"][1].items()}
    assert [server["name"] for server in first["serve"]["servers"]] == ["llama-0"]
    old = first["serve_old"]["servers"]
    assert [(server["name"], server["generation"]) for server in old] == [("llama-0", 1)]
    assert first["measure"]["old"]["generation"] == 1
    assert first["judge"]["new"]["spec_hash"] != old[0]["spec_hash"]
    # One of four may be missing: the other instance of the host is what the canary is compared beside.
    assert first["judge"]["reference"]["name"] == "llama-1"
    assert made.trials["n2"] == [
        {
            "deployment": "llama",
            "trial": {
                "generation": 2,
                "why": made.batches[0]["why"],
                "units": [],
                "baseline": {},
                "before": 1,
                "together": {},
            },
        }
    ]
    assert made.batches[0]["holds"] == {"llama": 1}


def test_what_the_canary_is_compared_with_comes_from_the_records() -> None:
    states = deployed(OLD)
    steps = rolled(states, NEW)[0].steps["n1"][1]
    canary = steps["measure"].args
    (made,) = states["n1"]["generations"][0]["kept"]
    for part, name, port in (("old", "llama-0", 8000), ("reference", "llama-1", 8001)):
        reported, member = canary[part], next(item for item in made["members"] if item["name"] == name)
        assert {key: reported[key] for key in reported if key not in ("gpus", "server", "argv")} == {
            "name": name, "deployment": "llama", "generation": 1, "model": REPO, "commit": COMMIT, "served_model": REPO,
            "image": PULL, "vllm": made["vllm"], "port": port, "ports": [port],
            "render_nodes": member["render_nodes"], "spec_hash": member["spec_hash"],
        }  # fmt: skip
        assert "serve" in reported["argv"]
        assert reported["argv"][reported["argv"].index("--max-num-seqs") + 1] == "64"
        assert (reported["server"]["name"], reported["server"]["generation"], reported["server"]["port"]) == (
            name,
            1,
            port,
        )
    assert canary["old"]["gpus"] == canary["new"]["gpus"]
    assert canary["old"]["gpus"]
    assert (canary["new"]["host"], canary["new"]["name"]) == ("n1", "llama-0")
    (noted,) = steps["record_baseline"].args["bindings"]
    assert noted["trial"]["baseline"] == {"canary": "n1/llama-0", "found": {}}


def test_nothing_to_do_is_no_batch() -> None:
    made, problems = rolled(deployed(OLD), OLD)
    assert (made.batches, made.hosts, problems) == ((), (), [])


def test_what_comes_takes_the_place_of_what_goes() -> None:
    other = [deployment(name="qwen", instances_per_host=2, port=8000, gpus=[0, 1])]
    made, problems = rolled(deployed(llama(gpus=[0, 1]), 1), other)
    assert problems == []
    assert [batch["units"] for batch in made.batches] == [
        [["n1/llama-0", "n1/qwen-0"]], [["n1/llama-1", "n1/qwen-1"]],
    ]  # fmt: skip
    for phase, comes, goes in (("serve", "qwen-0", "llama-0"), ("serve_old", "llama-0", "qwen-0")):
        args = made.steps["n1"][1][phase].args
        assert ([server["name"] for server in args["servers"]], args["remove"]) == ([comes], [goes])


def test_instances_that_move_to_one_anothers_gpus_change_together() -> None:
    _, problems = rolled(deployed(llama(gpus=[0, 1]), 1), llama(gpus=[1, 0]))
    assert "must change together" in problems[0]


CONTINUES = pytest.mark.parametrize("operation", [DEPLOY, UPGRADE])
"""Whichever of them began it."""


@CONTINUES
@pytest.mark.parametrize(
    ("moment", "replaced", "trial", "canary", "measure"),
    [
        ("before the canary", False, {}, "n1/llama-0", True),
        ("measured, not replaced", False, {"canary": "n1/llama-0", "found": {"tps": 1}}, "n1/llama-0", True),
        ("replaced, not judged", True, {"canary": "n1/llama-0", "found": {"tps": 1}}, "n1/llama-0", False),
    ],
)
def test_a_canary_that_was_cut_off_is_judged(
    moment: str, replaced: bool, trial: dict[str, Any], canary: str, measure: bool, operation: str
) -> None:
    states, _ = record(deployed(OLD), NEW)
    if trial:
        states["n1"]["generations"][0]["trial"]["baseline"] = trial
    if replaced:
        has_new(states, NEW, "n1", "llama-0")
    made, problems = rolled(states, NEW, operation)
    assert problems == []
    assert len(made.batches) == 4
    steps = made.steps["n1"][1]
    assert (made.batches[0]["canary"], "measure" in steps, "judge" in steps) == (canary, measure, True)
    assert steps["serve_old"].args["servers"][0]["generation"] == 1
    assert made.trials.get("n1", []) == []
    if replaced:
        assert steps["judge"].args["baseline"] == {"tps": 1}


def test_a_batch_that_is_turned_back_is_held_at_the_newest_that_served() -> None:
    """What ran of an upgrade that was cut off is newer than the rest; its definition was not turned back."""
    states = deployed(OLD)
    states["n1"]["generations"][0]["kept"] += [
        {**copy.deepcopy(kept), "generation": 2} for kept in states["n1"]["generations"][0]["kept"]
    ]
    mixed = deployed(llama(engine_args={"max_num_seqs": 96}), states=states)
    older = deployed(OLD)
    mixed["n2"] = older["n2"]
    made, problems = rolled(mixed, NEW)
    assert problems == []
    found = {
        server["generation"]
        for host in made.steps.values()
        for phases in host.values()
        for server in (phases["serve_old"].args["servers"] if "serve_old" in phases else ())
    }
    assert len(found) == 2
    assert [batch["holds"] for batch in made.batches] == [{"llama": max(found)}] * len(made.batches)


@CONTINUES
def test_a_judged_canary_is_not_judged_again_and_the_end_of_a_trial_is_noted(operation: str) -> None:
    states, _ = record(deployed(OLD), NEW)
    states["n1"]["generations"][0]["trial"].update(units=["n1/llama-0"], baseline={"canary": "n1/llama-0"})
    has_new(states, NEW, "n1", "llama-0")
    made, _ = rolled(states, NEW, operation)
    assert [batch["canary"] for batch in made.batches] == ["", "", ""]
    has_new(states, NEW, "n1", "llama-1")  # nothing is left on n1, and its trial ends with that of n2
    made, _ = rolled(states, NEW, operation)
    assert ({host for batch in made.batches for host in batch["hosts"]}, set(made.finish)) == (
        {"n2"},
        {"n1", "n2"},
    )
    for name in ("llama-0", "llama-1"):
        has_new(states, NEW, "n2", name)
    made, _ = rolled(states, NEW, operation)
    assert made.batches == ()
    assert {name: item["bindings"] for name, item in made.finish.items()} == {
        name: [{"deployment": "llama", "trial": None}] for name in states
    }


@CONTINUES
def test_another_definition_than_the_one_on_trial_has_a_canary_of_its_own(operation: str) -> None:
    states, _ = record(deployed(OLD), NEW)
    judged = {"canary": "n1/llama-0", "found": {"tps": 1}}
    states["n1"]["generations"][0]["trial"].update(units=["n1/llama-0"], baseline=judged)
    has_new(states, NEW, "n1", "llama-0")
    made, _ = rolled(states, llama(engine_args={"max_num_seqs": 32}), operation)
    assert len(made.batches) == 4
    assert made.batches[0]["canary"] == "n1/llama-0"
    # What was measured of another generation is no baseline of this one.
    steps = made.steps["n1"][1]
    assert "baseline" not in steps["judge"].args
    assert steps["record_baseline"].args["bindings"][0]["trial"]["baseline"]["found"] == {}


def test_without_a_canary_a_trial_that_was_cut_off_gives_no_order() -> None:
    states, _ = record(deployed(OLD), NEW)
    for name in states:
        states[name]["generations"][0]["trial"]["baseline"] = {"canary": "n2/llama-1"}
    plan = planned(states, NEW, UPGRADE)
    for canary, first in ((True, "n2/llama-1"), (False, "n1/llama-0")):
        made, problems = plan_rollout_steps(plan, RolloutRequest(UPGRADE, canary=canary))
        assert problems == ()
        assert made.batches[0]["units"] == [[first]]
        assert [bool(batch["canary"]) for batch in made.batches] == [canary, False, False, False]


def test_what_nobody_recorded_has_no_way_back() -> None:
    """It runs, and was started by something else: it cannot be measured as the old one, nor be had again."""
    states = deployed(OLD, 1)
    states["n1"]["generations"] = []
    for item in states["n1"]["instances"]:
        item.update(spec_hash="9" * 64, artefact_hash="9" * 64)
    plan = planned(states, NEW, UPGRADE)
    made, problems = plan_rollout_steps(plan, RolloutRequest(UPGRADE, {"rollout_min_available": 0}))
    assert problems == ()
    # Nobody knows which GPUs and ports they have: they change together.
    assert [batch["units"] for batch in made.batches] == [[["n1/llama-0", "n1/llama-1"]]]
    assert set(made.steps["n1"][1]) == {
        "serve", "judge", "record_verdict", "keep_caches", "report", "watch",
    }  # fmt: skip
    (batch,) = made.batches
    assert (batch["holds"], batch["generation"]) == ({}, 1)
    assert batch["lost"] == ["n1/llama-0", "n1/llama-1"]
    assert batch["way_back"] == ["report"]


def test_a_fleet_that_nobody_looked_at() -> None:
    there = fleet({"n1": None}, llama(vllm_version="0.11.1"), offline=True,
                  instinct_gpus={"model": "MI300X", "count": 8})  # fmt: skip
    plan = plan_fleet(check_fleet(there, OperationRequest(UPGRADE)), workshop())
    made, problems = plan_rollout_steps(plan, RolloutRequest(UPGRADE))
    assert problems == ()
    assert [batch["units"] for batch in made.batches] == [[["n1/llama-0"]], [["n1/llama-1"]]]
    assert made.steps["n1"][1]["serve_old"].args == {"servers": [], "remove": ["llama-0"]}
    assert made.batches[0]["lost"] == []


def test_a_rollback_has_no_canary() -> None:
    states = deployed(NEW, states=deployed(OLD))
    made, problems = rolled(states, NEW, ROLLBACK, deployments=frozenset({"llama"}))
    assert problems == []
    assert [(batch["canary"], batch["generation"]) for batch in made.batches] == [("", 1)] * 4
    assert [server["generation"] for server in made.steps["n1"][1]["serve"].args["servers"]] == [1]
    assert {batch["way_back"] == [] for batch in made.batches} == {True}
    assert made.trials.get("n1", []) == []


def test_a_restart_takes_what_runs_as_it_runs() -> None:
    states = deployed(OLD)
    made, problems = rolled(states, NEW, RESTART)
    assert problems == []
    assert {
        phase: [
            server["generation"]
            for steps in made.steps["n1"].values()
            for server in steps[phase].args["servers"]
        ]
        for phase in ("stop", "serve")
    } == {"stop": [1, 1], "serve": [1, 1]}
    assert sum(len(batch["units"]) for batch in made.batches) == 4


def test_the_text() -> None:
    made, _ = rolled(deployed(OLD), NEW)
    text = "\n".join(explain_rollout(made, {"drain": 300, "stop": 120, "start": 1800}))
    for part in (
        "Upgrade of llama: 4 groups in 4 batches",
        "generation 2: --max-num-seqs 64 → 128",
        "at least 2 of 4 in the load balancer (rollout_min_available: 50%)",
        "n1 llama-0, alone, measured before and after, each time with llama-1 (unchanged) as reference",
        "batch 4  n2 llama-1",
        "30 s of watching; in all 120 s and 4 starts",
    ):
        assert part in text, text


@CONTINUES
def test_a_trial_of_what_nobody_wants_any_more_ends(operation: str) -> None:
    """The run was cut off before its first batch, and the inventory was changed back."""
    states, _ = record(deployed(OLD), NEW)
    made, _ = rolled(states, OLD, operation)
    assert (made.batches, set(made.finish)) == ((), {"n1", "n2"})


@CONTINUES
def test_a_trial_of_another_deployment_stays(operation: str) -> None:
    states, _ = record(deployed(OLD), NEW)
    other = deployment(name="qwen", gpus=[7], port=9000)
    made, _ = rolled(states, [*NEW, other], operation, deployments=frozenset(["qwen"]))
    ended = [item["deployment"] for part in made.finish.values() for item in part["bindings"]]
    assert "llama" not in ended


def test_a_restart_ends_no_trial() -> None:
    states, _ = record(deployed(OLD), NEW)
    made, _ = rolled(states, NEW, RESTART)
    assert made.batches
    assert made.finish == {}


def test_a_host_gets_its_own_part_and_one_without_any_an_empty_one() -> None:
    made, _ = rolled(deployed(OLD), NEW)
    shared = {
        "operation": UPGRADE,
        "batches": list(made.batches),
        "soak": made.policy.soak,
        "measured_hosts": [],
        "returned": [],
        "ignored": [],
    }
    steps = {
        str(number): {phase: {"action": step.action, "args": step.args} for phase, step in found.items()}
        for number, found in made.steps["n2"].items()
    }
    assert list(steps) == ["2", "4"]
    held = {"generation": 1, "why": "", "since": "", "failed": [2], "together": []}
    binding = {"deployment": "llama", "trial": None, "held": held}
    step = {"action": "serving_generation", "args": {"bindings": [binding]}}
    holds = {"llama": {"hold": step, "confirm_hold": step}}
    assert made.host("n2") == {**shared, "steps": steps, "holds": holds, "finish": made.finish["n2"]}
    assert made.host("n3") == {**shared, "steps": {}, "holds": {}, "finish": None}


def test_all_that_stops_stops_in_one_batch() -> None:
    states = deployed([*llama(gpus=[0, 1]), deployment(name="qwen", gpus=[2], port=9000)])
    made, problems = rolled(states, NEW, STOP)
    assert problems == []
    (batch,) = made.batches
    assert (batch["deployment"], batch["hosts"], batch["phases"]) == ("llama, qwen", ["n1", "n2"], ["stop"])
    for name in ("n1", "n2"):
        stop = made.steps[name][1]["stop"]
        assert stop.action == "vllm_server"
        assert sorted(server["name"] for server in stop.args["servers"]) == ["llama-0", "llama-1", "qwen-0"]
        assert stop.args["state"] == "stopped"
    text = "\n".join(explain_rollout(made, {"drain": 300, "stop": 120, "start": 1800}))
    assert "Stop of llama: 4 groups" in text
    assert "Stop of qwen: 2 groups" in text


@pytest.mark.parametrize("operation", [UPGRADE, RESTART, STOP])
def test_a_plan_with_its_rollout_is_as_its_schema_says(operation: str) -> None:
    states = deployed(OLD)
    data = planned(states, NEW, operation).to_json()
    made, _ = rolled(states, NEW, operation)
    SCHEMA.validate(json.loads(json.dumps({**data, "rollout": made.to_json()})))
    SCHEMA.validate(json.loads(json.dumps(data)))
    assert not SCHEMA.is_valid({**data, "rollout": {**made.to_json(), "batches": [{"number": 1}]}})
