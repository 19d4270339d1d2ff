# SPDX-License-Identifier: Apache-2.0
"""What a measurement takes out of service, and what a deploy measures before a load balancer uses it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    BENCHMARK,
    DEPLOY,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.balancer_plan import (
    BalancerPlan,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.measurement import (
    ENTERED,
    SERVES,
    NewInstances,
    explain_new,
    new_instances,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.plan import (
    RolloutPlan,
    plan_rollout_steps,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.policy import RolloutRequest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.request import (
    OPTIONS,
    hold_seconds,
    requested_measurement,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.text import explain_rollout
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.todo import todo_hosts

from tests.worlds.balancer_world import applied, host
from tests.worlds.plan_world import SCHEMA, deployment, state
from tests.worlds.rollout_balancer_world import PAIR, SEQS, SPANNING, States, after, planned, served

CHANGED = [deployment(gpus=[0, 1], instances_per_host=2, **SEQS)]
DOES_NOT_RUN = "is not running"


def server(host_name: str, index: int, port: int = 8000) -> str:
    return f"llama/{host_name}.llama-{index}:{port + index}"


def drained(command: str, *names: str, by: str = "run", run: str = "dead") -> dict[str, Any]:
    """A load balancer's record of servers that a run left drained."""
    entry = {"state": "drain", "by": by, "since": ""}
    more = {"run": run, "command": command} if by == "run" else {}
    return {name: {**entry, **more} for name in names}


