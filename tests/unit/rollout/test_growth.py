# SPDX-License-Identifier: Apache-2.0
"""What planning and proving a change of every instance costs grows with the fleet, not with its square."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import pytest

from tests.bench_change import changed_fleet, prove, upgrade

SMALL, FACTOR, INSTANCES = 4, 4, 4
SLACK = 1.5
"""How much faster than the fleet the calls of a function may grow: those of sorting do so a little."""


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


@pytest.mark.parametrize("what", [pytest.param("planning", marks=pytest.mark.deep), "proving"])
def test_four_times_the_hosts_cost_four_times_as_much(what: str) -> None:
    small, large = (counted(what, hosts) for hosts in (SMALL, SMALL * FACTOR))
    faster = {
        name: (small[name], count)
        for name, count in large.items()
        if count > SLACK * FACTOR * small[name] and count > SMALL * FACTOR * INSTANCES
    }
    assert faster == {}, "functions, and how often they are called for few hosts and for many"


def counted(what: str, hosts: int) -> Counter[str]:
    """What planning an upgrade of so many hosts calls, or proving it."""
    inventory, site = changed_fleet(hosts, INSTANCES)
    done = upgrade(inventory, site)  # reads the catalogue, once
    return calls(lambda: upgrade(inventory, site) if what == "planning" else prove(done))
