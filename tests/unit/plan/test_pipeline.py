# SPDX-License-Identifier: Apache-2.0
"""The passes of a plan fit together, and each says what it adds."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import typing
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.passes import Pass, extend, run_passes
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring import pipeline as measuring
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning import pipeline
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.passes import (
    FleetInputs,
    SiftedFleet,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.inputs import (
    CheckedRun,
    RunInputs,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.passes import (
    PlannedRun,
    RunPlan,
)

from tests.worlds.plan_world import LOCK, deployment, fleet, state, workshop

LISTS: dict[str, tuple[tuple[Pass, ...], type, type]] = {
    "checks": (pipeline.CHECKS, RunInputs, CheckedRun),
    "draft": (pipeline.DRAFT, FleetInputs, SiftedFleet),
    "plan": (pipeline.PLAN, SiftedFleet, FleetPlan),
    "limits": (pipeline.LIMITS, PlannedRun, PlannedRun),
    "run": (pipeline.RUN, PlannedRun, RunPlan),
    "measuring": (measuring.PASSES, measuring.BenchmarkInputs, measuring.BenchmarkPlan),
}


@pytest.mark.parametrize(("passes", "first", "last"), LISTS.values(), ids=LISTS)
def test_each_pass_takes_what_the_one_before_it_returns(
    passes: tuple[Pass, ...], first: type, last: type
) -> None:
    """A state knows all that the one before it knows, so a pass may also take an earlier one, and return its own."""
    known: Any = first
    for step in passes:
        hints = typing.get_type_hints(step)
        made = hints.pop("return")
        (taken,) = hints.values()
        assert issubclass(known, taken), step.__name__
        assert dataclasses.is_dataclass(made), step.__name__
        assert made.__dataclass_params__.frozen, step.__name__  # type: ignore[attr-defined]
        assert issubclass(made, taken) or made is last, step.__name__
        known = made
    assert known is last


@pytest.mark.parametrize("step", [step for passes, *_unused in LISTS.values() for step in passes])
def test_each_pass_says_in_a_line_what_it_adds(step: Pass) -> None:
    text = inspect.getdoc(step) or ""
    assert text.startswith(("Add ", "Return the plan")), step.__name__
    assert "\n" not in text, step.__name__


def test_a_state_keeps_what_is_known() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Small:
        number: int
        word: str = ""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Large(Small):
        more: int

    assert extend(Large, Small(number=1, word="a"), more=2) == Large(number=1, word="a", more=2)
    assert extend(Large, Small(number=1), more=2, word="b") == Large(number=1, word="b", more=2)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_no_cycles_are_searched_for_during_passes(enabled: bool, fails: bool) -> None:
    """And afterwards the collector is as it was, also where a pass refuses."""

    def step(seen: list[bool]) -> list[bool]:
        seen.append(gc.isenabled())
        if fails:
            raise FleetError([])
        return seen

    before, seen = gc.isenabled(), list[bool]()
    (gc.enable if enabled else gc.disable)()
    try:
        if fails:
            with pytest.raises(FleetError):
                run_passes((step, step), seen)
        else:
            run_passes((step, step), seen)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False] * (1 if fails else 2)


def test_hosts_are_left_out_until_the_others_can_be_planned() -> None:
    """The one is found out before the other: what is left is planned anew each time."""
    full = [{**disk, "free_bytes": 1 << 20} for disk in state()["disk"]]
    states = {
        "n1": state(hostname="n1"),
        "n2": state(hostname="n2", disk=full),
        "n3": state(hostname="n3", docker={**state()["docker"], "available": False, "error": "no answer"}),
    }
    plan = pipeline.plan_fleet(check_fleet(fleet(states, [deployment()])), workshop(LOCK))
    assert [host.host.name for host in plan.hosts] == ["n1"]
    assert {name for name, _why in plan.excluded} == {"n2", "n3"}


def test_a_contradiction_is_refused_and_excludes_no_host() -> None:
    """What equal hosts have in common comes from the inventory."""
    states = {name: state(hostname=name) for name in ("n1", "n2")}
    wanted = [deployment(ports=[8000]), deployment(name="other", ports=[8000])]
    with pytest.raises(FleetError) as refused:
        pipeline.plan_fleet(check_fleet(fleet(states, wanted)), workshop(LOCK))
    texts = [problem.text() for problem in refused.value.problems]
    assert texts
    assert not [text for text in texts if "is left out" in text]
    assert {name for problem in refused.value.problems for name in problem.hosts} == set(states)
