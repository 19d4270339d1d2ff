# SPDX-License-Identifier: Apache-2.0
"""Which hosts take the lease of a run: all that it changes, and all load balancers, before it begins."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.generations import (
    DEPLOY,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.rollout.todo import todo_hosts

from tests.worlds.plan_world import deployment
from tests.worlds.rollout_balancer_world import PAIR, SEQS, planned, served

CHANGED = [deployment(gpus=[0, 1], instances_per_host=2, **SEQS)]


@pytest.mark.parametrize(
    ("wanted", "held", "leased"),
    [
        (CHANGED, (), {"n1", "n2", "lb"}),
        (CHANGED, ("n9",), {"n1", "n2", "lb", "n9"}),  # of a run that is taken over
        (CHANGED, None, set()),  # a run that only looks
        (PAIR, (), set()),  # nothing to do
    ],
    ids=["it changes", "it takes over", "it looks", "nothing to do"],
)
def test_who_takes_the_lease(wanted: object, held: Collection[str] | None, leased: set[str]) -> None:
    states, balancers = served(PAIR)
    plan = planned(states, wanted, balancers, OperationRequest(DEPLOY))
    todo = todo_hosts(plan, plan.balancers, plan.to_json(), None, held)
    assert {item["name"] for item in todo if "todo_lease" in item["groups"]} == leased
