# SPDX-License-Identifier: Apache-2.0
"""Find servers that a load balancer drains before it removes them, although their instances keep running. Pure.

Most are on hosts that left the inventory: only the load balancers' data about such a host is known; nobody connects to
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ....module_utils.common.errors import natural
from ....module_utils.service.endpoint import OPERATOR
from ...base.text import plural
from ..desired.endpoint_settings import BalancerHost, ObservedBalancer
from .servers import BackendServer, HostBackends, Instance, seen_servers

FORGET = "docs/runbooks/host.md#take-a-host-apart"


def gone_servers(
    during: Mapping[str, BackendServer],
    after: Iterable[BackendServer],
    gpu_hosts: Iterable[HostBackends],
    fleet: Collection[str],
    observed: ObservedBalancer | None,
) -> tuple[str, ...]:
    """Return the servers that go and that no change of an instance drains, by their names during the change.

    Their host left the inventory, or their instance answers there, is not stopped, and is reached through another
    server.

    during: the servers by name. If one stays under the name of another host, the host was renamed, and it does not go.
    What the operator has drained is not touched.
    """
    stay = {server.target for server in after}
    answers = {
        (gpu_host.host, item.name, item.port)
        for gpu_host in gpu_hosts
        for item in gpu_host.instances
        if item.name not in gpu_host.stopping
    }
    drained = observed.drained if observed else {}
    theirs = {name for name, entry in drained.items() if entry.get("by") == OPERATOR}
    return tuple(
        name
        for name, server in during.items()
        if server.target not in stay and name not in theirs
        if server.host not in fleet or (*server.of, server.port) in answers
    )


def departures(
    hosts: Iterable[tuple[BalancerHost, Collection[BackendServer]]], fleet: Collection[str]
) -> list[str]:
    """Return what remains on each host that left the inventory, as far as load balancers know.

    hosts: load balancers, each with its servers after the run.
    """
    found: dict[str, dict[Instance, bool]] = {}
    for host, after in hosts:
        observed = host.observed or ObservedBalancer()
        stay = {server.target for server in after}
        for name, server in seen_servers(observed.config).items():
            if server.host not in fleet and server.target not in stay:
                instances = found.setdefault(server.host, {})
                serves = name not in observed.drained
                instances[server.of] = instances.get(server.of, False) or serves
    return [_departure(name, found[name]) for name in sorted(found, key=natural)]


def _departure(host: str, instances: Mapping[Instance, bool]) -> str:
    names = ", ".join(sorted((name for _unused, name in instances), key=natural))
    count = plural(len(instances), "container")
    if any(instances.values()):
        runs = f"{count} ({names}) keep{'s' if len(instances) == 1 else ''} running there and using the GPUs"
    else:
        runs = f"the instances there ({names}) are drained; unless they were stopped, they keep running"
    return (
        f"{host} left the inventory: {runs}. The instances' key, the host's settings (sysctl, limits, kernel command "
        "line), the partition unit, images, weights and content store stay there. To remove them, put the host back "
        f"and run forget.yml ({FORGET})"
    )
