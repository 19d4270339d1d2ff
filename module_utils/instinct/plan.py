# SPDX-License-Identifier: Apache-2.0
"""Desired minus observed: the ordered actions of every host. Pure; the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from . import steps
from .catalog import GpuCatalog
from .disk import check_disk
from .errors import FleetError, Problem
from .fleet import Fleet, Host
from .hashing import spec_hash, text_hash
from .layout import Layout, Slot, lay_out
from .lock import Lock
from .places import container_name
from .render import Render
from .serve import Instance, compose, pull_ref, server
from .steps import Action, ImageStep, ModelStep, unique

SCHEMA = 1
# What can take hours comes before what stops a running instance.
ROLES = ("host_prep", "vllm_image", "hf_model", "gpu_partition", "vllm_serve")


@dataclass(frozen=True)
class Planned:
    """An instance with its rendered files."""

    instance: Instance
    files: Mapping[str, str]
    spec_hash: str

    @cached_property
    def server(self) -> dict[str, Any]:
        """SERVER of the plan."""
        return server(self.instance, self.files, self.spec_hash)

    @cached_property
    def described(self) -> dict[str, Any]:
        """INSTANCE of the plan, but for its host."""
        return {**self.instance.to_json(self.spec_hash), "server": self.server}


@dataclass(frozen=True)
class HostPlan:
    """What is to be done on one host, and what it will run."""

    host: Host
    layout: Layout
    actions: tuple[Action, ...]
    packages: tuple[str, ...]
    images: tuple[ImageStep, ...]
    models: tuple[ModelStep, ...]
    instances: tuple[Planned, ...]
    start: tuple[str, ...]
    remove: tuple[str, ...]
    stop: tuple[str, ...]
    gpu_model: str
    warnings: tuple[str, ...]

    @property
    def todo(self) -> tuple[str, ...]:
        """Roles with something to do, in the order in which they run."""
        needed = {action.role for action in self.actions}
        return tuple(role for role in ROLES if role in needed)

    def to_json(self) -> dict[str, Any]:
        """A host's part of plan.json."""
        settings, state = self.host.settings, self.host.state
        servers = {item.instance.name: item.server for item in self.instances}
        kinds = {action.kind for action in self.actions}
        return {
            "status": "observed" if state else "declared",
            "gpus": {
                "model": self.gpu_model or None,
                "count": len({gpu.gpu for gpu in self.layout.gpus}),
                "logical": len(self.layout.gpus),
                "compute": settings.compute,
            },
            "actions": [dict(vars(action)) for action in self.actions],
            "todo": list(self.todo),
            "packages": list(self.packages),
            "numa_balancing": settings.numa_balancing if "numa_balancing" in kinds else None,
            "partition": {
                "compute": settings.compute,
                "backend": settings.backend,
                "stop_servers": [servers.get(name) or _stop_only(name) for name in self.stop],
            }
            if "compute_partition" in kinds
            else None,
            "images": [image.to_json() for image in self.images],
            "models": [model.to_json() for model in self.models],
            "servers": [servers[name] for name in self.start],
            "remove": list(self.remove),
            "instances": [{"host": self.host.name, **item.described} for item in self.instances],
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class FleetPlan:
    """The plan of a whole run."""

    hosts: tuple[HostPlan, ...]
    unreachable: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]

    @property
    def changes(self) -> int:
        """The number of actions on all hosts."""
        return sum(len(host.actions) for host in self.hosts)

    def to_json(self) -> dict[str, Any]:
        """plan.json; its schema is catalog/schemas/plan.schema.json."""
        return {
            "schema": SCHEMA,
            "deployments": list(unique(item.name for host in self.hosts for item in host.host.deployments)),
            "hosts": {host.host.name: host.to_json() for host in self.hosts},
            "unreachable": dict(self.unreachable),
            "warnings": list(self.warnings),
        }


def check_fleet(fleet: Fleet) -> None:
    """Raise FleetError when instances cannot be laid out; asks nothing of registries and hubs."""
    problems = [problem for host in fleet.hosts for problem in _check(host, fleet.catalog)[1]]
    if problems:
        raise FleetError(problems)


def plan_fleet(fleet: Fleet, lock: Lock, render: Render) -> FleetPlan:
    """Plan every host. Raises FleetError with the problems of all hosts.

    A pin that `lock` lacks is planned as written (the tag, the revision): that is for plans made without
    network; what is applied is resolved before.
    """
    hosts: list[HostPlan] = []
    problems: list[Problem] = []
    workshop = Workshop(lock, render)
    for host in fleet.hosts:
        planned, found = plan_host(host, fleet.catalog, workshop)
        hosts.append(planned)
        problems.extend(found)
    if problems:
        raise FleetError(problems)
    warnings = []
    if not any(host.deployments for host in fleet.hosts) and fleet.hosts:
        warnings.append("no host has a deployment: nothing will be served")
    return FleetPlan(tuple(hosts), fleet.unreachable, tuple(warnings))


