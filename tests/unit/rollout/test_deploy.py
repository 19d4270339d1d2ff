# SPDX-License-Identifier: Apache-2.0
"""A deploy: what serves changes in batches, and what only starts does so before them, so that enough serves."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    DEPLOY,
    UPGRADE,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    NOT_IN_RUN,
    BalancerHost,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.plan import (
    RolloutPlan,
    plan_rollout_steps,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.policy import RolloutRequest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.request import (
    OPTIONS,
    explain_request,
    requested_rollout,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.todo import todo_hosts

from tests.worlds.balancer_world import applied, host
from tests.worlds.plan_world import deployment
from tests.worlds.rollout_balancer_world import PAIR, SEQS, SPANNING, States, after, planned, served

CHANGED = [deployment(gpus=[0, 1], instances_per_host=2, **SEQS)]
SINGLE = [deployment(gpus=[0])]
SINGLE_CHANGED = [deployment(gpus=[0], **SEQS)]
SPAN_CHANGED = [{**SPANNING, **SEQS}]


def set_state(states: States, *names: str, **changes: Any) -> None:
    """Change instances, given as host/instance."""
    for name in names:
        on, _, instance = name.partition("/")
        for item in states[on]["instances"]:
            if item["name"] == instance:
                item.update(changes)


def hold(states: States, balancers: list[BalancerHost], *new: str) -> States:
    """Return hosts held at their first generation, of which these instances run the second, and all others stopped."""
    second = after(planned(states, CHANGED, balancers), states)
    held = copy.deepcopy(second)
    for name, found in held.items():
        for history in found["generations"]:
            history["held"] = {"generation": 1, "why": "slower", "since": "2026-11-22T10:00:00Z"}
        for number, item in enumerate(found["instances"]):
            if f"{name}/{item['name']}" not in new:
                old = next(i for i in states[name]["instances"] if i["name"] == item["name"])
                found["instances"][number] = {**copy.deepcopy(old), "state": "exited", "ready": False}
    return held


@dataclass
class Case:
    """wanted: the inventory, where old runs. units: of the batches in order. serve: what starts at once, by host."""

    wanted: Any
    old: Any = field(default_factory=lambda: PAIR)
    down: tuple[str, ...] = ()
    new: tuple[str, ...] = ()  # held at the old generation, these run the new one, the others do not run
    values: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    units: list[list[list[str]]] = field(default_factory=list)
    canary: str = ""
    operation: str = "upgrade"
    awaits: list[list[str]] = field(default_factory=list)
    serve: dict[str, list[str]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


ALL = [[["n1/llama-0"]], [["n2/llama-0"]], [["n1/llama-1"]], [["n2/llama-1"]]]
CASES = {
    "nothing changes": Case(PAIR),
    "only starts": Case(PAIR, down=("n1/llama-0", "n2/llama-1"), serve={"n1": ["llama-0"], "n2": ["llama-1"]}),
    "all serve, all change": Case(CHANGED, units=ALL, canary="n1/llama-0"),
    "one is down, and starts before": Case(
        CHANGED, down=("n2/llama-0",), units=[[["n1/llama-0"]], [["n2/llama-1"]], [["n1/llama-1"]]],
        canary="n1/llama-0", serve={"n2": ["llama-0"]},
    ),
    "the last one that serves waits for those that start": Case(
        CHANGED, down=("n1/llama-1", "n2/llama-0", "n2/llama-1"), units=[[["n1/llama-0"]]], canary="n1/llama-0",
        awaits=[["n1", "n2"]], serve={"n1": ["llama-1"], "n2": ["llama-0", "llama-1"]},
    ),
    "held, and half of it runs what was turned back": Case(
        CHANGED, new=("n1/llama-0", "n1/llama-1"), units=[[["n1/llama-0"]], [["n1/llama-1"]]], operation="rollback",
        awaits=[["n2"], ["n2"]], serve={"n2": ["llama-0", "llama-1"]},
    ),
    "held, and one alone runs what was turned back": Case(
        CHANGED, new=("n1/llama-1",), units=[[["n1/llama-1"]]], operation="rollback", awaits=[["n1", "n2"]],
        serve={"n1": ["llama-0"], "n2": ["llama-0", "llama-1"]},
    ),
    "one host's GPUs are partitioned": Case(
        CHANGED, variables={"gpu_partition_compute": "{{ n2 }}"}, units=[[["n1/llama-0"]], [["n1/llama-1"]]],
        canary="n1/llama-0",
    ),
    "one per host": Case(SINGLE_CHANGED, SINGLE, units=[[["n1/llama-0"]], [["n2/llama-0"]]], canary="n1/llama-0"),
    "one per host, of which one is down": Case(
        SINGLE_CHANGED, SINGLE, down=("n2/llama-0",), units=[[["n1/llama-0"]]], canary="n1/llama-0", awaits=[["n2"]],
        serve={"n2": ["llama-0"]},
    ),
    "an engine over both hosts": Case(
        SPAN_CHANGED, [SPANNING], units=[[["n1/llama-0", "n2/llama-0"]]], canary="n1/llama-0",
    ),
    "more has to stay than can": Case(
        CHANGED, values={"rollout_min_available": "100%"}, units=[[[name] for (name,) in batch] for batch in ALL],
        canary="n1/llama-0", problems=("changing n1 llama-0 leaves 3, but rollout_min_available requires 4 of 4",),
    ),
    "one host has fewer": Case([deployment(gpus=[0])], units=[[["n1/llama-1"], ["n2/llama-1"]]]),
}  # fmt: skip


def made(case: Case) -> tuple[RolloutPlan, list[str], dict[str, Any]]:
    states, balancers = served(case.old)
    states = hold(states, balancers, *case.new) if case.new else copy.deepcopy(states)
    set_state(states, *case.down, state="exited", exit_code=1, ready=False)
    variables = {}
    if case.variables:  # of n2 alone
        variables["gpu_partition_compute"] = "SPX"
        states["n2"]["gpus"][0]["compute_partition"] = "CPX"
    plan = planned(states, case.wanted, balancers, **variables)
    rollout, problems = plan_rollout_steps(plan, RolloutRequest(DEPLOY, case.values))
    todo = todo_hosts(plan, plan.balancers, plan.to_json(), rollout)
    return rollout, [item.text() for item in problems], {item["name"]: item["plan"] for item in todo}


@pytest.mark.parametrize("name", CASES)
def test_what_changes_when(name: str) -> None:
    case = CASES[name]
    rollout, problems, todo = made(case)
    assert [batch["units"] for batch in rollout.batches] == case.units
    assert [batch["canary"] for batch in rollout.batches if batch["canary"]] == (
        [case.canary] if case.canary else []
    )
    assert {batch["operation"] for batch in rollout.batches} <= {case.operation}
    assert [batch["awaits"] for batch in rollout.batches] == (case.awaits or [[] for _ in case.units])
    assert len(problems) == len(case.problems)
    assert all(text in found for text, found in zip(case.problems, problems, strict=True)), problems
    for on in ("n1", "n2"):
        part = todo.get(on, {})
        if part.get("partition") is None:
            assert part.get("serve", []) == case.serve.get(on, [])
            assert part.get("remove", []) == []
        batched = {unit for units in case.units for names in units for unit in names}
        out = [server for item in part.get("out", ()) for server in item["servers"]]
        assert not [s for s in out if s.partition("/")[2].partition(":")[0].replace(".", "/", 1) in batched]


def test_what_is_held_goes_back_to_the_generation_that_is_held() -> None:
    rollout, _, todo = made(CASES["held, and half of it runs what was turned back"])
    served_then = [step["serve"].args["servers"][0]["generation"] for step in rollout.steps["n1"].values()]
    assert served_then == [1, 1]
    assert [batch["way_back"] for batch in rollout.batches] == [[], []]
    assert [item["generation"] for item in todo["n2"]["servers"]] == [1, 1]
    assert rollout.trials == {"n1": [], "n2": []}
    assert (
        "n2" in rollout.hosts
    )  # a host that has to start first takes part, or its failure would not be seen


def test_an_unfinished_change_of_modes_drains_what_it_replaces_and_nothing_else() -> None:
    """An instance of the earlier modes came back with Docker; the other one was replaced before."""
    wanted = [deployment(instances_per_host=2)]
    states, balancers = served(wanted)
    changed = planned(states, wanted, balancers, gpu_partition_compute="CPX")
    for item in changed.balancers:
        balancers = [host(applied(item))]
    new = after(changed, states)
    new["n2"]["instances"][1] = states["n2"]["instances"][1]
    plan = planned(new, wanted, balancers, gpu_partition_compute="CPX")
    for operation in (None, DEPLOY):
        found = requested_rollout(options(operation=operation, apply=True), plan, None)
        assert found is None
        (part,) = [item for item in todo_hosts(plan, plan.balancers, plan.to_json()) if item["name"] == "n2"]
        assert "todo_gpu_partition" in part["groups"]
        assert [name for item in part["plan"]["out"] for name in item["servers"]] == ["llama/n2.llama-1:8001"]
        assert part["plan"]["into"] == part["plan"]["out"]
    with pytest.raises(FleetError) as refused:
        requested_rollout(options(operation=UPGRADE), plan, None)
    assert "Run partition.yml first." in refused.value.problems[0].text()


def test_a_balancer_that_is_configured_in_the_same_run_is_no_reason_to_refuse() -> None:
    states, (balancer,) = served(PAIR)
    stopped = applied(planned(states, PAIR, [balancer]).balancers[0], running=False)
    plan = planned(states, CHANGED, [host(stopped)])
    _, problems = plan_rollout_steps(plan, RolloutRequest(DEPLOY))
    assert problems == ()


def test_a_balancer_beyond_the_run_is() -> None:
    states, balancers = served(PAIR)
    plan = planned(states, CHANGED, balancers)
    _, problems = plan_rollout_steps(plan, RolloutRequest(DEPLOY, absent=(("lb2", NOT_IN_RUN),)))
    assert [item.text() for item in problems] == [
        f"--limit: instances cannot be drained from load balancer lb2 before they change: {NOT_IN_RUN}. Run "
        "without --limit, or with lb2 in it."
    ]


def test_what_a_killed_run_left_drained_serves_before_others_change() -> None:
    """But for what this run changes by itself, such as a canary that nobody judged."""
    states, (balancer,) = served(PAIR)
    left = {f"llama/{name}": {"state": "drain", "by": "run"} for name in (A1, B1)}
    left["llama/n2.llama-0:8000"] = {"state": "drain", "by": "operator"}
    there = applied(planned(states, PAIR, [balancer]).balancers[0], out=left)
    rest = copy.deepcopy(states)
    for name, at in (("n1", 0), ("n2", 1)):  # what is still to be changed
        rest[name]["instances"][at]["spec_hash"] = "0" * 64
    plan = planned(rest, PAIR, [host(there)])
    rollout, _ = plan_rollout_steps(plan, RolloutRequest(DEPLOY))
    assert [unit for batch in rollout.batches for unit in batch["units"]] == [["n1/llama-0"], ["n2/llama-1"]]
    todo = todo_hosts(plan, plan.balancers, plan.to_json(), rollout)
    parts = {item["name"]: item["plan"].get("balancer") for item in todo}
    assert parts["lb"]["undrain_first"] == [f"llama/{A1}"]
    assert {f"llama/{A1}", f"llama/{B1}"} <= set(parts["lb"]["undrain"])


A1, B1 = "n1.llama-1:8001", "n2.llama-1:8001"


def options(**given: Any) -> dict[str, Any]:
    return {**{name: option.get("default") for name, option in OPTIONS.items()}, **given}


REFUSED = {"operation": DEPLOY, "min_available": "100%"}


@pytest.mark.parametrize(
    ("given", "batches", "text"),
    [
        ({"operation": DEPLOY}, 4, "Upgrade of llama: 4 groups in 4 batches"),
        (
            {"operation": DEPLOY, "at_once": True},
            None,
            "4 instances that serve change at the same time (at_once).",
        ),
        ({}, None, "Upgrade of llama: 4 groups in 4 batches"),
        ({"at_once": True}, None, "4 instances that serve change at the same time (at_once)."),
        (
            {"min_available": "100%"},
            None,
            "site.yml and deploy.yml refuse this: rollout_min_available (host n1): changing n1 llama-0",
        ),
        ({**REFUSED, "at_once": True}, None, "4 instances that serve change at the same time (at_once)."),
        ({"offline": True}, None, ""),
    ],
)
def test_the_text_and_the_operators_word(given: dict[str, Any], batches: int | None, text: str) -> None:
    states, balancers = served(PAIR)
    plan, chosen = planned(states, CHANGED, balancers), options(**given)
    found = requested_rollout(chosen, plan, None)
    assert (len(found.batches) if found else None) == batches
    lines = "\n".join(explain_request(chosen, plan, plan.to_json(), found))
    assert (text in lines) if text else not lines, lines


@pytest.mark.parametrize(
    ("given", "wanted", "batches", "text"),
    [
        ({}, CHANGED, 3, "Upgrade of llama: 3 groups in 3 batches"),
        ({"at_once": True}, CHANGED, 0, "3 instances that serve change at the same time (at_once)."),
        ({"deployment": "qwen"}, CHANGED, None, ""),
    ],
)
def test_an_unfinished_rollout_goes_on(
    given: dict[str, Any], wanted: Any, batches: int | None, text: str
) -> None:
    """A host became unreachable after the first batch; whatever began it, the same command ends it."""
    states, balancers = served(PAIR)
    new = after(planned(states, wanted, balancers), states)
    for name, found in new.items():
        found["generations"][0]["trial"] = {"generation": 2, "why": "", "since": "2026-11-22T10:00:00Z"}
        found["instances"] = [
            item if f"{name}/{item['name']}" == "n1/llama-0" else old
            for item, old in zip(found["instances"], states[name]["instances"], strict=True)
        ]
    chosen = options(operation=DEPLOY, **given)
    about = frozenset([given["deployment"]]) if "deployment" in given else None
    plan = planned(new, [*wanted, OTHER], balancers, OperationRequest(DEPLOY, about))
    found = requested_rollout(chosen, plan, None)
    assert (len(found.batches) if found else None) == batches
    assert set(found.finish if found else ()) == ({"n1", "n2"} if batches is not None else set())
    lines = "\n".join(explain_request(chosen, plan, plan.to_json(), found))
    assert text in lines, lines


OTHER = deployment(name="qwen", gpus=[7], port=9000, endpoint=False)


def test_a_refusal_names_the_word_and_another_operation_has_none() -> None:
    states, balancers = served(PAIR)
    plan = planned(states, CHANGED, balancers)
    with pytest.raises(FleetError) as refused:
        requested_rollout(options(**REFUSED), plan, None)
    assert "-e at_once=true" in refused.value.problems[-1].text()


def test_an_outage_of_a_single_engine_is_announced() -> None:
    states, balancers = served([SPANNING])
    plan, chosen = planned(states, SPAN_CHANGED, balancers), options(operation=DEPLOY)
    found = requested_rollout(chosen, plan, None)
    text = "\n".join(explain_request(chosen, plan, plan.to_json(), found))
    assert "llama is unavailable while its only engine is out of service: clients get 503" in text
