# SPDX-License-Identifier: Apache-2.0
"""Desired minus observed: the ordered actions of every host. Pure; the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...module_utils.common.errors import FleetError, Problem, natural
from ...module_utils.common.generations import OperationRequest
from ...module_utils.common.paths import container_name
from ..catalog.gpus import GpuCatalog
from ..desired.actions import ALIVE, Action
from ..desired.fleet import LOOPBACK, Fleet, Host
from ..desired.lockfile import Lock
from ..endpoint.backends import HostBackends
from ..endpoint.plan import BalancerPlan, EndpointInputs, plan_balancers
from ..generations.restore import partition_modes, releasable_holds, restore_problems, rollback_resources
from ..generations.revisions import (
    ComposedHost,
    RevisionChange,
    binding_warnings,
    bindings,
    record_actions,
    records,
    refused_upgrades,
    revision_changes,
)
from ..generations.sources import NOTHING, SourceSelection, choose_sources
from ..instances.compose import pull_ref
from ..instances.factory import InstanceFactory
from ..instances.planned import Planned, RecordedInstance, Serving
from ..placement.layout import Layout, lay_out_fleet
from . import actions as steps
from .actions import ImageStep, ModelStep, unique
from .disk_space import check_disk
from .multi_host import mismatches, with_engine_peers

SCHEMA = 1
DEFAULT_REQUEST = OperationRequest()
# What can take hours comes before what stops a running instance.
ROLES = ("host_prep", "vllm_image", "hf_model", "instance_key", "gpu_partition", "vllm_serve")


@dataclass(frozen=True)
class HostPlan:
    """What is to be done on one host, and what it will run.

    untouched: instances that are neither started nor removed. records, bindings: for the node's store of generations.
    """

    host: Host
    layout: Layout
    actions: tuple[Action, ...]
    packages: tuple[str, ...]
    images: tuple[ImageStep, ...]
    models: tuple[ModelStep, ...]
    instances: tuple[Serving, ...]
    start: tuple[str, ...]
    remove: tuple[str, ...]
    stop: tuple[str, ...]
    gpu_model: str
    warnings: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    key_file: str = ""
    untouched: tuple[str, ...] = ()
    records: tuple[Mapping[str, Any], ...] = ()
    bindings: tuple[Mapping[str, Any], ...] = ()

    @property
    def partial(self) -> bool:
        """Images have to be asked what they hold before the rest can be planned."""
        return bool(self.unknown)

    @property
    def todo(self) -> tuple[str, ...]:
        """Roles with something to do, in the order in which they run."""
        needed = {action.role for action in self.actions}
        return tuple(role for role in ROLES if role in needed)

    def to_json(self) -> dict[str, Any]:
        """A host's part of plan.json."""
        settings, state = self.host.settings, self.host.state
        servers = {item.name: item.server for item in self.instances}
        kinds = {action.kind for action in self.actions}
        spanning = {item.name for item in self.instances if len(item.member.hosts) > 1}
        partition = bool(kinds & steps.PARTITION_KINDS)
        there = state.instances if state else ()
        stopped = {item.name for item in there if item.state not in ALIVE}
        return {
            "status": "observed" if state else "declared",
            "gpus": {
                "model": self.gpu_model or None,
                "count": len({gpu.gpu for gpu in self.layout.gpus}),
                "logical": len(self.layout.gpus),
                "compute": settings.compute,
            },
            "actions": [action.to_json() for action in self.actions],
            "todo": list(self.todo),
            "unknown_images": list(self.unknown),
            "packages": list(self.packages),
            "numa_balancing": settings.numa_balancing if "numa_balancing" in kinds else None,
            "instance_key_file": self.key_file or None,
            "partition": {
                "compute": settings.compute,
                "memory": settings.memory,
                "clean": "gpu_clean" in kinds,
                "backend": settings.backend,
                "stop_servers": [_stop_spec(name, servers.get(name)) for name in self.stop],
                "serve": [name for name in self.start if name not in spanning],
                "remove": list(self.remove),
            }
            if partition
            else None,
            "images": [image.to_json() for image in self.images],
            "models": [model.to_json() for model in self.models],
            "servers": [servers[name] for name in self.start],
            "serve": [name for name in self.start if name in spanning or not partition],
            "spans": [name for name in self.start if name in spanning],
            "remove": [] if partition else list(self.remove),
            "resume": [name for name in self.start if name in (spanning if partition else stopped)],
            "instances": [{"host": self.host.name, **item.described} for item in self.instances],
            "generations": [dict(item) for item in self.records],
            "bindings": [dict(item) for item in self.bindings],
            "kept": rollback_resources(self.host, self.instances),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class FleetPlan:
    """The plan of a whole run; sources: the documents that its reasons name."""

    hosts: tuple[HostPlan, ...]
    unreachable: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    sources: Mapping[str, Mapping[str, Any]]
    balancers: tuple[BalancerPlan, ...] = ()
    revisions: tuple[RevisionChange, ...] = ()

    @property
    def partial(self) -> tuple[str, ...]:
        """Images that have to be asked what they hold before everything can be planned."""
        return unique(ref for host in self.hosts for ref in host.unknown)

    @property
    def changes(self) -> int:
        """The number of actions on all hosts."""
        actions = [*(host.actions for host in self.hosts), *(item.actions for item in self.balancers)]
        return sum(map(len, actions))

    def to_json(self) -> dict[str, Any]:
        """plan.json; its schema is catalog/schemas/plan.schema.json."""
        return {
            "schema": SCHEMA,
            "deployments": list(unique(item.name for host in self.hosts for item in host.host.deployments)),
            "generations": [item.to_json() for item in self.revisions],
            "hosts": {host.host.name: host.to_json() for host in self.hosts},
            "balancers": {item.host.name: item.to_json() for item in self.balancers},
            "partial": list(self.partial),
            "sources": {name: dict(item) for name, item in sorted(self.sources.items())},
            "unreachable": dict(self.unreachable),
            "warnings": list(self.warnings),
        }


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
    """Raise FleetError when instances cannot be laid out; asks nothing of registries and hubs."""
    checked = _laid_out(fleet, request)
    problems = (*checked.problems, *(problem for host in checked.composed.hosts for problem in _check(host)))
    if problems:
        raise FleetError(problems)
    return checked


def _laid_out(fleet: Fleet, request: OperationRequest, free: Iterable[str] = ()) -> CheckedFleet:
    selection = choose_sources(fleet, request, free)
    return CheckedFleet(fleet, request, selection, *lay_out_fleet(selection.fleet))


def plan_fleet(
    checked: CheckedFleet, factory: InstanceFactory, endpoint: EndpointInputs | None = None
) -> FleetPlan:
    """Plan every host. Raises FleetError with the problems of all hosts.

    A pin that the lock lacks is planned as written (the tag, the revision): that is for plans made without
    network; what is applied is resolved before.
    """
    free = releasable_holds(checked.fleet, checked.selection, factory)
    if free:  # they are composed after all
        checked = _laid_out(checked.fleet, checked.request, free)
    request, selection, layouts = checked.request, checked.selection, checked.layouts
    fleet = selection.fleet
    hosts: list[HostPlan] = []
    problems: list[Problem] = [*selection.problems, *checked.problems]
    for host in fleet.hosts:
        planned, found = plan_host(host, layouts[host.name], fleet.catalog, factory, selection)
        hosts.append(planned)
        problems.extend(found)
    problems.extend(mismatches(hosts))
    hosts = with_engine_peers(hosts)
    revisions: tuple[RevisionChange, ...] = ()
    balancers: tuple[BalancerPlan, ...] = ()
    warnings: list[str] = []
    if not problems:
        revisions = revision_changes(selection, [_composed_host(host) for host in hosts])
        problems += refused_upgrades(revisions, request)
        hosts = [_with_records(host, revisions, request) for host in hosts]
        warnings += binding_warnings(revisions)
    if endpoint and not problems:
        balancers, found, doubts = plan_balancers(
            endpoint, [_host_backends(host) for host in hosts], _routing(fleet)
        )
        problems.extend(found)
        warnings.extend(doubts)
    if problems:
        raise FleetError(problems)
    if not any(host.instances or host.host.deployments for host in hosts) and fleet.hosts:
        warnings.append("no host has a deployment: nothing will be served")
    return FleetPlan(
        tuple(hosts), fleet.unreachable, tuple(warnings), factory.cited_sources, balancers, revisions
    )


def _composed_host(plan: HostPlan) -> ComposedHost:
    """What a host is to have of the deployments that are composed."""
    instances: dict[str, list[Planned]] = {}
    for item in plan.instances:
        if isinstance(item, Planned):
            instances.setdefault(item.deployment_name, []).append(item)
    left = frozenset(name.rpartition("-")[0] for name in plan.layout.unplaced)
    return ComposedHost(
        plan.host, partition_modes(plan.host, plan.layout), instances, None if plan.partial else left
    )


def _with_records(plan: HostPlan, revisions: Sequence[RevisionChange], request: OperationRequest) -> HostPlan:
    """The plan with what its host records, which comes before anything stops."""
    name = plan.host.name
    bound_here = () if plan.partial else bindings(plan.host, revisions, request)
    new = (*record_actions(name, revisions), *(action for _, action in bound_here))
    if not new:
        return plan
    kinds = ("stop_server", "remove_server", "server", *steps.PARTITION_KINDS)
    place = next((at for at, item in enumerate(plan.actions) if item.kind in kinds), len(plan.actions))
    return replace(
        plan,
        actions=(*plan.actions[:place], *new, *plan.actions[place:]),
        records=tuple(records(name, revisions)),
        bindings=tuple(entry for entry, _ in bound_here),
    )


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


def _unreachable_listen_address(host: Host) -> list[Problem]:
    """The host's address where a load balancer has to reach its instances, and they cannot listen there."""
    interfaces = host.state.interfaces if host.state else ()
    own = not interfaces or any(host.listen in item.addresses for item in interfaces)
    if host.listen == LOOPBACK or (host.listen and own):
        return []
    if not any(item.endpoint and not item.listen for item in host.deployments):
        return []
    what = (
        f"a load balancer on another host has to reach the instances, but {host.address} is not an IP address of "
        "this host."
    )
    fix = "Set instinct_address (or listen in the deployments) to the address on which they should listen."
    return [Problem((), what, fix, (host.name,))]


def _check(host: Host) -> tuple[Problem, ...]:
    found: list[Problem] = []
    if host.state is not None and host.state.euid != 0:
        what = f"not root: the module ran with user id {host.state.euid}."
        fix = "Set ansible_become: true (and a user that may become root) for this host."
        found.append(Problem((), what, fix, (host.name,)))
    if host.state is not None and not host.deployments_defined and host.state.instances:
        names = ", ".join(item.name for item in host.state.instances)
        what = f"is not defined, but the host has instances ({names})."
        fix = "Define it; an empty list, vllm_deployments: [], removes them."
        found.append(Problem(("vllm_deployments",), what, fix, (host.name,)))
    found += _unreachable_listen_address(host)
    _, problem = steps.docker_engine(host)
    if problem:
        found.append(Problem(problem.path, problem.what, problem.fix, (host.name,)))
    return tuple(found)


@dataclass(frozen=True)
class _FetchStage:
    """What a host gets before anything that serves is touched."""

    actions: tuple[Action, ...]
    packages: tuple[str, ...]
    images: tuple[ImageStep, ...]
    models: tuple[ModelStep, ...]
    warnings: tuple[str, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class _ServeStage:
    """What a host stops, changes, starts and removes, and what it then runs."""

    actions: tuple[Action, ...] = ()
    instances: tuple[Serving, ...] = ()
    start: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    key_file: str = ""
    problems: tuple[Problem, ...] = ()


def plan_host(
    host: Host, layout: Layout, catalog: GpuCatalog, factory: InstanceFactory, selection: SourceSelection
) -> tuple[HostPlan, tuple[Problem, ...]]:
    """One host's plan, and what is wrong with it. What is served waits for images that have to be asked."""
    stored = selection.hosts.get(host.name, NOTHING)
    left = (*layout.unplaced, *stored.untouched)
    unknown = factory.unknown_images(host)
    fetched = _fetched(host, factory.lock, unknown)
    served = _ServeStage() if unknown else _served(host, layout, catalog, factory, selection, left)
    planned = HostPlan(
        host=host,
        layout=layout,
        actions=(*fetched.actions, *served.actions),
        packages=fetched.packages,
        images=fetched.images,
        models=fetched.models,
        instances=served.instances,
        start=served.start,
        remove=served.remove,
        stop=served.stop,
        gpu_model=_gpu_model(host, catalog),
        warnings=(*layout.warnings, *_warnings(host, layout), *stored.warnings, *fetched.warnings),
        unknown=unknown,
        key_file=served.key_file,
        untouched=left,
    )
    return planned, (*_check(host), *served.problems, *fetched.problems)


def _fetched(host: Host, lock: Lock, unknown: Collection[str]) -> _FetchStage:
    images = steps.images(host, lock, unknown)
    engine, _ = steps.docker_engine(host)
    tools, packages = steps.build_tools(host, (image for image, _ in images)) or (None, ())
    first = tuple(action for action in (engine, tools, steps.numa_balancing(host)) if action)
    image_of = {item.name: pull_ref(item, lock.image(item.image) if item.image else None)
                for item in host.deployments}  # fmt: skip
    models = steps.models(host, lock, image_of)
    problems, warnings = check_disk(host, [image for image, _ in images], (model for model, _ in models))
    if unknown:  # the weights come later in the same run, and must have room then
        models = ()
    return _FetchStage(
        actions=(*first, *(action for _, action in (*images, *models))),
        packages=(*((engine.target,) if engine else ()), *packages),
        images=tuple(image for image, _ in images),
        models=tuple(model for model, _ in models),
        warnings=warnings,
        problems=problems,
    )


def _served(
    host: Host,
    layout: Layout,
    catalog: GpuCatalog,
    factory: InstanceFactory,
    selection: SourceSelection,
    left: Collection[str],
) -> _ServeStage:
    stored = selection.hosts.get(host.name, NOTHING)
    key = steps.instance_key(host, factory.key)
    running = steps.stop_servers(host) if layout.repartition else ()
    repartition = steps.partition(host) if layout.repartition else ()
    composed, problems = factory.instances(host, layout, catalog)
    instances: tuple[Serving, ...] = composed
    if stored.stored:
        instances = tuple(sorted((*composed, *stored.stored), key=lambda item: natural(item.name)))
    servers, remove = _servers(host, layout, instances, left)
    start = tuple(action.target for action in servers)
    if stored.stored:
        problems = (*problems, *restore_problems(host, layout, stored, composed, selection.sources, start))
    return _ServeStage(
        actions=(
            *((key,) if key else ()),
            *(steps.stop_action(item) for item in running),
            *repartition,
            *remove,
            *servers,
        ),
        instances=instances,
        start=start,
        remove=tuple(action.target for action in remove),
        stop=tuple(item.name for item in running),
        key_file=factory.key.file if key else "",
        problems=problems,
    )


def _servers(
    host: Host, layout: Layout, instances: Iterable[Serving], left: Collection[str]
) -> tuple[tuple[Action, ...], tuple[Action, ...]]:
    there = {item.name: item for item in host.state.instances} if host.state else {}
    wanted = {item.name: item for item in instances}
    start = []
    for name, item in wanted.items():
        if isinstance(item, RecordedInstance) and not item.managed:
            continue
        hashes = item.file_hashes() if name in there else {}
        action = steps.server(name, item.spec_hash, hashes, there.get(name), layout.repartition)
        if action:
            start.append(action)
    gone = [
        steps.remove(running)
        for name, running in sorted(there.items())
        if name not in wanted and name not in left
    ]
    return tuple(start), tuple(gone)


def _gpu_model(host: Host, catalog: GpuCatalog) -> str:
    if host.state is None:
        return host.settings.gpu_model or ""
    models = {catalog.by_pci_id(gpu.pci_id) for gpu in host.state.gpus}
    names = sorted(model.name if model else "unknown GPU" for model in models)
    return ", ".join(names)


def _warnings(host: Host, layout: Layout) -> tuple[str, ...]:
    found: list[str | None] = []
    ours = bool(host.state and any(item.state in ALIVE for item in host.state.instances))
    if layout.repartition and host.state and host.state.kfd_processes and not ours:
        pids = ", ".join(str(pid) for pid in host.state.kfd_processes)
        found.append(f"processes use the GPUs ({pids}); the compute partition cannot change while they run")
    for deployment in host.deployments:
        build = deployment.build
        if build and not (len(build.ref) == 40 and all(char in "0123456789abcdef" for char in build.ref)):
            found.append(
                f"deployment {deployment.name} builds {build.ref}, which may move: "
                "name a commit to give every node the same build"
            )
    return tuple(item for item in found if item)


def _stop_spec(name: str, server: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is needed to stop an instance; no deployment may describe it any more."""
    seconds = server["stop_timeout"] if server else 120
    return {"name": name, "container_name": container_name(name), "stop_timeout": seconds}
