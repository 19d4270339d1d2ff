# SPDX-License-Identifier: Apache-2.0
"""What serves each model name before and after a run, how much of it has to stay, and what changes take and give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.capacity import (
    Capacity,
    ModelService,
    capacities,
    services,
    services_by_deployment,
    shifts,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.members import (
    InstanceResources,
    RolloutInstance,
)

HERE = InstanceResources(frozenset(), frozenset())


def member(name: str, models: str = "m", new: str | None = "m", **keys: Any) -> RolloutInstance:
    """An instance that answers to these names now, and to those afterwards; new: None if it goes."""
    given = {"deployment": name.rpartition("-")[0], "old": HERE, **keys}
    return RolloutInstance(
        "n1", name, new=HERE if new is not None else None, models=tuple((new or "").split()),
        old_models=tuple(models.split()), **given,
    )  # fmt: skip


def coming(name: str, new: str = "m", **keys: Any) -> RolloutInstance:
    """An instance that is not there yet."""
    return member(name, "", new, **{"old": None, "in_service": False, **keys})


def behind(name: str, balancers: str, **keys: Any) -> RolloutInstance:
    """An instance that these load balancers reach."""
    return member(name, balancers=frozenset(balancers.split()), **keys)


A, B, A2 = member("a-0"), member("b-0"), member("a-2")
ALL = ("a", [("", "m")], {"n1/a-0", "n1/a-1", "n1/a-2"}, {"n1/a-0", "n1/a-1", "n1/a-2"})


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([], []),
        ([A], [("a", [("", "m")], {"n1/a-0"}, {"n1/a-0"})]),
        ([A, B], [("a and b", [("", "m")], {"n1/a-0", "n1/b-0"}, {"n1/a-0", "n1/b-0"})]),
        # Names of the same engines are one service, before and afterwards.
        ([member("a-0", "m x", "m x")], [("a", [("", "m"), ("", "x")], {"n1/a-0"}, {"n1/a-0"})]),
        ([member("a-0", "m x", "m")],
         [("a", [("", "m")], {"n1/a-0"}, {"n1/a-0"}), ("a (x)", [("", "x")], {"n1/a-0"}, set())]),
        ([member("a-0", "m", None)], [("a", [("", "m")], {"n1/a-0"}, set())]),
        # Without load balancers the deployment counts.
        ([member("a-0", "", "")], [("a", [("a", "")], {"n1/a-0"}, {"n1/a-0"})]),
        ([member("a-0", "", None)], [("a", [("a", "")], {"n1/a-0"}, set())]),
        # What comes serves afterwards; and before the first batch if it starts before that.
        ([A, coming("b-0")], [("a", [("", "m")], {"n1/a-0"}, {"n1/a-0", "n1/b-0"})]),
        ([A, coming("b-0", starts=True)], [("a and b", [("", "m")], {"n1/a-0", "n1/b-0"}, {"n1/a-0", "n1/b-0"})]),
        ([member("a-0", "m", "x", starts=True)],
         [("a", [("", "x")], {"n1/a-0"}, {"n1/a-0"}), ("a (m)", [("", "m")], {"n1/a-0"}, set())]),
        ([A, member("b-0", drained=True)], [("a and b", [("", "m")], {"n1/a-0", "n1/b-0"}, {"n1/a-0"})]),
        # Servers of one engine count once.
        ([member("a-0", engine="e", old_engine="f"), member("a-1", engine="e", old_engine="f")],
         [("a", [("", "m")], {"f"}, {"e"})]),
        ([member("a-0", engine="e", old_engine="f", starts=True)], [("a", [("", "m")], {"e"}, {"e"})]),
        # What a load balancer reaches of it, and will reach: what changes then listens where all reach it.
        ([behind("a-0", "n1 n2"), behind("a-1", "n1 n2"), A2], [ALL]),
        ([behind("a-0", "n1"), behind("a-1", "n1"), A2], [ALL]),
        ([behind("a-0", "n2"), behind("a-1", "n10"), A2],
         [ALL, ("a behind n2", [("", "m")], {"n1/a-0", "n1/a-2"}, set(ALL[3])),
          ("a behind n10", [("", "m")], {"n1/a-1", "n1/a-2"}, set(ALL[3]))]),
        ([behind("a-0", "n2 n3"), behind("a-1", ""), A2],
         [ALL, ("a behind n2 and n3", [("", "m")], {"n1/a-0", "n1/a-2"}, set(ALL[3]))]),
        ([behind("a-0", "n2"), behind("a-1", "", balancers_after=frozenset()), A2],
         [ALL, ("a behind n2", [("", "m")], {"n1/a-0", "n1/a-2"}, {"n1/a-0", "n1/a-2"})]),
        ([behind("a-0", "n2"), behind("a-1", "", starts=True), A2], [ALL]),
        # It goes back to an address that one of them does not reach; it starts there.
        ([behind("a-0", "n2 n3", balancers_after=frozenset({"n3"})), behind("a-1", "n2 n3"), A2],
         [ALL, ("a behind n2", [("", "m")], set(ALL[2]), {"n1/a-1", "n1/a-2"})]),
        ([behind("a-0", "", starts=True, balancers_after=frozenset({"n3"})), behind("a-1", "n2 n3"), A2],
         [ALL, ("a behind n2", [("", "m")], {"n1/a-1", "n1/a-2"}, {"n1/a-1", "n1/a-2"})]),
        ([behind("a-0", ""), behind("b-0", "n2", models="x", new="x")],
         [("a", [("", "m")], {"n1/a-0"}, {"n1/a-0"}), ("b", [("", "x")], {"n1/b-0"}, {"n1/b-0"})]),
        ([behind("a-0", "n2", engine="e", old_engine="f"), behind("a-1", "", engine="e", old_engine="f"), A2],
         [("a", [("", "m")], {"f", "n1/a-2"}, {"e", "n1/a-2"}),
          ("a behind n2", [("", "m")], {"n1/a-2"}, {"e", "n1/a-2"})]),
    ],
)  # fmt: skip
def test_what_serves_each_name(
    members: list[RolloutInstance], expected: list[tuple[str, list[tuple[str, str]], set[str], set[str]]]
) -> None:
    assert services(members) == tuple(
        ModelService(label, tuple(names), frozenset(engines), frozenset(afterwards))
        for label, names, engines, afterwards in expected
    )


@pytest.mark.parametrize("stays", [True, False])
def test_what_the_operator_has_drained_in_one_load_balancer_is_not_in_service_there(stays: bool) -> None:
    """Also where it goes in this run, and serves no more afterwards anyway."""
    there = {"n1/a-0", "n1/a-1", "n1/a-2"}
    drained = behind("a-0", "n2 n3", new="m" if stays else None, kept_out=frozenset({"n2"}))
    whole, part = services([drained, behind("a-1", "n2 n3"), A2])
    assert (whole.label, whole.engines, whole.out) == ("a", there, set())
    assert (part.label, part.engines, part.out) == ("a behind n2", there, {"n1/a-0"})
    assert whole.afterwards - part.afterwards == ({"n1/a-0"} if stays else set())


def test_services_of_a_deployment() -> None:
    """Those to which it belongs, and those that it joins."""
    members = [member("a-0", "m x", "m x"), member("b-0", "x", "x"), coming("c-0"), coming("d-0", "new")]
    assert services_by_deployment(members) == {"a": ("a", "a and b"), "b": ("a and b",), "c": ("a",)}
    parts = ("a", "a behind n2")
    assert services_by_deployment([behind("a-0", "n2"), behind("a-1", "")]) == {"a": parts}


SOME = [member(f"a-{at}") for at in range(4)]
OUT = member("a-9", in_service=False)


@pytest.mark.parametrize(
    ("members", "keep", "expected"),
    [
        (SOME, None, Capacity(4, 4, 2)),
        (SOME[:3], None, Capacity(3, 3, 2)),
        (SOME, "100%", Capacity(4, 4, 4)),
        (SOME, 9, Capacity(4, 4, 4)),
        (SOME[:1], None, Capacity(1, 1, 0)),
        (SOME[:1], "50%", Capacity(1, 1, 1)),
        (SOME[:1], 0, Capacity(1, 1, 0)),
        ([*SOME, OUT], None, Capacity(5, 4, 3)),
        ([*SOME, coming("a-5", starts=True)], None, Capacity(5, 5, 3, 1)),
        ([*SOME, coming("a-5")], None, Capacity(4, 4, 2)),
        # No more than there will be.
        ([*SOME[:1], *(member(f"a-{at}", "m", None) for at in (1, 2, 3))], None, Capacity(4, 4, 1)),
        ([member(f"a-{at}", "m", None) for at in (1, 2)], None, Capacity(2, 2, 0, 0, False)),
        # An engine is in service if all of its servers are.
        ([member("a-0", old_engine="e"), member("a-1", old_engine="e", in_service=False), *SOME[2:]], None,
         Capacity(3, 2, 2)),
        ([coming("a-0", engine="e", starts=True), coming("a-1", engine="e", starts=True)], None, Capacity(1, 1, 0, 1)),
        ([member("a-0", old_engine="e"), coming("a-1", engine="e", starts=True)], None, Capacity(1, 1, 0, 1)),
    ],
)  # fmt: skip
def test_how_much_has_to_stay(members: list[RolloutInstance], keep: Any, expected: Capacity) -> None:
    assert capacities(members, keep) == {"a": expected}


def test_what_starts_under_another_name_is_out_of_service_under_the_one_before() -> None:
    """An earlier run left it drained: as many have to stay as before, and it does not help."""
    left = member("a-0", "m", "x", starts=True, in_service=False)
    found = capacities([left, *SOME[1:3]], None)
    assert found == {"a": Capacity(1, 1, 0, 1), "a (m)": Capacity(3, 2, 2)}


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("goes", [True, False])
def test_what_goes_and_no_load_balancer_has_counts_for_nothing(goes: bool, hosts: int) -> None:
    """A run that added the first load balancer died: what it replaces was never asked there."""
    keys = {"new": None if goes else "m", "in_service": False, "old_engine": "e" if hosts > 1 else ""}
    worker = member("a-2", balancers=None if hosts > 1 else frozenset(), **keys)
    found = capacities([behind("a-0", "lb"), behind("a-1", "", **keys), worker], None)
    assert found["a"] == (Capacity(1, 1, 0) if goes else Capacity(4 - hosts, 1, 3 - hosts))


def test_what_changes_take_and_give() -> None:
    gone, comes, out = member("a-1", "m", None), coming("b-0"), member("a-2", in_service=False)
    renamed = member("a-3", "m", "x")
    members = [member("a-0"), gone, comes, out, renamed]
    found = shifts(members)
    assert [found.losses([item]) for item in members] == [{"a": 1}, {"a": 1}, {}, {}, {"a": 1}]
    assert [found.gains([item]) for item in members] == [{"a": 1}, {}, {"a": 1}, {"a": 1}, {}]
    assert (found.losses(members), found.gains(members)) == ({"a": 3}, {"a": 3})


def test_an_engine_is_lost_and_gained_once() -> None:
    pair = [member(f"a-{at}", "m x", "m x", engine="e", old_engine="f") for at in (0, 1)]
    beside = member("b-0", "x", "x")
    half = [pair[0], member("a-1", "m x", "m x", engine="e", old_engine="f", in_service=False)]
    assert (shifts(half).losses(half[:1]), shifts(half).losses(half[1:])) == ({}, {})  # it did not serve
    rank = [pair[0], replace(pair[1], old=None, in_service=False)]  # without its container
    assert (shifts(rank).losses(rank), shifts(rank).losses(rank[1:])) == ({"a": 1}, {})
    found = shifts([*pair, beside])
    assert (found.losses(pair), found.gains(pair)) == ({"a": 1, "a and b": 1}, {"a": 1, "a and b": 1})
    assert found.losses([beside]) == {"a and b": 1}
