# SPDX-License-Identifier: Apache-2.0
"""Turn the instances of all hosts into a load balancer's configuration, as data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...module_utils.common.endpoint import AGENT_PORT, METRICS, ROUTER_PORT, ROUTERS
from ...module_utils.common.errors import Problem, natural
from ...module_utils.common.generations import BackendInstance
from ...module_utils.common.hashing import canonical, text_hash
from ..desired.endpoint_settings import BalancerHost, BalancerSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")
ANY = ("0.0.0.0", "::")
ROUTER_PORTS = (ROUTER_PORT, *ROUTERS, *(port + METRICS for port in ROUTERS))
# HAProxy's connections, and those of them that clients cannot take: its own checks, metrics, and a stranger's rest.
CONNECTIONS, RESERVED = 8192, 256
# Per client address and 10 s: new connections that are accepted from one over its limit, and requests without a valid
# key that are logged.
SOURCE_RATE, GUESSES = 1000, 100
RATE_SECONDS = 10  # over which the requests of a key are counted
# Routes of vLLM's server that clients need, https://docs.vllm.ai/en/v0.32.0/serving/online_serving/. Others may load
# adapters, stop the engine or show what it does.
ROUTES = (
    "/v1/models",
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
)
# Bytes of a request that are searched for its model, if several models share one address; and those that its headers
# may have before a key was seen.
BODY, HEADERS = 1 << 20, 16384


@dataclass(frozen=True)
class BackendServer:
    """An instance behind the load balancer; limit: requests that it gets at once."""

    host: str
    instance: str
    address: str
    port: int
    limit: int

    @property
    def name(self) -> str:
        """Return the name of HAProxy's server, which includes the port: after a change of port it is another server."""
        return f"{self.host}.{self.instance}:{self.port}"

    def to_json(self) -> dict[str, Any]:
        """Return the instance's entry in balancer.json."""
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
    def from_json(cls, item: Mapping[str, Any]) -> BackendServer:
        """Build from an entry of balancer.json."""
        return cls(
            str(item["host"]),
            str(item["instance"]),
            str(item["address"]),
            int(item["port"]),
            int(item["limit"]),
        )


@dataclass(frozen=True)
class Backend:
    """A deployment: the model names that clients request, and its instances on all hosts."""

    name: str
    models: tuple[str, ...]
    members: tuple[BackendServer, ...]
    prefix: bool = False  # a router chooses the instance

    @property
    def queue(self) -> int:
        """Return how many requests may wait: as many as all instances process at once."""
        return sum(member.limit for member in self.members)


@dataclass(frozen=True)
class HostBackends:
    """The instances of a GPU host.

    complete: False if only the host is known; then its servers in the balancer stay. stopping: running instances that
    this run stops.
    """

    host: str
    address: str
    instances: tuple[BackendInstance, ...] = ()
    stopping: tuple[str, ...] = ()
    untouched: tuple[str, ...] = ()
    complete: bool = True


def routable_instances(gpu_host: HostBackends) -> tuple[BackendInstance, ...]:
    """Return the host's instances that serve clients, without those that work for another host's server."""
    return tuple(item for item in gpu_host.instances if item.endpoint and not item.headless)


def duplicate_model_names(gpu_hosts: Iterable[HostBackends]) -> Iterable[Problem]:
    """Yield a problem for each model name that two deployments share."""
    owners: dict[str, str] = {}
    reported = set()
    for gpu_host in gpu_hosts:
        for item in routable_instances(gpu_host):
            for model in item.models:
                other = owners.setdefault(model, item.deployment)
                if other != item.deployment and (model, item.deployment) not in reported:
                    reported.add((model, item.deployment))
                    path = (*item.path, "served_model_name")
                    what = f"deployments {other} and {item.deployment} both serve {model!r} at one address."
                    fix = "Change served_model_name of one, set endpoint: false, or make them one deployment."
                    yield Problem(path, what, fix, (gpu_host.host,))


def unprintable_model_names(gpu_hosts: Iterable[HostBackends]) -> Iterable[Problem]:
    """Yield a problem for each model name that no line of a configuration can hold."""
    for gpu_host in gpu_hosts:
        for item in routable_instances(gpu_host):
            for model in item.models:
                if not model.isprintable():
                    path = (*item.path, "served_model_name")
                    what = f"{model!r} holds a control character or another one that cannot be seen."
                    yield Problem(path, what, "Write it without.", (gpu_host.host,))


def backends_of(
    host: BalancerHost,
    gpu_hosts: Sequence[HostBackends],
    fleet: frozenset[str],
    routing: Mapping[str, bool] | None = None,
) -> tuple[tuple[Backend, ...], list[Problem]]:
    found: dict[str, tuple[dict[str, None], dict[str, BackendServer]]] = {}
    problems = []
    for gpu_host in gpu_hosts:
        for item in routable_instances(gpu_host):
            address, wrong = _address(item, gpu_host, host)
            problems += wrong
            member = BackendServer(gpu_host.host, item.name, address, item.port, item.limit)
            models, members = found.setdefault(item.deployment, ({}, {}))
            models.update(dict.fromkeys(item.models))
            members[member.name] = member
    planned = {gpu_host.host: gpu_host for gpu_host in gpu_hosts if gpu_host.complete}
    for backend in (host.observed.config.get("backends") or ()) if host.observed else ():
        for member in map(BackendServer.from_json, backend["servers"]):
            offer_of = planned.get(member.host)
            if member.host in fleet and (offer_of is None or member.instance in offer_of.untouched):
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
    """Return the deployments that currently have a router."""
    return (host.observed.config.get("routers") if host.observed else None) or {}


