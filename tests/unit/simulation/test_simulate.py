# SPDX-License-Identifier: Apache-2.0
"""A plan's steps in the model of its fleet: what is checked between them, and after the last one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.model import FleetModel
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.plays import PLAYS
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.rules import (
    CAPACITY,
    END,
    IN_USE,
    NEEDS,
    Requirement,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.simulate import (
    RunLimits,
    Simulation,
    simulate,
)

from tests.worlds.edited_fleet import Inventory, Planned, Site, edited, planned, settled
from tests.worlds.plan_world import deployment

MODEL = "lab/tiny-llama"
HOSTS = {"n1": "192.0.2.11", "n2": "192.0.2.12"}
LLAMA: dict[str, Any] = deployment(gpus=[0, 1], instances_per_host=2)
FLAG = {**LLAMA, "engine_args": {"max_num_seqs": 64}}
BASE = Inventory(HOSTS, {"n1": "192.0.2.11"}, (LLAMA,))

# By name: the edit, the operation.
RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "a flag": ({"deployments": (FLAG,)}, "deploy"),
    "an upgrade": ({"deployments": (FLAG,)}, "upgrade"),
    "a restart": ({}, "restart"),
    "another mode": ({"modes": {"n1": "CPX"}}, "deploy"),
    "nothing": ({}, "deploy"),
}


@cache
def run(name: str) -> Planned:
    changes, operation = RUNS[name]
    return planned(edited(BASE, **changes), settled(BASE), operation, canary=False)


def phases(todo: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The phases of each host's batches, to be changed."""
    return [
        found for item in todo for found in item["plan"].get("rollout", {}).get("steps", {}).values()
    ]  # fmt: skip


def without(*names: str) -> Callable[[list[dict[str, Any]]], None]:
    """Leave phases out of all batches."""

    def change(todo: list[dict[str, Any]]) -> None:
        for found in phases(todo):
            for name in names:
                found.pop(name, None)

    return change


RETURN = ("undrain", "watch", "confirm")


def left_out(todo: list[dict[str, Any]]) -> None:
    """Return nothing to service, neither with its batch nor in the end."""
    without(*RETURN)(todo)
    for item in todo:
        if "balancer" in item["plan"]:
            item["plan"]["balancer"]["undrain"] = []


def nothing(_todo: list[dict[str, Any]]) -> None: ...


def no_balancer(todo: list[dict[str, Any]]) -> None:
    todo[:] = [
        {**item, "groups": [one for one in item["groups"] if "load_balancer" not in one]} for item in todo
    ]


def broken(name: str, change: Callable[[list[dict[str, Any]]], None], **terms: Any) -> Simulation:
    done = run(name)
    todo = copy.deepcopy(done.todo)
    change(todo)
    return simulate(done.plan, todo, done.operation, RunLimits(**terms))


def kinds(found: Simulation) -> list[str]:
    return list(dict.fromkeys(item.rule for item in found.violations))


@pytest.mark.parametrize(
    ("name", "change", "terms", "rules"),
    [
        ("a flag", nothing, {}, []),
        ("an upgrade", nothing, {}, []),
        ("a restart", nothing, {}, []),
        ("another mode", nothing, {}, []),
        ("nothing", nothing, {}, []),
        ("a flag", nothing, {"min_available": 4}, [CAPACITY]),
        ("a flag", nothing, {"min_available": 3}, []),
        ("a flag", nothing, {"min_available": 4, "at_once": True}, []),
        ("a flag", without("drain"), {}, [IN_USE]),
        ("a flag", without("drain"), {"at_once": True}, []),
        ("a flag", without(*RETURN), {}, [CAPACITY]),
        ("a flag", left_out, {}, [CAPACITY, END]),
        ("an upgrade", left_out, {}, [CAPACITY, END]),
        ("a flag", without("serve"), {}, [END]),
        # How a restart ends is seen by the next plan.
        ("a restart", without("serve"), {}, [NEEDS, CAPACITY]),
        ("a restart", left_out, {}, [CAPACITY]),
    ],
)  # fmt: skip
def test_what_a_run_breaks(
    name: str, change: Callable[[list[dict[str, Any]]], None], terms: dict[str, Any], rules: list[str]
) -> None:
    assert kinds(broken(name, change, **terms)) == rules


def test_instances_that_are_not_as_the_inventory_defines_them() -> None:
    found = broken("a flag", without("serve"))
    ends = [item for item in found.violations if item.rule == END and "inventory defines" in item.what]
    assert [(item.step, item.what, item.hosts) for item in ends] == [
        ("after the run", "llama-0, llama-1 would not be as the inventory defines them", (host,))
        for host in HOSTS
    ]


def test_servers_that_are_left_drained() -> None:
    found = broken("a flag", left_out)
    (end,) = [item for item in found.violations if item.rule == END]
    names = ", ".join(f"llama/{host}.llama-{at}:800{at}" for host in HOSTS for at in (0, 1))
    assert end.what == f"load balancer n1 would be left with {names} drained"


def test_a_load_balancer_that_lacks_what_the_inventory_has() -> None:
    site = settled(BASE)
    done = planned(edited(BASE, hosts={"n1": "192.0.2.11"}), site, canary=False)
    todo = copy.deepcopy(done.todo)
    no_balancer(todo)
    found = simulate(done.plan, todo, "deploy")
    assert "load balancer n1 would not have the instances of the inventory" in [
        item.what for item in found.violations
    ]


