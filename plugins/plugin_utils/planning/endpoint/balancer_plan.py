# SPDX-License-Identifier: Apache-2.0
"""Describe the plan of one load balancer: its configuration during the change and afterwards, and its drains. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from ....module_utils.content.urls import with_brackets
from ....module_utils.credentials.instance_key import InstanceKey
from ....module_utils.service.endpoint import OPERATOR
from ....module_utils.service.generations import BackendInstance
from ..desired.actions import Action
from ..desired.endpoint_settings import BalancerHost, ObservedBalancer
from ..desired.fleet import ANY
from .backends import Backend, names_of
from .config import backend_json
from .servers import BackendServer, HostBackends, Instance, Place, reached_at, seen_servers

BALANCER: Final = "balancer"
"""The kind of the action that changes a load balancer's configuration."""
INSTANCE = re.compile(r":\d+(:\d+)?$")
"""What follows the instance in the name of a server: the port, and a number if it has several servers there."""


@dataclass(frozen=True)
class BalancerSecrets:
    """The control node's secrets for a load balancer: texts of its files, None if they do not exist yet."""

    keys_map: str | None = None
    certificate: str | None = None
    keys_file: str = ""
    certificate_file: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerNames:
    """The names of an instance's server while the fleet changes, and afterwards.

    during, after: "backend/server" in the configuration of that time; after is "" if that does not have it. before: the
    present configuration has it. server: the one during the change.
    """

    during: str
    after: str
    before: bool
    server: BackendServer


