# SPDX-License-Identifier: Apache-2.0
"""Hosts of an engine whose names have changed since its generations were recorded."""

from __future__ import annotations

import itertools
from functools import cache

import pytest

from tests.worlds.edited_fleet import Inventory, Site, settled
from tests.worlds.plan_world import deployment, fleet

HOSTS = {"n1": "192.0.2.11", "n2": "192.0.2.12", "n3": "192.0.2.13"}
NEW = {"n1": "y1", "n2": "z2", "n3": "x3"}  # the head is between the others
SUBSETS = [names for count in range(4) for names in itertools.combinations(HOSTS, count)]


@cache
def before(count: int = 3) -> Site:
    names = list(HOSTS)[:count]
    engine = {"nodes": count, "tensor_parallel_size": 1, "pipeline_parallel_size": count, "hosts": names}
    return settled(Inventory(HOSTS, {}, (deployment(name="wide", gpus=[0], **engine),)))


def recorded(site: Site, *others: str) -> dict[str, tuple[str, ...]]:
    """The hosts of the engine by the record of each host that has one. others: hosts outside this run."""
    found = fleet(site.states, [], groups={"instinct": [*site.states, *others]})
    return {
        host.name: member.hosts
        for host in found.hosts
        for history in (host.state.generations if host.state else ())
        for made in history.kept
        for member in made.members
    }


@pytest.mark.parametrize("names", SUBSETS)
def test_all_records_have_the_names_of_now_and_the_head_is_first(names: tuple[str, ...]) -> None:
    found = recorded(before().renamed({name: NEW[name] for name in names}))
    head = NEW["n1"] if "n1" in names else "n1"
    assert found.keys() == {NEW[name] if name in names else name for name in HOSTS}
    assert len(set(found.values())) == 1  # they are known as one engine by this
    assert {*found[head]} == found.keys()
    assert found[head][0] == head


@pytest.mark.parametrize("names", [("n1",), ("n2",), ("n1", "n2")])
def test_an_engine_over_two_hosts(names: tuple[str, ...]) -> None:
    found = recorded(before(2).renamed({name: NEW[name] for name in names}))
    now = [NEW[name] if name in names else name for name in ("n1", "n2")]
    assert {name: hosts for name, hosts in found.items() if name in now} == dict.fromkeys(now, tuple(now))


def test_a_host_that_does_not_answer_records_nothing() -> None:
    """Nobody knows what it is called now: it keeps the name that the others have of it."""
    renamed = before().renamed({"n3": "x3"})
    assert recorded(Site({**renamed.states, "n2": None})) == dict.fromkeys(("n1", "x3"), ("n1", "n2", "x3"))


@pytest.mark.parametrize("name", HOSTS)
def test_a_host_outside_the_run_has_no_other_name(name: str) -> None:
    states = {one: state for one, state in before().states.items() if one != name}
    assert set(recorded(Site(states), name).values()) == {tuple(HOSTS)}


@pytest.mark.parametrize("name", HOSTS)
def test_a_host_that_is_gone_keeps_its_name(name: str) -> None:
    """Nothing says what it is called now."""
    states = {one: state for one, state in before().states.items() if one != name}
    assert set(recorded(Site(states)).values()) == {tuple(HOSTS)}
