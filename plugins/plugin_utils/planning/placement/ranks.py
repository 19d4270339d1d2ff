# SPDX-License-Identifier: Apache-2.0
"""Rank the servers that form one engine: over several hosts, or one per data parallel rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ....module_utils.common.errors import Problem
from ...base.json_record import JsonRecord
from ..desired.deployment import Deployment
from ..desired.fleet import Fleet, Host
from .network import group_address

LOOPBACK = "127.0.0.1"
_LOCAL = ("localhost", "::1")


@dataclass(frozen=True)
class Rank(JsonRecord):
    """A server's position among those that form one engine.

    Attributes:
        hosts: the group of hosts, in natural order; empty if the engine is within one host, so that equal hosts have
            equal ranks.
        group: the group's number.
        node_rank: this host's position in the group.
        master, master_port: the rendezvous of the servers at the group's first host (torch's store, data parallel's
            handshake, or Ray).
        group_port: the rendezvous of their supervisors.
        number: this server's position among the engine's `servers`.
        servers: how many servers the engine has.
        data_rank: the first data parallel rank of this server.
        headless: it works for the first server, and has no HTTP port.
    """

    group: int
    node_rank: int
    hosts: tuple[str, ...]
    master: str
    master_port: int
    group_port: int
    number: int
    servers: int
    data_rank: int = 0
    headless: bool = False

    @property
    def nodes(self) -> int:
        """Return the number of hosts of the engine."""
        return len(self.hosts) or 1


@dataclass(frozen=True)
class HostGroup:
    """Hosts that run an engine together, in natural order; `missing` are those that cannot take part now."""

    number: int
    hosts: tuple[str, ...]
    master: str
    missing: tuple[str, ...]


def has_external_ranks(deployment: Deployment) -> bool:
    """Return whether every data parallel rank is a server of its own, with its own port."""
    return deployment.data_parallel_size > 1 and deployment.data_parallel_balancing == "external"


def servers_per_host(deployment: Deployment) -> int:
    """Return the number of servers that one engine has on each of its hosts."""
    return deployment.data_parallel_size // deployment.nodes if has_external_ranks(deployment) else 1


def rendezvous_port(deployment: Deployment, index: int) -> int | None:
    """Return the port where the servers of instance `index`'s engine meet, or None if the server is alone.

    It is derived from the last four digits of the HTTP port of the engine's first server: 8000 → 28000, and for ports
    that are in that range already 28000 → 18000. Both ranges are below 32768, where Linux starts to assign ephemeral
    ports (net.ipv4.ip_local_port_range). Engines on the same hosts have different HTTP ports, so only ports that differ
    by a multiple of 10000 collide; the layout refuses those.
    """
    if deployment.nodes == 1 and not has_external_ranks(deployment):
        return None
    first = deployment.port + index - index % servers_per_host(deployment)
    return (10000 if 20000 <= first < 30000 else 20000) + first % 10000


def group_port(meeting: int) -> int:
    """Return the port where the supervisors of an engine meet: 28000 → 23000, 23000 → 28000.

    It is derived from the port where the servers meet: 5000 away within the same ten thousand, so that both are below
    32768.
    """
    return meeting // 10000 * 10000 + (meeting + 5000) % 10000


def rank_of(deployment: Deployment, index: int, group: HostGroup | None, host: str) -> Rank | None:
    """Return the rank of a deployment's instance; `group` is None for an engine within one host."""
    port = rendezvous_port(deployment, index)
    if port is None:
        return None
    servers = servers_per_host(deployment)
    if group is None:
        number = index % servers
        return Rank(0, 0, (), LOOPBACK, port, group_port(port), number, servers, data_rank=number)
    place = group.hosts.index(host)
    local = deployment.data_parallel_size // deployment.nodes
    serves = deployment.data_parallel_size > 1 and deployment.data_parallel_balancing != "internal"
    return Rank(
        group=group.number,
        node_rank=place,
        hosts=group.hosts,
        master=group.master,
        master_port=port,
        group_port=group_port(port),
        number=place * servers + index % servers,
        servers=deployment.nodes * servers,
        data_rank=place * local + index % servers,
        headless=place > 0 and not serves,
    )


def host_groups(fleet: Fleet) -> tuple[dict[tuple[str, str], HostGroup], tuple[Problem, ...]]:
    """Return the groups of hosts by (deployment, host), for deployments whose instances span hosts.

    A deployment's hosts are taken in natural order and divided into groups of `nodes` hosts. Hosts outside this run are
    included, so that groups are the same in every run.
    """
    groups: dict[tuple[str, str], HostGroup] = {}
    problems: list[Problem] = []
    hosts = {host.name: host for host in fleet.hosts}
    wanted: dict[str, dict[str, Deployment]] = {}
    for host in fleet.hosts:
        for deployment in host.deployments:
            if deployment.nodes > 1:
                wanted.setdefault(deployment.name, {})[host.name] = deployment
    absent = {name: f"{name} ({why})" for name, why in fleet.absent.items()}
    for name, found in wanted.items():
        members = fleet.spans[name]
        if members is None:
            here = tuple(found)
            why = "others that --limit leaves out (unknown, because the deployment does not name its hosts)"
            groups.update(((name, host), HostGroup(0, here, "", (why,))) for host in here)
            continue
        problems.extend(_wrong(found, members))
        size = next(iter(found.values())).nodes
        for number, start in enumerate(range(0, len(members) - size + 1, size)):
            group = members[start : start + size]
            missing = tuple(
                absent.get(item, f"{item} (it is not in this run)") for item in group if item not in found
            )
            master = _address(hosts[group[0]]) if group[0] in hosts else ""
            problems.extend(
                _loopback(hosts[item], group) for item in group if _is_loopback(found, hosts, item)
            )
            made = HostGroup(number, group, master, missing)
            groups.update(((name, item), made) for item in group)
    return groups, tuple(problems)


def _wrong(found: Mapping[str, Deployment], members: tuple[str, ...]) -> Iterable[Problem]:
    (first, deployment), *_rest = found.items()
    for host, other in found.items():
        if replace(other, index=deployment.index) != deployment:
            what = f"deployment {deployment.name} spans hosts, but is defined differently on {first}."
            yield Problem(other.path, what, "Define it once for all its hosts.", (host,))
    over = len(members) % deployment.nodes
    if over:
        what = (
            f"the deployment has {len(members)} hosts, which is not a multiple of {deployment.nodes}: "
            f"{', '.join(members[-over:])} would be unused."
        )
        fix = f"Add {deployment.nodes - over} to hosts, or remove {over}."
        yield Problem((*deployment.path, "nodes"), what, fix, members[-over:])


def _address(host: Host) -> str:
    """Return the host's address in the cluster, as an IP address if its interfaces reveal it."""
    place, _unused = group_address(host)
    return place.address if place else host.address


def _is_loopback(found: Mapping[str, Deployment], hosts: Mapping[str, Host], name: str) -> bool:
    return name in found and (hosts[name].address in _LOCAL or hosts[name].address.startswith("127."))


def _loopback(host: Host, group: tuple[str, ...]) -> Problem:
    others = ", ".join(name for name in group if name != host.name)
    what = f"the other hosts of its group ({others}) cannot reach {host.name} at {host.address}."
    return Problem((), what, "Set instinct_address to its address in the cluster's network.", (host.name,))
