# SPDX-License-Identifier: Apache-2.0
"""Find hosts of the site's own network that a host would try to reach through its proxy. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

PRIVATE_ENDS = (".local", ".lan", ".internal", ".intra", ".intranet", ".corp", ".home.arpa", ".localdomain")
"""Endings of names that no public server has, or should have."""


def host_of(place: str) -> str:
    """Return the host of host:port, of [address]:port, or of an address."""
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place.partition(":")[0] if place.count(":") == 1 else place


def is_private(host: str) -> bool:
    """Return whether a proxy probably cannot reach a host, as its address is private or its name is not public."""
    try:
        return ip_address(host).is_private
    except ValueError:
        return "." not in host or host.lower().endswith(PRIVATE_ENDS)


def goes_around(host: str, no_proxy: str) -> bool:
    """Return whether an entry of no_proxy covers a host: *, a name, a domain, an address or a network."""
    name = host.lower()
    for entry in (part.strip().lower() for part in no_proxy.split(",")):
        plain = host_of(entry).lstrip("*").lstrip(".")
        if entry == "*" or (plain and (name == plain or name.endswith(f".{plain}"))):
            return True
        try:
            if "/" in entry and ip_address(name) in ip_network(entry, strict=False):
                return True
        except ValueError:
            continue
    return False


def behind_proxy(hosts: Iterable[str], no_proxy: str) -> list[str]:
    """Return the hosts of the own network that no entry covers, each once; the node itself is always covered."""
    local = ("localhost", "127.0.0.1", "::1")
    named = dict.fromkeys(host for host in hosts if host and host not in local)
    return [host for host in named if is_private(host) and not goes_around(host, no_proxy)]
