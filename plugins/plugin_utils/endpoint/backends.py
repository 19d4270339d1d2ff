# SPDX-License-Identifier: Apache-2.0
"""From the instances of all hosts to a load balancer's configuration, as data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...module_utils.common.endpoint import AGENT_PORT, METRICS, ROUTER_PORT, ROUTERS
from ...module_utils.common.errors import Problem, natural
from ...module_utils.common.generations import Offered
from ...module_utils.common.hashing import canonical, text_hash
from ..desired.endpoint_settings import BalancerHost, BalancerSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")
ANY = ("0.0.0.0", "::")
ROUTER_PORTS = (ROUTER_PORT, *ROUTERS, *(port + METRICS for port in ROUTERS))
# Bytes of a request in which its model is looked for, where several are behind one address.
BODY = 1 << 20


@dataclass(frozen=True)
class Member:
    """An instance behind the balancer; limit: requests that it gets at once."""

    host: str
    instance: str
    address: str
    port: int
    limit: int

    @property
    def name(self) -> str:
        """Its name as HAProxy's server: with the port, as an instance that moves to another one is another server."""
        return f"{self.host}.{self.instance}:{self.port}"

    def to_json(self) -> dict[str, Any]:
        """As balancer.json has it."""
        return {
            "name": self.name,
            "host": self.host,
            "instance": self.instance,
            "address": self.address,
            "port": self.port,
            "limit": self.limit,
            "target": f"{bracketed(self.address)}:{self.port}",
        }

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Member:
        """The reverse of to_json."""
        return cls(
            str(item["host"]),
            str(item["instance"]),
            str(item["address"]),
            int(item["port"]),
            int(item["limit"]),
        )


@dataclass(frozen=True)
class Backend:
    """A deployment: the model names that clients ask for, and its instances on all hosts."""

    name: str
    models: tuple[str, ...]
    members: tuple[Member, ...]
    prefix: bool = False  # a router chooses the instance

    @property
    def queue(self) -> int:
        """Requests that may wait: as many as all instances can work on at once."""
        return sum(member.limit for member in self.members)


@dataclass(frozen=True)
class Offer:
    """What a GPU host serves; whole False: only its host is known, and what the balancer has of it stays.

    stopping: instances that run and are going to be stopped by this run.
    """

    host: str
    address: str
    instances: tuple[Offered, ...] = ()
    stopping: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    whole: bool = True


def served(offer: Offer) -> tuple[Offered, ...]:
    """The host's instances that clients may ask: not those that work for another host's server."""
    return tuple(item for item in offer.instances if item.endpoint and not item.headless)


def names_twice(offers: Iterable[Offer]) -> Iterable[Problem]:
    """Model names that two deployments would answer to."""
    owners: dict[str, str] = {}
    told = set()
    for offer in offers:
        for item in served(offer):
            for model in item.models:
                other = owners.setdefault(model, item.deployment)
                if other != item.deployment and (model, item.deployment) not in told:
                    told.add((model, item.deployment))
                    path = (*item.path, "served_model_name")
                    what = f"deployments {other} and {item.deployment} both serve {model!r} at one address."
                    fix = (
                        "Give one another served_model_name, or endpoint: false, or make them one deployment."
                    )
                    yield Problem(path, what, fix, (offer.host,))


def backends_of(
    host: BalancerHost,
    offers: Sequence[Offer],
    fleet: frozenset[str],
    routing: Mapping[str, bool] | None = None,
) -> tuple[tuple[Backend, ...], list[Problem]]:
    found: dict[str, tuple[dict[str, None], dict[str, Member]]] = {}
    problems = []
    for offer in offers:
        for item in served(offer):
            address, wrong = _address(item, offer, host)
            problems += wrong
            member = Member(offer.host, item.name, address, item.port, item.limit)
            models, members = found.setdefault(item.deployment, ({}, {}))
            models.update(dict.fromkeys(item.models))
            members[member.name] = member
    planned = {offer.host: offer for offer in offers if offer.whole}
    for backend in (host.seen.config.get("backends") or ()) if host.seen else ():
        for member in map(Member.from_json, backend["servers"]):
            offer_of = planned.get(member.host)
            if member.host in fleet and (offer_of is None or member.instance in offer_of.kept):
                models, members = found.setdefault(str(backend["name"]), ({}, {}))
                models.update(dict.fromkeys(backend["models"]) if not models else {})
                members.setdefault(member.name, member)
    return tuple(
        Backend(
            name,
            tuple(models),
            tuple(members[key] for key in sorted(members, key=natural)),
            (routing or {}).get(name, name in _routed(host)),
        )
        for name, (models, members) in sorted(found.items(), key=lambda item: natural(item[0]))
    ), problems


