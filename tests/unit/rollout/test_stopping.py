# SPDX-License-Identifier: Apache-2.0
"""Commands that stop what serves for a while: what they know of the fleet, and hosts by hosts that can be spared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.generations import STOP, OperationRequest
from ansible_collections.instinct.fleet.plugins.module_utils.common.minimum import ServingEngine
from ansible_collections.instinct.fleet.plugins.plugin_utils.rollout.plan import (
    RolloutRequest,
    plan_rollout_steps,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.rollout.stopping import HostStops, host_batches

from tests.worlds.balancer_world import applied, host
from tests.worlds.rollout_balancer_world import PAIR, States, planned, served


def engines(**hosts: str) -> list[ServingEngine]:
    """The engines of hosts: S serves, d does not."""
    return [
        ServingEngine("llama", f"llama-{index}", (name,), letter == "S", False)
        for name, letters in hosts.items()
        for index, letter in enumerate(letters)
    ]


EIGHT = {f"n{number}": "SS" for number in range(1, 9)}
OVER = ServingEngine("wide", "wide-0", ("n1", "n2"), True, False)
ALONE = "no other load balancer answers, so no client would be served meanwhile."


@pytest.mark.parametrize(
    ("there", "stops", "sizes", "said"),
    [
        (engines(**EIGHT), HostStops(list(EIGHT)), (1,) * 8, ""),
        (engines(**EIGHT), HostStops(list(EIGHT), (1, "50%")), (1, 4, 3), ""),
        (engines(**EIGHT), HostStops(["n1", "n2"], (2,)), (2,), ""),
        (engines(n1="SS", n2="SS"), HostStops(["n1", "n2"], (2,)), (), "4 of 4 serve; this would leave 0"),
        # By default as many as can be spared.
        (engines(**{f"n{n}": "S" for n in range(20)}), HostStops([f"n{n}" for n in range(20)]), (1, 4, 4, 4, 4, 3), ""),
        (
            engines(**{f"n{n}": "S" if n < 12 else "d" for n in range(20)}), HostStops([f"n{n}" for n in range(12)]),
            (1, 2, 2, 2, 2, 2, 1), "",
        ),
        (
            engines(**{f"n{n}": "S" if n < 11 else "d" for n in range(20)}), HostStops([f"n{n}" for n in range(11)]),
            (1,) * 11, "",
        ),
        # What does not serve stops whenever it likes to.
        (engines(n1="dd"), HostStops(["n1"]), (1,), ""),
        (engines(n1="dd", n2="SS"), HostStops(["n1"]), (1,), ""),
        (engines(n1="dd", n2="SS"), HostStops(["n1", "n2"]), (), "2 of 4 serve; this would leave 0"),
        ([], HostStops(["n1", "n2", "n3"]), (1, 1, 1), ""),
        ([], HostStops([]), (), ""),
        # The only host: no part of it is offered, as all of it stops.
        (engines(n1="SS"), HostStops(["n1"]), (), "the last one has to stay in service. First return others"),
        (engines(n1="S"), HostStops(["n1"], min_in=0), (), "the last one has to stay in service."),
        (engines(n1="SS", n2="SS"), HostStops(["n1"], min_in="75%"), (), "3 have to stay in service"),
        # An engine over two hosts is out until both are done, whichever comes first.
        ([OVER, replace(OVER, hosts=("n3", "n4"))], HostStops(["n1", "n2"]), (1, 1), ""),
        ([OVER, replace(OVER, hosts=("n3", "n4"))], HostStops(["n1", "n3"]), (), "wide: 2 of 2 serve"),
        # A load balancer is left.
        ([], HostStops(["n1", "n2"], (2,), balancers=frozenset(["n1", "n2"])), (), f"n1, n2: {ALONE}"),
        ([], HostStops(["n1", "n2"], balancers=frozenset(["n1", "n2"])), (1, 1), ""),
        ([], HostStops(["n1", "n2"], (2,), balancers=frozenset(["n1", "lb"])), (2,), ""),
        ([], HostStops(["n2", "n1"], balancers=frozenset(["n1"])), (), f"n1: {ALONE} Start another one first"),
    ],
)  # fmt: skip
def test_how_many_hosts_at_a_time(there: Any, stops: HostStops, sizes: tuple[int, ...], said: str) -> None:
    found, problems = host_batches(there, stops)
    assert (found, bool(problems)) == (sizes, bool(said)), problems
    assert said in "".join(problem.text() for problem in problems)
    for problem in problems:
        assert problem.fix.endswith(": -e at_once=true.")
        assert "instance=" not in problem.fix


def refused(
    states: States, balancer: Any, *hosts: str, unreachable: Mapping[str, str] | None = None
) -> list[str]:
    """The problems of a stop of all that runs on these hosts."""
    plan = planned(states, PAIR, [balancer], OperationRequest(STOP))
    here = tuple(item for item in plan.hosts if item.host.name in hosts)
    plan = replace(plan, hosts=here, unreachable=tuple((unreachable or {}).items()))
    return [problem.text() for problem in plan_rollout_steps(plan, RolloutRequest(STOP))[1]]


def test_hosts_outside_the_run_count_as_the_load_balancers_have_them() -> None:
    states, (balancer,) = served(PAIR)
    assert refused(states, balancer, "n1") == []
    (text,) = refused(states, balancer, "n1", "n2")
    assert text.startswith(
        "llama: 4 of 4 serve; this would leave 0, and 2 have to stay in service (upgrade_min_in: 50%)."
    )
    # A host that was not reached is no capacity; nor is what the operator drained there.
    (text,) = refused(states, balancer, "n1", unreachable={"n2": "no route to host"})
    assert text.startswith("llama: 2 of 4 serve; this would leave 0")
    names = [f"llama/n2.llama-{number}:{8000 + number}" for number in range(2)]
    drained = {name: {"state": "drain", "by": "operator", "since": ""} for name in names}
    there = applied(planned(states, PAIR, [balancer]).balancers[0], out=drained)
    (text,) = refused(states, host(there), "n1")
    assert text.startswith("llama: 2 of 4 serve; this would leave 0")
