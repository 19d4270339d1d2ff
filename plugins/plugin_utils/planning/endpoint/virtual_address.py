# SPDX-License-Identifier: Apache-2.0
"""Plan the address that load balancers share: who announces it, on which interface, and in which order. Pure.

Keepalived moves it with VRRP version 3 (RFC 9568) over unicast, as many networks drop multicast. All load balancers
start as backups and none preempts, so that one that returns does not move the address, and cut connections, again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Callable

from ....module_utils.common.errors import Problem
from ....module_utils.service.endpoint import ADDRESS_FILE
from ...base.text import interfaces_text
from ..desired.endpoint_settings import VIRTUAL, BalancerHost, VirtualAddress
from ..desired.fleet import ANY

CHECK_FILE = "alive.py"
"""The program with which keepalived checks HAProxy (programs/keepalived_check.py)."""
FIRST = 200
"""Priority of the group's first load balancer; each further one has one less. 255 is for an address's owner."""
FIX = "Set its instinct_address to its address in that network, or choose another virtual address."


def address_problems(hosts: Sequence[BalancerHost]) -> list[Problem]:
    """Return the problems of the virtual address. hosts: all load balancers of the inventory."""
    names = tuple(host.name for host in hosts)
    if len({host.settings.virtual for host in hosts}) > 1:
        said = ", ".join(f"{host.name} {_said(host.settings.virtual)}" for host in hosts)
        fix = "Set it, and load_balancer_virtual_router_id, once for the group load_balancer."
        return [Problem((VIRTUAL,), f"is not the same on all load balancers: {said}.", fix, names)]
    return [problem for host in hosts for problem in _host_problems(host)]


def _said(virtual: VirtualAddress | None) -> str:
    return f"{virtual.text} (router id {virtual.router_id})" if virtual else "has none"


def _host_problems(host: BalancerHost) -> list[Problem]:
    virtual = host.settings.virtual
    if virtual is None:
        return []
    found = []
    own = _ip(host.address)
    if own == ip_address(virtual.address):
        what = f"{virtual.address} is the host's own address."
        found.append(Problem((VIRTUAL,), what, "Choose an address that no host has.", (host.name,)))
    elif own is None or own not in virtual.network:
        what = f"its address {host.address} is not in {virtual.network}, the network of the virtual address."
        found.append(Problem((VIRTUAL,), what, FIX, (host.name,)))
    listen = host.settings.listen
    # HAProxy's [::] accepts IPv4 too; 0.0.0.0 accepts IPv4 only.
    if listen not in ANY or (":" in virtual.address and ":" not in listen):
        what = f"is {listen}: HAProxy would not accept connections to the virtual address {virtual.address}."
        fix = 'Set it to "::".' if ":" in virtual.address else "Leave it out, which means all addresses."
        found.append(Problem(("load_balancer_listen",), what, fix, (host.name,)))
    return found


def _ip(text: str) -> Any:
    try:
        return ip_address(text)
    except ValueError:
        return None


def interface_of(host: BalancerHost) -> tuple[str, list[Problem]]:
    """Return the interface with the host's own address in the virtual address's network; "" if it was not observed."""
    own = _ip(host.address)
    if host.settings.virtual is None or host.observed is None or _host_problems(host):
        return "", []
    for name, addresses in host.interfaces.items():
        if own in map(_ip, addresses):
            return name, []
    listed = interfaces_text(host.interfaces.items()) or "none is known"
    what = f"its address {host.address} is on none of its interfaces ({listed})."
    return "", [Problem((VIRTUAL,), what, FIX, (host.name,))]


def address_data(host: BalancerHost, hosts: Sequence[BalancerHost]) -> Mapping[str, Any] | None:
    """Return everything that keepalived.conf contains; None without a virtual address or a known interface."""
    virtual, (interface, _unused) = host.settings.virtual, interface_of(host)
    if virtual is None or not interface:
        return None
    order = [item.name for item in hosts]
    return {
        "address": virtual.text,
        "router_id": virtual.router_id,
        "interface": interface,
        "own": host.address,
        "peers": [item.address for item in hosts if item.name != host.name],
        "priority": max(1, FIRST - order.index(host.name)),
    }


def address_files(
    host: BalancerHost, hosts: Sequence[BalancerHost], draw: Callable[[Mapping[str, Any]], str], check: str
) -> dict[str, str]:
    """Return the files of the virtual address on a host; none without one. check: the text of CHECK_FILE."""
    data = address_data(host, hosts)
    return {ADDRESS_FILE: draw(data), CHECK_FILE: check} if data else {}


def address_warnings(host: BalancerHost, hosts: Sequence[BalancerHost]) -> list[str]:
    """Return warnings about the virtual address."""
    if host.settings.virtual is None or len(hosts) > 1:
        return []
    return [
        f"{VIRTUAL} is useless with a single load balancer: add a second host to the group, which can take it over"
    ]
