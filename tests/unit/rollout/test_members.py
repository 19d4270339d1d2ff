# SPDX-License-Identifier: Apache-2.0
"""Which members of an engine are drained, and in which order members are taken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.members import (
    InstanceResources,
    RolloutInstance,
    as_drained,
    sorted_members,
)

HERE = InstanceResources(frozenset(), frozenset())
HEAD = RolloutInstance("n1", "a-0", "a", HERE, HERE, engine="e", old_engine="f")
WORKER = replace(HEAD, host="n2", headless=True)
ALONE = RolloutInstance("n1", "b-0", "b", HERE, HERE)


@pytest.mark.parametrize(
    ("drained", "expected"),
    [
        ((), ()),
        ((HEAD,), (HEAD, WORKER)),
        # No load balancer has it, so what is drained there is not of this engine.
        ((WORKER,), ()),
        ((HEAD, WORKER), (HEAD, WORKER)),
        ((ALONE,), (ALONE,)),
    ],
)
def test_who_works_for_a_drained_server_is_drained(
    drained: tuple[RolloutInstance, ...], expected: tuple[RolloutInstance, ...]
) -> None:
    members = (HEAD, WORKER, ALONE)
    found = as_drained([replace(item, drained=item in drained) for item in members])
    assert found == [replace(item, drained=item in expected) for item in members]


def test_members_are_in_the_order_of_hosts_and_names() -> None:
    places = [("n2", "a-0"), ("n10", "a-0"), ("n1", "a-10"), ("n1", "a-2")]
    found = sorted_members(replace(ALONE, host=host, name=name) for host, name in places)
    assert [item.id for item in found] == ["n1/a-2", "n1/a-10", "n2/a-0", "n10/a-0"]


def test_what_starts_first_is_known_by_what_it_will_work_with() -> None:
    assert (HEAD.present_engine, HEAD.wanted_engine) == ("f", "e")
    assert replace(HEAD, starts=True).present_engine == "e"
    assert (ALONE.present_engine, ALONE.wanted_engine) == ("n1/b-0", "n1/b-0")
