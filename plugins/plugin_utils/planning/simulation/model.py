# SPDX-License-Identifier: Apache-2.0
"""A model of a fleet at one moment: what listens where, what each load balancer sends where, and what is in service.

It is changed step by step, as a run would change the fleet. Counts of what is in service are kept up to date by the
instance and the server that change, so that a step on a fleet of a thousand hosts costs what it touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..desired.fleet import ANY, LOCAL
from ..endpoint.balancer_plan import places_of, same_place_server
from ..endpoint.servers import BackendServer, Instance

FORMER, PRESENT = "former", "present"
"""The keys between load balancers and instances: the one that this run sends, and any other."""


@dataclass(frozen=True)
class Running:
    """An instance as it runs, or will run.

    Attributes:
        engine: the same for the servers of one engine.
        models: the names that it answers to.
        listen, port: where it listens; None if unknown, or if another server of its engine does.
        gpus: its GPUs by their render nodes; share: of each of them.
        key: of its load balancers, FORMER or PRESENT; "" if it asks for none.
        spec: the hash of its files.
        ready: it has generated tokens.
    """

    host: str
    name: str
    deployment: str
    engine: str
    models: tuple[str, ...]
    listen: str
    port: int | None
    ports: frozenset[int] = frozenset()
    gpus: frozenset[str] = frozenset()
    share: float = 1.0
    key: str = ""
    spec: str = ""
    ready: bool = False

    @property
    def of(self) -> Instance:
        """Return its host and name."""
        return self.host, self.name


Port = tuple[str, int]
"""A host, and a port there."""


@dataclass
class SimulatedBalancer:
    """A load balancer: its servers by "backend/server", those that are drained, and the key that it sends.

    exists: it has a configuration. absent: this run neither asks nor configures it, as it is not in its group.
    unproven: servers that were configured or returned, or whose instances started, and that nothing has waited for
    since: it may have yet to check them. They do not count as capacity.
    awaited: such servers that are capacity, as whatever took others out of service has waited until enough are.
    at: its servers by host and port.
    """

    name: str
    exists: bool = False
    absent: bool = False
    key: str = ""
    servers: dict[str, BackendServer] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    by_operator: frozenset[Instance] = frozenset()
    unproven: set[str] = field(default_factory=set)
    awaited: set[str] = field(default_factory=set)
    at: dict[Port, list[str]] = field(default_factory=dict)

    def configure(self, servers: Mapping[str, BackendServer]) -> None:
        """Put another configuration in use; a server continues the former one of its place, whatever its name is.

        It is asked for the first of its model names: if that changes, the server must be checked again.
        """
        drained = places_of({name: self.servers[name] for name in self.drained})
        carried = self.carried(servers)
        self.exists = True
        self.unproven = {name for name, before in carried.items() if not before or before in self.unproven}
        self.awaited = {name for name, before in carried.items() if before in self.awaited}
        self.servers = dict(servers)
        self.drained = {
            name
            for name, server in servers.items()
            if same_place_server(server, drained) or server.of in self.by_operator
        }

    def carried(self, servers: Mapping[str, BackendServer]) -> dict[str, str]:
        """Return the present server whose state each server of another configuration inherits; "" for none."""
        former = places_of(self.servers)
        return {
            name: same_place_server(replace(server, models=server.models[:1]), former)
            for name, server in servers.items()
        }


Asked = tuple[str, str]
"""A load balancer, and a model name that is asked there."""


class FleetModel:
    """A fleet at one moment.

    engines: the servers of each engine, with the hashes of their files.
    """

    def __init__(
        self,
        addresses: Mapping[str, str],
        engines: Mapping[str, Mapping[Instance, str]],
        instances: Iterable[Running],
        balancers: Iterable[SimulatedBalancer],
        keys: Mapping[str, str] | None = None,
    ) -> None:
        self.addresses = addresses
        self.engines = engines
        self.instances: dict[Instance, Running] = {item.of: item for item in instances}
        self.balancers: dict[str, SimulatedBalancer] = {item.name: item for item in balancers}
        self.keys = dict(keys or {})
        self.counts: dict[Asked, int] = {}
        self.changed: set[Asked] = set()
        self._names = {address: name for name, address in addresses.items()}
        self._shares: dict[tuple[str, Instance], frozenset[str]] = {}
        self._on: dict[str, set[str]] = {}
        self._at: dict[Port, list[Instance]] = {}
        for item in self.instances.values():
            self._add(item)
        for balancer in self.balancers.values():
            self._index(balancer)
            for instance in self._behind(balancer):
                self._count(balancer, instance)

    # ---- changes -------------------------------------------------------------------------------------

    def start(self, item: Running) -> None:
        """Have an instance run in place of the one of its name."""
        self.stop(item.of)
        self.instances[item.of] = item
        self._add(item)
        self._engine_changed(item)

    def stop(self, instance: Instance) -> None:
        """Remove an instance that ran."""
        item = self.instances.pop(instance, None)
        if item:
            self._on[item.host].discard(item.name)
            if item.port is not None:
                self._at[item.host, item.port].remove(instance)
            self._engine_changed(item)

    def ready(self, instance: Instance) -> None:
        """Have an instance generate tokens, which load balancers have yet to find out (prove)."""
        item = self.instances[instance]
        if item.ready:
            return
        self.instances[instance] = replace(item, ready=True)
        for one in self.engines.get(item.engine, (instance,)):
            there = self.instances.get(one)
            if there is None or there.port is None:
                continue
            for balancer in self.balancers.values():
                started = balancer.at.get((there.host, there.port), ())
                balancer.unproven.update(started)
                balancer.awaited.difference_update(started)
        self._engine_changed(item)

    def configure(self, name: str, servers: Mapping[str, BackendServer], key: str) -> None:
        """Put a load balancer's configuration in use."""
        balancer = self.balancers.setdefault(name, SimulatedBalancer(name))
        before = self._behind(balancer)
        balancer.configure(servers)
        balancer.key = key
        self._index(balancer)
        for instance in before | self._behind(balancer):
            self._count(balancer, instance)

    def prove(self, name: str, servers: Iterable[str]) -> None:
        """Wait until a load balancer has checked servers."""
        balancer, waited = self.balancers[name], set(servers)
        balancer.awaited -= waited
        self._checked(balancer, waited)

    def count_on(self, name: str, models: Iterable[str] | None = None) -> None:
        """Wait until enough servers of models have been checked, whichever these are; by default of all models."""
        balancer, wanted = self.balancers[name], None if models is None else set(models)
        found = {
            one
            for one in balancer.unproven
            if wanted is None or wanted.intersection(balancer.servers[one].models)
        }
        balancer.awaited |= found
        self._checked(balancer, found)

    def _checked(self, balancer: SimulatedBalancer, servers: set[str]) -> None:
        """Have servers of a load balancer be capacity, where instances answer for them."""
        proven = balancer.unproven & servers
        balancer.unproven -= proven
        for server in proven:
            for instance in self._at.get(self._port(balancer, balancer.servers[server]), ()):
                self._count(balancer, instance)

    def remove_balancer(self, name: str) -> None:
        """Remove a load balancer."""
        balancer = self.balancers[name]
        balancer.exists = False
        for instance in self._behind(balancer):
            self._count(balancer, instance)

    def set_drained(self, name: str, server: str, drained: bool) -> None:
        """Drain a server of a load balancer, or let it return to service once it has been checked (prove)."""
        balancer = self.balancers[name]
        if not drained and server in balancer.drained:
            balancer.unproven.add(server)
            balancer.awaited.discard(server)
        (balancer.drained.add if drained else balancer.drained.discard)(server)
        for instance in self._at.get(self._port(balancer, balancer.servers[server]), ()):
            self._count(balancer, instance)

    def give_key(self, host: str) -> None:
        """Write the present key on a host: its instances accept it as well as the one they started with."""
        self.keys[host] = PRESENT
        for item in self.on(host):
            for balancer in self.balancers.values():
                self._count(balancer, item.of)

    # ---- questions -----------------------------------------------------------------------------------

    def listener(self, balancer: str, server: BackendServer) -> Running | None:
        """Return the instance that listens where a load balancer sends the requests for a server, and takes its key.

        It is not the server's own instance where that has yet to get the port.
        """
        there = self.balancers[balancer]
        for instance in self._at.get(self._port(there, server), ()):
            item = self.instances[instance]
            if item.key and there.key not in (item.key, self.keys.get(item.host)):
                continue
            if self.hears(item, balancer, server):
                return item
        return None

    def hears(self, item: Running, balancer: str, server: BackendServer) -> bool:
        """Return whether an instance listens at the address where a load balancer asks a server."""
        local = balancer == item.host and server.address in LOCAL
        if item.listen in ANY:
            return local or server.address == self.addresses.get(item.host, server.address)
        return local if item.listen in LOCAL else server.address == item.listen

    def on(self, host: str) -> list[Running]:
        """Return the instances of a host."""
        return [self.instances[host, name] for name in sorted(self._on.get(host, ()))]

    def works(self, instance: Instance) -> bool:
        """Return whether an instance generates tokens: all servers of its engine are there and ready."""
        item = self.instances.get(instance)
        if item is None:
            return False
        return all(
            one in self.instances and self.instances[one].ready and self.instances[one].spec == spec
            for one, spec in self.engines.get(item.engine, {instance: item.spec}).items()
        )

    def serves(self, balancer: str, name: str) -> bool:
        """Return whether a server of a load balancer gets requests, and an instance answers them.

        The load balancer asks for one of the server's names, the first, whether the instance generates tokens.
        """
        return name not in self.balancers[balancer].unproven and self.may_serve(balancer, name)

    def may_serve(self, balancer: str, name: str) -> bool:
        """Return whether a server serves, or will once the load balancer has checked it."""
        there = self.balancers[balancer]
        server = there.servers[name]
        if not there.exists or name in there.drained:
            return False
        item = self.listener(balancer, server)
        return bool(item and self.works(item.of) and set(server.models[:1]) & set(item.models))

    def forgotten(self, name: str, servers: Mapping[str, BackendServer]) -> list[str]:
        """Return the servers of a load balancer that get requests and have no place in another configuration.

        A server whose address another one has there continues under that one's name.
        """
        there = self.balancers.get(name)
        targets = {server.target for server in servers.values()}
        return [
            one
            for one, server in (there.servers.items() if there else ())
            if server.target not in targets and self.may_serve(name, one)
        ]

    def asked(self, instance: Instance) -> list[tuple[str, str]]:
        """Return the load balancers that send an instance requests, and as which server."""
        item = self.instances.get(instance)
        return [
            (balancer.name, name)
            for balancer in self.balancers.values()
            if item and item.port is not None and not balancer.absent
            for name in balancer.at.get((item.host, item.port), ())
            if self.may_serve(balancer.name, name)
            and self.listener(balancer.name, balancer.servers[name]) == item
        ]

    def _port(self, balancer: SimulatedBalancer, server: BackendServer) -> Port:
        """Return the host to which the address of a server leads, and the port there."""
        if server.host in self.addresses:
            return server.host, server.port
        local = server.address in LOCAL and balancer.name in self.addresses
        return balancer.name if local else self._names.get(server.address, server.host), server.port

    def _add(self, item: Running) -> None:
        self._on.setdefault(item.host, set()).add(item.name)
        if item.port is not None:
            self._at.setdefault((item.host, item.port), []).append(item.of)

    def _index(self, balancer: SimulatedBalancer) -> None:
        balancer.at = {}
        for name, server in balancer.servers.items():
            balancer.at.setdefault(self._port(balancer, server), []).append(name)

    def _behind(self, balancer: SimulatedBalancer) -> set[Instance]:
        """Return the instances that listen where a load balancer has servers."""
        return {instance for port in balancer.at for instance in self._at.get(port, ())}

    def _engine_changed(self, item: Running) -> None:
        for instance in self.engines.get(item.engine, (item.of,)):
            for balancer in self.balancers.values():
                self._count(balancer, instance)

    def _count(self, balancer: SimulatedBalancer, instance: Instance) -> None:
        item = self.instances.get(instance)
        before = self._shares.get((balancer.name, instance), frozenset())
        share = self._share(balancer, item) if item and item.port is not None else frozenset()
        self._shares[balancer.name, instance] = share
        for models, change in ((share - before, 1), (before - share, -1)):
            for model in models:
                asked = balancer.name, model
                self.counts[asked] = self.counts.get(asked, 0) + change
                self.changed.add(asked)

    def _share(self, balancer: SimulatedBalancer, item: Running) -> frozenset[str]:
        """Return the model names for which an instance gets requests of a load balancer."""
        return frozenset(
            model
            for name in balancer.at.get((item.host, item.port or 0), ())
            if self.serves(balancer.name, name)
            and self.listener(balancer.name, balancer.servers[name]) == item
            for model in balancer.servers[name].models
            if model in item.models
        )
