# SPDX-License-Identifier: Apache-2.0
"""The passes that plan a fleet, from checked hosts to the finished plan: desired minus observed. Pure.

Each is a function from one state to the next, which knows more; `planning/pipeline.py` lists them in their order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ....module_utils.common.errors import Problem
from ....module_utils.service.generations import STOP
from ...base.passes import extend
from ..changes.actions import ImageStep
from ..changes.downloads import JudgedDownloads
from ..desired.exclusion import host_specific_reasons, joined_text
from ..desired.fleet import Fleet, Host
from ..endpoint.balancer_plan import BalancerPlan
from ..endpoint.plan import EndpointInputs, excluded_balancers, plan_balancers
from ..fetching.air_gap import air_gap_problems
from ..fetching.builds import build_obstacles, build_transfers
from ..fetching.hub_limits import HubLoad, hub_load
from ..fetching.local_repositories import arriving_repositories, repository_obstacles, repository_transfers
from ..fetching.model_terms import judge_downloads
from ..fetching.pushes import Push, plan_pushes
from ..fetching.transfers import Transfer, plan_transfers, transfers_by_host
from ..generations.bindings import binding_warnings
from ..generations.holds import review_holds
from ..generations.revisions import RevisionChange, revision_changes
from ..generations.sources import SourceSelection, clock_warnings, mark_ignored
from ..instances.factory import InstanceFactory
from .check import CheckedFleet, check_fleet, raise_problems
from .foreign_models import foreign_model_names
from .host_plan import FleetPlan, HostPlan
from .multi_host import engine_mismatches, peer_starts
from .served import hosts_unknown_to_balancers, routing, served_backends
from .shared_names import differences, mixed_models
from .stages import HostStages, plan_stages, record_stage


@dataclass(frozen=True, kw_only=True)
class FleetInputs:
    """What the plan of a fleet is made from.

    again: the hosts that are planned a second time in a run, which now give each other what they still need; the others
    keep to the first plan. Models that were made on the fleet are planned the same way both times, as they move later.
    """

    checked: CheckedFleet
    factory: InstanceFactory
    endpoint: EndpointInputs | None = None
    again: Collection[str] | None = None


@dataclass(frozen=True, kw_only=True)
class ReviewedFleet(FleetInputs):
    """selection: where each deployment comes from, after the review of holds."""

    selection: SourceSelection

    @property
    def fleet(self) -> Fleet:
        """Return the fleet with the deployments that are composed from the inventory."""
        return self.selection.fleet


@dataclass(frozen=True, kw_only=True)
class DraftedFleet(ReviewedFleet):
    """stages: each host's part. problems: of the inventory. unlike: hosts with problems that equal ones do not have."""

    stages: tuple[HostStages, ...]
    problems: tuple[Problem, ...]
    unlike: Mapping[str, str]

    @property
    def moving(self) -> list[HostStages]:
        """Return the hosts that give each other what they need."""
        return [item for item in self.stages if self.again is None or item.host.name in self.again]

    @property
    def moving_hosts(self) -> list[Host]:
        """Return the same, as hosts."""
        return [item.host for item in self.moving]

    @property
    def missing_images(self) -> list[tuple[Host, tuple[ImageStep, ...]]]:
        """Return the same, each with the images that it needs."""
        return [(item.host, item.fetch.images) for item in self.moving]


@dataclass(frozen=True, kw_only=True)
class JudgedFleet(DraftedFleet):
    """judged: what is downloaded, and on which terms."""

    judged: JudgedDownloads


@dataclass(frozen=True, kw_only=True)
class SiftedFleet(JudgedFleet):
    """unable: the hosts that cannot do what the plan requires of them, and why."""

    unable: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class NumberedFleet(SiftedFleet):
    """revisions: what happens to each deployment's generations."""

    revisions: tuple[RevisionChange, ...]