def _routed(host: BalancerHost) -> Mapping[str, Any]:
    """Deployments that have a router now."""
    return (host.seen.config.get("routers") if host.seen else None) or {}


def before_it_goes(backends: Sequence[Backend], seen: Mapping[str, Any]) -> tuple[Backend, ...]:
    """What the balancer is to have while instances change: what comes, and what goes until it has gone.

    `seen`: its present balancer.json. A deployment that goes comes first, and keeps a name that another one takes over.
    """
    wanted = {backend.name: backend for backend in backends}
    going: dict[str, Backend] = {}
    for backend in seen.get("backends") or ():
        name = str(backend["name"])
        there = {member.name for member in wanted[name].members} if name in wanted else set()
        gone = tuple(m for m in map(Member.from_json, backend["servers"]) if m.name not in there)
        if name in wanted:
            models = tuple(dict.fromkeys((*wanted[name].models, *backend["models"])))
            wanted[name] = replace(wanted[name], models=models, members=(*wanted[name].members, *gone))
        elif gone:
            routed = name in (seen.get("routers") or {})
            going[name] = Backend(name, tuple(backend["models"]), gone, routed)
    return (*going.values(), *wanted.values())


def _address(item: Offered, offer: Offer, host: BalancerHost) -> tuple[str, list[Problem]]:
    """Where the balancer reaches an instance: its own address, or its host's where it listens on all."""
    listen = item.listen
    if offer.host == host.name and listen in (*ANY, *LOOPBACK):
        return "::1" if listen in ("::", "::1") else "127.0.0.1", []
    if listen in LOOPBACK:
        what = f"instances of {offer.host} listen on {listen}, which load balancer {host.name} cannot reach."
        fix = "Listen on an address of the host that the balancer reaches, or set endpoint: false."
        return listen, [Problem((*item.path, "listen"), what, fix, (offer.host,))]
    return (offer.address if listen in ANY else listen), []


def conflicts(host: BalancerHost, offers: Iterable[Offer], routers: bool = False) -> list[Problem]:
    """Ports of instances on the balancer's own host."""
    taken = {port: item for o in offers if o.host == host.name for item in o.instances for port in item.ports}
    return [
        Problem(
            (*taken[port].path, "port"),
            f"instance {taken[port].name} and the load balancer would both listen on port {port}.",
            "Choose another port, or set load_balancer_port.",
            (host.name,),
        )
        for port in (*host.settings.ports, *(ROUTER_PORTS if routers else ()))
        if port in taken
    ]


def config_data(
    settings: BalancerSettings,
    backends: Sequence[Backend],
    instance_key: bool = False,
    routers: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """All that haproxy.cfg says, decided. `version` names this configuration in the running HAProxy.

    instance_key: the key of instance.map is sent to instances. routers: their ports, by deployment.
    """
    data: dict[str, Any] = {
        "schema": 1,
        "listen": bracketed(settings.listen),
        "port": settings.port,
        "tls": settings.tls,
        "auth": settings.auth,
        "instance_key": instance_key,
        "metrics": f"{bracketed(settings.metrics_listen)}:{settings.metrics_port}",
        "timeout": settings.timeout,
        "queue_timeout": settings.queue_timeout,
        "agent_port": AGENT_PORT,
        "router_port": ROUTER_PORT,
        "routers": dict(routers or {}),
        # With one deployment nothing has to be read of a request to know where it goes.
        "route_by_model": len(backends) > 1,
        "buffer": BODY if len(backends) > 1 else 16384,
        "models": _model_list(backends) if len(backends) > 1 else None,
        "backends": [backend_json(backend) for backend in backends],
    }
    return {**data, "version": text_hash(canonical(data))[:16]}


def router_ports(backends: Iterable[Backend], seen: Mapping[str, Any]) -> dict[str, int]:
    """Ports of the routers: a deployment keeps the one that it has, so that its router goes on."""
    names = sorted((item.name for item in backends if item.prefix and item.members), key=natural)
    had = seen.get("routers") or {}
    found = {name: int(had[name]) for name in names if name in had}
    free = (port for port in ROUTERS if port not in found.values())
    return {**found, **dict(zip((name for name in names if name not in found), free))}


def _model_list(backends: Sequence[Backend]) -> str:
    """The answer to GET /v1/models."""
    entries = [
        {"id": model, "object": "model", "created": 0, "owned_by": "vllm"}
        for model in dict.fromkeys(model for backend in backends for model in backend.models)
    ]
    return canonical({"object": "list", "data": entries})


def backend_json(backend: Backend) -> dict[str, Any]:
    servers = [member.to_json() for member in backend.members]
    return {"name": backend.name, "models": list(backend.models), "queue": backend.queue, "servers": servers}


def bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
