# SPDX-License-Identifier: Apache-2.0
"""What rollout_balancer's tests share with others."""

from __future__ import annotations

from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import OperationRequest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    BalancerHost,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.plan import (
    EndpointAssets,
    EndpointInputs,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests.worlds.balancer_world import ADDRESSES, DRAW, MATERIAL, applied, host
from tests.worlds.plan_world import LOCK, apply_to_state, deployment, fleet, state, workshop

States = dict[str, Any]
SEQS = {"engine_args": {"max_num_seqs": 64}}


def planned(
    states: States,
    wanted: Any,
    balancers: list[BalancerHost],
    request: OperationRequest | None = None,
    **keys: Any,
) -> FleetPlan:
    assets = EndpointAssets(DRAW, "agent\n", {item.name: MATERIAL for item in balancers})
    groups = {"load_balancer": [item.name for item in balancers]}
    there = fleet(states, wanted, groups=groups, own=ADDRESSES, **keys)
    endpoint = EndpointInputs(tuple(balancers), frozenset(states), assets)
    return plan_fleet(
        check_fleet(there, request or OperationRequest()), workshop(LOCK), endpoint if balancers else None
    )


def after(plan: FleetPlan, states: States) -> States:
    data = plan.to_json()["hosts"]
    return {name: apply_to_state(found, data[name]) for name, found in states.items()}


def served(wanted: Any, *lbs: str) -> tuple[States, list[BalancerHost]]:
    """Two hosts on which this runs, and load balancers that send requests to it."""
    bare = {name: state(hostname=name) for name in ("n1", "n2")}
    plan = planned(bare, wanted, [host(name=name) for name in lbs or ("lb",)])
    seen = [host(applied(item), name=item.host.name) for item in plan.balancers]
    return after(plan, bare), seen


PAIR = [deployment(gpus=[0, 1], instances_per_host=2)]

SPANNING = deployment(nodes=2, tensor_parallel_size=2, pipeline_parallel_size=2)
