# SPDX-License-Identifier: Apache-2.0
"""Check whether the hosts of a group can run an engine together, before anything is stopped. Pure.

Errors are conditions that make an engine hang or fail at startup; warnings are those that make it slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from ....module_utils.common.errors import Problem
from ..desired.deployment import Deployment
from ..desired.fleet import Fleet, Host
from .network import ETHERNET, FIX, VERBS_DIRECTORY, GroupAddress, Network, group_address, network_of
from .ranks import HostGroup

TCP_ONLY = "NCCL_IB_DISABLE"


@dataclass(frozen=True)
class Networks:
    """The networks of the hosts of all groups by name, with the problems and the warnings."""

    of: Mapping[str, Network]
    problems: tuple[Problem, ...]
    warnings: Mapping[str, tuple[str, ...]]


def check_networks(fleet: Fleet, groups: Mapping[tuple[str, str], HostGroup]) -> Networks:
    """Choose the network of every host in a complete group, and check the hosts of each group against each other."""
    whole = {name: group for name, group in groups.items() if not group.missing}
    if not whole:
        return Networks({}, (), {})
    hosts = {host.name: host for host in fleet.hosts}
    found: dict[str, Network] = {}
    problems: list[Problem] = []
    for name in dict.fromkeys(host for _unused, host in whole):
        place, problem = group_address(hosts[name])
        problems += [problem] if problem else []
        if place:
            found[name] = network_of(hosts[name], place)
    warnings: dict[str, dict[str, None]] = {}
    for deployment, group in dict.fromkeys((name, group) for (name, _unused), group in whole.items()):
        members = [hosts[name] for name in group.hosts]
        wanted = next(item for item in members[0].deployments if item.name == deployment)
        problems += _alike(wanted, members)
        if all(name in found for name in group.hosts):
            wrong, doubts = check_group(wanted, members, found)
            problems += wrong
            for name, text in doubts:
                warnings.setdefault(name, {})[f"deployment {deployment}: {text}"] = None
    return Networks(found, tuple(problems), {name: tuple(texts) for name, texts in warnings.items()})


def check_group(
    deployment: Deployment, hosts: Sequence[Host], networks: Mapping[str, Network]
) -> tuple[list[Problem], list[tuple[str, str]]]:
    """Return the errors of one group, and its warnings with the host at which they are reported."""
    own = dict(deployment.env)
    problems: list[Problem] = []
    warnings: list[tuple[str, str]] = []
    for host in hosts:
        problems += _address(deployment, host, networks[host.name], own)
    places = {host.name: networks[host.name].place for host in hosts}
    problems += _places_together(places)
    first = hosts[0].name
    mtus = {places[host.name].interface.mtu for host in hosts}
    if len(mtus) > 1:
        each = ", ".join(
            f"{name} {place.interface.name} {place.interface.mtu}" for name, place in places.items()
        )
        text = f"interfaces of its hosts differ in their MTU ({each}): large packets may be lost between them"
        warnings.append((first, text))
    if own.get(TCP_ONLY) != "1":
        wrong, doubts = _rdma(deployment, hosts, networks, own)
        problems += wrong
        warnings += doubts
    return problems, warnings


def _address(
    deployment: Deployment, host: Host, network: Network, own: Mapping[str, str]
) -> Iterable[Problem]:
    place = network.place
    if not place.interface.up:
        what = f"{place.interface.name}, the interface with its address {place.address}, is down."
        yield Problem(
            (), what, "Bring the interface up, or set instinct_address to another address.", (host.name,)
        )
    given = own.get("VLLM_HOST_IP")
    addresses = (
        [address for item in host.state.interfaces for address in item.addresses] if host.state else []
    )
    if given is not None and given not in addresses:
        what = f"{given} is not an address of {host.name}; each host of the group needs its own."
        fix = f"Leave the variable out: it is {place.address} here."
        yield Problem((*deployment.path, "env", "VLLM_HOST_IP"), what, fix, (host.name,))


def _places_together(places: Mapping[str, GroupAddress]) -> Iterable[Problem]:
    seen: dict[str, str] = {}
    for name, place in places.items():
        other = seen.setdefault(place.address, name)
        if other != name:
            yield Problem((), f"has the same address as {other}, {place.address}.", FIX, (name,))
    sorts = {name: ip_address(place.address).version for name, place in places.items()}
    (first, wanted), *_rest = sorts.items()
    for name, sort in sorts.items():
        if sort != wanted:
            what = f"its address {places[name].address} is IPv{sort}, but that of {first} is IPv{wanted}."
            yield Problem((), what, "Set instinct_address to addresses of the same kind.", (name,))


def _rdma(
    deployment: Deployment, hosts: Sequence[Host], networks: Mapping[str, Network], own: Mapping[str, str]
) -> tuple[list[Problem], list[tuple[str, str]]]:
    problems: list[Problem] = []
    warnings: list[tuple[str, str]] = []
    first = hosts[0].name
    for host in hosts:
        if host.state and host.state.hcas and not host.state.verbs:
            text = f"{host.name} has RDMA devices, but no {VERBS_DIRECTORY} to use them: modprobe ib_uverbs"
            warnings.append((host.name, text))
    with_rdma = [host.name for host in hosts if networks[host.name].hcas]
    without = [host.name for host in hosts if not networks[host.name].hcas]
    if with_rdma and without:
        fix = f'Repair them (ibstat, ls {VERBS_DIRECTORY}), or let all hosts use TCP: env: {{{TCP_ONLY}: "1"}}, slowly.'
        for name in without:
            what = f"has no active RDMA port, but {', '.join(with_rdma)} of its group have one: RCCL would not connect."
            problems.append(Problem((), what, fix, (name,)))
        return problems, warnings
    if without:
        text = "its hosts have no active RDMA ports: RCCL uses TCP between them, which is slow"
        return problems, [*warnings, (first, text)]
    layers = {host.name: networks[host.name].hcas[0].layer for host in hosts}
    for name, layer in layers.items():
        if layer != layers[first]:
            what = f"its RDMA ports are {layer}, but those of {first} are {layers[first]}: RCCL cannot connect them."
            problems.append(Problem((), what, "Choose ports in env: {NCCL_IB_HCA: …}.", (name,)))
    active = {host.name: [hca for hca in networks[host.name].hcas if hca.active] for host in hosts}
    most = max(len(ports) for ports in active.values())
    for name, ports in active.items():
        hcas = networks[name].hcas
        if len(ports) < most:
            down = ", ".join(f"{hca.name}:{hca.port}" for hca in hcas if not hca.active)
            text = f"{name} has {len(ports)} active RDMA ports, but others of its group have {most}"
            text += f" ({down} down)" if down else ""
            warnings.append(
                (name, f"{text}: RCCL pairs ports by their position in the list, so all hosts get slower")
            )
        if "NCCL_IB_GID_INDEX" not in own and hcas[0].layer == ETHERNET:
            missing = [hca.name for hca in ports if hca.gid_index is None]
            if missing:
                text = f"{', '.join(missing)} of {name} have no RoCE v2 address: give their interfaces IPv4 addresses"
                warnings.append((name, text))
    limits = {name: hard for name, _unused, hard in deployment.runtime.ulimits}
    if limits.get("memlock") != -1:
        text = "runtime.ulimits.memlock is limited, but RDMA needs locked memory: leave it out"
        warnings.append((first, text))
    return problems, warnings


def _alike(deployment: Deployment, hosts: Sequence[Host]) -> Iterable[Problem]:
    """Return problems of differing memory partition modes after the run; the layout compares the GPUs themselves."""
    first = hosts[0]
    for host in hosts[1:]:
        mine, theirs = _memory_modes(host), _memory_modes(first)
        if mine != theirs and mine and theirs:
            what = f"deployment {deployment.name} spans {first.name} in {theirs} and {host.name} in {mine}."
            fix = "Set the same gpu_partition_memory on hosts that run an engine together."
            yield Problem((), what, fix, (host.name,))


def _memory_modes(host: Host) -> str:
    gpus = host.state.gpus if host.state else ()
    return " and ".join(sorted({host.settings.memory or gpu.memory or "" for gpu in gpus}))
