# SPDX-License-Identifier: Apache-2.0
"""The stages of a host's plan: fetch, record, serve. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....module_utils.common.errors import Problem, natural
from ...knowledge.catalog.gpus import GpuCatalog
from ..changes import actions as steps
from ..changes.actions import ImageStep, ModelStep
from ..changes.assumptions import Assumption, assumptions, factory_modes
from ..changes.disk_space import check_disk
from ..changes.downloads import Download
from ..changes.quota import check_quota
from ..desired.actions import ALIVE, Action
from ..desired.fleet import LOOPBACK, Host
from ..fetching.builds import mark_received
from ..fetching.pushes import Push
from ..fetching.transfers import HostTransfer, mark_offered
from ..generations.bindings import bindings
from ..generations.restore import clashes, partition_modes, restore_obstacles
from ..generations.revisions import ComposedHost, RevisionChange, record_actions, records
from ..generations.sources import NOTHING, SourceSelection
from ..instances.compose import pull_ref
from ..instances.factory import InstanceFactory, mirrored_image
from ..instances.planned import PlannedInstance, RecordedInstance, Serving
from ..pins.lockfile import Lock
from ..placement.layout import Layout
from .fetch_rules import proxy_warnings
from .host_plan import HostPlan


@dataclass(frozen=True)
class FetchStage:
    """What a host fetches before anything that serves is touched."""

    actions: tuple[Action, ...]
    packages: tuple[str, ...]
    images: tuple[ImageStep, ...]
    models: tuple[ModelStep, ...]
    warnings: tuple[str, ...]
    obstacles: tuple[Problem, ...]
    downloads: tuple[Download, ...]


@dataclass(frozen=True)
class ServeStage:
    """What a host stops, changes, starts and removes, and what it then runs.

    key: actions before anything stops. policies: instances that only get their restart policy back.
    """

    key: tuple[Action, ...] = ()
    actions: tuple[Action, ...] = ()
    instances: tuple[Serving, ...] = ()
    start: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    key_file: str = ""
    problems: tuple[Problem, ...] = ()
    obstacles: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class RecordStage:
    """What a host records about its generations. records, bindings: for the node's store of generations."""

    actions: tuple[Action, ...] = ()
    records: tuple[Mapping[str, Any], ...] = ()
    bindings: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class HostStages:
    """A host's plan, stage by stage.

    untouched: instances that are neither started nor removed. unknown: images whose software must be read first.
    problems: of the inventory. obstacles: what prevents the plan on this host alone. assumed: of a host that was not
    contacted.
    """

    host: Host
    layout: Layout
    gpu_model: str
    unknown: tuple[str, ...]
    untouched: tuple[str, ...]
    fetch: FetchStage
    serve: ServeStage
    warnings: tuple[str, ...]
    problems: tuple[Problem, ...]
    obstacles: tuple[Problem, ...]
    assumed: tuple[Assumption, ...] = ()

    @property
    def composed(self) -> ComposedHost:
        """Return what the host should have of the deployments that are composed."""
        instances: dict[str, list[PlannedInstance]] = {}
        for item in self.serve.instances:
            if isinstance(item, PlannedInstance):
                instances.setdefault(item.deployment_name, []).append(item)
        unplaced = frozenset(name.rpartition("-")[0] for name in self.layout.unplaced)
        modes = partition_modes(self.host, self.layout)
        return ComposedHost(self.host, modes, instances, None if self.unknown else unplaced)

    def finish(
        self,
        peers: Sequence[Action],
        record: RecordStage,
        shared: Sequence[HostTransfer] = (),
        pushes: Sequence[Push] = (),
    ) -> HostPlan:
        """Return the host's plan.

        peers: starts of servers whose engine starts on another host. shared: its transfers. pushes: those of all hosts.
        """
        fetch, serve = _received(self.host, self.fetch, shared, pushes), self.serve
        own_pushes = tuple(item for item in pushes if item.host == self.host.name)
        passed = [item.action for item in shared]
        own = fetch.actions
        first = next((at for at, item in enumerate(own) if item.role != "host_prep"), len(own))
        offered = {item.name for item in shared if item.seeds}
        return HostPlan(
            host=self.host,
            layout=self.layout,
            actions=(
                *own[:first],
                *passed,
                *own[first:],
                *(item.action for item in own_pushes),
                *serve.key,
                *record.actions,
                *serve.actions,
                *peers,
            ),
            packages=fetch.packages,
            images=tuple(mark_offered(item, offered) for item in fetch.images),
            models=tuple(mark_offered(item, offered) for item in fetch.models),
            instances=serve.instances,
            start=(*serve.start, *(action.target for action in peers)),
            policies=serve.policies,
            remove=serve.remove,
            stop=serve.stop,
            gpu_model=self.gpu_model,
            warnings=self.warnings,
            unknown=self.unknown,
            key_file=serve.key_file,
            untouched=self.untouched,
            records=record.records,
            bindings=record.bindings,
            assumed=self.assumed,
            transfers=tuple(item.name for item in shared if not item.of_build),
            build_transfers=tuple(item.name for item in shared if item.of_build),
            repositories=tuple(item.repository for item in shared if item.repository),
            pushes=own_pushes,
        )


