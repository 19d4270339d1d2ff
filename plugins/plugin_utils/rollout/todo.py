# SPDX-License-Identifier: Apache-2.0
"""Hosts with something to do, each with its part of the plan, as playbooks take them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..endpoint.plan import BalancerPlan
from ..plan.host_plan import FleetPlan

if TYPE_CHECKING:
    from .plan import RolloutPlan


def restrict_to(plan: FleetPlan, hosts: Iterable[str]) -> FleetPlan:
    """Return the plan of some hosts; the others were reported before."""
    names = set(hosts)
    kept = tuple(item for item in plan.hosts if item.host.name in names)
    return replace(plan, hosts=kept, unreachable=())


def todo_hosts(
    plan: FleetPlan,
    balancers: Iterable[BalancerPlan],
    data: Mapping[str, Any],
    rollout: RolloutPlan | None = None,
) -> list[dict[str, Any]]:
    """Return hosts for add_host. Those that are planned again afterwards are in the group fleet_partial."""
    groups: dict[str, list[str]] = {}
    for host in plan.hosts:
        if host.actions:
            groups[host.host.name] = [f"todo_{role}" for role in host.todo]
            groups[host.host.name] += ["fleet_partial"] if host.partial else []
    for balancer in balancers:
        if balancer.actions:
            groups.setdefault(balancer.host.name, []).append("todo_load_balancer")
    for name in rollout.hosts if rollout else ():
        groups.setdefault(name, []).append("todo_rollout")
    found = []
    for name, names in groups.items():
        mine = dict(data["hosts"].get(name, {}))
        if rollout:
            mine["rollout"] = rollout.host(name)
            mine["bindings"] = [*(mine.get("bindings") or ()), *rollout.trials.get(name, ())]
        if name in data["balancers"]:
            mine["balancer"] = data["balancers"][name]
        found.append({"name": name, "groups": names, "plan": {**mine, **balancer_steps(balancers, name)}})
    return found


def balancer_steps(balancers: Iterable[BalancerPlan], host: str) -> dict[str, list[dict[str, Any]]]:
    """Return the servers of a host that leave each load balancer before it is touched (out), and come back (into)."""
    states = [(balancer.host.name, balancer.drain_steps(host)) for balancer in balancers]
    out = [{"balancer": name, "servers": item["drain"]} for name, item in states if item["drain"]]
    into = [{"balancer": name, "servers": item["undrain"]} for name, item in states if item["undrain"]]
    return {**({"out": out} if out else {}), **({"into": into} if into else {})}
