# SPDX-License-Identifier: Apache-2.0
"""Describe what hosts serve, for the load balancers: as planned, and as it runs at present. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ....module_utils.service.generations import BackendInstance
from ..desired.actions import ALIVE
from ..desired.fleet import Fleet, Host
from ..endpoint.plan import EndpointInputs
from ..endpoint.servers import HostBackends
from ..instances.planned import Serving, running_member
from .host_plan import HostPlan, host_backends


def routing(fleet: Fleet) -> dict[str, bool]:
    """Return the deployments of this run, each with whether it is routed by prefix."""
    return {item.name: item.routing == "prefix" for host in fleet.hosts for item in host.deployments}


def hosts_unknown_to_balancers(endpoint: EndpointInputs, hosts: Iterable[Host]) -> set[str]:
    """Return the hosts with a running instance that a load balancer does not have, or has as still to come.

    The load balancer or the instance is new, or the instance has returned.
    """
    there = {
        (host.name, item.name)
        for host in hosts
        if host.state
        for item in host.state.instances
        if item.state in ALIVE
    }
    found: set[str] = set()
    for config in (host.observed.config for host in endpoint.hosts if host.observed):
        servers = [server for backend in config.get("backends") or () for server in backend["servers"]]
        known = {(server["host"], server["instance"]) for server in servers if not server.get("coming")}
        found |= {host for host, _name in there - known}
    return found


def served_backends(plan: HostPlan, inventory: Host, with_present: bool) -> HostBackends:
    """Return what a host serves, for the load balancers. inventory: the host with all its deployments.

    with_present: include what runs at present, for a load balancer that does not have it yet. It is also included if
    any of it changes.
    """
    state = plan.host.state
    alive = {item.name for item in state.instances if item.state in ALIVE} if state else set()
    touched = dict.fromkeys((*plan.stop, *plan.remove, *plan.start))
    weights = {one.name: one.weight for one in inventory.deployments}
    wanted = state and (with_present or touched)
    running = [running_member(state, item) for item in state.instances] if state and wanted else ()

    def backend(item: Serving) -> BackendInstance:
        return replace(item.backend, weight=weights.get(item.deployment_name, 1))

    return replace(
        host_backends(plan, inventory),
        instances=tuple(map(backend, plan.instances)),
        stopping=tuple(name for name in touched if name in alive),
        untouched=plan.untouched,
        complete=not plan.partial,
        present=tuple(backend(item) for item in running if item),
    )