def plan_stages(
    host: Host,
    layout: Layout,
    catalog: GpuCatalog,
    factory: InstanceFactory,
    selection: SourceSelection,
    arriving: Sequence[tuple[str, int]] = (),
) -> HostStages:
    """Plan what one host fetches and serves. What it serves waits for images whose software must be read.

    arriving: names and bytes of models that come from other hosts of the fleet.
    """
    stored = selection.hosts.get(host.name, NOTHING)
    untouched = (*layout.unplaced, *stored.untouched)
    unknown = factory.unknown_images(host)
    fetch = _fetch(host, factory.lock, unknown, arriving)
    serve = ServeStage() if unknown else _serve(host, layout, catalog, factory, selection, untouched)
    return HostStages(
        host=host,
        layout=layout,
        gpu_model=_gpu_model(host, catalog),
        unknown=unknown,
        untouched=untouched,
        fetch=fetch,
        serve=serve,
        warnings=(*layout.warnings, *_warnings(host, layout), *stored.warnings, *fetch.warnings),
        problems=serve.problems,
        obstacles=(*check_host(host), *serve.obstacles, *fetch.obstacles),
        assumed=assumptions(host, catalog),
    )


def record_stage(stages: HostStages, revisions: Sequence[RevisionChange]) -> RecordStage:
    """Plan what the host records about its generations, before anything stops."""
    name = stages.host.name
    bound_here = () if stages.unknown else bindings(stages.host, revisions)
    actions = (*record_actions(name, revisions), *(action for _unused, action in bound_here))
    if not actions:
        return RecordStage()
    return RecordStage(
        actions, tuple(records(name, revisions)), tuple(entry for entry, _unused in bound_here)
    )


def _fetch(
    host: Host, lock: Lock, unknown: Collection[str], arriving: Sequence[tuple[str, int]]
) -> FetchStage:
    images = steps.images(host, lock, unknown)
    engine = steps.docker_engine(host)
    tools, packages = steps.build_tools(host, (image for image, _unused in images)) or (None, ())
    first = tuple(action for action in (engine, tools, steps.numa_balancing(host)) if action)
    image_of = {item.name: mirrored_image(item, lock, host) or pull_ref(item, lock.image(item.image) if item.image
                else None) for item in host.deployments}  # fmt: skip
    models = steps.models(host, lock, image_of)
    fetched = [image for image, _unused in images], [model for model, _unused in models]
    obstacles, warnings = check_disk(host, *fetched, arriving, lock)
    obstacles = (*obstacles, *check_quota(host, *fetched, arriving, lock))
    downloads = tuple(steps.downloads(host, lock))
    if unknown:  # the weights come later in the same run, and must fit on the disk then
        models = ()
    return FetchStage(
        actions=(*first, *(action for _unused, action in (*images, *models))),
        packages=(*((engine.target,) if engine else ()), *packages),
        images=tuple(image for image, _unused in images),
        models=tuple(model for model, _unused in models),
        warnings=(*warnings, *(proxy_warnings(host) if images or downloads else ())),
        obstacles=obstacles,
        downloads=downloads,
    )


def _received(
    host: Host, fetch: FetchStage, shared: Sequence[HostTransfer], pushes: Sequence[Push]
) -> FetchStage:
    """Return the stage of a host that gets images which others build, for which it needs no build tools."""
    sources = {item.name: item.host for item in pushes if item.host != host.name}
    sources.update({item.name: item.seed for item in shared if not item.seeds})
    images = tuple(mark_received(item, sources) for item in fetch.images)
    texts = {item.ref: _way(item) for item in images if item.source}
    if not texts:
        return fetch
    actions = tuple(
        replace(item, after=texts[item.target]) if item.kind == "image" and item.target in texts else item
        for item in fetch.actions
    )
    packages = fetch.packages
    tools = steps.build_tools(host, fetch.images)
    if tools and not any(item.build and not item.source for item in images):
        actions = tuple(item for item in actions if item.kind != "build_tools")
        packages = tuple(name for name in packages if name not in tools[1])
    return replace(fetch, images=images, actions=actions, packages=packages)


