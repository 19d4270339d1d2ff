# SPDX-License-Identifier: Apache-2.0
"""Desired minus observed: the ordered actions of every host. Pure; the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ....module_utils.common.errors import FleetError, Problem
from ....module_utils.service.generations import STOP, BackendInstance, OperationRequest
from ..desired.actions import ALIVE
from ..desired.exclusion import reason, set_aside, short_of_gpus, unlike_others
from ..desired.fleet import Fleet, Host
from ..endpoint.balancer_plan import BalancerPlan
from ..endpoint.plan import EndpointInputs, excluded_balancers, plan_balancers
from ..endpoint.servers import HostBackends, seen_servers
from ..fetching.air_gap import nowhere_stored
from ..fetching.builds import build_obstacles, build_transfers
from ..fetching.hub_limits import hub_load
from ..fetching.local_repositories import arriving_repositories, repository_obstacles, repository_transfers
from ..fetching.model_terms import judge_downloads
from ..fetching.pushes import plan_pushes
from ..fetching.transfers import by_host, plan_transfers
from ..generations.bindings import binding_warnings
from ..generations.holds import held_together, review_holds
from ..generations.revisions import revision_changes
from ..generations.sources import (
    NOT_REVIEWED,
    HoldReview,
    SourceSelection,
    ahead_of_time,
    choose_sources,
    mark_ignored,
)
from ..instances.factory import InstanceFactory
from ..instances.planned import RecordedInstance, Serving, running_member
from ..placement.layout import Layout, lay_out_fleet
from .host_plan import FleetPlan, HostPlan, host_backends
from .multi_host import engine_mismatches, peer_starts
from .shared_names import differences, mixed_models
from .stages import HostStages, check_host, plan_stages, record_stage

DEFAULT_REQUEST = OperationRequest()


@dataclass(frozen=True)
class CheckedFleet:
    """A fleet, where each of its deployments comes from in this run, and where their instances go.

    problems: of the layouts. now: when the run began (UTC), if that is known.
    """

    fleet: Fleet
    request: OperationRequest
    selection: SourceSelection
    layouts: Mapping[str, Layout]
    problems: tuple[Problem, ...] = ()
    now: str = ""

    @property
    def composed(self) -> Fleet:
        """The fleet with the deployments that are composed: what comes from records needs nothing of elsewhere."""
        return self.selection.fleet

    @property
    def candidates(self) -> Fleet:
        """The fleet with these and the held deployments, of which it is not known yet whether they are composed."""
        return self.selection.candidates


def check_fleet(
    fleet: Fleet,
    request: OperationRequest = DEFAULT_REQUEST,
    now: str = "",
    review: HoldReview = NOT_REVIEWED,
) -> CheckedFleet:
    """Lay out the instances on the hosts that can be planned; asks nothing of registries and hubs.

    review: of the holds. Raise FleetError for errors of the inventory and of the request, which no host can be left out
    for.
    """
    fleet = set_aside(fleet, request.operation)
    checked = _laid_out(fleet, request, now, review)
    unfit = {
        **{host.name: reason(check_host(host)) for host in checked.composed.hosts if check_host(host)},
        **unlike_others(checked.composed, checked.problems),
        **short_of_gpus(checked.composed, checked.problems),
    }
    if unfit:
        fleet = fleet.without(unfit)
        checked = _laid_out(fleet, request, now, review)
    _raise_problems(checked.problems, fleet)
    return checked


def _laid_out(fleet: Fleet, request: OperationRequest, now: str, review: HoldReview) -> CheckedFleet:
    if fleet.excluded and not fleet.hosts:  # each of them has its reason, which is all there is to say
        return CheckedFleet(fleet, request, SourceSelection(fleet, fleet, {}), {})
    try:
        selection = choose_sources(fleet, request, review, now)
    except FleetError as error:
        raise FleetError([*error.problems, *_excluded_hosts(fleet)]) from None
    layouts, problems = lay_out_fleet(selection.fleet)
    return CheckedFleet(fleet, request, selection, layouts, problems, now)


def foreign_model_names(
    fleet: Fleet, planned: Iterable[HostStages], endpoint: EndpointInputs
) -> dict[str, str]:
    """Return the hosts with a record that takes the model of another deployment, each with the reason.

    What a load balancer asks an instance for already was given to it by an earlier inventory. So was what it serves
    while its deployment and one that has the model are held together: the inventory's edit, which leaves the model to
    that one, was undone.
    """
    asked = {
        (server.of, model)
        for host in endpoint.hosts
        if host.observed
        for server in seen_servers(host.observed.config).values()
        for model in server.models
    }
    owners: dict[str, set[str]] = {}
    for deployment in {one.name: one for host in fleet.hosts for one in host.deployments}.values():
        for name in (deployment.served_model_name, *deployment.other_names):
            owners.setdefault(name, set()).add(deployment.name)
    known = set().union(*owners.values())
    claims: dict[str, dict[str, str]] = {}
    for stages in planned:
        for item in stages.serve.instances:
            # One that works for another server is never asked.
            made = (
                item.generation if isinstance(item, RecordedInstance) and not item.member.headless else None
            )
            if made is None or not made.endpoint:
                continue
            for model in made.models:
                others = owners.get(model, {made.deployment})
                known_to_ask = ((stages.host.name, item.name), model) in asked
                if made.deployment in others or known_to_ask:
                    continue
                if not any(held_together(fleet, made.deployment, other) for other in others):
                    claims.setdefault(made.deployment, {})[stages.host.name] = model
    return {
        host: f"by its record {name} serves the model {model}, which the inventory gives to another deployment. Delete "
        f"/etc/instinct-fleet/generations/{name} there, and run again."
        for name, found in claims.items()
        if name in known or len(found) == 1  # else it was renamed, and what runs has the old name
        for host, model in found.items()
    }


def _excluded_hosts(fleet: Fleet) -> Iterable[Problem]:
    """Yield the hosts that were left out: what a refused run lacks may be there."""
    for name, why in fleet.excluded:
        yield Problem((), f"is left out: {why}", "", (name,))


def plan_fleet(
    checked: CheckedFleet,
    factory: InstanceFactory,
    endpoint: EndpointInputs | None = None,
    again: Collection[str] | None = None,
) -> FleetPlan:
    """Plan every host.

    again: the hosts that are planned a second time in a run, which pass on among themselves what they lack now; the
    others go by the first plan. Models that were made on the fleet are planned alike both times, as they move later.

    A pin that the lock lacks is planned as written (the tag, the revision): that is for plans made without network;
    what is applied is resolved before. Hosts that lack what the plan needs of them are excluded, and the others planned
    without them. Raise FleetError with the problems of all hosts.
    """
    endpoint = endpoint.with_present_names(checked.fleet.hosts) if endpoint else None
    factory.use_starts(checked.fleet.hosts)
    review = review_holds(checked.fleet, checked.selection, factory)
    if review.released:  # they are composed after all
        checked = check_fleet(checked.fleet, checked.request, checked.now, review)
    request, selection = checked.request, mark_ignored(checked.selection, review)
    fleet = selection.fleet
    problems: list[Problem] = [*selection.problems, *checked.problems]
    arriving = arriving_repositories(fleet.hosts)
    planned = [
        plan_stages(
            host, checked.layouts[host.name], fleet.catalog, factory, selection, arriving.get(host.name, ())
        )
        for host in fleet.hosts
    ]
    found = [problem for stages in planned for problem in stages.problems]
    odd = unlike_others(fleet, found)
    problems += [problem for problem in found if not (problem.hosts and odd.keys() >= set(problem.hosts))]
    problems += engine_mismatches(planned)
    judged = judge_downloads(
        (item for stages in planned for item in stages.fetch.downloads),
        fleet.hosts,
        factory.lock,
        factory.knowledge.licenses,
    )
    problems += judged.problems
    if endpoint and endpoint.hosts:
        problems += mixed_models(
            checked.fleet, {one.name for host in fleet.hosts for one in host.deployments}
        )
    _raise_problems(problems, fleet)
    unable = {stages.host.name: reason(stages.obstacles) for stages in planned if stages.obstacles} | odd
    moving = [item for item in planned if again is None or item.host.name in again]
    lacking = [(item.host, item.fetch.images) for item in moving]
    beside = [item.host for item in moving]
    unable.update(
        {name: reason(found) for name, found in build_obstacles(lacking, beside, again is not None).items()}
    )
    unable.update({name: reason(found) for name, found in repository_obstacles(fleet.hosts).items()})
    unable.update(foreign_model_names(checked.fleet, planned, endpoint) if endpoint else {})
    if unable:
        return plan_fleet(
            check_fleet(checked.fleet.without(unable), request, checked.now), factory, endpoint, again
        )
    revisions = revision_changes(selection, [stages.composed for stages in planned])
    peers = peer_starts(planned)
    transfers, doubts = plan_transfers(
        [(item.host, item.fetch.images, item.fetch.models) for item in moving], beside
    )
    _raise_problems(
        nowhere_stored([(item.host, item.fetch.images, item.fetch.models) for item in moving], transfers),
        fleet,
    )
    transfers += build_transfers(lacking, beside) + repository_transfers(fleet.hosts)
    shared = by_host(transfers)
    pushes = plan_pushes(lacking, beside, factory.lock) if again is None else ()
    hosts = [
        stages.finish(
            peers[stages.host.name],
            record_stage(stages, revisions),
            shared.get(stages.host.name, ()),
            pushes,
        )
        for stages in planned
    ]
    warnings = [
        *judged.warnings,
        *doubts,
        *binding_warnings(revisions),
        *ahead_of_time(checked.fleet, checked.now),
    ]
    balancers: tuple[BalancerPlan, ...] = ()
    inventory = {host.name: host for host in checked.fleet.hosts}
    if endpoint:
        unknown = _unknown_hosts(endpoint, inventory.values())
        served = [
            _host_backends(host, inventory[host.host.name], host.host.name in unknown) for host in hosts
        ]
        balancers, wrong, doubts = plan_balancers(endpoint, served, _routing(fleet))
        _raise_problems(wrong, fleet)
        warnings += doubts if request.operation != STOP else ()  # which drains by itself, wherever they are
        warnings += differences(planned) if endpoint.hosts else ()
    passed_on = {(member.host.name, item.what) for item in transfers for member in item.receivers}
    load = hub_load(
        [
            [
                step
                for step in host.models
                if not step.offline and (host.host.name, step.called) not in passed_on
            ]
            for host in hosts
        ],
        factory.knowledge.hubs,
    )
    warnings += [load.warning] if load and load.warning else []
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
        transfers,
        judged.downloads,
        load.at_once if load else 0,
    )


def _raise_problems(problems: Iterable[Problem], fleet: Fleet) -> None:
    found = tuple(problems)
    if found:
        raise FleetError([*found, *_excluded_hosts(fleet)])


def _routing(fleet: Fleet) -> dict[str, bool]:
    """The deployments of this run, and whether they are routed by prefix."""
    return {item.name: item.routing == "prefix" for host in fleet.hosts for item in host.deployments}


def _unknown_hosts(endpoint: EndpointInputs, hosts: Iterable[Host]) -> set[str]:
    """Return the hosts of which some load balancer lacks an instance, or has it as one that is to come.

    The load balancer or the instance is new, or the instance comes again.
    """
    there = {
        (host.name, item.name)
        for host in hosts
        if host.state
        for item in host.state.instances
        if item.state in ALIVE
    }
    found: set[str] = set()
    for config in (host.observed.config for host in endpoint.hosts if host.observed):
        servers = [server for backend in config.get("backends") or () for server in backend["servers"]]
        known = {(server["host"], server["instance"]) for server in servers if not server.get("coming")}
        found |= {host for host, _name in there - known}
    return found


def _host_backends(plan: HostPlan, inventory: Host, with_present: bool) -> HostBackends:
    """What a host serves, for the load balancers. inventory: the host with all its deployments.

    with_present: also what runs at present, for a load balancer that does not know it yet; as well where something of
    it changes.
    """
    state = plan.host.state
    alive = {item.name for item in state.instances if item.state in ALIVE} if state else set()
    touched = dict.fromkeys((*plan.stop, *plan.remove, *plan.start))
    weights = {one.name: one.weight for one in inventory.deployments}
    wanted = state and (with_present or touched)
    running = [running_member(state, item) for item in state.instances] if state and wanted else ()

    def backend(item: Serving) -> BackendInstance:
        return replace(item.backend, weight=weights.get(item.deployment_name, 1))

    return replace(
        host_backends(plan, inventory),
        instances=tuple(map(backend, plan.instances)),
        stopping=tuple(name for name in touched if name in alive),
        untouched=plan.untouched,
        complete=not plan.partial,
        present=tuple(backend(item) for item in running if item),
    )
