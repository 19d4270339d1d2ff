# SPDX-License-Identifier: Apache-2.0
"""Choose the interface and the RDMA ports that an engine over several hosts uses on each of them. Pure.

Each host has its own choice: interface names and GID indexes differ between otherwise equal servers, and a value that
is right on one host makes another hang (InferenceX pull request 1806).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from ....module_utils.common.errors import Problem
from ...base.text import interfaces_text
from ..desired.fleet import Host
from ..desired.reasons import VLLM_ENV, Reason
from ..observed.node_state import Hca, Interface

NCCL = "nccl-env"
GLOO = "vllm-recipes"
VERBS = "vllm-pr-42075"
"""Sources; keys of catalog/sources.yml."""

VERBS_DIRECTORY = "/dev/infiniband"
ETHERNET = "Ethernet"
SOFTWARE = (
    "docker",
    "br-",
    "virbr",
    "veth",
    "cni",
    "cali",
    "flannel",
    "cilium",
    "tun",
    "tap",
    "wg",
    "podman",
)
"""Name prefixes of interfaces that only lead to containers, virtual machines or tunnels."""
FIX = "Set instinct_address to the address at which the other hosts of its group reach it."


@dataclass(frozen=True)
class GroupAddress:
    """A host in the network of its group: one of its own addresses, and the interface with it."""

    address: str
    interface: Interface


@dataclass(frozen=True)
class Network:
    """The network resources of an engine on one host. env: variables with their reasons; devices: for the container.

    hcas: the ports in `NCCL_IB_HCA`; RCCL uses those that are active when it starts.
    """

    place: GroupAddress
    hcas: tuple[Hca, ...]
    env: tuple[Reason, ...]
    devices: tuple[str, ...]


def group_address(host: Host) -> tuple[GroupAddress | None, Problem | None]:
    """Return the address where the group reaches a host; (None, None) if its interfaces are unknown.

    An IP address is looked up on the host's interfaces. A host name is not reliable (many systems resolve their own to
    127.0.1.1), so it is used only if there is exactly one candidate.
    """
    interfaces = host.state.interfaces if host.state else ()
    if not interfaces:
        return None, None
    try:
        wanted = ip_address(host.address)
    except ValueError:
        return _only_address(host, interfaces)
    for interface in interfaces:
        if any(ip_address(address) == wanted for address in interface.addresses):
            return GroupAddress(host.address, interface), None
    if wanted.is_loopback:  # the group's own check reports it
        return None, None
    what = f"its address {host.address} is on none of its interfaces ({_listed(interfaces)})."
    return None, Problem((), what, FIX, (host.name,))


def _only_address(host: Host, interfaces: Sequence[Interface]) -> tuple[GroupAddress | None, Problem | None]:
    hcas = host.state.hcas if host.state else ()
    rails = {hca.interface for hca in hcas}
    real = [item for item in interfaces if item.up and not item.name.startswith(SOFTWARE)]
    real = [item for item in real if item.name not in rails] or real
    found = [GroupAddress(address, item) for item in real for address in item.addresses if ":" not in address]
    if len(found) == 1:
        return found[0], None
    what = (
        f"its address is a name ({host.address}), but the host has several addresses: {_listed(interfaces)}."
    )
    return None, Problem((), what, FIX, (host.name,))


def _listed(interfaces: Sequence[Interface]) -> str:
    return interfaces_text((item.name, item.addresses) for item in interfaces)


def network_of(host: Host, place: GroupAddress) -> Network:
    """Return what an engine over several hosts uses on this one."""
    name, address = place.interface.name, place.address
    gpus = len(host.state.gpus) if host.state else 0
    verbs = bool(host.state and host.state.verbs)
    hcas, left = choose_hcas(host.state.hcas if host.state and verbs else (), name, gpus)
    env = [
        Reason(
            "VLLM_HOST_IP",
            address,
            f"where the other hosts reach this one; {name} has it",
            VLLM_ENV,
        ),
        Reason(
            "NCCL_SOCKET_IFNAME",
            f"={name}",
            f"RCCL's own connections use the interface with {address}; = means exactly this one",
            NCCL,
        ),
        Reason("GLOO_SOCKET_IFNAME", name, f"the interface with {address}", GLOO),
    ]
    if hcas:
        ports = ",".join(f"{hca.name}:{hca.port}" for hca in hcas)
        rate = max(hca.rate for hca in hcas if hca.active)
        reason = f"{len(hcas)} {hcas[0].layer} ports of {rate} Gb/s, exactly these"
        reason += f"; {left}" if left else ""
        env.append(Reason("NCCL_IB_HCA", f"={ports}", reason, NCCL))
        index = gid_index(hcas)
        if index is not None:
            reason = "the GID of these ports on this host that is RoCE v2 with an IPv4 address"
            env.append(Reason("NCCL_IB_GID_INDEX", str(index), reason, NCCL))
    return Network(place, hcas, tuple(env), (VERBS_DIRECTORY,) if hcas else ())


def choose_hcas(hcas: Sequence[Hca], interface: str, gpus: int) -> tuple[tuple[Hca, ...], str]:
    """Return the ports for traffic between GPUs, and which ports were excluded and why; none without an active port.

    The choice is the fastest ports of the link layer that most of them have. The port with the host's own address is
    for management if it is slower, or if there are more ports than GPUs. Ports that are currently down are included:
    RCCL skips them, and an engine's variables stay the same when a link changes.
    """
    active = [hca for hca in hcas if hca.active]
    if not active:
        return (), ""
    layers = [hca.layer for hca in active]
    layer = max(dict.fromkeys(layers), key=layers.count)
    rate = max(hca.rate for hca in active if hca.layer == layer)
    found = [hca for hca in hcas if hca.layer == layer and (not hca.active or hca.rate == rate)]
    own = [hca for hca in found if hca.interface == interface]
    if own and any(hca.active for hca in found if hca not in own) and len(found) > gpus:
        found = [hca for hca in found if hca not in own]
    chosen = tuple(sorted(found, key=lambda hca: (_natural(hca.name), hca.port)))
    out = [hca for hca in hcas if hca not in found]
    texts = [f"{hca.name}:{hca.port} ({_why_excluded(hca, layer, rate)})" for hca in out]
    return chosen, f"not {', '.join(texts)}" if texts else ""


def _natural(name: str) -> tuple[str, int]:
    digits = len(name) - len(name.rstrip("0123456789"))
    return (name[:-digits], int(name[-digits:])) if digits else (name, -1)


def _why_excluded(hca: Hca, layer: str, rate: int) -> str:
    if hca.layer != layer:
        return hca.layer
    return f"{hca.rate} Gb/s" if hca.rate != rate else f"the host's address is on its {hca.interface}"


def gid_index(hcas: Sequence[Hca]) -> int | None:
    """Return the GID index that all ports share.

    Return None, so that RCCL chooses, if the ports differ, have none, or are InfiniBand.
    """
    found = {hca.gid_index for hca in hcas if hca.active}
    return found.pop() if len(found) == 1 and hcas[0].layer == ETHERNET else None