def _way(image: ImageStep) -> str:
    """Return how an image that another host builds gets to this one."""
    if image.build and image.awaited:
        return f"pulled from {image.build.push_to}, to which {image.source} pushes it"
    return f"received from {image.source}, which builds it once"


def _serve(
    host: Host,
    layout: Layout,
    catalog: GpuCatalog,
    factory: InstanceFactory,
    selection: SourceSelection,
    left: Collection[str],
) -> ServeStage:
    stored = selection.hosts.get(host.name, NOTHING)
    key = steps.instance_key(host, factory.key, any(item.backend.endpoint for item in stored.stored))
    running = steps.stop_servers(host) if layout.repartition else ()
    composed, problems = factory.instances(host, layout, catalog)
    instances: tuple[Serving, ...] = composed
    if stored.stored:
        instances = tuple(sorted((*composed, *stored.stored), key=lambda item: natural(item.name)))
    if layout.repartition:
        repartition = steps.partition(host, factory_modes(host, catalog))
    else:
        repartition = steps.unfinished_partition(host, partition_modes(host, layout), instances, left)
    servers, policies, remove = _servers(host, layout, instances, left)
    start = tuple(action.target for action in servers)
    obstacles: tuple[Problem, ...] = ()
    if stored.stored:
        obstacles = (
            *restore_obstacles(host, layout, stored, selection.sources, start),
            *clashes(host, (*composed, *stored.stored), selection.sources),
        )
    return ServeStage(
        key=(key,) if key else (),
        actions=(
            *(steps.stop_action(item) for item in running),
            *repartition,
            *remove,
            *servers,
            *policies,
        ),
        instances=instances,
        start=start,
        policies=tuple(action.target for action in policies),
        remove=tuple(action.target for action in remove),
        stop=tuple(item.name for item in running),
        key_file=factory.key.file if key else "",
        problems=problems,
        obstacles=obstacles,
    )


def _servers(
    host: Host, layout: Layout, instances: Iterable[Serving], left: Collection[str]
) -> tuple[tuple[Action, ...], tuple[Action, ...], tuple[Action, ...]]:
    """Return the actions that start instances, restore their restart policies, and remove them."""
    there = {item.name: item for item in host.state.instances} if host.state else {}
    wanted = {item.name: item for item in instances}
    start, policies = [], []
    for name, item in wanted.items():
        if isinstance(item, RecordedInstance) and not item.managed:
            continue
        hashes: Mapping[str, str] = item.file_hashes() if name in there else {}
        action = steps.server(name, item.spec_hash, hashes, there.get(name), layout.repartition)
        if action:
            start.append(action)
        elif policy := steps.restart_policy(there.get(name)):
            policies.append(policy)
    gone = [
        steps.remove(running)
        for name, running in sorted(there.items())
        if name not in wanted and name not in left
    ]
    return tuple(start), tuple(policies), tuple(gone)


def _gpu_model(host: Host, catalog: GpuCatalog) -> str:
    if host.state is None:
        return host.settings.gpu_model or ""
    models = {catalog.by_pci_id(pci_id) for pci_id in {gpu.pci_id for gpu in host.state.gpus}}
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
                "name a commit, so that the build can be repeated"
            )
    return tuple(item for item in found if item)


def _unreachable_listen_address(host: Host) -> list[Problem]:
    """Return a problem if a load balancer must reach the instances at an address where they cannot listen."""
    interfaces = host.state.interfaces if host.state else ()
    own = not interfaces or any(host.listen in item.addresses for item in interfaces)
    if host.listen == LOOPBACK or (host.listen and own):
        return []
    if not any(item.endpoint and not item.listen for item in host.deployments):
        return []
    what = (
        f"a load balancer on another host must reach the instances, but {host.address} is not an IP address of this "
        "host."
    )
    fix = "Set instinct_address (or listen in the deployments) to the address on which they should listen."
    return [Problem((), what, fix, (host.name,))]


def check_host(host: Host) -> tuple[Problem, ...]:
    """Return what prevents a host from being planned: not root, undefined deployments, no usable address."""
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
    return tuple(found)
