# SPDX-License-Identifier: Apache-2.0
"""A model of a fleet at one moment: what listens where, what each load balancer sends where, and what is in service.

It is changed step by step, as a run would change the fleet. Counts of what is in service are kept up to date by the
instance and the server that change, so that a step on a fleet of a thousand hosts costs what it touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..desired.fleet import ANY, LOCAL
from ..endpoint.balancer_plan import continued, places_of
from ..endpoint.servers import BackendServer, Instance

FORMER, PRESENT = "former", "present"
"""The keys between load balancers and instances: the one that this run sends, and any other."""


@dataclass(frozen=True)
class Running:
    """An instance as it runs, or will run.

    Attributes:
        engine: the same for the servers of one engine.
        models: the names that it answers to.
        listen, port: where it listens; None if unknown.
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
    headless: bool = False
    key: str = ""
    spec: str = ""
    ready: bool = False

    @property
    def of(self) -> Instance:
        """Return its host and name."""
        return self.host, self.name


@dataclass
class SimulatedBalancer:
    """A load balancer: its servers by "backend/server", those that are drained, and the key that it sends.

    exists: it has a configuration. absent: this run neither asks nor configures it, as it is not in its group.
    """

    name: str
    exists: bool = False
    absent: bool = False
    key: str = ""
    servers: dict[str, BackendServer] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    by_operator: frozenset[Instance] = frozenset()
    of: dict[Instance, list[str]] = field(default_factory=dict)

    def configure(self, servers: Mapping[str, BackendServer]) -> None:
        """Put another configuration in use; a server continues the former one of its place, whatever its name is."""
        drained = places_of({name: self.servers[name] for name in self.drained})
        self.exists = True
        self.servers = dict(servers)
        self.drained = {
            name
            for name, server in servers.items()
            if continued(server, drained) or server.of in self.by_operator
        }
        self.of = {}
        for name, server in servers.items():
            self.of.setdefault(server.of, []).append(name)


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
        self._shares: dict[tuple[str, Instance], frozenset[str]] = {}
        self._on: dict[str, set[str]] = {}
        for item in self.instances.values():
            self._on.setdefault(item.host, set()).add(item.name)
        for balancer in self.balancers.values():
            for instance in balancer.of:
                self._count(balancer, instance)

    # ---- changes -------------------------------------------------------------------------------------

    def start(self, item: Running) -> None:
        """Have an instance run in place of the one of its name."""
        self.stop(item.of)
        self.instances[item.of] = item
        self._on.setdefault(item.host, set()).add(item.name)
        self._engine_changed(item)

    def stop(self, instance: Instance) -> None:
        """Have an instance run no more."""
        item = self.instances.pop(instance, None)
        if item:
            self._on[item.host].discard(item.name)
            self._engine_changed(item)

    def ready(self, instance: Instance) -> None:
        """Have an instance generate tokens."""
        item = self.instances[instance]
        self.instances[instance] = replace(item, ready=True)
        self._engine_changed(item)

    def configure(self, name: str, servers: Mapping[str, BackendServer], key: str) -> None:
        """Put a load balancer's configuration in use."""
        balancer = self.balancers.setdefault(name, SimulatedBalancer(name))
        before = set(balancer.of)
        balancer.configure(servers)
        balancer.key = key
        for instance in before | set(balancer.of):
            self._count(balancer, instance)

    def remove_balancer(self, name: str) -> None:
        """Have a load balancer exist no more."""
        balancer = self.balancers[name]
        balancer.exists = False
        for instance in balancer.of:
            self._count(balancer, instance)

    def set_drained(self, name: str, server: str, drained: bool) -> None:
        """Drain a server of a load balancer, or return it to service."""
        balancer = self.balancers[name]
        (balancer.drained.add if drained else balancer.drained.discard)(server)
        self._count(balancer, balancer.servers[server].of)

    def give_key(self, host: str) -> None:
        """Write the present key on a host: its instances accept it beside the one with which they were started."""
        self.keys[host] = PRESENT
        for balancer in self.balancers.values():
            for instance in balancer.of:
                if instance[0] == host:
                    self._count(balancer, instance)

    # ---- questions -----------------------------------------------------------------------------------

    def listens(self, balancer: str, server: BackendServer) -> bool:
        """Return whether the instance of a server listens where the load balancer asks it, and accepts its key."""
        item = self.instances.get(server.of)
        if item is None or item.port != server.port:
            return False
        if item.key and self.balancers[balancer].key not in (item.key, self.keys.get(server.host)):
            return False
        local = balancer == server.host and server.address in LOCAL
        if item.listen in ANY:
            return local or server.address == self.addresses.get(server.host, server.address)
        if item.listen in LOCAL:
            return local
        return server.address == item.listen

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
        """Return whether a server of a load balancer gets requests that its instance answers."""
        there = self.balancers[balancer]
        server = there.servers[name]
        item = self.instances.get(server.of)
        return bool(
            there.exists
            and item
            and name not in there.drained
            and self.listens(balancer, server)
            and self.works(server.of)
            and set(server.models) & set(item.models)
        )

    def forgotten(self, name: str, servers: Mapping[str, BackendServer]) -> list[str]:
        """Return the servers of a load balancer that get requests and have no place in another configuration.

        What another server there has the address of goes on under that one's name.
        """
        there = self.balancers.get(name)
        targets = {server.target for server in servers.values()}
        return [
            one
            for one, server in (there.servers.items() if there else ())
            if server.target not in targets and self.serves(name, one)
        ]

    def asked(self, instance: Instance) -> list[tuple[str, str]]:
        """Return the load balancers that send an instance requests, and as which server."""
        return [
            (balancer.name, name)
            for balancer in self.balancers.values()
            if not balancer.absent
            for name in balancer.of.get(instance, ())
            if self.serves(balancer.name, name)
        ]

    def _engine_changed(self, item: Running) -> None:
        for instance in self.engines.get(item.engine, (item.of,)):
            for balancer in self.balancers.values():
                if instance in balancer.of or (balancer.name, instance) in self._shares:
                    self._count(balancer, instance)

    def _count(self, balancer: SimulatedBalancer, instance: Instance) -> None:
        item = self.instances.get(instance)
        share = frozenset(
            model
            for name in balancer.of.get(instance, ())
            if item and self.serves(balancer.name, name)
            for model in balancer.servers[name].models
            if model in item.models
        )
        before = self._shares.get((balancer.name, instance), frozenset())
        self._shares[balancer.name, instance] = share
        for models, change in ((share - before, 1), (before - share, -1)):
            for model in models:
                asked = balancer.name, model
                self.counts[asked] = self.counts.get(asked, 0) + change
                self.changed.add(asked)