@dataclass
class Case:
    """The fleet that runs, and the batches of a benchmark of it. measured: by host, in each of its batches."""

    old: Any = field(default_factory=lambda: PAIR)
    down: tuple[str, ...] = ()
    out: Mapping[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    units: list[list[list[str]]] = field(default_factory=list)
    measured: dict[str, list[list[str]]] = field(default_factory=dict)
    omitted: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()


EACH = [[["n1/llama-0"]], [["n1/llama-1"]], [["n2/llama-0"]], [["n2/llama-1"]]]
TURNS = [[["n1/llama-0"]], [["n2/llama-0"]], [["n1/llama-1"]], [["n2/llama-1"]]]
BOTH = [["llama-0"], ["llama-1"]]
CASES = {
    "all serve": Case(units=TURNS, measured={"n1": BOTH, "n2": BOTH}),
    "two at a time": Case(
        values={"rollout_serial": 2}, units=[[*TURNS[0], *TURNS[1]], [*TURNS[2], *TURNS[3]]],
        measured={"n1": BOTH, "n2": BOTH},
    ),
    "more at a time than the minimum allows": Case(
        values={"rollout_serial": 3}, units=[[*TURNS[0], *TURNS[1], *TURNS[2]], TURNS[3]],
        measured={"n1": [["llama-0", "llama-1"]], "n2": BOTH},
        problems=("[3] lets 3 groups change at a time, which leaves 1 of 4 engines of llama in service, but "
                  "rollout_min_available requires 2.",),
    ),
    "all at once, as the operator says": Case(
        request={"at_once": True}, units=[[*TURNS[0], *TURNS[1], *TURNS[2], *TURNS[3]]],
        measured={"n1": [["llama-0", "llama-1"]], "n2": [["llama-0", "llama-1"]]},
    ),
    "one is down: it is no capacity, and is not measured": Case(
        down=("n1/llama-0",), units=[TURNS[1], TURNS[2], TURNS[3]], measured={"n1": [["llama-1"]], "n2": BOTH},
        omitted={"n1/llama-0": DOES_NOT_RUN},
    ),
    "an operator drained one, which is measured and stays drained": Case(
        out=drained("", server("n1", 0), by="operator"), units=[TURNS[1], TURNS[0], TURNS[2], TURNS[3]],
        measured={"n1": BOTH, "n2": BOTH},
    ),
    "a benchmark that was cut off left one drained": Case(
        out=drained("benchmark.yml", server("n2", 1)), units=TURNS, measured={"n1": BOTH, "n2": BOTH},
        returned=(server("n2", 1),),
    ),
    "… and stopped": Case(
        out=drained("benchmark.yml", server("n2", 1)), down=("n2/llama-1",),
        units=[TURNS[0], TURNS[1], TURNS[2], TURNS[3]], measured={"n1": BOTH, "n2": BOTH},
    ),
    "… as a playbook of the collection": Case(
        out=drained("instinct.fleet.benchmark", server("n2", 1)), down=("n2/llama-1",),
        units=TURNS, measured={"n1": BOTH, "n2": BOTH},
    ),
    "what stop.yml stopped stays so": Case(
        out=drained("stop.yml", server("n2", 1)), down=("n2/llama-1",), units=TURNS[:3],
        measured={"n1": BOTH, "n2": [["llama-0"]]}, omitted={"n2/llama-1": DOES_NOT_RUN},
    ),
    "an engine over two hosts, once, at its rank 0": Case(
        [SPANNING], units=[[["n1/llama-0", "n2/llama-0"]]], measured={"n1": [["llama-0"]]},
    ),
    "… not by an offline benchmark": Case(
        [SPANNING], request={"offline": True},
        omitted={"n1/llama-0": "spans several hosts, and an offline benchmark runs on one"},
        problems=("this run can measure no instance. n1/llama-0: spans several hosts, and an offline",),
    ),
    "one instance of each host": Case(
        request={"instance": "llama-1"}, units=TURNS[2:], measured={"n1": [["llama-1"]], "n2": [["llama-1"]]},
    ),
    "another deployment": Case(request={"deployment": "qwen"}, problems=("no instance of qwen runs.",)),
    "nothing runs": Case(
        down=("n1/llama-0", "n1/llama-1", "n2/llama-0", "n2/llama-1"),
        omitted={name: DOES_NOT_RUN for ((name,),) in EACH},
        problems=("this run can measure no instance. n1/llama-0, n1/llama-1, n2/llama-0, n2/llama-1: is not",),
    ),
}  # fmt: skip


def stopped(states: States, *names: str) -> States:
    found = copy.deepcopy(states)
    for name in names:
        on, _, instance = name.partition("/")
        for item in found[on]["instances"]:
            if item["name"] == instance:
                item.update(state="exited", exit_code=1, ready=False)
    return found


def plan_of(case: Case) -> tuple[FleetPlan, RolloutPlan, list[str]]:
    states, (balancer,) = served(case.old)
    there = planned(states, case.old, [balancer]).balancers[0]
    balancer = host(applied(there, out=dict(case.out) or None))
    states = stopped(states, *case.down)
    # The inventory wants something else by now: what runs is measured.
    wanted = case.old if case.old == [SPANNING] else CHANGED
    plan = planned(states, wanted, [balancer], OperationRequest(BENCHMARK))
    made, problems = plan_rollout_steps(plan, RolloutRequest(BENCHMARK, case.values, **case.request))
    return plan, made, [item.text() for item in problems]


@pytest.mark.parametrize("name", CASES)
def test_what_is_measured_when(name: str) -> None:
    case = CASES[name]
    plan, made, problems = plan_of(case)
    assert [batch["units"] for batch in made.batches] == case.units
    assert {
        on: [
            [item["name"] for item in found["measure"].args["instances"]]
            for found in batches.values()
            if "measure" in found
        ]
        for on, batches in made.steps.items()
        if any("measure" in found for found in batches.values())
    } == case.measured
    assert set(made.measured_hosts) == set(case.measured)
    entered = [name for entry in made.returned for name in entry["servers"]]
    assert len(entered) == sum(len(names) for batches in case.measured.values() for names in batches)
    assert made.unmeasured == case.omitted
    assert len(problems) == len(case.problems)
    assert all(text in found for text, found in zip(case.problems, problems, strict=True)), problems
    todo = {item["name"]: item["plan"] for item in todo_hosts(plan, plan.balancers, plan.to_json(), made)}
    if made.batches:
        assert todo["lb"]["balancer"]["undrain_first"] == list(case.returned)
        text = "\n".join(explain_rollout(made, {"drain": 300, "stop": 120, "start": 1800}))
        assert "Benchmark of llama: " in text
        assert all(reason in text for reason in case.omitted.values())
    assert not any(made.trials.values())
    assert made.finish == {}
    SCHEMA.validate(json.loads(json.dumps({**plan.to_json(), "rollout": made.to_json()})))


def test_nothing_is_replaced_and_what_failed_is_returned_first() -> None:
    _, made, _ = plan_of(CASES["all serve"])
    steps = made.steps["n1"][1]
    mine = [{"balancer": "lb", "servers": [server("n1", 0)]}]
    assert made.batches[0]["phases"] == ["drain", "measure", "serve", "undrain"]
    assert made.batches[0]["way_back"] == ["return", "serve"]
    assert {phase: step.args for phase, step in steps.items() if step.action == "balancer_server"} == {
        "drain": {"servers": mine, "state": "drain", "at_once": False},
        "undrain": {"servers": mine, "state": "ready"},
        "return": {"servers": mine, "state": "ready", "wait": 0},
    }
    (serves,) = steps["serve"].args["servers"]
    assert steps["serve"].args["state"] == "started"
    # As it runs, by its record, and not as the inventory wants it.
    assert (serves["name"], serves["generation"]) == ("llama-0", 1)
    (measured,) = steps["measure"].args["instances"]
    assert "--max-num-seqs" not in measured["argv"]
    assert (steps["measure"].args["role"], measured["host"]) == (BENCHMARK, "n1")


def test_an_instance_that_a_cut_off_run_stopped_is_started_before_it_is_measured() -> None:
    _, made, _ = plan_of(CASES["… and stopped"])
    assert made.batches[-1]["phases"] == ["drain", "resume", "measure", "serve", "undrain"]
    assert made.steps["n2"][4]["resume"].args["state"] == "started"


def test_ranks_start_together_where_an_engine_died_of_it() -> None:
    _, made, _ = plan_of(CASES["an engine over two hosts, once, at its rank 0"])
    assert made.batches[0]["phases"] == ["drain", "measure", "start", "serve", "undrain"]
    assert set(made.steps["n2"][1]) == {"start", "serve"}
    assert made.steps["n2"][1]["start"].args["wait"] is False


@pytest.mark.parametrize(
    ("old", "values", "given", "at_once"),
    [
        (PAIR, {}, {}, False),
        (PAIR, {"rollout_min_available": 0}, {}, True),
        (PAIR, {}, {"at_once": True}, True),
        # The only engine cannot stay in service while it is measured.
        ([deployment(gpus=[0], hosts=["n1"])], {}, {}, True),
    ],
)
def test_the_load_balancer_keeps_what_the_plan_keeps(
    old: Any, values: dict[str, Any], given: dict[str, Any], at_once: bool
) -> None:
    states, balancers = served(old)
    plan = planned(states, old, balancers, OperationRequest(BENCHMARK))
    made, problems = plan_rollout_steps(plan, RolloutRequest(BENCHMARK, values, **given))
    assert problems == ()
    assert made.steps["n1"][1]["drain"].args["at_once"] is at_once


def test_what_nobody_recorded_is_left_alone() -> None:
    states, balancers = served(PAIR)
    for item in states["n1"]["instances"]:
        item.update(spec_hash="9" * 64, artefact_hash="9" * 64)
    plan = planned(states, PAIR, balancers, OperationRequest(BENCHMARK))
    made, problems = plan_rollout_steps(plan, RolloutRequest(BENCHMARK))
    assert problems == ()
    assert set(made.steps) == {"n2"}
    reason = "was not started by the toolkit, or its record is gone"
    assert made.unmeasured == {"n1/llama-0": reason, "n1/llama-1": reason}


def test_other_runs_wait_as_long_as_a_batch_may_take() -> None:
    options = {name: option.get("default") for name, option in OPTIONS.items()}
    data = {"hosts": {}}
    short = hold_seconds({**options, "operation": DEPLOY}, data)
    assert hold_seconds({**options, "operation": BENCHMARK}, data) == short - 3600 + 3 * 7200


# ---- what a deploy measures --------------------------------------------------------------------------

FAR = (("lb", "is not in this run (--limit)"),)
N1, N2 = ("llama-0", "llama-1"), ("llama-0", "llama-1")
QUIET = [deployment(gpus=[0, 1], instances_per_host=2, endpoint=False)]


def bare() -> States:
    return {name: state(hostname=name) for name in ("n1", "n2")}


def alone() -> States:
    """Two hosts that serve without a load balancer."""
    return after(planned(bare(), PAIR, []), bare())


def one_host_serves() -> tuple[States, list[Any]]:
    """n1 serves, and n2 is new."""
    return served([{**PAIR[0], "hosts": ["n1"]}])


def found(states: States, wanted: Any, balancers: list[Any], **more: Any) -> NewInstances:
    return new_instances(planned(states, wanted, balancers), **more)


def serves(*hosts: str) -> dict[str, str]:
    return {f"{on}/llama-{index}": SERVES for on in hosts for index in (0, 1)}


def test_a_new_fleet_is_measured() -> None:
    for balancers in ([], [host()]):
        made = found(bare(), PAIR, balancers)
        assert made == NewInstances({"n1": N1, "n2": N2}, {})


def test_nothing_that_serves_is_measured() -> None:
    states, balancers = served(PAIR)
    assert found(states, PAIR, balancers) == NewInstances({}, serves("n1", "n2"))
    assert found(alone(), PAIR, []) == NewInstances({}, serves("n1", "n2"))


def test_a_new_host_is_measured_before_it_enters() -> None:
    states, balancers = one_host_serves()
    assert found(states, PAIR, balancers) == NewInstances({"n2": N2}, serves("n1"))
    # … but not where nobody knows whether a load balancer uses it.
    unknown = {f"n2/{name}": "perhaps in load balancer lb, which this run cannot query" for name in N2}
    assert found(states, PAIR, balancers, absent=FAR) == NewInstances({}, {**serves("n1"), **unknown})
    assert found(states, QUIET, balancers, absent=FAR).measured["n2"] == N2


def test_an_instance_that_a_load_balancer_has_is_not_measured_when_it_starts_again() -> None:
    states, balancers = served(PAIR)
    down = stopped(states, "n2/llama-1")
    others = serves("n1", "n2")
    assert found(down, PAIR, balancers) == NewInstances({}, {**others, "n2/llama-1": ENTERED})
    # Without a load balancer, nobody but this run has started it.
    assert found(stopped(alone(), "n2/llama-1"), PAIR, []).measured == {"n2": ("llama-1",)}


@pytest.mark.parametrize(("by", "measured"), [("operator", {"n2": ("llama-1",)}), ("run", {})])
def test_what_the_operator_drained_is_measured_when_this_run_starts_it(by: str, measured: Any) -> None:
    states, (balancer,) = served(PAIR)
    there = planned(states, PAIR, [balancer]).balancers[0]
    out = drained("upgrade.yml", server("n2", 1), by=by)
    down = stopped(states, "n2/llama-1")
    assert found(down, PAIR, [host(applied(there, out=out))]).measured == measured


def test_a_new_one_is_not_measured_where_it_enters_early() -> None:
    """Others change in the same run, so the load balancer gets its new configuration before they do."""
    states, balancers = one_host_serves()
    plan = planned(states, CHANGED, balancers)
    assert any(item.drain for item in plan.balancers)
    made = new_instances(plan)
    assert made.measured == {}
    assert {made.others[f"n2/{name}"] for name in N2} == {ENTERED}


def test_a_new_one_is_not_measured_where_a_load_balancer_is_written_first() -> None:
    states, balancers = one_host_serves()
    plan = planned(states, PAIR, balancers)

    def early(item: BalancerPlan, **changes: Any) -> FleetPlan:
        return replace(plan, balancers=(replace(item, **changes),))

    (item,) = plan.balancers
    assert new_instances(early(item, left=(server("n1", 0),))).measured == {}
    assert new_instances(early(item, files_before={}, during=())).measured == {}
    # One that this run installs, or brings up to date, is written first where others change in batches.
    assert new_instances(plan).measured == {"n2": N2}
    assert new_instances(plan, batched=frozenset({"n1.llama-0"})).measured == {}


def test_only_rank_0_of_an_engine_is_measured() -> None:
    assert found(bare(), [SPANNING], [host()]) == NewInstances({"n1": ("llama-0",)}, {})


def test_site_yml_names_what_it_measures_to_the_hosts_and_says_what_it_leaves_out() -> None:
    states, balancers = one_host_serves()
    plan = planned(states, PAIR, balancers)
    options = {name: option.get("default") for name, option in OPTIONS.items()}
    assert requested_measurement(options, plan, None) is None  # deploy.yml, and all others
    new = requested_measurement({**options, "measure": True}, plan, None)
    assert new is not None
    data = plan.to_json()
    todo = {item["name"]: item for item in todo_hosts(plan, plan.balancers, data, None, None, new)}
    assert "todo_benchmark" in todo["n2"]["groups"]
    assert [item["name"] for item in todo["n2"]["plan"]["measure"]] == list(N2)
    assert "n1" not in todo
    text = " ".join("\n".join(explain_new(new)).split())
    assert "measures n2 llama-0, n2 llama-1, before a load balancer uses them" in text
    assert "leaves out n1/llama-0, n1/llama-1: already served. benchmark.yml measures all" in text


def test_a_second_run_measures_nothing_and_contacts_nobody_for_it() -> None:
    states, balancers = served(PAIR)
    plan = planned(states, PAIR, balancers)
    new = new_instances(plan)
    assert todo_hosts(plan, plan.balancers, plan.to_json(), None, None, new) == []
    many = NewInstances({}, {f"n{number}/llama-0": SERVES for number in range(20)})
    assert "n6/llama-0 and 13 others: already served" in " ".join(" ".join(explain_new(many)).split())


def test_after_a_run_of_this_plan_there_is_nothing_left_to_measure() -> None:
    states = after(planned(bare(), PAIR, [host()]), bare())
    assert found(states, PAIR, [host()]).measured == {}
