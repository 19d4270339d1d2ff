# SPDX-License-Identifier: Apache-2.0
"""Find the servers of a load balancer: one for each instance, and more while an instance changes. Pure.

A server is an instance at an address, for some model names. While the fleet changes, the configuration has the servers
of what runs and those of what will run: an instance that gets another address, port or served name has both until it
has changed. The one that listens and answers is in service.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....module_utils.common.errors import Problem
from ....module_utils.common.hashing import canonical, text_hash
from ....module_utils.content.urls import with_brackets
from ....module_utils.service.generations import BackendInstance
from ...base.json_record import JsonRecord
from ..desired.endpoint_settings import BalancerHost
from ..desired.fleet import ANY, LOCAL

Instance = tuple[str, str]
"""A host, and the name of an instance there."""
Place = tuple[str, str, int]
"""The name of an instance, and the address and port where it listens; not its host, which may be renamed."""


@dataclass(frozen=True)
class BackendServer(JsonRecord):
    """An instance behind the load balancer.

    Attributes:
        address, port: where the load balancer reaches it.
        limit: requests that it gets at once.
        models: the model names that it serves.
        weight: its share of the requests, relative to others that serve the same name.
        number: 1, or more for a further server of the instance at the same port.
        coming: its instance was not running when this was configured; it is not capacity until it is in service.
    """

    host: str
    instance: str
    deployment: str
    address: str
    port: int
    limit: int
    models: tuple[str, ...] = ()
    weight: int = 1
    number: int = 1
    coming: bool = False

    @property
    def name(self) -> str:
        """Return the name of HAProxy's server, which includes the port: after a change of port it is another server."""
        suffix = f":{self.number}" if self.number > 1 else ""
        return f"{self.host}.{self.instance}:{self.port}{suffix}"

    @property
    def of(self) -> Instance:
        """Return its instance."""
        return self.host, self.instance

    @property
    def place(self) -> Place:
        """Return its instance and where the instance listens."""
        return self.instance, self.address, self.port

    @property
    def target(self) -> str:
        """Return its address and port, as HAProxy writes them."""
        return f"{with_brackets(self.address)}:{self.port}"

    def to_json(self) -> dict[str, Any]:
        """Return the server's entry in balancer.json. probe: how the agent recognises it, whatever its name is."""
        probe = text_hash(canonical([self.address, self.port, *self.models[:1]]))[:16]
        return {"name": self.name, **super().to_json(), "target": self.target, "probe": probe}

    @classmethod
    def from_json(cls, item: Mapping[str, Any], backend: Mapping[str, Any]) -> BackendServer:
        """Build from an entry of a backend in balancer.json; before 0.2, the backend had deployment and models."""
        return cls(
            str(item["host"]),
            str(item["instance"]),
            str(item.get("deployment", backend["name"])),
            str(item["address"]),
            int(item["port"]),
            int(item["limit"]),
            tuple(map(str, item.get("models", backend["models"]))),
            int(item.get("weight", 1)),
            int(item.get("number", 1)),
            bool(item.get("coming")),
        )


@dataclass(frozen=True)
class HostBackends:
    """The instances of a GPU host.

    Attributes:
        complete: False if only the host is known; then its servers in the load balancer stay.
        stopping: running instances that this run stops.
        present: the running instances, as they were recorded.
        trusted: addresses that the inventory gives to the host.
    """

    host: str
    address: str
    instances: tuple[BackendInstance, ...] = ()
    stopping: tuple[str, ...] = ()
    untouched: tuple[str, ...] = ()
    complete: bool = True
    present: tuple[BackendInstance, ...] = ()
    trusted: frozenset[str] = frozenset()


def routable_instances(gpu_host: HostBackends) -> tuple[BackendInstance, ...]:
    """Return the host's instances that serve clients, without those that work for another host's server."""
    return tuple(item for item in gpu_host.instances if _routable(item))


