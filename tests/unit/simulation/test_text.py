# SPDX-License-Identifier: Apache-2.0
"""What an operator reads of a simulated run: why it is refused, and what stays in service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.actions import Action
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.rules import (
    CAPACITY,
    END,
    IN_USE,
    NEEDS,
    TAKEN,
    Requirement,
    Violation,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.simulate import Simulation
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.text import (
    problems,
    proof_lines,
)

from tests.worlds.edited_fleet import Inventory, edited, planned, settled
from tests.worlds.plan_world import deployment

HOSTS = {"n1": "192.0.2.11", "n2": "192.0.2.12"}
LLAMA: dict[str, Any] = deployment(gpus=[0], instances_per_host=1)
BASE = Inventory(HOSTS, {"n1": "192.0.2.11"}, (LLAMA,))
FLAG = ({**LLAMA, "engine_args": {"max_num_seqs": 64}},)


# ---- why a run is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "fix"),
    [
        (CAPACITY, "accept that clients get 503 in the meantime"),
        (IN_USE, "accept that clients get 503 in the meantime"),
        (TAKEN, "This run does not stop what uses it"),
        (NEEDS, "report this plan"),
        (END, "report this plan"),
    ],
)
def test_the_way_out_is_that_of_the_rule(rule: str, fix: str) -> None:
    found = Simulation((Violation(rule, "the step", "what breaks", ("n1",)),))
    (problem,) = problems(found, planned(BASE, settled(BASE)).plan)
    assert (problem.what, problem.hosts) == ("the step: what breaks.", ("n1",))
    assert fix in problem.fix


def test_the_edit_that_causes_it_is_named_once() -> None:
    plan = planned(edited(BASE, deployments=FLAG), settled(BASE)).plan
    both = (("n1", "llama-0"), ("n2", "llama-0"), ("n1", "unknown"))
    (problem,) = problems(Simulation((Violation(CAPACITY, "the step", "what breaks", (), both),)), plan)
    assert problem.what.startswith("the step: what breaks. The change: llama-0: ")
    assert problem.what.count("llama-0") == 1
    one = Violation(CAPACITY, "the step", "what breaks")
    assert len(problems(Simulation((one, one)), plan)) == 1


def test_only_what_starts_or_stops_an_instance_is_its_edit() -> None:
    plan = planned(edited(BASE, deployments=FLAG), settled(BASE)).plan
    more = Action("restart_policy", "vllm_serve", "llama-0", "a", "b", "another reason", "")
    hosts = tuple(replace(host, actions=(*host.actions, more)) for host in plan.hosts)
    found = Simulation((Violation(CAPACITY, "the step", "what breaks", (), (("n1", "llama-0"),)),))
    (problem,) = problems(found, replace(plan, hosts=hosts))
    assert "llama-0: " in problem.what
    assert "another reason" not in problem.what


def test_the_first_ones_are_shown() -> None:
    plan = planned(BASE, settled(BASE)).plan
    many = tuple(Violation(NEEDS, f"step {number}", "what") for number in range(9))
    found = [item.what for item in problems(Simulation(many), plan)]
    assert found == [f"step {number}: what." for number in range(4)]


# ---- what stays in service ---------------------------------------------------------------------------


def lines(least: dict[str, int], *counts: int) -> list[str]:
    """Of load balancers, each with the fewest engines in service. counts: in all, at first, at least, in the end."""
    item = Requirement(("llama",), *counts)
    return proof_lines(
        Simulation(
            (),
            {(balancer, "chat"): item for balancer in least},
            {(balancer, "chat"): count for balancer, count in least.items()},
        )
    )


@pytest.mark.parametrize(
    ("least", "counts", "line"),
    [
        ({"n1": 4}, (4, 4, 2, 4), []),
        ({"n1": 3}, (4, 4, 2, 4), ["llama: never fewer than 3 of 4 in service"]),
        ({"n1": 2}, (4, 3, 2, 4), ["llama: never fewer than 2 of 4 in service (3 serve now)"]),
        ({"n1": 3}, (4, 3, 2, 4), ["llama: all 3 that serve stay in service"]),
        ({"n1": 4}, (4, 4, 2, 6), ["llama: all 4 that serve stay in service"]),
        ({"n1": 4}, (6, 4, 2, 4), ["llama: all 4 that serve stay in service"]),
        ({"n1": 3, "n2": 3}, (4, 4, 2, 4), ["llama: never fewer than 3 of 4 in service"]),
        (
            {"n1": 3, "n2": 2},
            (4, 4, 2, 4),
            [
                "llama: never fewer than 3 of 4 in service at load balancer n1",
                "llama: never fewer than 2 of 4 in service at load balancer n2",
            ],
        ),
    ],
)
def test_what_stays_in_service(least: dict[str, int], counts: tuple[int, ...], line: list[str]) -> None:
    assert lines(least, *counts) == line


def test_several_deployments_of_a_name() -> None:
    item = Requirement(("llama", "chat"), 4, 4, 2, 4)
    found = Simulation(
        (), {("n1", "m"): item, ("n1", "other name"): item}, {("n1", "m"): 3, ("n1", "other name"): 3}
    )
    assert proof_lines(found) == ["llama and chat: never fewer than 3 of 4 in service"]
