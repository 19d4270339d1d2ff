# SPDX-License-Identifier: Apache-2.0
"""Hosts with something to do, each with its part of the plan, as playbooks take them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....module_utils.service.generations import MEASUREMENTS
from ..endpoint.balancer_plan import BalancerPlan
from ..plan.host_plan import FleetPlan
from ..rollout.measurement import NewInstances, returned_running

if TYPE_CHECKING:
    from ..rollout.plan import RolloutPlan


def restrict_to(plan: FleetPlan, hosts: Iterable[str]) -> FleetPlan:
    """Return the plan of some hosts; the others were reported before."""
    names = set(hosts)
    kept = tuple(item for item in plan.hosts if item.host.name in names)
    excluded = tuple(item for item in plan.excluded if item[0] in names)
    return replace(plan, hosts=kept, unreachable=(), excluded=excluded)


def todo_hosts(
    plan: FleetPlan,
    balancers: Iterable[BalancerPlan],
    data: Mapping[str, Any],
    rollout: RolloutPlan | None = None,
    held: Collection[str] | None = None,
    new: NewInstances | None = None,
) -> list[dict[str, Any]]:
    """Return hosts for add_host, each with its groups and its part of the plan (`data`).

    held: hosts whose lease another run has, of a run that changes hosts; None of one that does not. new: what the run
    measures of what it starts.
    """
    balancers = tuple(balancers)
    groups = _groups(plan, balancers, rollout, new)
    if groups and held is not None:
        # A run that changes anything takes all leases before it begins: of what it changes, and of all load balancers.
        for name in (*list(groups), *held, *data["balancers"]):
            if "todo_lease" not in groups.setdefault(name, []):
                groups[name].append("todo_lease")
    for name in _holding(plan):
        groups.setdefault(name, []).append("fleet_held")
    for name, _unused in plan.excluded:
        groups.setdefault(name, []).append("fleet_excluded")
    parts = _parts(groups, plan, balancers, data, rollout, new)
    return [{"name": name, "groups": groups[name], "plan": part} for name, part in parts.items()]


def _groups(
    plan: FleetPlan,
    balancers: Sequence[BalancerPlan],
    rollout: RolloutPlan | None,
    new: NewInstances | None,
) -> dict[str, list[str]]:
    """Return the groups of each host that has something to do.

    Those that build images, or give or get one that was built, are in the group fleet_builds, and in fleet_pushed if
    one is pushed, after which they are planned again; those that are planned again afterwards in fleet_partial.
    """
    groups: dict[str, list[str]] = {}
    pushes = any(host.pushes for host in plan.hosts)
    for host in plan.hosts:
        if host.actions:
            groups[host.host.name] = [f"todo_{role}" for role in host.todo]
            groups[host.host.name] += ["fleet_builds"] if host.passes_builds else []
            groups[host.host.name] += ["fleet_pushed"] if host.passes_builds and pushes else []
            groups[host.host.name] += ["fleet_partial"] if host.partial or host.builds else []
    batches = bool(_batched(rollout))
    for balancer in balancers:
        # Load balancers of a rollout are contacted at the end too, so that one that died meanwhile is named separately.
        if balancer.actions or batches:
            groups.setdefault(balancer.host.name, []).append("todo_load_balancer")
    for name in rollout.hosts if rollout else ():
        groups.setdefault(name, []).append("todo_rollout")
    for item in plan.former:
        if item.phase:
            groups.setdefault(item.host, []).append("todo_former_balancer")
    for name in new.measured if new else ():
        if name in groups:  # else its host belongs to the first plan of this run, and was not planned again
            groups[name].append("todo_benchmark")
    return groups


def _parts(
    hosts: Iterable[str],
    plan: FleetPlan,
    balancers: Sequence[BalancerPlan],
    data: Mapping[str, Any],
    rollout: RolloutPlan | None,
    new: NewInstances | None,
) -> dict[str, dict[str, Any]]:
    """Return each host's part of the plan, as playbooks take it."""
    former = {item.host: item.phase for item in plan.former if item.phase}
    measured = new.measured if new else {}
    returned = _returned(plan, balancers, rollout)
    found = {}
    for name in hosts:
        mine = dict(data["hosts"].get(name, {}))
        if rollout:
            if mine:
                mine |= _unbatched(rollout.batched(name), mine)
            mine["rollout"] = rollout.host(name)
            mine["bindings"] = [*(mine.get("bindings") or ()), *rollout.trials.get(name, ())]
        if name in former:
            mine["former_balancer"] = former[name]
        if name in measured:
            mine["measure"] = [item for item in mine["instances"] if item["name"] in measured[name]]
        if name in data["balancers"]:
            mine["balancer"] = {**data["balancers"][name], **returned[name]}
        mine |= balancer_steps(balancers, name, rollout)
        if mine.get("partition"):
            # Engines over several hosts start after all of these, and return to service with the others.
            spans = {*mine.get("spans", ()), *(rollout.batched(name) if rollout else ())}
            mine["partition"] = {**mine["partition"], "into": _moving(balancers, name, spans, "undrain")}
        found[name] = mine
    return found


def _batched(rollout: RolloutPlan | None) -> set[str]:
    """Return "host.instance" of all that changes in batches."""
    return (
        {f"{host}.{name}" for host in rollout.hosts for name in rollout.batched(host)} if rollout else set()
    )


def _returned(
    plan: FleetPlan, balancers: Iterable[BalancerPlan], rollout: RolloutPlan | None
) -> dict[str, dict[str, Any]]:
    """Return what each load balancer does before the batches: servers that come back, and whether it is configured."""
    batched = _batched(rollout)
    measures = rollout is not None and rollout.operation in MEASUREMENTS
    return {
        item.host.name: {
            "undrain_first": returned_running(plan, item) if measures else item.returned_first(batched),
            "first": item.configured_first(batched),
        }
        for item in balancers
    }


def _holding(plan: FleetPlan) -> list[str]:
    """Return the hosts that keep a deployment of which the inventory's definition is left out."""
    names = {revision.deployment for revision in plan.revisions if revision.source.ignored}
    return [
        host.host.name
        for host in plan.hosts
        if names and host.host.state and any(one.deployment in names for one in host.host.state.generations)
    ]


def balancer_steps(
    balancers: Iterable[BalancerPlan], host: str, rollout: RolloutPlan | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return the servers of a host that leave each load balancer before it is touched (out), and come back (into).

    Those of instances that change in batches leave with their batch.
    """
    batched = set(rollout.batched(host)) if rollout else set()
    found = {
        key: _moving(balancers, host, batched, step) for key, step in (("out", "drain"), ("into", "undrain"))
    }
    return {key: servers for key, servers in found.items() if servers}


def _moving(
    balancers: Iterable[BalancerPlan], host: str, without: Collection[str], step: str
) -> list[dict[str, Any]]:
    """Return the servers of a host to drain or undrain in each load balancer that has some.

    without: names of instances whose servers are left out.
    """
    states = ((balancer.host.name, balancer.drain_steps(host, without)[step]) for balancer in balancers)
    return [{"balancer": name, "servers": servers} for name, servers in states if servers]


def _unbatched(batched: Iterable[str], part: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what a host starts and removes at once: all but what changes in batches."""
    left = set(batched)
    return {key: [name for name in part[key] if name not in left] for key in ("serve", "spans", "remove")}
