# SPDX-License-Identifier: Apache-2.0
"""What planning costs grows with the fleet, not with its square: proving a change of every instance, and refusals."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.minimum import (
    Count,
    ServingEngine,
    refusals,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.stopping import (
    HostStops,
    stop_problems,
)

from tests.bench_change import changed_fleet, prove, upgrade
from tests.worlds.plan_world import deployment, fleet, gpus, state

SMALL, FACTOR, INSTANCES = 4, 4, 4
SLACK = 1.5
"""How much faster than the fleet the calls of a function may grow: those of sorting do so a little."""


def excluding(hosts: int) -> Callable[[], object]:
    """Every other host lacks a GPU, and is left out."""
    states = {f"n{number}": state(gpus=gpus(count=8 - number % 2)) for number in range(hosts)}
    found = fleet(states, [deployment(instances_per_host=8)])

    def check() -> None:
        assert len(check_fleet(found).fleet.excluded) == hosts // 2

    return check


def stopping(serial: Count, refused: int) -> Callable[[int], Callable[[], object]]:
    """Hosts stop what they run, so many at a time; refused: problems of that."""

    def prepared(hosts: int) -> Callable[[], object]:
        names = [f"n{number}" for number in range(hosts)]
        engines = [ServingEngine("llama", "llama-0", (name,), serves=True, taken=False) for name in names]
        stops = HostStops(names, (serial,), "gpu_partition_serial")

        def check() -> None:
            assert len(stop_problems(engines, stops)) == refused

        return check

    return prepared


def taking(hosts: int) -> Callable[[], object]:
    """All engines are taken, and the refusal says how many could be."""
    engines = [ServingEngine("llama", "llama-0", (f"n{number}",), True, True) for number in range(hosts)]

    def check() -> None:
        assert len(refusals(engines)) == 1

    return check


REFUSALS = {
    "excluding": excluding,
    "stopping": stopping(1, 0),
    "refusing to stop": stopping("100%", 1),
    "taking": taking,
}


def calls(work: Callable[[], object]) -> Counter[str]:
    """How often each function was called: other than time, the same in each run."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            found[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("what", [pytest.param("planning", marks=pytest.mark.deep), "proving", *REFUSALS])
def test_four_times_the_hosts_cost_four_times_as_much(what: str) -> None:
    few = SMALL * FACTOR if what in REFUSALS else SMALL  # cheap; the first of a kind costs others
    small, large = (counted(what, hosts) for hosts in (few, few * FACTOR))
    faster = {
        name: (small[name], count)
        for name, count in large.items()
        if count > SLACK * FACTOR * small[name] and count > SMALL * FACTOR * INSTANCES
    }
    assert faster == {}, "functions, and how often they are called for few hosts and for many"


def counted(what: str, hosts: int) -> Counter[str]:
    """What planning an upgrade of so many hosts calls, proving it, or refusing something."""
    if what in REFUSALS:
        work = REFUSALS[what](hosts)
        work()  # whatever is made once
        return calls(work)
    inventory, site = changed_fleet(hosts, INSTANCES)
    done = upgrade(inventory, site)  # reads the catalogue, once
    return calls(lambda: upgrade(inventory, site) if what == "planning" else prove(done))
