# SPDX-License-Identifier: Apache-2.0
"""What must hold between any two steps of a run, and what a step needs. Pure.

1. For every model name that clients may ask before and after the run, each load balancer keeps the minimum in service.
2. No step needs anything that no earlier step has made.
3. Nothing that a load balancer sends requests to is stopped or loaded; no GPU or port is used twice.
4. The run ends with what the inventory asks for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ....module_utils.service.minimum import DEFAULT_MIN_AVAILABLE, Count, resolve_count
from ..endpoint.servers import BackendServer, Instance
from .model import Asked, FleetModel, Running

CAPACITY, NEEDS, IN_USE, TAKEN, END = "capacity", "needs", "in use", "taken", "end"


@dataclass(frozen=True)
class Violation:
    """A rule that a step breaks.

    step: what the run does then. changing: the instances that change in it, as (host, name).
    """

    rule: str
    step: str
    what: str
    hosts: tuple[str, ...] = ()
    changing: tuple[Instance, ...] = ()


@dataclass(frozen=True)
class Requirement:
    """What a load balancer keeps in service of a model name: engines at first, and at least."""

    deployments: tuple[str, ...]
    total: int
    first: int
    least: int
    last: int


def requirements(
    model: FleetModel,
    afterwards: Mapping[str, Iterable[BackendServer]],
    min_available: Count | None,
    lost: Collection[str] = (),
) -> dict[Asked, Requirement]:
    """Return what must stay in service, for each name that a load balancer is asked for before and after the run.

    afterwards: the servers of each load balancer after the run, on hosts that answer. By default a single engine need
    not stay. lost: hosts that do not answer, of which it is not known what runs.
    """
    found = {}
    for balancer in model.balancers.values():
        if balancer.absent or not balancer.exists or balancer.name not in afterwards:
            continue
        before = _engines(
            server
            for server in balancer.servers.values()
            if server.host in lost or set(server.models) & set(_models_of(model, balancer.name, server))
        )
        after = _engines(one for one in afterwards[balancer.name] if one.of not in balancer.by_operator)
        for name, engines in before.items():
            if name not in after:
                continue
            total, first = len(engines), model.counts.get((balancer.name, name), 0)
            kept = math.ceil(
                resolve_count(DEFAULT_MIN_AVAILABLE if min_available is None else min_available, total)
            )
            least = 0 if min_available is None and total == 1 else min(kept, total, first, len(after[name]))
            found[balancer.name, name] = Requirement(
                tuple(dict.fromkeys(engines.values())), total, first, least, len(after[name])
            )
    return found


def _models_of(model: FleetModel, balancer: str, server: BackendServer) -> tuple[str, ...]:
    """Return the names that the instance of a server answers to; the server's if no record has the instance.

    There are none for a server whose instance has yet to get its address: it listens elsewhere, or works for another.
    """
    item = model.instances.get(server.of)
    if item is None:
        return ()
    unknown = item.port is None and not item.models
    there = item.port == server.port and model.hears(item, balancer, server)
    return (item.models or server.models) if unknown or there else ()


def _engines(servers: Iterable[BackendServer]) -> dict[str, dict[tuple[str, str], str]]:
    """Return the deployments of the engines that are asked for each name."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for server in servers:
        for name in server.models:
            found.setdefault(name, {})[server.of] = server.deployment
    return found


def resource_conflicts(there: Iterable[Running], item: Running) -> list[str]:
    """Return what an instance that starts on a host would use that others there use."""
    found = []
    shares: dict[str, float] = {}
    users: dict[str, list[str]] = {}
    for other in there:
        if other.of == item.of:
            continue
        ports = sorted(other.ports & item.ports)
        found += [f"port {port}, on which {other.name} listens" for port in ports]
        for gpu in other.gpus & item.gpus:
            shares[gpu] = shares.get(gpu, 0.0) + other.share
            users.setdefault(gpu, []).append(other.name)
    found += [
        f"GPU {gpu}, which {', '.join(users[gpu])} uses"
        for gpu, share in sorted(shares.items())
        if share + item.share > 1 + 1e-9
    ]
    return found
