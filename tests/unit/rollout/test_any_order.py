# SPDX-License-Identifier: Apache-2.0
"""Random fleets whose instances change: batches are found exactly where any order leaves enough in service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.batches import (
    CanaryProgress,
    plan_rollout,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.capacity import capacities
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.groups import change_groups
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.members import (
    InstanceResources,
    RolloutInstance,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.policy import RolloutPolicy
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.schedule import Room
from hypothesis import event, given, settings
from hypothesis import strategies as st

STATES = ("serves", "serves", "serves", "left", "broken", "drained", "comes", "stays")


@st.composite
def fleets(draw: Any) -> list[RolloutInstance]:
    """One to three hosts with instances of up to three deployments, which exchange GPUs and share model names."""
    names = {name: draw(st.sampled_from(("chat", name))) for name in "abc"}
    members = []
    for host in draw(st.sampled_from((("n1",), ("n1", "n2"), ("n1", "n2", "n3")))):
        there = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=5))
        after = draw(st.permutations(range(len(there)))) if draw(st.booleans()) else range(len(there))
        for at, deployment in enumerate(there):
            members.append(
                _instance(host, at, after[at], deployment, names[deployment], draw(st.sampled_from(STATES)))
            )
    return members


def _instance(host: str, at: int, after: int, deployment: str, model: str, state: str) -> RolloutInstance:
    old, new = _place(at), _place(at if state == "stays" else after)
    item = RolloutInstance(
        host, f"{deployment}-{at}", deployment, old, new, models=(model,), old_models=(model,)
    )
    if state == "comes":
        return replace(item, old=None, old_models=(), in_service=False)
    return replace(
        item, changes=state != "stays" or after != at, in_service=state in ("serves", "stays"),
        left=state == "left", drained=state == "drained",
    )  # fmt: skip


def _place(index: int) -> InstanceResources:
    return InstanceResources(frozenset((8000 + index,)), frozenset((f"renderD{128 + index}",)))


def possible(members: list[RolloutInstance], policy: RolloutPolicy) -> bool:
    """Return whether all can change, one group after the other. Whatever changes returns, so any order will do."""
    room, rest = Room(capacities(members, policy.min_available)), list(change_groups(members))
    while rest:
        keys = {group.key for group in rest}
        able = [group for group in rest if group.after.isdisjoint(keys) and room.fits([group])]
        if not able:
            return False
        room.change(able[:1])
        rest.remove(able[0])
    return True


@settings(max_examples=100)
@given(fleets(), st.sampled_from((None, 0, 1, 2, "50%", "100%")), st.booleans(), st.data())
def test_batches_are_found_where_there_are_any(
    members: list[RolloutInstance], least: int | str | None, canary: bool, data: Any
) -> None:
    policy = RolloutPolicy(min_available=least, canary=canary)
    begun = data.draw(st.sampled_from(("", *(item.id for item in members))))
    trials = {"a": CanaryProgress(begun, data.draw(st.booleans()))} if begun else {}
    _rollout, problems = plan_rollout(members, policy, trials)
    event(f"possible: {not problems}")
    assert (not problems) == possible(members, policy), problems