@dataclass(frozen=True)
class BalancerPlan:
    """The desired state of one load balancer, and the changes to get there.

    Attributes:
        during, files_before: backends and files while instances change, with both the present and the new servers.
        servers: the servers of each instance during that time.
        answered: servers of other instances which a running instance would answer, as these will get its port.
        drain: servers to drain before an instance stops, by that instance.
        abandoned: servers that an earlier run left drained. left: those of them that stay.
        gone: servers that go and whose instance this run does not stop, to drain after instances have changed.
        undrain: servers to return to service afterwards, by their names then; those of `left` are among them.
    """

    host: BalancerHost
    backends: tuple[Backend, ...]
    during: tuple[Backend, ...]
    files: Mapping[str, str]
    files_before: Mapping[str, str]
    material: BalancerSecrets
    instance_key: InstanceKey
    actions: tuple[Action, ...]
    packages: tuple[str, ...]
    servers: Mapping[Instance, Sequence[ServerNames]]
    drain: Mapping[Instance, Sequence[str]]
    undrain: tuple[str, ...]
    warnings: tuple[str, ...]
    left: tuple[str, ...] = ()
    abandoned: frozenset[str] = frozenset()
    gone: tuple[str, ...] = ()
    answered: Mapping[Instance, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def present(self) -> Mapping[str, BackendServer]:
        """Return the servers of its present configuration, by "backend/server"."""
        return seen_servers(self.host.observed.config if self.host.observed else {})

    @cached_property
    def drained_by_operator(self) -> frozenset[Instance]:
        """Return the instances that the operator has drained."""
        drained = self.host.observed.drained if self.host.observed else {}
        return self.instances(name for name, entry in drained.items() if entry.get("by") == OPERATOR)

    @cached_property
    def left_by(self) -> Mapping[Instance, Collection[str]]:
        """Return the commands of the earlier runs that left an instance drained, by the instance."""
        drained = self.host.observed.drained if self.host.observed else {}
        found: dict[Instance, set[str]] = {}
        for name in self.left:
            if name in drained and name in self.present:
                command = str(drained[name].get("command") or "")
                found.setdefault(self.present[name].of, set()).add(command)
        return found

    def instances(self, servers: Iterable[str]) -> frozenset[Instance]:
        """Return the instances of some servers of its present configuration."""
        return frozenset(self.present[name].of for name in servers if name in self.present)

    @cached_property
    def to_drain(self) -> Collection[str]:
        """Return the servers to drain before instances stop."""
        return dict.fromkeys(name for some in self.drain.values() for name in some)

    @cached_property
    def _drained_on(self) -> Mapping[str, Sequence[str]]:
        return _by_host(self.drain)

    @cached_property
    def _served_on(self) -> Mapping[str, Sequence[str]]:
        return _by_host(self.servers)

    def leaving(self, host: str, instances: Collection[str]) -> list[str]:
        """Return the servers through which these instances of a host get requests, by their names during the change."""
        own = [item.during for name in instances for item in self.servers.get((host, name), ())]
        return list(
            dict.fromkeys([*own, *(one for name in instances for one in self.answered.get((host, name), ()))])
        )

    def entering(self, host: str, instances: Collection[str]) -> list[str]:
        """Return the servers of these instances as they will be."""
        return [
            item.during for name in instances for item in self.servers.get((host, name), ()) if item.after
        ]

    def returning(self, gpu_host: HostBackends, instances: Iterable[BackendInstance]) -> list[str]:
        """Return the servers of a host's instances that run as they were recorded and answer requests."""
        return [item.during for one in instances for item in self._answered_by(gpu_host, one)]

    def has(self, gpu_host: HostBackends, instance: BackendInstance) -> bool:
        """Return whether its present configuration has an instance of a host, at the address where that listens."""
        return any(item.before for item in self._answered_by(gpu_host, instance))

    def was_left(self, gpu_host: HostBackends, instance: BackendInstance) -> bool:
        """Return whether an earlier run left an instance of a host drained."""
        return any(item.during in self.abandoned for item in self._answered_by(gpu_host, instance))

    def _answered_by(self, gpu_host: HostBackends, instance: BackendInstance) -> Iterator[ServerNames]:
        """Yield the servers for which an instance answers as it was recorded, without those that are still to come."""
        if instance.headless:
            return
        address, _unused = reached_at(instance, gpu_host, self.host)
        place = instance.name, address, instance.port
        for item in self.servers.get((gpu_host.host, instance.name), ()):
            if item.server.place == place and set(item.server.models) & set(instance.models):
                yield item

    def drain_steps(self, gpu_host: str, without: Collection[str] = ()) -> dict[str, list[str]]:
        """Return the servers of one GPU host to drain before it changes, and to return to service afterwards.

        without: names of instances whose servers are left out.
        """
        touched = [name for name in self._drained_on.get(gpu_host, ()) if name not in without]
        drain = self.leaving(gpu_host, touched)
        # Also the instances that get the port of one that goes.
        takers = [name for name in self._served_on.get(gpu_host, ()) if name not in without]
        taken = [name for name in self.entering(gpu_host, takers) if name in drain]
        return {"drain": drain, "undrain": list(dict.fromkeys([*self.entering(gpu_host, touched), *taken]))}

    def returned_first(self, changing: Collection[str]) -> list[str]:
        """Return the servers that an earlier run left drained and this run does not stop: they serve during the change.

        changing: instances ("n1.llama-0") that this run changes in batches; each returns to service with its batch.
        """
        return [name for name in self.left if name not in self.to_drain and instance_of(name) not in changing]

    def configured_first(self, changing: Collection[str]) -> bool:
        """Return whether it is configured before instances change, and not only afterwards.

        changing: as for returned_first; these are drained in every load balancer, even in one that this run installs.
        """
        behind = bool(changing) and any(action.kind == BALANCER for action in self.actions)
        return bool(self.drain or self.returned_first(changing) or self._written_twice() or behind)

    def _written_twice(self) -> bool:
        """Return whether it needs another configuration during the change; not if servers are only added."""
        if self.files_before == self.files:
            return False
        during = {name: replace(one, coming=False) for name, one in names_of(self.during).items()}
        return during != names_of(self.backends)

    @property
    def url(self) -> str:
        """Return the URL for clients."""
        return url_of(self.host)

    def to_json(self) -> dict[str, Any]:
        """Return the load balancer's part of plan.json, which contains no key."""
        return {
            "status": "observed" if self.host.observed else "declared",
            "url": self.url,
            "backends": [backend_json(item, self.host.settings.key_share) for item in self.backends],
            "actions": [action.to_json() for action in self.actions],
            "packages": list(self.packages),
            "files": dict(self.files),
            "files_before": dict(self.files_before),
            "keys_file": self.material.keys_file or None,
            "certificate_file": self.material.certificate_file or None,
            "instance_key_file": self.instance_key.file if self.instance_key.sent else None,
            "drain": list(self.to_drain),
            "undrain": list(self.undrain),
            "gone": list(self.gone),
            "warnings": list(self.warnings),
        }


def _by_host(instances: Iterable[Instance]) -> dict[str, list[str]]:
    """Return the names of instances, by host."""
    found: dict[str, list[str]] = {}
    for host, name in instances:
        found.setdefault(host, []).append(name)
    return found


def server_names(
    observed: ObservedBalancer | None, during: Iterable[Backend], backends: Iterable[Backend]
) -> dict[Instance, list[ServerNames]]:
    """Return the servers of each instance during the change, with their names afterwards."""
    before = places_of(seen_servers(observed.config if observed else {}))
    after = places_of(names_of(backends))
    found: dict[Instance, list[ServerNames]] = {}
    for name, server in names_of(during).items():
        names = ServerNames(
            name, same_place_server(server, after), bool(same_place_server(server, before)), server
        )
        found.setdefault(server.of, []).append(names)
    return found


def answered_servers(
    during: Iterable[Backend], gpu_hosts: Iterable[HostBackends]
) -> dict[Instance, list[str]]:
    """Return the servers of other instances at whose port a running instance listens, by the running instance."""
    listening: dict[tuple[str, int], Instance] = {}
    for gpu_host in gpu_hosts:
        for item in gpu_host.present:
            if item.headless:
                continue
            for where in dict.fromkeys((gpu_host.host, gpu_host.address)):
                listening[where, item.port] = gpu_host.host, item.name
    found: dict[Instance, list[str]] = {}
    for name, server in names_of(during).items():
        for where in (server.host, server.address):
            there = listening.get((where, server.port), server.of)
            if there != server.of and name not in found.get(there, ()):
                found.setdefault(there, []).append(name)
    return found


def places_of(servers: Mapping[str, BackendServer]) -> dict[Place, list[tuple[str, BackendServer]]]:
    """Return servers and their names, by their places."""
    found: dict[Place, list[tuple[str, BackendServer]]] = {}
    for name, server in servers.items():
        found.setdefault(server.place, []).append((name, server))
    return found


def same_place_server(
    server: BackendServer, others: Mapping[Place, Iterable[tuple[str, BackendServer]]]
) -> str:
    """Return the name of the server at the same place that has a model name in common; "" without one."""
    there = others.get(server.place, ())
    return next((name for name, other in there if set(other.models) & set(server.models)), "")


def instance_of(server: str) -> str:
    """Return the host and instance of a server: llama/n1.llama-0:8000 → n1.llama-0."""
    return INSTANCE.sub("", server.partition("/")[2])


def url_of(host: BalancerHost) -> str:
    """Return the URL of a host's load balancer for clients."""
    settings = host.settings
    address = host.address if settings.listen in ANY else settings.listen
    address = settings.virtual.address if settings.virtual else address
    return f"{'https' if settings.tls else 'http'}://{with_brackets(address)}:{settings.port}"