def transitional_backends(backends: Sequence[Backend], seen: Mapping[str, Any]) -> tuple[Backend, ...]:
    """Return the backends during the change: the new servers, and the old ones until they are gone.

    `seen` is the current balancer.json. Deployments that are removed come first, and keep a model name that another
    deployment takes over.
    """
    wanted = {backend.name: backend for backend in backends}
    going: dict[str, Backend] = {}
    for backend in seen.get("backends") or ():
        name = str(backend["name"])
        there = {member.name for member in wanted[name].members} if name in wanted else set()
        gone = tuple(m for m in map(BackendServer.from_json, backend["servers"]) if m.name not in there)
        if name in wanted:
            models = tuple(dict.fromkeys((*wanted[name].models, *backend["models"])))
            wanted[name] = replace(wanted[name], models=models, members=(*wanted[name].members, *gone))
        elif gone:
            routed = name in (seen.get("routers") or {})
            going[name] = Backend(name, tuple(backend["models"]), gone, routed)
    return (*going.values(), *wanted.values())


def _address(item: BackendInstance, gpu_host: HostBackends, host: BalancerHost) -> tuple[str, list[Problem]]:
    """Return the address where the balancer reaches an instance, and problems.

    It is the instance's own address, or its host's if the instance listens on all addresses.
    """
    listen = item.listen
    if gpu_host.host == host.name and listen in (*ANY, *LOOPBACK):
        return "::1" if listen in ("::", "::1") else "127.0.0.1", []
    if listen in LOOPBACK:
        what = (
            f"instances of {gpu_host.host} listen on {listen}, which load balancer {host.name} cannot reach."
        )
        fix = "Listen on an address of the host that the balancer reaches, or set endpoint: false."
        return listen, [Problem((*item.path, "listen"), what, fix, (gpu_host.host,))]
    return (gpu_host.address if listen in ANY else listen), []


def port_conflicts(
    host: BalancerHost, gpu_hosts: Iterable[HostBackends], routers: bool = False
) -> list[Problem]:
    """Return problems of instances whose ports the balancer on the same host uses too."""
    taken = {
        port: item for o in gpu_hosts if o.host == host.name for item in o.instances for port in item.ports
    }
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
    """Return everything that haproxy.cfg contains; `version` identifies this configuration in the running HAProxy.

    instance_key: send the key of instance.map to instances. routers: their ports, by deployment.
    """
    # A request takes another one where its model is looked for, and another one through a router.
    connections = CONNECTIONS // (1 + (len(backends) > 1) + bool(routers))
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
        "hang_timeout": settings.hang_timeout,
        "repeat_unanswered": settings.repeat_unanswered,
        "max_connections": CONNECTIONS + RESERVED,
        "connections": connections,
        "source_connections": settings.source_connections or connections // 2,
        "source_rate": SOURCE_RATE,
        "guesses": GUESSES,
        "key_rate": settings.key_rate * RATE_SECONDS,
        "body_limit": settings.body_limit << 20,
        "routes": list(dict.fromkeys((*ROUTES, *settings.routes))),
        "agent_port": AGENT_PORT,
        "router_port": ROUTER_PORT,
        "routers": dict(routers or {}),
        # A single deployment needs no inspection of requests to choose the backend.
        "route_by_model": len(backends) > 1,
        "buffer": BODY if len(backends) > 1 else HEADERS,
        "header_limit": HEADERS,
        "models": _model_list(backends) if len(backends) > 1 else None,
        "backends": [
            {**backend_json(backend), "key_limit": _key_limit(backend, settings.key_share)}
            for backend in backends
        ],
    }
    return {**data, "version": text_hash(canonical(data))[:16]}


def _key_limit(backend: Backend, percent: int) -> int:
    """Return how many requests of one key may run and wait at a time: its share of all that may."""
    return max(1, 2 * backend.queue * percent // 100)


def router_ports(backends: Iterable[Backend], seen: Mapping[str, Any]) -> dict[str, int]:
    """Return the ports of the routers; a deployment keeps its port, so that its router keeps running."""
    names = sorted((item.name for item in backends if item.prefix and item.members), key=natural)
    had = seen.get("routers") or {}
    found = {name: int(had[name]) for name in names if name in had}
    free = (port for port in ROUTERS if port not in found.values())
    return {**found, **dict(zip((name for name in names if name not in found), free))}


def _model_list(backends: Sequence[Backend]) -> str:
    """Return the answer to GET /v1/models."""
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