def _check(host: Host, catalog: GpuCatalog) -> tuple[Layout, tuple[Problem, ...]]:
    layout, problems = lay_out(host, catalog)
    found = list(problems)
    if host.state is not None and host.state.euid != 0:
        what = f"not root: the module ran with user id {host.state.euid}."
        fix = "Set ansible_become: true (and a user that may become root) for this host."
        found.append(Problem((), what, fix, (host.name,)))
    if host.state is not None and not host.deployments_defined and host.state.instances:
        names = ", ".join(item.name for item in host.state.instances)
        what = f"is not defined, and the host has instances ({names})."
        fix = "Define it; an empty list, vllm_deployments: [], removes them."
        found.append(Problem(("vllm_deployments",), what, fix, (host.name,)))
    _, problem = steps.docker_engine(host)
    if problem:
        found.append(Problem(problem.path, problem.what, problem.fix, (host.name,)))
    return layout, tuple(found)


class Workshop:
    """Makes instances; equal ones, as hosts of one kind have them, are composed and rendered once."""

    def __init__(self, lock: Lock, render: Render) -> None:
        self.lock = lock
        self.render = render
        self.made: dict[tuple[Any, ...], Planned] = {}

    def make(self, host: Host, slot: Slot) -> Planned:
        """The instance of a slot on a host."""
        deployment, settings = slot.deployment, host.settings
        image = self.lock.image(deployment.image) if deployment.image else None
        model = None
        if not deployment.local_model:
            model = self.lock.model(settings.endpoint, deployment.model, deployment.revision)
        group_ids = host.state.device_gids if host.state else ()
        # Deployments are parsed once per distinct list, and kept by their hosts as long as this object lives.
        key = (id(deployment), slot.index, slot.gpus, settings.endpoint, settings.cache_dir, group_ids)
        if key not in self.made:
            instance = compose(deployment, slot.index, slot.gpus, settings.cache_dir, group_ids, image, model)
            files = self.render(instance)
            self.made[key] = Planned(instance, files, spec_hash(files))
        return self.made[key]


def plan_host(host: Host, catalog: GpuCatalog, workshop: Workshop) -> tuple[HostPlan, tuple[Problem, ...]]:
    """One host's plan, and what is wrong with it."""
    lock = workshop.lock
    layout, problems = _check(host, catalog)
    actions: list[Action] = []
    engine, _ = steps.docker_engine(host)
    actions += [action for action in (engine, steps.numa_balancing(host)) if action]
    images = steps.images(host, lock)
    image_of = {item.name: pull_ref(item, lock.image(item.image) if item.image else None)
                for item in host.deployments}  # fmt: skip
    models = steps.models(host, lock, image_of)
    actions += [action for _, action in (*images, *models)]
    stop: tuple[str, ...] = ()
    if layout.repartition:
        running = steps.stop_servers(host)
        stop = tuple(item.name for item in running)
        actions += [*(steps.stop_action(item) for item in running), steps.compute_partition(host)]
    instances = tuple(workshop.make(host, slot) for slot in layout.slots)
    servers, remove = _servers(host, layout, instances)
    actions += [*remove, *servers]
    room, unknown = check_disk(host, (image for image, _ in images), (model for model, _ in models))
    model = _gpu_model(host, catalog)
    planned = HostPlan(
        host=host,
        layout=layout,
        actions=tuple(actions),
        packages=(engine.target,) if engine else (),
        images=tuple(image for image, _ in images),
        models=tuple(model for model, _ in models),
        instances=instances,
        start=tuple(action.target for action in servers),
        remove=tuple(action.target for action in remove),
        stop=stop,
        gpu_model=model,
        warnings=(*layout.warnings, *unknown, *_warnings(host, layout)),
    )
    return planned, (*problems, *room)


def _servers(
    host: Host, layout: Layout, instances: Iterable[Planned]
) -> tuple[tuple[Action, ...], tuple[Action, ...]]:
    there = {item.name: item for item in host.state.instances} if host.state else {}
    wanted = {item.instance.name: item for item in instances}
    start = []
    for name, item in wanted.items():
        hashes = {file: text_hash(text) for file, text in item.files.items()} if name in there else {}
        action = steps.server(name, item.spec_hash, hashes, there.get(name), layout.repartition)
        if action:
            start.append(action)
    gone = [steps.remove(running) for name, running in sorted(there.items()) if name not in wanted]
    return tuple(start), tuple(gone)


def _gpu_model(host: Host, catalog: GpuCatalog) -> str:
    if host.state is None:
        return host.settings.gpu_model or ""
    models = {catalog.by_pci_id(gpu.pci_id) for gpu in host.state.gpus}
    names = sorted(model.name if model else "unknown GPU" for model in models)
    return ", ".join(names)


def _warnings(host: Host, layout: Layout) -> tuple[str, ...]:
    found: list[str | None] = []
    ours = bool(host.state and any(item.state in steps.ALIVE for item in host.state.instances))
    if layout.repartition and host.state and host.state.kfd_processes and not ours:
        pids = ", ".join(str(pid) for pid in host.state.kfd_processes)
        found.append(f"processes use the GPUs ({pids}); the compute partition cannot change while they run")
    for deployment in host.deployments:
        build = deployment.build
        if build and not (len(build.ref) == 40 and all(char in "0123456789abcdef" for char in build.ref)):
            found.append(
                f"deployment {deployment.name} builds {build.ref}, which may move: "
                "a commit gives every node the same"
            )
    return tuple(item for item in found if item)


def _stop_only(name: str) -> dict[str, Any]:
    """A SERVER for an instance that is only stopped, as no deployment describes it any more."""
    return {"name": name, "container_name": container_name(name), "stop_timeout": 120}
