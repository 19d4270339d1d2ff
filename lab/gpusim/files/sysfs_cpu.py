# SPDX-License-Identifier: Apache-2.0
"""The part of sysfs that shows the processors, NUMA nodes, IOMMUs and the board."""

from __future__ import annotations

from functools import lru_cache, partial

from ..machine import host
from ..machine.processors import GUEST_BOARD, Layout, cpu_list, cpu_mask
from ..machine.state import Node
from .entries import Dir, Entry, Link, Numbered, folder, text
from .proc_files import node_meminfo
from .sysfs_host import setting


@lru_cache(maxsize=16)
def _lists(layout: Layout) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the CPUs of each socket, and those of each NUMA node."""
    return (
        tuple(cpu_list(layout.of_socket(socket)) for socket in range(layout.sockets)),
        tuple(cpu_list(layout.of_node(node)) for node in range(layout.nodes)),
    )


@lru_cache(maxsize=16)
def _masks(layout: Layout) -> tuple[str, ...]:
    """Return the CPUs of each socket as masks."""
    return tuple(cpu_mask(layout.of_socket(socket), layout.count) for socket in range(layout.sockets))


def node_cpus(node: Node, numa: int) -> str:
    """Return the CPUs of a NUMA node."""
    return _lists(node.layout)[1][numa]


# ---------------------------------------------------------------- CPUs


def cpus(node: Node) -> Dir:
    """Return devices/system/cpu: topology, frequency and idle settings of each CPU."""
    layout = node.layout
    every = f"0-{layout.count - 1}"
    others: dict[str, Entry] = {
        **{name: text(every) for name in ("online", "possible", "present")},
        **{name: text("") for name in ("offline", "isolated")},
        "kernel_max": text(8191),
        "smt": folder(active=text(int(node.smt)), control=text("on" if node.smt else "notsupported")),
    }
    return Numbered("cpu", layout.count, partial(_cpu, node), others, fixed=(node.processor.name, layout))


def _cpu(node: Node, index: int) -> Dir:
    processor, layout = node.processor, node.layout
    present: dict[str, Entry] = {"online": text(1)} if index else {}  # the first cannot be taken offline
    return folder(
        **present,
        topology=Dir(partial(_topology, layout, index)),
        cpufreq=Dir(partial(_frequency, node, index)),
        cpuidle=folder(
            **{f"state{n}": Dir(partial(_idle, node, index, n)) for n in range(len(processor.idle))}
        ),
        **{f"node{layout.node(index)}": Link(f"../../node/node{layout.node(index)}")},
    )


def _topology(layout: Layout, index: int) -> dict[str, Entry]:
    socket, threads = layout.socket(index), layout.siblings(index)
    found: dict[str, Entry] = {
        "physical_package_id": text(socket),
        "die_id": text(0),
        "core_id": text(layout.core(index)),
    }
    # Both have two names: one of newer kernels, one of older kernels.
    for name in ("package_cpus", "core_siblings"):
        found |= {name: text(_masks(layout)[socket]), f"{name}_list": text(_lists(layout)[0][socket])}
    for name in ("core_cpus", "thread_siblings"):
        found |= {name: text(cpu_mask(threads, layout.count)), f"{name}_list": text(cpu_list(threads))}
    return found


def _frequency(node: Node, index: int) -> dict[str, Entry]:
    processor = node.processor
    return {
        "scaling_governor": setting(
            node.host.cpus[index].governor, lambda h, w: host.set_governor(h, index, w, processor.governors)
        ),
        "scaling_available_governors": text(" ".join(processor.governors)),
        "scaling_driver": text(processor.driver),
        "scaling_cur_freq": text(processor.clock[1]),
        "cpuinfo_max_freq": text(processor.clock[1]),
        "cpuinfo_min_freq": text(processor.clock[0]),
    }


def _idle(node: Node, index: int, number: int) -> dict[str, Entry]:
    state = node.processor.idle[number]
    disabled = number in node.host.cpus[index].disabled
    return {
        "name": text(state.name),
        "latency": text(state.latency),
        "disable": setting(str(int(disabled)), lambda h, w: host.set_idle(h, index, number, w)),
    }


# ---------------------------------------------------------------- NUMA nodes, IOMMUs, the board


def numa_nodes(node: Node) -> Dir:
    """Return devices/system/node."""
    count, memory = node.cpu_nodes, node.cpu_memory
    every = "0" if count == 1 else f"0-{count - 1}"
    names = ("online", "possible", "has_cpu", "has_memory", "has_normal_memory")
    others: dict[str, Entry] = {name: text(every) for name in names}
    return Numbered(
        "node", count, partial(_numa_node, node), others, fixed=(node.processor.name, node.layout, memory)
    )


def _numa_node(node: Node, index: int) -> Dir:
    layout = node.layout
    own, far = 10, node.processor.distance
    return folder(
        cpulist=text(node_cpus(node, index)),
        cpumap=text(cpu_mask(layout.of_node(index), layout.count)),
        meminfo=text(node_meminfo(node, index).rstrip("\n")),
        distance=text(" ".join(str(own if other == index else far) for other in range(layout.nodes))),
    )


def iommus(node: Node) -> dict[str, Entry]:
    """Return devices/virtual/iommu: the IOMMUs that the kernel uses according to this boot's command line.

    AMD's are on by default, Intel's off.
    """
    processor, words = node.processor, set(node.cmdline)
    on = (
        not words & {"amd_iommu=off", "iommu=off"}
        if processor.amd
        else "intel_iommu=on" in words and not words & {"intel_iommu=off", "iommu=off"}
    )
    count = processor.iommus if on and node.platform == "baremetal" else 0
    return {f"{processor.iommu}{number}": folder() for number in range(count)}


def board(node: Node) -> dict[str, Entry]:
    """Return devices/virtual/dmi/id: the maker of the server, or of the virtual machine."""
    vendor, product, bios = node.processor.board if node.platform == "baremetal" else GUEST_BOARD
    values = {
        "sys_vendor": vendor,
        "product_name": product,
        "board_vendor": vendor,
        "board_name": product,
        "chassis_vendor": vendor,
        "bios_vendor": vendor,
        "bios_version": bios,
        "bios_date": "07/22/2025",
    }
    return {name: text(value) for name, value in values.items()}
