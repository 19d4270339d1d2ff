# SPDX-License-Identifier: Apache-2.0
"""The files of /proc that describe a node's hardware: cpuinfo and meminfo, as the kernel writes them."""

from __future__ import annotations

from ..machine.state import Node

# Memory use of an idle server, in kB per GiB.
_FREE, _AVAILABLE, _CACHED = 1016000, 1030000, 18000


def cpuinfo(node: Node) -> str:
    """Return /proc/cpuinfo: a block per CPU; the flag `hypervisor` only in a virtual machine."""
    cpu, layout = node.processor, node.layout
    flags = cpu.flags if node.platform == "baremetal" else f"{cpu.flags} hypervisor"
    megahertz = cpu.clock[1] / 1000
    head = (
        f"vendor_id\t: {cpu.vendor}\ncpu family\t: {cpu.family}\nmodel\t\t: {cpu.model}\n"
        f"model name\t: {cpu.title}\nstepping\t: {cpu.stepping}\nmicrocode\t: 0xa10113e\n"
        f"cpu MHz\t\t: {megahertz:.3f}\ncache size\t: {cpu.cache} KB\n"
    )
    bugs = (
        "sysret_ss_attrs spectre_v1 spectre_v2 spec_store_bypass srso"
        if cpu.amd
        else "spectre_v1 spectre_v2 eibrs_pbrsb"
    )
    tail = (
        f"fpu\t\t: yes\nfpu_exception\t: yes\ncpuid level\t: {16 if cpu.amd else 32}\nwp\t\t: yes\n"
        f"flags\t\t: {flags}\nbugs\t\t: {bugs}\nbogomips\t: {megahertz * 2:.2f}\n"
        + ("TLB size\t: 3584 4K pages\n" if cpu.amd else "")
        + "clflush size\t: 64\ncache_alignment\t: 64\n"
        f"address sizes\t: {cpu.address_sizes[0]} bits physical, {cpu.address_sizes[1]} bits virtual\n"
        "power management:" + (" ts ttp tm hwpstate cpb eff_freq_ro [13] [14]" if cpu.amd else "") + "\n\n"
    )
    blocks = []
    for number in range(layout.count):
        apic = (
            layout.socket(number) * 256 + layout.core(number)
        ) * layout.threads + number // layout.all_cores
        blocks.append(
            f"processor\t: {number}\n{head}physical id\t: {layout.socket(number)}\n"
            f"siblings\t: {layout.cores * layout.threads}\ncore id\t\t: {layout.core(number)}\n"
            f"cpu cores\t: {layout.cores}\napicid\t\t: {apic}\ninitial apicid\t: {apic}\n{tail}"
        )
    return "".join(blocks)


def _memory(node: Node) -> dict[str, int]:
    """Return kB by name, for the whole memory."""
    total = node.cpu_memory * node.cpu_nodes >> 10
    size = total >> 20
    return {
        "MemTotal": total,
        "MemFree": _FREE * size,
        "MemAvailable": _AVAILABLE * size,
        "Cached": _CACHED * size,
    }


def meminfo(node: Node) -> str:
    """Return /proc/meminfo of a nearly idle server."""
    memory = _memory(node)
    half = memory["Cached"] // 2
    values = {
        "MemTotal": memory["MemTotal"], "MemFree": memory["MemFree"], "MemAvailable": memory["MemAvailable"],
        "Buffers": 410616, "Cached": memory["Cached"], "SwapCached": 0, "Active": half, "Inactive": half,
        "Active(anon)": 91844, "Inactive(anon)": 0, "Active(file)": half - 91844, "Inactive(file)": half,
        "Unevictable": 0, "Mlocked": 0, "SwapTotal": 0, "SwapFree": 0, "Dirty": 268, "Writeback": 0,
        "AnonPages": 91844, "Mapped": 512204, "Shmem": 12888, "KReclaimable": 2764920, "Slab": 6044332,
        "SReclaimable": 2764920, "SUnreclaim": 3279412, "KernelStack": 71216, "PageTables": 24512,
        "CommitLimit": memory["MemTotal"] // 2, "Committed_AS": 1433820, "VmallocTotal": 34359738367,
        "VmallocUsed": 1802340, "VmallocChunk": 0, "Percpu": 1204224, "HardwareCorrupted": 0, "AnonHugePages": 0,
        "HugePages_Total": 0, "HugePages_Free": 0, "HugePages_Rsvd": 0, "HugePages_Surp": 0, "Hugepagesize": 2048,
        "Hugetlb": 0,
    }  # fmt: skip
    return "".join(
        f"{f'{name}:':<16}{value:8}{'' if name.startswith('HugePages_') else ' kB'}\n"
        for name, value in values.items()
    )


def node_meminfo(node: Node, index: int) -> str:
    """Return the meminfo of one NUMA node."""
    memory = {name: value // node.cpu_nodes for name, value in _memory(node).items()}
    values = {
        "MemTotal": memory["MemTotal"], "MemFree": memory["MemFree"], "MemUsed": memory["MemTotal"] - memory["MemFree"],
        "FilePages": memory["Cached"], "HugePages_Total": 0, "HugePages_Free": 0, "HugePages_Surp": 0,
    }  # fmt: skip
    return "".join(
        f"Node {index} {f'{name}:':<16}{value:8}{'' if name.startswith('HugePages_') else ' kB'}\n"
        for name, value in values.items()
    )
