# SPDX-License-Identifier: Apache-2.0
"""Refuse a run that would leave too few in service because hosts left the inventory. Pure.

A deployment that gets fewer instances says so itself. A host that is missing takes the instances of all deployments
with it, and may be missing by mistake: so the minimum counts what serves now, not what is left in the inventory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ....module_utils.common.errors import Problem, natural
from ....module_utils.service.minimum import DEFAULT_MIN_AVAILABLE, WORD, Count, resolve_count
from ...base.text import join_names
from ..endpoint.backends import names_of
from ..endpoint.balancer_plan import BalancerPlan
from ..endpoint.servers import BackendServer, Instance
from ..plan.host_plan import FleetPlan


@dataclass(frozen=True)
class _Share:
    """The engines of a model name at a load balancer: all, those in service, those that are left, and who leaves."""

    label: str
    total: int
    serving: int
    left: int
    hosts: tuple[str, ...]


def leaving_problems(plan: FleetPlan, min_available: Count | None) -> tuple[Problem, ...]:
    """Return why hosts may not leave: the model names of which too few engines would be left in service."""
    given = DEFAULT_MIN_AVAILABLE if min_available is None else min_available
    found: dict[str, Problem] = {}
    for balancer in plan.balancers:
        for share in _shares(balancer, {name for name, _unused in (*plan.unreachable, *plan.excluded)}):
            kept = min(math.ceil(resolve_count(given, share.total)), share.total)
            if share.left < kept and share.left < share.serving:
                found.setdefault(share.label, _problem(share, kept, given))
    return tuple(found[label] for label in sorted(found, key=natural))


def _problem(share: _Share, kept: int, given: Count) -> Problem:
    hosts = join_names(share.hosts)
    what = (
        f"{share.label}: {share.serving} of {share.total} serve; without {hosts}, which left the inventory, "
        f"{share.left} would be left, and {kept} must stay in service (rollout_min_available: {given})."
    )
    fix = (
        f"Put {hosts} back into the group instinct, or have other hosts serve it first. To accept less capacity: "
        f"-e rollout_min_available={share.left}. To change everything at once, with 503 for clients meanwhile: {WORD}."
    )
    return Problem((), what, fix)


def _shares(balancer: BalancerPlan, lost: set[str]) -> Iterator[_Share]:
    """Yield the engines of each model name for which servers of leaving hosts are in service.

    lost: hosts that do not answer, which do not count; nor does what an interrupted run was to start.
    A name that ends although its deployment stays was removed by an edit of the deployment.
    """
    observed = balancer.host.observed
    if observed is None or not observed.running:
        return
    seen = {name: server for name, server in balancer.present.items() if not server.coming}
    gone = {server.of for name, server in names_of(balancer.during).items() if name in balancer.gone}
    serving = {
        name: server
        for name, server in seen.items()
        if name not in observed.drained and server.host not in lost
    }
    theirs = balancer.drained_by_operator
    after = [
        server
        for server in names_of(balancer.backends).values()
        if server.host not in lost and server.of not in theirs
    ]
    stay = {server.deployment for server in after}
    gone -= {server.of for server in after}
    for model in dict.fromkeys(model for server in serving.values() for model in server.models):
        now = _engines(serving.values(), model)
        leaving = [server for server in now.values() if server.of in gone]
        left = _engines(after, model)
        if leaving and (left or not {server.deployment for server in leaving} & stay):
            names = " and ".join(sorted({server.deployment for server in now.values()}, key=natural))
            hosts = tuple(sorted({server.host for server in leaving}, key=natural))
            total = len(_engines(seen.values(), model))
            yield _Share(f"{names} ({model})", total, len(now), len(left), hosts)


def _engines(servers: Iterable[BackendServer], model: str) -> dict[Instance, BackendServer]:
    return {server.of: server for server in servers if model in server.models}