@pytest.mark.parametrize("remove", [True, False])
def test_a_load_balancer_that_is_not_taken_down(remove: bool) -> None:
    """Asked to take it down, it has to be gone in the end; otherwise it stays as it is."""
    both = edited(BASE, balancers=HOSTS)
    done = planned(BASE, settled(both), canary=False, remove_load_balancer=["n2"] if remove else [])
    assert done.simulate().violations == ()
    (former,) = done.plan.former
    assert bool(former.phase) is remove
    todo = copy.deepcopy(done.todo)
    for item in todo:
        item["groups"] = [one for one in item["groups"] if one != "todo_former_balancer"]
    found = [item for item in simulate(done.plan, todo, "deploy").violations if item.rule == END]
    what = "its load balancer would not be taken down"
    assert [(item.what, item.hosts) for item in found] == ([(what, ("n2",))] if remove else [])


def test_too_few_is_said_once_of_each_name_and_load_balancer() -> None:
    found = broken("a flag", nothing, min_available=4)
    (short,) = found.violations
    assert (
        short.what
        == f"load balancer n1 would have 3 of 4 engines of llama ({MODEL}) in service, and 4 must stay"
    )
    assert short.step.startswith("batch 1")
    assert found.required == {("n1", MODEL): Requirement(("llama",), 4, 4, 4, 4)}
    assert found.least["n1", MODEL] == 3


def test_every_step_is_watched_in_its_order() -> None:
    done, seen = run("a flag"), list[tuple[str, int]]()

    def watch(step: str, model: FleetModel) -> None:
        assert not model.changed or step == "before the run"
        seen.append((step, model.counts["n1", MODEL]))

    simulate(done.plan, done.todo, "deploy", watch=watch)
    counts = [count for _step, count in seen]
    assert (seen[0], seen[-1]) == (("before the run", 4), ("after the run", 4))
    assert (counts[-1], min(counts)) == (4, 3)
    steps = list(dict.fromkeys(step for step, _count in seen))
    drains = [step for step in steps if step.endswith("phase drain")]
    assert len(drains) == len({step.partition(",")[0] for step in steps if step.startswith("batch")})
    assert steps.index(drains[0]) < steps.index(drains[0].replace("drain", "serve"))


def test_what_is_new_is_measured_before_it_is_in_service() -> None:
    done = run("nothing")
    part = {"measure": [{"name": "llama-0"}]}
    todo = [{"name": host, "groups": ["todo_benchmark"], "plan": part} for host in HOSTS]
    found = simulate(done.plan, todo, "deploy").violations
    assert [(item.rule, item.step, item.hosts) for item in found] == [
        (IN_USE, "measuring what is new", (host,)) for host in HOSTS
    ]


def test_modes_change_a_host_at_a_time_or_as_many_as_are_allowed() -> None:
    both = planned(edited(BASE, modes=dict.fromkeys(HOSTS, "CPX")), settled(BASE), canary=False)
    assert both.simulate().violations == ()
    assert both.simulate().least["n1", MODEL] == 2
    together = both.simulate(partition_serial=("100%",))
    assert (kinds(together), together.least["n1", MODEL]) == ([CAPACITY], 0)


def test_an_instance_waits_for_its_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing were fetched."""
    done = planned(BASE, Site(), canary=False)
    assert done.simulate().violations == ()
    monkeypatch.setitem(PLAYS, "deploy", tuple(play for play in PLAYS["deploy"] if play != "fetch"))
    found = done.simulate().violations
    assert [(item.rule, item.hosts) for item in found] == [
        (NEEDS, (host,)) for host in ("n1", "n1", "n2", "n2")
    ]
    assert all("starts before its image registry.lab:5000/lab/vllm@sha256:" in item.what for item in found)
    # One that is not pulled, as it is built or received.
    hosts = (
        replace(host, images=tuple(replace(step, pull="", ref=step.pull) for step in host.images))
        for host in done.plan.hosts
    )
    assert simulate(replace(done.plan, hosts=tuple(hosts)), done.todo, "deploy").violations == found


def test_an_instance_waits_for_the_mode_of_its_gpus() -> None:
    """As if modes were left to a later run."""
    done = run("another mode")
    todo: Any = copy.deepcopy(done.todo)
    for item in todo:
        item["groups"] = [one for one in item["groups"] if one != "todo_gpu_partition"]
        if "servers" in item["plan"]:
            item["groups"].append("todo_vllm_serve")
            item["plan"] |= {"serve": [one["name"] for one in item["plan"]["servers"]], "resume": []}
    found = simulate(done.plan, todo, "deploy", RunLimits(at_once=True))
    assert any("before the GPUs have" in item.what for item in found.violations)


def test_hosts_that_do_not_answer_are_not_judged() -> None:
    """What a load balancer has of them is no capacity afterwards, and they need not be as the inventory says."""
    done = run("a flag")
    plan = replace(done.plan, unreachable=(("n2", "no route"),))
    found = simulate(plan, done.todo, "deploy")
    assert found.required["n1", MODEL].last == 2


def test_a_host_of_which_no_state_is_known_need_not_be_as_the_inventory_says() -> None:
    done = run("nothing")
    first, second = done.plan.hosts
    unknown = replace(second, host=replace(second.host, state=None))
    assert simulate(replace(done.plan, hosts=(first, unknown)), done.todo, "deploy").violations == ()


def test_what_a_run_leaves_as_it_is_need_not_be_as_the_inventory_says() -> None:
    done = run("a flag")
    first, second = done.plan.hosts
    untouched = replace(second, untouched=("llama-0", "llama-1"))
    todo = copy.deepcopy(done.todo)
    for item in todo:
        if item["name"] == "n2":
            item["plan"]["rollout"]["steps"] = {}
    found = simulate(replace(done.plan, hosts=(first, untouched)), todo, "deploy")
    assert [item.what for item in found.violations] == []
