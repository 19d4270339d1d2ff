# SPDX-License-Identifier: Apache-2.0
"""Choose the instances that a measurement takes out of service, and the new ones that a deploy measures. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...base.text import plural
from ..desired.actions import ALIVE
from ..endpoint.balancer_plan import BalancerPlan, instance_of
from ..explanation.text import titled_paragraph
from ..instances.planned import RecordedInstance, Serving
from ..observed.node_state import ObservedInstance
from ..plan.host_plan import FleetPlan
from .members import RolloutInstance

SERVES = "already served"
ENTERED = "in a load balancer as soon as it serves"
SHOWN = 8  # how many instances are named one by one


# ---- a measurement of what runs ----------------------------------------------------------------------


def why_unmeasured(
    found: ObservedInstance | None, known: RecordedInstance | None, stopped: bool, offline: bool
) -> str:
    """Return why a measurement leaves an instance out; "" if it measures it.

    stopped: an interrupted measurement stopped it, so this one starts it again. offline: it loads models itself.
    """
    if found is None or (found.state not in ALIVE and not stopped):
        return "is not running"
    if known is None:
        return "was not started by the toolkit, or its record is gone"
    if offline and len(known.member.hosts) > 1:
        return "spans several hosts, and an offline benchmark runs on one"
    return ""


def with_head(members: Iterable[RolloutInstance]) -> tuple[RolloutInstance, ...]:
    """Return the members; an engine whose server at rank 0 is not measured does not change."""
    there = tuple(members)
    heads = {item.old_engine for item in there if item.changes and not item.headless}
    return tuple(
        replace(item, changes=item.changes and (not item.headless or item.old_engine in heads))
        for item in there
    )


def was_interrupted(host: str, name: str, operation: str, balancers: Iterable[BalancerPlan]) -> bool:
    """Return whether an earlier run of this operation left an instance out of a load balancer."""
    return any(
        _operation_of(command) == operation
        for balancer in balancers
        for command in balancer.left_by.get((host, name), ())
    )


def returned_running(plan: FleetPlan, balancer: BalancerPlan) -> list[str]:
    """Return the servers that an interrupted run left drained and whose instances run: they serve first."""
    alive = {
        f"{host.host.name}.{item.name}"
        for host in plan.hosts
        if host.host.state
        for item in host.host.state.instances
        if item.state in ALIVE
    }
    return [server for server in balancer.left if instance_of(server) in alive]


def _operation_of(command: str) -> str:
    """Return the operation of a run: benchmark.yml, or instinct.fleet.benchmark of the collection."""
    return command.partition(" ")[0].removesuffix(".yml").rpartition(".")[2]


# ---- what a deploy measures --------------------------------------------------------------------------


@dataclass(frozen=True)
class NewInstances:
    """The instances that a deploy measures, by host, and the reason why it does not measure each of the others."""

    measured: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)


def new_instances(
    plan: FleetPlan, absent: Sequence[tuple[str, str]] = (), batched: Collection[str] = ()
) -> NewInstances:
    """Return the instances that a deploy can measure before a load balancer sends requests to them, and the others.

    absent: load balancers of the fleet that this run cannot query, and why. batched: "host.instance" that change in
    batches. Without a load balancer, clients may reach what served before, so only what this run starts is measured.
    """
    entered = [_entered(balancer, batched) for balancer in plan.balancers]
    measured: dict[str, tuple[str, ...]] = {}
    others: dict[str, str] = {}
    for host in plan.hosts:
        names = []
        for item in host.instances:
            if item.member.headless:
                continue
            name = f"{host.host.name}.{item.name}"
            reason = SERVES if item.name not in host.start else _why_not(item, name, entered, absent)
            if reason:
                others[f"{host.host.name}/{item.name}"] = reason
            else:
                names.append(item.name)
        if names:
            measured[host.host.name] = tuple(names)
    return NewInstances(measured, others)


def _why_not(
    item: Serving, name: str, entered: Iterable[Collection[str]], absent: Sequence[tuple[str, str]]
) -> str:
    if not item.backend.endpoint:
        return ""
    if absent:
        return f"perhaps in load balancer {absent[0][0]}, which this run cannot query"
    return ENTERED if any(name in names for names in entered) else ""


def _entered(balancer: BalancerPlan, batched: Collection[str]) -> frozenset[str]:
    """Return the instances that a load balancer uses as soon as they serve, before a deploy measures them.

    These are in its present configuration, unless the operator drained them; and in the new one, if that is written
    before instances change (parts/load_balancer.yml).
    """
    first = balancer.configured_first(batched)
    there = {
        instance for instance, some in balancer.servers.items() if first or any(item.before for item in some)
    }
    return frozenset(f"{host}.{name}" for host, name in there - balancer.drained_by_operator)


def explain_new(found: NewInstances) -> list[str]:
    """Return the lines of a deploy's plan about what it measures."""
    lines = []
    if found.measured:
        names = [f"{host} {name}" for host, some in found.measured.items() for name in some]
        lines += ["", *titled_paragraph("measures", f"{shorten(names)}, before a load balancer uses them")]
    text = "; ".join(f"{shorten(names)}: {reason}" for reason, names in by_reason(found.others).items())
    if text:
        way = "benchmark.yml measures all of them out of service, a few at a time"
        lines += [*([] if lines else [""]), *titled_paragraph("leaves out", f"{text}. {way}")]
    return lines


def by_reason(omitted: Mapping[str, str]) -> dict[str, list[str]]:
    """Return instances by the reason for which they are left out."""
    reasons: dict[str, list[str]] = {}
    for name, reason in omitted.items():
        reasons.setdefault(reason, []).append(name)
    return reasons


def shorten(names: Sequence[str]) -> str:
    """Return the names of instances, and how many there are beyond SHOWN."""
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[: SHOWN - 1])} and {plural(len(names) - SHOWN + 1, 'other')}"
