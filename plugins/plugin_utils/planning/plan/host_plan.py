# SPDX-License-Identifier: Apache-2.0
"""Hold a finished plan: what a run does on each host, and its form in plan.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....module_utils.common.paths import container_name
from ..changes import actions as steps
from ..changes.actions import ImageStep, ModelStep, unique
from ..changes.assumptions import Assumption
from ..changes.downloads import DownloadTerms
from ..desired.actions import ALIVE, Action
from ..desired.fleet import Host
from ..endpoint.balancer_plan import BalancerPlan
from ..endpoint.former import FormerBalancer
from ..endpoint.servers import HostBackends
from ..fetching.pushes import Push
from ..fetching.transfers import Transfer
from ..generations.bindings import ignored_texts
from ..generations.drift import wanted_of
from ..generations.restore import rollback_resources
from ..generations.revisions import RevisionChange
from ..instances.planned import Serving
from ..placement.layout import Layout

SCHEMA = 1
# What can take hours comes before what stops a running instance.
ROLES = ("host_prep", "distribution", "vllm_image", "hf_model", "instance_key", "gpu_partition", "vllm_serve")


@dataclass(frozen=True)
class HostPlan:
    """What a run does on one host, and what the host will run.

    policies: instances that only get their restart policy back. untouched: instances that are neither started nor
    removed. records, bindings: for the node's store of generations. assumed: of a host that was not contacted.
    transfers: names of those in which it takes part; build_transfers: of images that a host has built. pushes: images
    that it pushes to a registry. repositories: models made on the fleet that are sent here.
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
    policies: tuple[str, ...] = ()
    assumed: tuple[Assumption, ...] = ()
    transfers: tuple[str, ...] = ()
    build_transfers: tuple[str, ...] = ()
    repositories: tuple[Mapping[str, str], ...] = ()
    pushes: tuple[Push, ...] = ()

    @property
    def partial(self) -> bool:
        """Return whether images must be inspected before the rest can be planned."""
        return bool(self.unknown)

    @property
    def builds(self) -> bool:
        """Return whether images are built, pushed, or received from the host that builds them; they are then pinned."""
        return bool(self.pushes) or any(image.build for image in self.images)

    @property
    def passes_builds(self) -> bool:
        """Return whether it builds an image, sends one to others, or receives one."""
        return self.builds or bool(self.build_transfers) or any(image.of_build for image in self.images)

    def _build_steps(self) -> dict[str, Any]:
        """Return the steps for images that hosts build, in this order; nothing if there are none."""
        found = {
            "build": [item.to_json() for item in self.images if item.build and not item.source],
            "push": [item.to_json() for item in self.pushes],
            "transfers": list(self.build_transfers),
            "load": [
                item.to_json()
                for item in self.images
                if item.of_build or (item.build and item.source and not item.awaited)
            ],
        }
        return {"builds": found} if any(found.values()) else {}

    @property
    def todo(self) -> tuple[str, ...]:
        """Return the roles with something to do, in the order in which they run."""
        needed = {action.role for action in self.actions}
        return tuple(role for role in ROLES if role in needed)

    @property
    def _down(self) -> set[str]:
        """Return the instances that are not running, and those in the host's record that do not exist."""
        state = self.host.state
        if state is None:
            return set()
        made = [made for made in map(wanted_of, state.generations) if made]
        alive = {item.name for item in state.instances if item.state in ALIVE}
        there = {item.name for item in state.instances}
        return there.union(*(item.specs for item in made)) - alive

    def to_json(self) -> dict[str, Any]:
        """Return the host's part of plan.json."""
        settings, state = self.host.settings, self.host.state
        servers = {item.name: item.server for item in self.instances}
        kinds = {action.kind for action in self.actions}
        spanning = {item.name for item in self.instances if len(item.member.hosts) > 1}
        partition = bool(kinds & steps.PARTITION_KINDS)
        resumed = spanning if partition else self._down
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
                "interrupted": bool(state and state.partition_change),
                "backend": settings.backend,
                "stop_servers": [_stop_spec(name, servers.get(name)) for name in self.stop],
                "serve": [name for name in self.start if name not in spanning],
                "remove": list(self.remove),
            }
            if partition
            else None,
            **({"transfers": list(self.transfers)} if self.transfers else {}),
            **({"repositories": [dict(item) for item in self.repositories]} if self.repositories else {}),
            **self._build_steps(),
            "images": [image.to_json() for image in self.images if not image.build and not image.of_build],
            "models": [model.to_json() for model in self.models],
            "servers": [servers[name] for name in (*self.start, *self.policies)],
            "serve": [*(name for name in self.start if name in spanning or not partition), *self.policies],
            "spans": [name for name in self.start if name in spanning],
            "remove": [] if partition else list(self.remove),
            "resume": [name for name in self.start if name in resumed],
            "instances": [{"host": self.host.name, **item.described} for item in self.instances],
            "generations": [dict(item) for item in self.records],
            "bindings": [dict(item) for item in self.bindings],
            "kept": rollback_resources(self.host, self.instances),
            **({"assumed": [item.to_json() for item in self.assumed]} if self.assumed else {}),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class FleetPlan:
    """The plan of a whole run.

    sources: the documents that its reasons name. excluded: hosts that cannot be planned, and why.
    downloads_at_once: the hosts that may download from a hub at the same time; 0 for all.
    former: load balancers on hosts that are not in their group.
    """

    hosts: tuple[HostPlan, ...]
    unreachable: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    sources: Mapping[str, Mapping[str, Any]]
    balancers: tuple[BalancerPlan, ...] = ()
    revisions: tuple[RevisionChange, ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    transfers: tuple[Transfer, ...] = ()
    downloads: tuple[DownloadTerms, ...] = ()
    downloads_at_once: int = 0
    former: tuple[FormerBalancer, ...] = ()

    @property
    def partial(self) -> tuple[str, ...]:
        """Return the images that must be inspected before everything can be planned."""
        return unique(ref for host in self.hosts for ref in host.unknown)

    @property
    def ignored(self) -> list[str]:
        """Return the inventory's definitions that the run ignores because they were turned back."""
        return ignored_texts(self.revisions)

    @property
    def changes(self) -> int:
        """Return the number of actions on all hosts."""
        actions = [*(host.actions for host in self.hosts), *(item.actions for item in self.balancers)]
        return sum(map(len, (*actions, *(item.actions for item in self.former))))

    def to_json(self) -> dict[str, Any]:
        """Return plan.json; its schema is catalog/schemas/plan.schema.json."""
        return {
            "schema": SCHEMA,
            "deployments": list(unique(item.name for host in self.hosts for item in host.host.deployments)),
            "generations": [item.to_json() for item in self.revisions],
            "hosts": {host.host.name: host.to_json() for host in self.hosts},
            "balancers": {item.host.name: item.to_json() for item in self.balancers},
            **(
                {"former_balancers": {item.host: item.to_json() for item in self.former}}
                if self.former
                else {}
            ),
            **({"transfers": [item.to_json() for item in self.transfers]} if self.transfers else {}),
            "partial": list(self.partial),
            "sources": {name: dict(item) for name, item in sorted(self.sources.items())},
            "unreachable": dict(self.unreachable),
            "excluded": dict(self.excluded),
            "warnings": list(self.warnings),
            **({"downloads_at_once": self.downloads_at_once} if self.downloads_at_once else {}),
            **({"downloads": [item.to_json() for item in self.downloads]} if self.downloads else {}),
        }


def host_backends(plan: HostPlan, inventory: Host | None = None) -> HostBackends:
    """Return a host as load balancers reach it, without its instances. inventory: the host with all its deployments."""
    address = plan.host.address or plan.host.name
    listens = (one.listen for one in (inventory or plan.host).deployments)
    return HostBackends(plan.host.name, address, trusted=frozenset({address, *listens}))


def _stop_spec(name: str, server: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what is needed to stop an instance, even if no deployment defines it any more."""
    seconds = server["stop_timeout"] if server else 120
    return {"name": name, "container_name": container_name(name), "stop_timeout": seconds}
