# SPDX-License-Identifier: Apache-2.0
"""A rollout and the load balancers: which servers each step takes out and in, and what is refused before it begins."""

from __future__ import annotations

import copy
from collections.abc import Mapping
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
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    NOT_IN_RUN,
    BalancerHost,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.deploy import count_replaced
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.plan import (
    RolloutPlan,
    plan_rollout_steps,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.policy import RolloutRequest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.steps import Step

from tests.worlds.balancer_world import applied, host
from tests.worlds.plan_world import deployment, state
from tests.worlds.rollout_balancer_world import PAIR, SEQS, SPANNING, States, after, planned, served


def rolled(
    states: States, wanted: Any, balancers: list[BalancerHost], operation: str = UPGRADE, **values: Any
) -> RolloutPlan:
    plan = planned(states, wanted, balancers, OperationRequest(operation))
    made, problems = plan_rollout_steps(plan, RolloutRequest(operation, values, at_once=True))
    assert problems == ()
    return made


def lists(steps: Mapping[str, Step]) -> tuple[list[str], list[str], list[str]]:
    """The servers that one balancer takes out, and in, and in again when the batch goes back."""
    found = [[name for entry in entries(steps, phase) for name in entry["servers"]] for phase in PHASES]
    assert steps.get("confirm", UNDRAINED).args["servers"] == entries(steps, "undrain")
    return found[0], found[1], found[2]


PHASES = ("drain", "undrain", "undrain_old")
UNDRAINED = Step("", {"servers": []})


def entries(steps: Mapping[str, Step], phase: str) -> list[Any]:
    """What a phase sets in each balancer."""
    return list(steps[phase].args["servers"]) if phase in steps else []


ONE = [deployment(gpus=[0])]
A0, A1, MOVED = "llama/n1.llama-0:8000", "llama/n1.llama-1:8001", "llama/n1.llama-0:9000"

STEPS: dict[str, tuple[Any, Any, list[tuple[list[str], list[str], list[str]]]]] = {
    "replaced where it is": (ONE, [deployment(gpus=[0], **SEQS)], [([A0], [A0], [A0])]),
    "beside another one, which leaves while the canary is measured": (
        PAIR,
        [deployment(gpus=[0, 1], instances_per_host=2, **SEQS)],
        [([A0, A1], [A0, A1], [A0, A1]), ([A1], [A1], [A1])],
    ),
    "another port: its old server leaves, its new one comes, and back": (
        ONE,
        [deployment(gpus=[0], port=9000)],
        [([A0, MOVED], [MOVED], [A0])],
    ),
    "one that comes is measured beside the one that is there": (
        ONE,
        PAIR,
        [([A0, A1], [A0, A1], [A0])],
    ),
    "one that goes does not come in, but when it is turned back": (PAIR, ONE, [([A1], [], [A1])]),
    "one that is not to be had through a balancer": (
        [deployment(gpus=[0], endpoint=False)],
        [deployment(gpus=[0], endpoint=False, **SEQS)],
        [([], [], [])],
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_servers_of_each_step(case: str) -> None:
    old, new, expected = STEPS[case]
    states, balancers = served(old)
    made = rolled(states, new, balancers)
    assert [lists(steps) for steps in made.steps["n1"].values()] == expected
    assert not any("start" in steps for steps in made.steps["n1"].values())
    elsewhere = [name for steps in made.steps["n2"].values() for part in lists(steps) for name in part]
    assert all("/n2." in name for name in elsewhere)
    assert len(elsewhere) <= sum(len(part) for step in expected for part in step)


def test_every_balancer_has_its_own_list_and_one_without_such_servers_none() -> None:
    states, (one, two) = served(ONE, "lb1", "lb2")
    made = rolled(states, [deployment(gpus=[0], **SEQS)], [one, two])
    both = [{"balancer": "lb1", "servers": [A0]}, {"balancer": "lb2", "servers": [A0]}]
    assert entries(made.steps["n1"][1], "drain") == both
    assert entries(made.steps["n1"][1], "undrain_old") == both
    # A balancer without it gets to know it before it stops.
    empty = applied(planned(states, [], [host(name="lb2")]).balancers[0])
    made = rolled(states, [deployment(gpus=[0], **SEQS)], [one, host(empty, name="lb2")])
    assert entries(made.steps["n1"][1], "undrain_old") == both


def test_a_reference_leaves_on_its_own_host_only() -> None:
    """Two instances per host become one engine over both hosts: n2 has one of the reference's name, too."""
    states, balancers = served(PAIR)
    spanning = [deployment(gpus=[0], nodes=2, pipeline_parallel_size=2)]
    made = rolled(states, spanning, balancers, rollout_min_available=1)
    first = made.rollout.batches[0]
    assert (first.hosts, first.reference.id if first.reference else "") == (("n1", "n2"), "n1/llama-1")
    assert lists(made.steps["n1"][1])[0] == [A0, A1]
    assert lists(made.steps["n2"][1])[0] == ["llama/n2.llama-0:8000"]
    assert starts(made) == [True, True]


def starts(made: RolloutPlan) -> list[bool]:
    """Whether servers of the first batch start before one is waited for, on each host."""
    found = [made.steps[name][1].get("start") for name in ("n1", "n2")]
    assert all(step.args["wait"] is False for step in found if step)
    return [step is not None for step in found]


# ---- engines over two hosts --------------------------------------------------------------------------

UNITED = [["n1/llama-0", "n2/llama-0"]]


@pytest.mark.parametrize(
    ("wanted", "operation", "units"),
    [
        ([{**SPANNING, **SEQS}], UPGRADE, [UNITED]),
        ([], UPGRADE, [UNITED]),
        ([deployment(tensor_parallel_size=4)], UPGRADE, [UNITED]),
        ([SPANNING], RESTART, [UNITED]),
        ([SPANNING], STOP, [UNITED]),
    ],
    ids=["another generation", "no longer wanted", "one engine per host", "restarted", "stopped"],
)
def test_what_is_recorded_as_one_engine_changes_as_one(
    wanted: Any, operation: str, units: list[list[list[str]]]
) -> None:
    states, balancers = served([SPANNING])
    made = rolled(states, wanted, balancers, operation)
    assert [batch["units"] for batch in made.batches] == units
    assert (made.rollout.capacity["llama"].total, made.rollout.capacity["llama"].serving) == (1, 1)
    assert starts(made) == [operation != STOP] * 2


def test_a_recorded_engine_over_two_hosts_goes_back_as_one() -> None:
    states, _ = served([SPANNING])
    states = after(planned(states, [{**SPANNING, **SEQS}], []), states)
    request = OperationRequest(ROLLBACK, frozenset(["llama"]), 1)
    plan = planned(states, [{**SPANNING, **SEQS}], [], request)
    made, problems = plan_rollout_steps(plan, RolloutRequest(ROLLBACK, deployment="llama"))
    assert problems == ()
    assert [batch["units"] for batch in made.batches] == [UNITED]
    assert [made.steps[name][1]["serve"].args["servers"][0]["generation"] for name in ("n1", "n2")] == [1, 1]
    assert made.batches[0]["holds"] == {}  # a rollback is not turned back


def test_a_recorded_engine_over_two_hosts_that_was_removed_comes_back_as_one() -> None:
    """Nothing of it runs: only its record tells that its servers are one engine."""
    states, _ = served([SPANNING])
    states = after(planned(states, [], []), states)
    request = OperationRequest(ROLLBACK, frozenset(["llama"]), 1)
    plan = planned(states, [], [], request)
    made, problems = plan_rollout_steps(plan, RolloutRequest(ROLLBACK, deployment="llama"))
    assert problems == ()
    assert [batch["units"] for batch in made.batches] == [UNITED]
    assert starts(made) == [True, True]


RANKS = deployment(gpus=[0, 1], data_parallel_size=2, data_parallel_balancing="external")


@pytest.mark.parametrize("old", [[], [RANKS]], ids=["new", "another generation"])
def test_servers_of_one_engine_on_a_host_change_as_one(old: Any) -> None:
    states, balancers = served(old)
    made = rolled(states, [{**RANKS, **SEQS}], balancers, rollout_min_available=0)
    assert [batch["units"] for batch in made.batches] == [
        [[f"{name}/llama-0", f"{name}/llama-1"]] for name in ("n1", "n2")
    ]
    # The batch of n2 is the second one.
    assert ["start" in made.steps[name][number] for number, name in ((1, "n1"), (2, "n2"))] == [False, False]


# ---- what runs, and what serves ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "there", "serving"),
    [
        ({}, 4, 4),
        ({"ready": False}, 4, 3),
        ({"state": "restarting"}, 4, 3),
        ({"state": "exited", "exit_code": 1}, 3, 3),
        ({"state": "created"}, 3, 3),
    ],
    ids=["all", "no tokens yet", "it fails again and again", "ended", "never started"],
)
def test_engines_that_are_there_and_that_serve(changes: dict[str, Any], there: int, serving: int) -> None:
    states, balancers = served(PAIR)
    next(item for item in states["n1"]["instances"] if item["name"] == "llama-1").update(changes)
    capacity = rolled(
        states, [deployment(gpus=[0, 1], instances_per_host=2, **SEQS)], balancers, rollout_min_available=1
    ).rollout.capacity["llama"]
    assert (capacity.total, capacity.serving) == (there, serving)


@pytest.mark.parametrize(
    ("by", "name", "serving"),
    [
        ("operator", A1, 3),
        ("run", A1, 3),  # it changes, and returns only then
        ("operator", "llama/n1.llama-11:8001", 4),
        ("operator", "llama/n3.llama-1:8001", 4),
    ],
)
def test_what_was_taken_out_does_not_serve(by: str, name: str, serving: int) -> None:
    states, (balancer,) = served(PAIR)
    there = applied(planned(states, PAIR, [balancer]).balancers[0], out={name: {"state": "drain", "by": by}})
    wanted = [deployment(gpus=[0, 1], instances_per_host=2, **SEQS)]
    assert (
        rolled(states, wanted, [host(there)], rollout_min_available=1).rollout.capacity["llama"].serving
        == serving
    )


def test_a_rollback_to_what_is_on_trial_leaves_what_has_it() -> None:
    """The canary has the new generation already, and is not to be judged any more."""
    states, _ = served(PAIR)
    new = [deployment(gpus=[0, 1], instances_per_host=2, **SEQS)]
    upgraded = after(planned(states, new, []), states)
    for name in states:
        for at in (0, 1) if name == "n2" else (1,):
            upgraded[name]["instances"][at] = copy.deepcopy(states[name]["instances"][at])
        upgraded[name]["generations"][0]["trial"] = {
            "generation": 2, "why": "x", "since": "2026-11-21T23:00:00Z", "units": [],
            "baseline": {"canary": "n1/llama-0"},
        }  # fmt: skip
    plan = planned(upgraded, new, [], OperationRequest(ROLLBACK, frozenset(["llama"]), 2))
    made, problems = plan_rollout_steps(plan, RolloutRequest(ROLLBACK, deployment="llama"))
    assert problems == ()
    assert sorted(name for batch in made.batches for unit in batch["units"] for name in unit) == [
        "n1/llama-1", "n2/llama-0", "n2/llama-1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "judged", "units"),
    [
        ((), False, [["n1/llama-0"], ["n1/llama-1"], ["n2/llama-0"], ["n2/llama-1"]]),
        ((("n1", 0), ("n1", 1)), True, [["n2/llama-0"], ["n2/llama-1"]]),
    ],
    ids=["Docker was dead on the canary", "Docker died in a late batch"],
)
def test_the_same_command_continues_where_docker_was_dead(
    changed: tuple[tuple[str, int], ...], judged: bool, units: list[list[str]]
) -> None:
    """Nothing is held, and the trial is open: nobody has to give retry=true."""
    states, balancers = served(PAIR)
    new = [deployment(gpus=[0, 1], instances_per_host=2, **SEQS)]
    found = after(planned(states, new, balancers), states)
    for name in states:
        for at in range(2):
            if (name, at) not in changed:
                found[name]["instances"][at] = copy.deepcopy(states[name]["instances"][at])
        found[name]["generations"][0]["trial"] = {
            "generation": 2, "why": "x", "since": "2026-11-21T23:00:00Z",
            "units": ["n1/llama-0"] if judged else [], "baseline": {"canary": "n1/llama-0"},
        }  # fmt: skip
    made = rolled(found, new, balancers, rollout_min_available=1)
    assert sorted(name for batch in made.batches for name in batch["units"]) == units
    assert [batch["canary"] for batch in made.batches if batch["canary"]] == (
        [] if judged else ["n1/llama-0"]
    )
    assert {batch["generation"] for batch in made.batches} == {2}


# ---- refusals ----------------------------------------------------------------------------------------

NEW = [deployment(gpus=[0], **SEQS)]
NOT_RUNNING = "host lb: the load balancer is not running, so instances cannot be drained before they change."
ABSENT = f"instances cannot be drained from load balancer far before they change: {NOT_IN_RUN}."
MODES = "partition modes must change first, which stops every instance of a host. Run partition.yml first."

LAST = "the last one must stay in service. Take fewer at a time:"

REFUSED: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any], dict[str, Any], list[str]]] = {
    # operation, what is wanted, changes of the balancer, of Wanted, of the inventory, starts of the problems
    "an upgrade": (UPGRADE, NEW, {}, {}, {}, []),
    "the balancer is down": (UPGRADE, NEW, {"running": False}, {}, {}, [NOT_RUNNING]),
    "the balancer was never set up": (
        UPGRADE,
        NEW,
        {"running": False, "config": None, "files": {}, "applied": None},
        {},
        {},
        [NOT_RUNNING],
    ),
    "an upgrade of what is as wanted": (UPGRADE, ONE, {}, {"deployment": "llama"}, {}, []),
    "the balancer is down, and nothing changes": (UPGRADE, ONE, {"running": False}, {}, {}, []),
    "the balancer is down, and all is stopped": (STOP, ONE, {"running": False}, {"at_once": True}, {}, []),
    "all is stopped": (STOP, ONE, {}, {}, {}, [f"llama: 2 of 2 serve; this would leave 0, and {LAST} --limit n1,lb."]),
    "all is stopped, as was said": (STOP, ONE, {}, {"at_once": True}, {}, []),
    "all is stopped, and what is out of service is no capacity": (
        STOP, ONE, {"out": {"llama/n2.llama-0:8000": {"state": "drain", "by": "operator", "since": ""}}}, {}, {},
        ["llama: 1 of 2 serve; this would leave 0, and the last one must stay in service."],
    ),
    "all is stopped, of what may lose no other one": (
        STOP, ONE, {}, {"values": {"rollout_min_available": "100%"}}, {},
        ["llama: 2 of 2 serve; this would leave 0, and 2 must stay in service (rollout_min_available: 100%). First "
         "return"],
    ),
    "a balancer is not in this run": (
        UPGRADE,
        NEW,
        {},
        {"absent": (("far", NOT_IN_RUN),)},
        {},
        [f"--limit: {ABSENT} Run without --limit, or with far in it."],
    ),
    "one of two is dead": (UPGRADE, NEW, {}, {"absent": (("far", "it is off"),)}, {}, []),
    "one of two is dead, and something restarts": (
        RESTART,
        ONE,
        {},
        {"absent": (("far", "it is off"),)},
        {},
        [],
    ),
    "one is dead, and the other is down": (
        UPGRADE,
        NEW,
        {"running": False},
        {"absent": (("far", "it is off"),)},
        {},
        [NOT_RUNNING],
    ),
    "a balancer is not in this run, and nothing changes": (
        UPGRADE,
        ONE,
        {},
        {"absent": (("far", "it is off"),)},
        {},
        [],
    ),
    "a balancer is left out, and a host's instances are stopped": (
        STOP,
        ONE,
        {},
        {"absent": (("far", NOT_IN_RUN),), "values": {"rollout_min_available": 0}, "blind": True},
        {},
        [f"--limit: {ABSENT} Run without --limit, or with far in it. To stop them anyway, and lose the requests"],
    ),
    "a balancer is left out, and all is stopped, as was said": (
        STOP, ONE, {}, {"absent": (("far", NOT_IN_RUN),), "at_once": True}, {}, [],
    ),
    "a dead balancer, and a host's instances are stopped": (
        STOP, ONE, {}, {"absent": (("far", "it is off"),), "blind": True}, {}, [],
    ),
    "a balancer is left out, and nothing of it is stopped": (
        STOP,
        ONE,
        {},
        {"absent": (("far", NOT_IN_RUN),), "blind": True, "instance": "llama-7"},
        {},
        ["no instance of llama-7 runs. There are: llama."],
    ),
    "a balancer is not in this run, and all is stopped": (
        STOP,
        ONE,
        {},
        {"absent": (("far", "it is off"),), "at_once": True},
        {},
        [],
    ),
    "other partition modes": (
        UPGRADE,
        NEW,
        {},
        {},
        {"gpu_partition_compute": "CPX"},
        [f"gpu_partition_compute (hosts n1, n2): {MODES}"],
    ),
    "other partition modes, and a restart": (RESTART, ONE, {}, {}, {"gpu_partition_compute": "CPX"}, []),
    "a restart of what does not run": (
        RESTART,
        ONE,
        {},
        {"deployment": "qwen"},
        {},
        ["no instance of qwen runs. There are: llama."],
    ),
    "a stop of an instance that does not run": (
        STOP,
        ONE,
        {},
        {"deployment": "llama", "instance": "llama-7"},
        {},
        ["no instance of llama-7 runs. There are: llama."],
    ),
    "a restart of an instance": (RESTART, ONE, {}, {"instance": "llama-0"}, {}, []),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    operation, wanted, changes, more, variables, expected = REFUSED[case]
    states, (balancer,) = served(ONE)
    seen = balancer.observed
    assert seen is not None
    there = applied(planned(states, ONE, [balancer]).balancers[0], **changes)
    plan = planned(states, wanted, [host(there)], OperationRequest(operation), **variables)
    _, problems = plan_rollout_steps(plan, RolloutRequest(operation, **more))
    lines = [problem.text() for problem in problems]
    assert len(lines) == len(expected), lines
    for text, start in zip(lines, expected, strict=True):
        assert text.startswith(start)


@pytest.mark.parametrize("operation", [DEPLOY, UPGRADE, RESTART, ROLLBACK])
def test_without_any_balancer_nothing_that_serves_changes(operation: str) -> None:
    states, _ = served(ONE)
    plan = planned(
        after(planned(states, NEW, []), states), ONE, [], OperationRequest(operation, frozenset(["llama"]))
    )
    dead = (("lb-01", "No route to host."), ("lb-02", "Connection refused"))
    made, problems = plan_rollout_steps(plan, RolloutRequest(operation, deployment="llama", absent=dead))
    assert made.batches
    assert [item.text() for item in problems] == [
        "no load balancer can be reached, so instances cannot be drained before they change: lb-01: No route to host; "
        "lb-02: Connection refused. Bring one of them back, and run again: one is enough."
    ]


def test_one_of_two_that_runs_suffices() -> None:
    states, (one, two) = served(ONE, "lb1", "lb2")
    down = applied(planned(states, ONE, [one, two]).balancers[0], running=False)
    for balancers, count in (
        ([host(down, name="lb1"), two], 0),
        ([host(down, name="lb1"), host(down, name="lb2")], 1),
    ):
        plan = planned(states, NEW, balancers, OperationRequest(UPGRADE))
        _, problems = plan_rollout_steps(plan, RolloutRequest(UPGRADE))
        assert len(problems) == count


def test_a_restart_where_nothing_runs() -> None:
    """Without a name nothing is refused: there is simply nothing to do."""
    bare = {"n1": state(hostname="n1")}
    plan = planned(bare, ONE, [], OperationRequest(RESTART))
    made, problems = plan_rollout_steps(plan, RolloutRequest(RESTART))
    assert (made.batches, problems) == ((), ())
    _, problems = plan_rollout_steps(plan, RolloutRequest(RESTART, deployment="llama"))
    assert [item.text() for item in problems] == ["no instance of llama runs. There are: no instances."]


def test_a_rollback_without_a_name() -> None:
    states, _ = served(ONE)
    states = after(planned(states, NEW, []), states)
    plan = planned(states, NEW, [], OperationRequest(ROLLBACK, frozenset(["llama"])))
    _, problems = plan_rollout_steps(plan, RolloutRequest(ROLLBACK))
    assert [item.text() for item in problems] == [
        "deployment: is required. -e deployment=NAME; there are: llama."
    ]


# ---- what a deploy would take from clients -----------------------------------------------------------

COUNTS: dict[str, tuple[Any, dict[str, Any], dict[str, Any], int]] = {
    # wanted, changes of n1's first instance, of the inventory: instances that serve, and are replaced or removed
    "as they run": (PAIR, {}, {}, 0),
    "another generation": ([deployment(gpus=[0, 1], instances_per_host=2, **SEQS)], {}, {}, 4),
    "one per host goes": (ONE, {}, {}, 2),
    "all go": ([], {}, {}, 4),
    "one had not generated tokens": ([], {"ready": False}, {}, 3),
    "one does not run": ([], {"state": "exited", "exit_code": 1}, {}, 3),
    "one does not run, and is started": (PAIR, {"state": "exited", "exit_code": 1}, {}, 0),
    "partition modes change, which is asked about itself": ([], {}, {"gpu_partition_compute": "CPX"}, 0),
}


@pytest.mark.parametrize("case", COUNTS)
def test_instances_that_are_replaced_while_they_serve(case: str) -> None:
    wanted, changes, variables, count = COUNTS[case]
    states, balancers = served(PAIR)
    states = copy.deepcopy(states)
    for name in states:
        for item in states[name]["instances"]:
            item["ready"] = True
    states["n1"]["instances"][0].update(changes)
    assert count_replaced(planned(states, wanted, balancers, OperationRequest(DEPLOY), **variables)) == count


def test_of_a_host_that_cannot_be_read_nothing_is_replaced() -> None:
    assert (
        count_replaced(
            planned({"n1": None}, ONE, [], offline=True, instinct_gpus={"model": "MI300X", "count": 8})
        )
        == 0
    )
