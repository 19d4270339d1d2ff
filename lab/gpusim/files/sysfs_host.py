# SPDX-License-Identifier: Apache-2.0
"""The part of sysfs that shows the host: huge pages, RDMA NICs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ..driver.kernel import Outcome
from ..machine import host
from ..machine.host import Host, Nic, Written
from ..machine.state import Holder, Node
from .entries import Dir, Entry, File, Link, folder, text


def setting(value: str, change: Callable[[Host, str], Written]) -> File:
    """Return a writable file of the host: `change` returns the host after a write, or an errno."""

    def write(node: Node, wanted: str, _: Sequence[Holder]) -> Outcome:
        after, number = change(node.host, wanted)
        return Outcome(replace(node, host=after), number)

    return File(lambda: f"{value}\n", 0o644, write, live=True, alone=True)


def huge_pages(node: Node) -> dict[str, Entry]:
    """Return kernel/mm/transparent_hugepage."""

    def words(name: str) -> File:
        return setting(host.chosen(node.host, name), lambda h, w: host.set_huge_pages(h, name, w))

    return {**{name: words(name) for name in host.HUGE_PAGES}, "hpage_pmd_size": text(2097152)}


# ---------------------------------------------------------------- NICs


def nic_devices(node: Node) -> dict[str, Entry]:
    """Return the PCI devices of the NICs, by address."""
    return {nic.bdf: Dir(partial(_nic_device, nic)) for nic in node.host.nics}


def nic_links(node: Node) -> dict[str, Entry]:
    """Return class/infiniband."""
    return {n.name: Link(f"../../devices/pci0000:00/{n.bdf}/infiniband/{n.name}") for n in node.host.nics}


def _nic_device(nic: Nic) -> dict[str, Entry]:
    return {
        "vendor": text("0x15b3"),
        "device": text("0x1021"),
        "subsystem_vendor": text("0x15b3"),
        "subsystem_device": text("0x0023"),
        "class": text("0x020700"),
        "revision": text("0x00"),
        "irq": text(0),
        "numa_node": text(nic.numa_node),
        "current_link_speed": text("32.0 GT/s PCIe"),
        "current_link_width": text(16),
        "max_link_speed": text("32.0 GT/s PCIe"),
        "max_link_width": text(16),
        "resource": text("0x0000000000000000 0x0000000000000000 0x0000000000000000"),
        "config": File(_nic_config),
        "subsystem": Link("../../../bus/pci"),
        "infiniband": folder(**{nic.name: Dir(partial(_nic, nic))}),
        "net": folder(**{host.netdev(nic): folder(
            mtu=text(9000), operstate=text("up" if nic.up else "down"),
        )}),
    }  # fmt: skip


def _nic(nic: Nic) -> dict[str, Entry]:
    port = folder(
        state=text("4: ACTIVE" if nic.up else "1: DOWN"),
        phys_state=text("5: LinkUp" if nic.up else "3: Disabled"),
        rate=text(f"{nic.rate} Gb/sec (4X NDR)" if nic.rate == 400 else f"{nic.rate} Gb/sec (4X)"),
        link_layer=text("Ethernet"),
        lid=text("0x0"),
        gids=folder(**{str(index): text(gid) for index, gid in enumerate(host.gids(nic))}),
        gid_attrs=folder(
            types=folder(**{str(index): text(kind) for index, kind in enumerate(host.GID_TYPES)}),
            ndevs=folder(**{str(index): text(host.netdev(nic)) for index in range(len(host.GID_TYPES))}),
        ),
    )
    return {
        "node_type": text("1: CA"),
        "fw_ver": text(nic.firmware),
        "hca_type": text("MT4129"),
        "board_id": text("MT_0000000838"),
        "ports": folder(**{"1": port}),
        "device": Link("../.."),
    }


def _nic_config() -> bytes:
    """Return a PCI configuration space with ids and class only."""
    space = bytearray(64)
    space[0:4] = (0x15B3).to_bytes(2, "little") + (0x1021).to_bytes(2, "little")
    space[4:6] = (0x0006).to_bytes(2, "little")
    space[8:12] = bytes([0x00, 0x00, 0x07, 0x02])
    return bytes(space)