@dataclass(frozen=True, kw_only=True)
class SharedFleet(NumberedFleet):
    """transfers, pushes: what hosts give to each other and to registries. warnings: of the run."""

    transfers: tuple[Transfer, ...]
    pushes: tuple[Push, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PlannedHosts(SharedFleet):
    """hosts: their finished plans."""

    hosts: tuple[HostPlan, ...]


@dataclass(frozen=True, kw_only=True)
class BalancedFleet(PlannedHosts):
    """balancers: the plans of the load balancers of this run."""

    balancers: tuple[BalancerPlan, ...]


@dataclass(frozen=True, kw_only=True)
class LimitedFleet(BalancedFleet):
    """load: the downloads from a hub; None without any."""

    load: HubLoad | None


# ---- a draft of each host, and which hosts cannot carry theirs out -----------------------------------


def review_held_deployments(state: FleetInputs) -> ReviewedFleet:
    """Add where deployments come from: one whose hold ends is composed from the inventory again."""
    checked = state.checked
    review = review_holds(checked.fleet, checked.selection, state.factory)
    if review.released:
        checked = check_fleet(checked.fleet, checked.request, checked.now, review)
    endpoint = state.endpoint and state.endpoint.with_present_names(checked.fleet.hosts)
    selection = mark_ignored(checked.selection, review)
    return extend(ReviewedFleet, state, checked=checked, endpoint=endpoint, selection=selection)


def draft_hosts(state: ReviewedFleet) -> DraftedFleet:
    """Add what each host fetches, stops, changes and starts, by itself."""
    checked, fleet = state.checked, state.fleet
    arriving = arriving_repositories(fleet.hosts)
    stages = tuple(
        plan_stages(
            host,
            checked.layouts[host.name],
            fleet.catalog,
            state.factory,
            state.selection,
            arriving.get(host.name, ()),
        )
        for host in fleet.hosts
    )
    problems = [problem for item in stages for problem in item.problems]
    unlike = host_specific_reasons(fleet, problems)
    common = [item for item in problems if not (item.hosts and unlike.keys() >= set(item.hosts))]
    problems = [*state.selection.problems, *checked.problems, *common, *engine_mismatches(stages)]
    return extend(DraftedFleet, state, stages=stages, problems=tuple(problems), unlike=unlike)


def judge_terms(state: DraftedFleet) -> JudgedFleet:
    """Add what is downloaded, and whether licences and the hub's terms allow it."""
    downloads = (item for stages in state.stages for item in stages.fetch.downloads)
    factory = state.factory
    judged = judge_downloads(downloads, state.fleet.hosts, factory.lock, factory.knowledge.licenses)
    return extend(JudgedFleet, state, judged=judged)


def refuse_problems(state: JudgedFleet) -> JudgedFleet:
    """Add nothing: raise FleetError for what all equal hosts share, as a refused flag or a port used twice."""
    problems = [*state.problems, *state.judged.problems]
    if state.endpoint and state.endpoint.hosts:
        names = {one.name for host in state.fleet.hosts for one in host.deployments}
        problems += mixed_models(state.checked.fleet, names)
    raise_problems(problems, state.fleet)
    return state


def sift_hosts(state: JudgedFleet) -> SiftedFleet:
    """Add the hosts that cannot carry out their part, and why; the fleet is then planned without them."""
    fleet, checked = state.fleet, state.checked
    unable = {item.host.name: joined_text(item.obstacles) for item in state.stages if item.obstacles}
    unable.update(state.unlike)
    builds = build_obstacles(state.missing_images, state.moving_hosts, state.again is not None)
    for obstacles in (builds, repository_obstacles(fleet.hosts)):
        unable.update({name: joined_text(problems) for name, problems in obstacles.items()})
    unable.update(foreign_model_names(checked.fleet, state.stages, state.endpoint) if state.endpoint else {})
    return extend(SiftedFleet, state, unable=unable)


# ---- what concerns several hosts ---------------------------------------------------------------------


def number_generations(state: SiftedFleet) -> NumberedFleet:
    """Add the generations of deployments: which are new, kept, turned back, held."""
    revisions = revision_changes(state.selection, [item.composed for item in state.stages])
    return extend(NumberedFleet, state, revisions=revisions)


def share_content(state: NumberedFleet) -> SharedFleet:
    """Add what hosts give each other so that it is fetched only once, and what they push to registries."""
    moved = [(item.host, item.fetch.images, item.fetch.models) for item in state.moving]
    transfers, warnings = plan_transfers(moved, state.moving_hosts)
    raise_problems(air_gap_problems(moved, transfers), state.fleet)
    transfers += build_transfers(state.missing_images, state.moving_hosts) + repository_transfers(
        state.fleet.hosts
    )
    pushes = (
        plan_pushes(state.missing_images, state.moving_hosts, state.factory.lock)
        if state.again is None
        else ()
    )
    return extend(
        SharedFleet,
        state,
        transfers=transfers,
        pushes=pushes,
        warnings=(
            *state.judged.warnings,
            *warnings,
            *binding_warnings(state.revisions),
            *clock_warnings(state.checked.fleet, state.checked.now),
        ),
    )


def finish_hosts(state: SharedFleet) -> PlannedHosts:
    """Add each host's finished plan, with what it does for others."""
    peers, shared = peer_starts(state.stages), transfers_by_host(state.transfers)
    hosts = tuple(
        item.finish(
            peers[item.host.name],
            record_stage(item, state.revisions),
            shared.get(item.host.name, ()),
            state.pushes,
        )
        for item in state.stages
    )
    return extend(PlannedHosts, state, hosts=hosts)


def connect_balancers(state: PlannedHosts) -> BalancedFleet:
    """Add the load balancers: their servers before, during and after the run, and what is drained."""
    endpoint, checked, warnings = state.endpoint, state.checked, list(state.warnings)
    balancers: tuple[BalancerPlan, ...] = ()
    if endpoint:
        inventory = {host.name: host for host in checked.fleet.hosts}
        unknown = hosts_unknown_to_balancers(endpoint, inventory.values())
        served = [
            served_backends(host, inventory[host.host.name], host.host.name in unknown)
            for host in state.hosts
        ]
        balancers, problems, more = plan_balancers(endpoint, served, routing(state.fleet))
        raise_problems(problems, state.fleet)
        # A stop drains by itself, wherever instances are.
        warnings += more if checked.request.operation != STOP else ()
        warnings += differences(state.stages) if endpoint.hosts else ()
    return extend(BalancedFleet, state, balancers=balancers, warnings=tuple(warnings))


def limit_downloads(state: BalancedFleet) -> LimitedFleet:
    """Add how many hosts may download from a hub at the same time."""
    passed_on = {(member.host.name, item.what) for item in state.transfers for member in item.receivers}
    steps = [
        [step for step in host.models if not step.offline and (host.host.name, step.called) not in passed_on]
        for host in state.hosts
    ]
    load = hub_load(steps, state.factory.knowledge.hubs)
    warnings = (*state.warnings, load.warning) if load and load.warning else state.warnings
    return extend(LimitedFleet, state, load=load, warnings=warnings)


def assemble_plan(state: LimitedFleet) -> FleetPlan:
    """Return the plan: all of this, as it is written to plan.json."""
    fleet, warnings = state.fleet, state.warnings
    if fleet.hosts and not any(host.instances or host.host.deployments for host in state.hosts):
        warnings = (*warnings, "no host has a deployment: nothing will be served")
    return FleetPlan(
        state.hosts,
        fleet.unreachable,
        warnings,
        state.factory.cited_sources,
        state.balancers,
        state.revisions,
        (*fleet.excluded, *excluded_balancers(state.endpoint)),
        state.transfers,
        state.judged.downloads,
        state.load.at_once if state.load else 0,
    )
