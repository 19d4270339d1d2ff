# SPDX-License-Identifier: Apache-2.0
"""Small fleets for the simulation: instances that run, and load balancers with servers of them."""

from __future__ import annotations

from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import BackendServer
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.model import (
    FleetModel,
    Running,
    SimulatedBalancer,
)

ADDRESSES = {"n1": "192.0.2.11", "n2": "192.0.2.12"}


def running(host: str = "n1", name: str = "llama-0", **keys: Any) -> Running:
    """An instance that is ready, and listens on its host's address."""
    port = keys.pop("port", 8000)
    given = {
        "deployment": name.rpartition("-")[0],
        "engine": f"{host}/{name}",
        "models": ("m",),
        "listen": ADDRESSES.get(host, host),
        "ports": frozenset([port] if port else ()),
        "ready": True,
        **keys,
    }
    return Running(host, name, port=port, **given)


def server(host: str = "n1", name: str = "llama-0", port: int = 8000, **keys: Any) -> BackendServer:
    """The server of an instance, at its host's address."""
    given = {"address": ADDRESSES.get(host, host), "models": ("m",), **keys}
    return BackendServer(host, name, name.rpartition("-")[0], given.pop("address"), port, 4, **given)


def balancer(*servers: BackendServer, name: str = "lb", **keys: Any) -> SimulatedBalancer:
    """A load balancer that has been configured with these servers, and has checked them."""
    made = SimulatedBalancer(name, **keys)
    made.configure({f"b/{one.name}": one for one in servers})
    made.unproven.clear()
    return made


def fleet(*instances: Running, lbs: tuple[SimulatedBalancer, ...] = (), **keys: Any) -> FleetModel:
    """A fleet with nothing of what has just changed."""
    engines: dict[str, dict[tuple[str, str], str]] = {}
    for item in instances:
        engines.setdefault(item.engine, {})[item.of] = item.spec
    model = FleetModel(keys.pop("addresses", ADDRESSES), engines, instances, lbs, **keys)
    model.changed.clear()
    return model
