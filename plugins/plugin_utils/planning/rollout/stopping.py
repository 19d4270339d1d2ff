# SPDX-License-Identifier: Apache-2.0
"""Check commands that stop instances without replacing them: what stays in service, batch by batch. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ....module_utils.common.errors import Problem
from ....module_utils.service.minimum import WORD, Count, ServingEngine, SpareEngines, refusals, resolve_count
from ..changes.actions import PARTITION_KINDS
from ..desired.endpoint_settings import NOT_IN_RUN
from ..endpoint.servers import Instance
from ..plan.host_plan import FleetPlan
from .members import InstanceResources, RolloutInstance
from .policy import DEFAULT_SERIAL


@dataclass(frozen=True)
class HostStops:
    """Hosts whose instances stop, a batch of hosts at a time, and serve again before the next one.

    serial: hosts at a time. variable: the one that sets serial; "" if none does. balancers: load balancers that run, if
    these hosts themselves go down.
    """

    hosts: Sequence[str]
    serial: tuple[Count, ...] = DEFAULT_SERIAL
    variable: str = ""
    min_available: Count | None = None
    balancers: frozenset[str] = frozenset()
    limit_also: Sequence[str] = ()


def partitioned_hosts(plan: FleetPlan) -> tuple[str, ...]:
    """Return the hosts whose GPUs this plan changes, which stops every instance there."""
    return tuple(
        host.host.name for host in plan.hosts if any(a.kind in PARTITION_KINDS for a in host.actions)
    )


def undrained_problems(absent: Iterable[tuple[str, str]], word: str = "") -> Iterator[Problem]:
    """Yield why instances cannot be drained: --limit leaves out load balancers, which may still send requests to them.

    absent: load balancers without a state, and why. word: what an operator adds to stop the instances anyway.
    """
    for name, why in absent:
        if why == NOT_IN_RUN:
            what = f"instances cannot be drained from load balancer {name} before they change: {why}."
            fix = f"Run without --limit, or with {name} in it."
            lost = f" To stop them anyway, and lose the requests in progress: {word}." if word else ""
            yield Problem(("--limit",), what, fix + lost)


def known_engines(members: Iterable[RolloutInstance]) -> list[ServingEngine]:
    """Return the engines that this run knows; those that change are marked as taken."""
    groups: dict[str, list[RolloutInstance]] = {}
    for item in members:
        if item.exists:
            groups.setdefault(item.present_engine, []).append(item)
    return [
        ServingEngine(
            items[0].deployment,
            items[0].name,
            tuple(dict.fromkeys(item.host for item in items)),
            all(item.in_service and not item.kept_out for item in items),
            any(item.changes for item in items),
            items[0].old_models,
        )
        for items in groups.values()
    ]


NOWHERE = InstanceResources(frozenset(), frozenset())


def outside_members(plan: FleetPlan, engines: Mapping[Instance, str]) -> list[RolloutInstance]:
    """Return the instances of hosts outside this run, as far as the load balancers' files name them.

    engines: the engine of each server, for engines that span several hosts.

    They count as serving, since the load balancers themselves are queried before anything stops; but not on hosts that
    were not reached, or were left out.
    """
    here = {host.host.name for host in plan.hosts}
    lost = {name for name, _unused in (*plan.unreachable, *plan.excluded)}
    found: dict[Instance, RolloutInstance] = {}
    for balancer in plan.balancers:
        seen = balancer.host.observed
        for name, server in balancer.present.items():
            if server.host in here:
                continue
            drained = name in (seen.drained if seen else ())
            there = found.get(server.of)
            models = tuple(dict.fromkeys((*(there.models if there else ()), *server.models)))
            found[server.of] = RolloutInstance(
                host=server.host,
                name=server.instance,
                deployment=server.deployment,
                old=NOWHERE,
                new=NOWHERE if any(item.after for item in balancer.servers.get(server.of, ())) else None,
                old_engine=engines.get(server.of, ""),
                models=models,
                old_models=models,
                changes=False,
                in_service=(there is None or there.in_service) and not drained and server.host not in lost,
                drained=server.host in lost,
                balancers=frozenset({balancer.host.name, *((there.balancers if there else None) or ())}),
            )
    return list(found.values())


def stop_problems(engines: Sequence[ServingEngine], stops: HostStops) -> tuple[Problem, ...]:
    """Return why the instances of these hosts may not stop, batch by batch.

    An engine over several hosts is out of service from the first of its hosts to the last.
    """
    room, on = SpareEngines(engines, stops.min_available), dict[str, list[ServingEngine]]()
    for item in engines:
        if len(item.hosts) == 1:
            on.setdefault(item.hosts[0], []).append(item)
    everyone = set(stops.hosts)
    room.take([item for item in engines if len(item.hosts) > 1 and not everyone.isdisjoint(item.hosts)])

    def allowed(batch: Collection[str]) -> bool:
        return not _without_balancers(stops, batch) and room.fits(
            item for host in batch for item in on.get(host, ())
        )

    rest, sizes = list(stops.hosts), list(stops.serial)
    while rest:
        size = max(1, int(resolve_count(sizes[0], len(stops.hosts))))
        sizes = sizes[1:] or sizes
        batch, rest = rest[:size], rest[size:]
        problems = () if allowed(batch) else batch_problems(engines, stops, batch)
        if problems and stops.variable and all(allowed([one]) for one in batch):
            way = f"One host at a time can: -e {stops.variable}=1. To do it anyway: {WORD}."
            return tuple(replace(problem, fix=way) for problem in problems)
        if problems:
            return problems
    return ()


def batch_problems(
    engines: Iterable[ServingEngine], stops: HostStops, batch: Collection[str]
) -> tuple[Problem, ...]:
    """Return why the instances of these hosts may not stop at the same time."""
    everyone, some = set(stops.hosts), set(batch)
    taken = [
        replace(item, taken=not (everyone if len(item.hosts) > 1 else some).isdisjoint(item.hosts))
        for item in engines
    ]
    found = refusals(taken, stops.min_available, stops.limit_also, whole_hosts=True)
    if _without_balancers(stops, batch):
        names = ", ".join(sorted(stops.balancers))
        what = f"{names}: no other load balancer answers, so no client would be served meanwhile."
        fix = (
            "Start another one first (group load_balancer, site.yml), or take fewer at a time with a smaller --limit. "
            f"To do it anyway, with no client served meanwhile: {WORD}."
        )
        found = (*found, Problem((), what, fix))
    return found


def _without_balancers(stops: HostStops, batch: Collection[str]) -> bool:
    """Return whether no running load balancer would be left."""
    return bool(stops.balancers) and stops.balancers <= set(batch)
