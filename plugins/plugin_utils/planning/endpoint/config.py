# SPDX-License-Identifier: Apache-2.0
"""Compute the data of a load balancer's configuration: all that haproxy.cfg and balancer.json contain. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....module_utils.common.errors import Problem, natural
from ....module_utils.common.hashing import canonical, text_hash
from ....module_utils.content.urls import with_brackets
from ....module_utils.service.endpoint import AGENT_PORT, METRICS, ROUTER_PORT, ROUTERS
from ..desired.endpoint_settings import BalancerHost, BalancerSettings
from .backends import Backend, Subset
from .servers import BackendServer, HostBackends

ROUTER_PORTS = (ROUTER_PORT, *ROUTERS, *(port + METRICS for port in ROUTERS))
# HAProxy's connections for clients, and those that clients cannot use: its own checks, metrics, and refused strangers.
CONNECTIONS, RESERVED = 8192, 256
# Per client address and 10 s: new connections that are accepted from an address over its limit, and requests without a
# valid key that are logged.
SOURCE_RATE, GUESSES = 1000, 100
RATE_SECONDS = 10  # the period over which the requests of a key are counted
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
# Bytes of a request that are searched for its model, if several models share one address; and the most that its headers
# may have before its key was checked.
BODY, HEADERS = 1 << 20, 16384


def port_conflicts(
    host: BalancerHost, gpu_hosts: Iterable[HostBackends], routers: bool = False
) -> list[Problem]:
    """Return problems of instances whose ports the load balancer on the same host also uses."""
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

    instance_key: send the key of instance.map to instances. routers: their ports, by backend.
    """
    # A single backend whose servers all have the same names needs no inspection of requests to choose one.
    by_model = len(backends) > 1 or any(backend.subsets for backend in backends)
    # A request takes a second connection if its model must be looked for, and one more through a router.
    connections = CONNECTIONS // (1 + by_model + bool(routers))
    data: dict[str, Any] = {
        "schema": 1,
        "listen": with_brackets(settings.listen),
        "port": settings.port,
        "tls": settings.tls,
        "auth": settings.auth,
        "instance_key": instance_key,
        "metrics": f"{with_brackets(settings.metrics_listen)}:{settings.metrics_port}",
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
        "route_by_model": by_model,
        "buffer": BODY if by_model else HEADERS,
        "header_limit": HEADERS,
        "models": _model_list(backends) if by_model else None,
        "backends": [backend_json(backend, settings.key_share) for backend in backends],
    }
    return {**data, "version": text_hash(canonical(data))[:16]}


def router_ports(backends: Iterable[Backend], seen: Mapping[str, Any]) -> dict[str, int]:
    """Return the ports of the routers. A backend keeps its port, so that its router keeps running."""
    names = sorted((item.name for item in backends if item.prefix and item.models), key=natural)
    had = seen.get("routers") or {}
    found = {name: int(had[name]) for name in names if name in had}
    free = (port for port in ROUTERS if port not in found.values())
    return {**found, **dict(zip((name for name in names if name not in found), free))}


def backend_json(backend: Backend, percent: int = 100) -> dict[str, Any]:
    """Return a backend's entry in balancer.json. percent: the share of its requests that one key may have."""
    found = {
        **_pool(backend, percent),
        "servers": [server.to_json() for server in backend.members],
    }
    subsets = [
        {**_pool(subset, percent), "servers": [server.name for server in subset.members]}
        for subset in backend.subsets
    ]
    return {**found, **({"subsets": subsets} if subsets else {})}


def _pool(pool: Backend | Subset, percent: int) -> dict[str, Any]:
    """Return what backends and subsets have in common. As many requests may wait as are processed at once."""
    queue = _places(pool.members)
    return {
        "name": pool.name,
        "models": list(pool.models),
        "queue": queue,
        "key_limit": max(1, 2 * queue * percent // 100),
    }


def _places(servers: Iterable[BackendServer]) -> int:
    """Return how many requests servers process at once; an instance counts once."""
    return sum({server.of: server.limit for server in servers}.values())


def _model_list(backends: Sequence[Backend]) -> str:
    """Return the answer to GET /v1/models."""
    entries = [
        {"id": model, "object": "model", "created": 0, "owned_by": "vllm"}
        for model in dict.fromkeys(model for backend in backends for model in backend.names)
    ]
    return canonical({"object": "list", "data": entries})
