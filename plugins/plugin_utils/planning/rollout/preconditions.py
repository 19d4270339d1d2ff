# SPDX-License-Identifier: Apache-2.0
"""Find what prevents a rollout, or a stop of hosts, other than capacity in batches. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ....module_utils.common.errors import Problem
from ....module_utils.service.generations import DEPLOY, MEASUREMENTS, RESTART, ROLLBACK, STOP, UPGRADE
from ....module_utils.service.minimum import WORD, refusals
from ...base.text import plural
from ..desired.endpoint_settings import NOT_IN_RUN
from ..plan.host_plan import FleetPlan
from .batches import Rollout
from .host_rollout import HostRollout, host_members, spanning_engines
from .measurement import by_reason, shorten
from .members import RolloutInstance
from .policy import RolloutPolicy, RolloutRequest, parse_policy
from .stopping import (
    HostStops,
    known_engines,
    outside_members,
    partitioned_hosts,
    stop_problems,
    undrained_problems,
)


def refused_stops(
    plan: FleetPlan, values: Mapping[str, Any], stops: HostStops, blind: bool = False
) -> tuple[Problem, ...]:
    """Return why the instances of these hosts may not stop. blind: check only the load balancers."""
    policy, problems = parse_policy(values)
    revisions = {revision.deployment: revision for revision in plan.revisions}
    hosts = [HostRollout(host, revisions, plan.balancers) for host in plan.hosts]
    members = [member for host in hosts for member in host_members(host, RolloutRequest(RESTART), ())]
    members += outside_members(plan, spanning_engines(hosts))
    also = [balancer.host.name for balancer in plan.balancers]
    stops = replace(stops, min_available=policy.min_available, limit_also=also)
    return (*problems, *stop_problems([] if blind else known_engines(members), stops))


def undrained_hosts(
    plan: FleetPlan, names: Collection[str], absent: Iterable[tuple[str, str]]
) -> tuple[Problem, ...]:
    """Return why the instances of these hosts may not stop: --limit leaves out load balancers that may use them."""
    hosts = (HostRollout(host, {}, ()) for host in plan.hosts if host.host.name in names)
    routed = any(host.is_routed(name) for host in hosts for name in host.running)
    return tuple(undrained_problems(absent, WORD)) if routed else ()


def stop_refusals(
    plan: FleetPlan,
    wanted: RolloutRequest,
    hosts: Mapping[str, HostRollout],
    members: Collection[RolloutInstance],
    policy: RolloutPolicy,
) -> Iterable[Problem]:
    """Yield why instances may not stop: too few would be left, or load balancers would still send them requests."""
    if wanted.operation != STOP or wanted.at_once:
        return
    if not wanted.blind:
        also = [balancer.host.name for balancer in plan.balancers]
        yield from refusals(known_engines(members), policy.min_available, also)
    if any(hosts[item.host].is_routed(item.name) for item in members if item.changes):
        yield from undrained_problems(wanted.absent, WORD)


def rollout_refusals(
    plan: FleetPlan, wanted: RolloutRequest, rollout: Rollout, omitted: Mapping[str, str]
) -> Iterable[Problem]:
    """Yield what prevents a rollout, other than capacity. omitted: what a measurement leaves out, and why."""
    if rollout.batches and wanted.operation != STOP:
        yield from _balancer_refusals(plan, wanted)
    if wanted.operation == ROLLBACK and not wanted.deployment:
        names = ", ".join(revision.deployment for revision in plan.revisions)
        yield Problem(("deployment",), "is required.", f"-e deployment=NAME; there are: {names or 'none'}.")
    if wanted.operation in (UPGRADE, ROLLBACK):
        hosts = partitioned_hosts(plan)
        if hosts:
            what = "partition modes must change first, which stops every instance of a host."
            yield Problem(("gpu_partition_compute",), what, "Run partition.yml first.", hosts)
    if wanted.operation in (RESTART, STOP, *MEASUREMENTS) and not rollout.batches:
        there = sorted({running.deployment for host in plan.hosts if host.host.state for running in
                        host.host.state.instances})  # fmt: skip
        if omitted:
            text = "; ".join(f"{shorten(names)}: {reason}" for reason, names in by_reason(omitted).items())
            what = f"this run can measure no instance. {text}."
            yield Problem((), what, "status.yml shows what runs; site.yml starts what should run.")
        elif wanted.deployment or wanted.instance:
            meant = wanted.instance or wanted.deployment
            what = f"no instance of {meant} runs."
            yield Problem((), what, f"There are: {', '.join(there) or 'no instances'}.")
        elif wanted.operation in MEASUREMENTS:
            what = f"no instance runs on {plural(len(plan.hosts), 'host')} of this run, so there is nothing to measure."
            yield Problem((), what, "Deploy first: site.yml. status.yml shows the present state.")


def _balancer_refusals(plan: FleetPlan, wanted: RolloutRequest) -> Iterable[Problem]:
    """Yield why instances cannot be drained. One load balancer that answers suffices: the others serve nobody.

    One that --limit leaves out may still serve.
    """
    dead = [(name, why) for name, why in wanted.absent if why != NOT_IN_RUN]
    yield from undrained_problems(wanted.absent)
    # A deploy configures and starts the load balancers before its batches.
    idle = [
        item.host.name
        for item in plan.balancers
        if wanted.operation != DEPLOY and not (item.host.observed and item.host.observed.running)
    ]
    if len(idle) < len(plan.balancers):
        return
    if idle:
        what = "the load balancer is not running, so instances cannot be drained before they change."
        yield Problem((), what, "Run deploy.yml first.", tuple(idle))
    elif dead:
        what = f"no load balancer can be reached, so instances cannot be drained before they change: {_listed(dead)}."
        yield Problem((), what, "Bring one of them back, and run again: one is enough.")


def _listed(items: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {why.rstrip('.')}" for name, why in items)