def _routable(item: BackendInstance) -> bool:
    return item.endpoint and not item.headless


def seen_servers(config: Mapping[str, Any]) -> dict[str, BackendServer]:
    """Return the servers of a balancer.json, by "backend/server"."""
    return {
        f"{backend['name']}/{item['name']}": BackendServer.from_json(item, backend)
        for backend in config.get("backends") or ()
        for item in backend["servers"]
    }


def wanted_servers(
    host: BalancerHost, gpu_hosts: Sequence[HostBackends], fleet: Collection[str]
) -> tuple[tuple[BackendServer, ...], list[Problem], tuple[str, ...]]:
    """Return the servers of a load balancer after the run, problems, and deployments that it does not reach.

    It keeps those on hosts of the fleet that this run does not plan, and of instances that it leaves as they are. An
    instance that runs as recorded, and listens where this load balancer cannot reach it, is left to the others until a
    run changes it.
    """
    found: dict[Place, BackendServer] = {}
    problems: list[Problem] = []
    unreached: dict[str, None] = {}
    for gpu_host in gpu_hosts:
        for item in routable_instances(gpu_host):
            address, wrong = reached_at(item, gpu_host, host)
            if wrong and item.recorded:
                unreached[item.deployment] = None
                continue
            problems += wrong
            server = _server(item, gpu_host, address)
            found[server.place] = server
    planned = {gpu_host.host: gpu_host for gpu_host in gpu_hosts if gpu_host.complete}
    instances = {server.of for server in found.values()}
    kept = []
    for server in present_servers(host, gpu_hosts):
        plan = planned.get(server.host)
        if server.host in fleet and (plan is None or server.instance in plan.untouched):
            kept += [server] if server.of not in instances else []
    return (*found.values(), *kept), problems, tuple(unreached)


def present_servers(host: BalancerHost, gpu_hosts: Iterable[HostBackends]) -> tuple[BackendServer, ...]:
    """Return the servers of a load balancer before the run.

    They are those of its configuration; a new load balancer has those of the running instances that it can reach.
    """
    if host.observed and host.observed.config:
        return tuple(seen_servers(host.observed.config).values())
    return running_servers(host, gpu_hosts)


def running_servers(host: BalancerHost, gpu_hosts: Iterable[HostBackends]) -> tuple[BackendServer, ...]:
    """Return the servers of the running instances that a load balancer can reach, whether it has them or not."""
    found = []
    for gpu_host in gpu_hosts:
        for item in filter(_routable, gpu_host.present):
            address, wrong = reached_at(item, gpu_host, host)
            if not wrong:
                found.append(_server(item, gpu_host, address))
    return tuple(found)


def _server(item: BackendInstance, gpu_host: HostBackends, address: str) -> BackendServer:
    return BackendServer(
        gpu_host.host, item.name, item.deployment, address, item.port, item.limit, item.models, item.weight
    )


def reached_at(
    item: BackendInstance, gpu_host: HostBackends, host: BalancerHost
) -> tuple[str, list[Problem]]:
    """Return the address where the load balancer reaches an instance, and problems.

    It is the instance's own address, or its host's if the instance listens on all addresses. A node's record of where
    an instance listens is trusted only for addresses of that host: a compromised node must not be able to send requests
    elsewhere.
    """
    listen = item.listen
    known = (*ANY, *LOCAL, gpu_host.address, *gpu_host.trusted, *_asked_at(item, gpu_host, host))
    if item.recorded and listen not in known:
        what = f"{item.name} of {gpu_host.host} is recorded at {listen}, which is not an address of {gpu_host.host}."
        return listen, [
            Problem((), what, "A run that changes it moves it to an address of its host.", (gpu_host.host,))
        ]
    if gpu_host.host == host.name and listen in (*ANY, *LOCAL):
        return "::1" if listen in ("::", "::1") else "127.0.0.1", []
    if listen in LOCAL:
        what = (
            f"instances of {gpu_host.host} listen on {listen}, which load balancer {host.name} cannot reach."
        )
        fix = "Listen on an address of the host that the load balancer reaches, or set endpoint: false."
        return listen, [Problem((*item.path, "listen"), what, fix, (gpu_host.host,))]
    return (gpu_host.address if listen in ANY else listen), []


