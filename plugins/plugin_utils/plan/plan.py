# SPDX-License-Identifier: Apache-2.0
"""Desired minus observed: the ordered actions of every host. Pure; the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...module_utils.common.errors import FleetError, Problem
from ...module_utils.common.generations import STOP, OperationRequest
from ..desired.actions import ALIVE
from ..desired.exclusion import set_aside, short_of_gpus
from ..desired.fleet import Fleet
from ..endpoint.backends import HostBackends
from ..endpoint.plan import BalancerPlan, EndpointInputs, excluded_balancers, plan_balancers
from ..generations.restore import releasable_holds
from ..generations.revisions import binding_warnings, refused_upgrades, revision_changes
from ..generations.sources import SourceSelection, choose_sources
from ..instances.factory import InstanceFactory
from ..placement.layout import Layout, lay_out_fleet
from .host_plan import FleetPlan, HostPlan
from .multi_host import engine_mismatches, peer_starts
from .stages import check_host, plan_stages, record_stage

DEFAULT_REQUEST = OperationRequest()


@dataclass(frozen=True)
class CheckedFleet:
    """A fleet, where each of its deployments comes from in this run, and where their instances go.

    problems: of the layouts.
    """

    fleet: Fleet
    request: OperationRequest
    selection: SourceSelection
    layouts: Mapping[str, Layout]
    problems: tuple[Problem, ...] = ()

    @property
    def composed(self) -> Fleet:
        """The fleet with the deployments that are composed: what comes from records needs nothing of elsewhere."""
        return self.selection.fleet


def check_fleet(fleet: Fleet, request: OperationRequest = DEFAULT_REQUEST) -> CheckedFleet:
    """Lay out the instances on the hosts that can be planned; asks nothing of registries and hubs.

    Raise FleetError for errors of the inventory and of the request, which no host can be left out for.
    """
    fleet = set_aside(fleet, request.operation)
    checked = _laid_out(fleet, request)
    short = short_of_gpus(checked.composed, checked.problems)
    if short:
        fleet = fleet.without(short)
        checked = _laid_out(fleet, request)
    problems = [*checked.problems, *(item for host in checked.composed.hosts for item in check_host(host))]
    _raise_problems(problems, fleet)
    return checked


def _laid_out(fleet: Fleet, request: OperationRequest, free: Iterable[str] = ()) -> CheckedFleet:
    if fleet.excluded and not fleet.hosts:  # each of them has its reason, which is all there is to say
        return CheckedFleet(fleet, request, SourceSelection(fleet, {}), {})
    try:
        selection = choose_sources(fleet, request, free)
    except FleetError as error:
        raise FleetError([*error.problems, *_excluded_hosts(fleet)]) from None
    return CheckedFleet(fleet, request, selection, *lay_out_fleet(selection.fleet))


def _excluded_hosts(fleet: Fleet) -> Iterable[Problem]:
    """Yield the hosts that were left out: what a refused run lacks may be there."""
    for name, why in fleet.excluded:
        yield Problem((), f"is left out: {why}", "", (name,))


def plan_fleet(
    checked: CheckedFleet, factory: InstanceFactory, endpoint: EndpointInputs | None = None
) -> FleetPlan:
    """Plan every host.

    A pin that the lock lacks is planned as written (the tag, the revision): that is for plans made without network;
    what is applied is resolved before. Hosts that lack what the plan needs of them are excluded, and the others planned
    without them. Raise FleetError with the problems of all hosts.
    """
    free = releasable_holds(checked.fleet, checked.selection, factory)
    if free:  # they are composed after all
        checked = _laid_out(checked.fleet, checked.request, free)
    request, selection = checked.request, checked.selection
    fleet = selection.fleet
    problems: list[Problem] = [*selection.problems, *checked.problems]
    planned = [
        plan_stages(host, checked.layouts[host.name], fleet.catalog, factory, selection)
        for host in fleet.hosts
    ]
    problems += [problem for stages in planned for problem in stages.problems]
    problems += engine_mismatches(planned)
    _raise_problems(problems, fleet)
    unable = {stages.host.name: _text(stages.obstacles) for stages in planned if stages.obstacles}
    if unable:
        return plan_fleet(check_fleet(checked.fleet.without(unable), request), factory, endpoint)
    revisions = revision_changes(selection, [stages.composed for stages in planned])
    _raise_problems(refused_upgrades(revisions, request), fleet)
    peers = peer_starts(planned)
    hosts = [
        stages.finish(peers[stages.host.name], record_stage(stages, revisions, request)) for stages in planned
    ]
    warnings = list(binding_warnings(revisions))
    balancers: tuple[BalancerPlan, ...] = ()
    if endpoint:
        balancers, found, doubts = plan_balancers(
            endpoint, [_host_backends(host) for host in hosts], _routing(fleet)
        )
        _raise_problems(found, fleet)
        warnings += doubts if request.operation != STOP else ()  # which drains by itself, wherever they are
    if not any(host.instances or host.host.deployments for host in hosts) and fleet.hosts:
        warnings.append("no host has a deployment: nothing will be served")
    return FleetPlan(
        tuple(hosts),
        fleet.unreachable,
        tuple(warnings),
        factory.cited_sources,
        balancers,
        revisions,
        (*fleet.excluded, *excluded_balancers(endpoint)),
    )


def _raise_problems(problems: Iterable[Problem], fleet: Fleet) -> None:
    found = tuple(problems)
    if found:
        raise FleetError([*found, *_excluded_hosts(fleet)])


def _text(problems: Iterable[Problem]) -> str:
    return " ".join(f"{problem.what} {problem.fix}".strip() for problem in problems)


def _routing(fleet: Fleet) -> dict[str, bool]:
    """The deployments of this run, and whether they are routed by prefix."""
    return {item.name: item.routing == "prefix" for host in fleet.hosts for item in host.deployments}


def _host_backends(plan: HostPlan) -> HostBackends:
    """What a host serves, for the load balancer."""
    state = plan.host.state
    alive = {item.name for item in state.instances if item.state in ALIVE} if state else set()
    touched = dict.fromkeys((*plan.stop, *plan.remove, *plan.start))
    return HostBackends(
        host=plan.host.name,
        address=plan.host.address or plan.host.name,
        instances=tuple(item.backend for item in plan.instances),
        stopping=tuple(name for name in touched if name in alive),
        untouched=plan.untouched,
        complete=not plan.partial,
    )
