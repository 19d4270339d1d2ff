# SPDX-License-Identifier: Apache-2.0
"""Network interfaces with their addresses, and ports of RDMA devices."""

from __future__ import annotations

import sys

from .source import Source, integer

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any
# Messages of rtnetlink(7). One name per line: ansible-doc warns about others in a module.
GET_ADDRESSES = 22
NEW_ADDRESS = 20
DONE = 3
DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
IFA_ADDRESS = 1
IFA_LOCAL = 2
LINK_SCOPE = 253  # and above: link and host
GIDS = 16  # entries of a port's table to check; a RoCE port has two per address, and often 256
MAPPED = "0000:0000:0000:0000:0000:ffff:"  # an IPv4 address as a GID


def read_interfaces(source: Source) -> list[dict[str, Any]]:
    """Return interfaces with addresses that other hosts may reach.

    Only the kernel knows them, so there are none in a captured tree.
    """
    addresses: dict[str, list[str]] = {}
    if not source.root:
        for index, address in kernel_addresses():
            addresses.setdefault(index, []).append(address)
    found = []
    for name in source.names("/sys/class/net") if addresses else []:
        device = f"/sys/class/net/{name}"
        own = addresses.get(source.text(f"{device}/ifindex") or "")
        if own:
            speed = integer(source.peek(f"{device}/speed"))  # missing speeds are refused or -1
            found.append({
                "name": name,
                "addresses": own,
                "up": source.text(f"{device}/operstate") in ("up", "unknown"),
                "mtu": source.number(f"{device}/mtu"),
                "speed": speed or None,
            })  # fmt: skip
    return found


def kernel_addresses() -> list[tuple[str, str]]:
    """Return (interface index, address) of all global addresses, by netlink: no program, one round trip."""
    import _socket

    request = (24).to_bytes(4, sys.byteorder) + GET_ADDRESSES.to_bytes(2, sys.byteorder)
    netlink = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, 0)
    try:
        netlink.settimeout(2)
        netlink.send(request + DUMP.to_bytes(2, sys.byteorder) + bytes(16))
        found: list[tuple[str, str]] = []
        while True:
            part, last = parse_addresses(netlink.recv(1 << 16))
            found += part
            if last:
                return found
    finally:
        netlink.close()


def parse_addresses(data: bytes) -> tuple[list[tuple[str, str]], bool]:
    """Return the addresses in a part of a netlink dump, and whether it was the last part."""
    import _socket

    def number(place: int, size: int) -> int:
        return int.from_bytes(data[place : place + size], sys.byteorder)

    found: list[tuple[str, str]] = []
    place = 0
    while place + 16 <= len(data):
        length, kind = number(place, 4), number(place + 4, 2)
        if kind != NEW_ADDRESS or length < 24:
            return found, True  # done, or an error
        family, scope, index = data[place + 16], data[place + 19], number(place + 20, 4)
        attributes: dict[int, bytes] = {}
        at = place + 24
        while at + 4 <= place + length:
            size = max(4, number(at, 2))
            attributes[number(at + 2, 2)] = data[at + 4 : at + size]
            at += (size + 3) & ~3
        # On a point-to-point link, IFA_ADDRESS is the peer.
        address = attributes.get(IFA_LOCAL) or attributes.get(IFA_ADDRESS)
        if address and scope < LINK_SCOPE:
            found.append((str(index), _socket.inet_ntop(family, address)))
        place += (length + 3) & ~3
    return found, False


def read_rdma(source: Source) -> list[dict[str, Any]]:
    """Return the ports of the RDMA devices."""
    found = []
    top = "/sys/class/infiniband"
    for name in source.names(top):
        for port in source.names(f"{top}/{name}/ports"):
            place = f"{top}/{name}/ports/{port}"
            layer = source.text(f"{place}/link_layer")
            own = source.peek(f"{place}/gid_attrs/ndevs/0") or next(
                iter(source.names(f"{top}/{name}/device/net")), None
            )
            found.append({
                "name": name,
                "port": integer(port),
                "state": (source.text(f"{place}/state") or "").rpartition(" ")[2],
                "layer": layer,
                "rate": integer((source.peek(f"{place}/rate") or "").partition(" ")[0].partition(".")[0]),
                "interface": own,
                "gid_index": roce_gid(source, place) if layer == "Ethernet" else None,
            })  # fmt: skip
    return found


def roce_gid(source: Source, port: str) -> int | None:
    """Return the index of a port's first GID that is RoCE v2 with an IPv4 address; None if there is none."""
    for index in range(GIDS):
        # Drivers refuse to read unused entries.
        if source.peek(f"{port}/gid_attrs/types/{index}") == "RoCE v2":
            gid = source.peek(f"{port}/gids/{index}") or ""
            if gid.startswith(MAPPED) and gid != f"{MAPPED}0000:0000":
                return index
    return None