def _asked_at(item: BackendInstance, gpu_host: HostBackends, host: BalancerHost) -> frozenset[str]:
    """Return the addresses at which the load balancer reaches an instance at present."""
    return (
        host.observed.asked_at.get((gpu_host.host, item.name), frozenset()) if host.observed else frozenset()
    )


# ---- the change --------------------------------------------------------------------------------------


def changing_servers(
    wanted: Iterable[BackendServer],
    present: Iterable[BackendServer],
    running: Iterable[BackendServer] = (),
) -> tuple[BackendServer, ...]:
    """Return the servers during the change: the present ones, and those that will exist.

    running: servers of the running instances. One that is new in the configuration, or was still to come, but runs
    already, needs only a check.

    A server that has the same names at the same place before and afterwards is one server. If only some of the names
    stay, these get one server, and the names that come or go get others. The same applies if another instance has the
    port now or will have it: whatever answers there answers to all names of a server, or to none.
    """
    before, after = tuple(present), {server.place: server for server in wanted}
    runs: dict[Place, set[str]] = {}
    for server in running:
        runs.setdefault(server.place, set()).update(server.models)
    claims = _claims((*before, *after.values()))
    known: dict[Place, set[str]] = {}
    instances: set[Instance] = set()
    found: list[BackendServer] = []
    for server in before:
        instances |= {server.of, after.get(server.place, server).of}
        known.setdefault(server.place, set()).update(server.models)
        there = after.get(server.place)
        kept = frozenset(there.models if there else ())
        parts = _parts(server, server.models, claims)
        for part in sorted(parts, key=lambda part: not kept.issuperset(part)):
            stays = bool(there and part and kept.issuperset(part))
            now = there if there and stays else server
            host = there.host if there else server.host
            coming = server.coming and runs.get(server.place, set()).isdisjoint(part)
            found.append(
                replace(server, host=host, models=part, limit=now.limit, weight=now.weight, coming=coming)
            )
    for place, server in after.items():
        new = tuple(name for name in server.models if name not in known.get(place, ()))
        if new or place not in known:
            for part in _parts(server, new, claims):
                coming = server.of not in instances and runs.get(place, set()).isdisjoint(part)
                found.append(replace(server, models=part, coming=coming))
    return tuple(_numbered(found))


_Claims = Mapping[tuple[str, int], Mapping[int, Collection[str]]]


def _claims(servers: Iterable[BackendServer]) -> _Claims:
    """Return the names to which each instance at a port answers, by the port and its host, and by the address too."""
    found: dict[tuple[str, int], dict[int, tuple[str, ...]]] = {}
    for number, server in enumerate(servers):
        for where in dict.fromkeys((server.host, server.address)):
            found.setdefault((where, server.port), {})[number] = server.models
    return found


def _parts(server: BackendServer, names: Iterable[str], claims: _Claims) -> list[tuple[str, ...]]:
    """Return names of a server in parts: whatever listens at its port answers to all names of a part, or to none."""
    there = {**claims[server.host, server.port], **claims[server.address, server.port]}
    parts: dict[frozenset[int], list[str]] = {}
    for name in names:
        parts.setdefault(frozenset(one for one, models in there.items() if name in models), []).append(name)
    return [tuple(part) for part in parts.values()] or [()]


def _numbered(servers: Sequence[BackendServer]) -> Iterator[BackendServer]:
    """Yield the servers with unique names; those that come first keep theirs."""
    taken: set[str] = set()
    for server in servers:
        named = server
        while named.name in taken:
            named = replace(named, number=named.number + 1)
        taken.add(named.name)
        yield named
