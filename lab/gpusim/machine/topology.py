# SPDX-License-Identifier: Apache-2.0
"""Logical GPUs and KFD topology of a node: numbering, and the property texts of /sys/class/kfd.

Numbering rules, from the amdgpu driver: each GPU registers itself and MAX_XCP - 1 further DRM devices when the driver
loads, whatever the mode, so GPU k owns the render minors 128+8k … 128+8k+7 and partition p uses 128+8k+p. DRM has 64
minors: if another driver (ast, a BMC's VGA) has taken one, the cards are shifted and the 64th device is missing, and
with it the last partition in CPX mode. Key order and constants of the property files are those of a captured 8xMI300X
node in CPX mode.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from .state import Gpu, Node

MAX_XCP = 8
FIRST_RENDER_MINOR = 128
DRM_MINORS = 64
RESERVED = 16 << 20  # bytes of the HBM that the firmware keeps
HEAP_SYSTEM, HEAP_VRAM_PUBLIC = 0, 1


@dataclass(frozen=True)
class DrmDevice:
    """One DRM device: a GPU (xcp 0) or one of its further partition devices."""

    gpu: int
    xcp: int
    card: int
    render: int
    platform_id: int | None  # N of amdgpu_xcp_N, None for the PCI device


@dataclass(frozen=True)
class Partition:
    """One logical GPU: a node in KFD, a GPU in the tools."""

    index: int
    gpu: int
    part: int
    parts: int
    kfd_node: int
    gpu_id: int
    render: int
    card: int
    memory: int

    @property
    def primary(self) -> bool:
        return self.part == 0


def drm_devices(node: Node) -> list[DrmDevice]:
    """Return the DRM devices of all GPUs, whatever the mode; none while the driver is not loaded."""
    if not node.driver.loaded:
        return []
    found = []
    for gpu in range(len(node.gpus)):
        for xcp in range(MAX_XCP):
            card = gpu * MAX_XCP + xcp + node.first_minor
            if card >= DRM_MINORS:
                continue
            platform = gpu * (MAX_XCP - 1) + xcp - 1 if xcp else None
            found.append(DrmDevice(gpu, xcp, card, FIRST_RENDER_MINOR + gpu * MAX_XCP + xcp, platform))
    return found


def partitions(node: Node) -> list[Partition]:
    """Return the logical GPUs in the tools' order: GPU by GPU, partition by partition."""
    devices = {(d.gpu, d.xcp): d for d in drm_devices(node)}
    found: list[Partition] = []
    used: set[int] = set()
    for k, gpu in enumerate(node.gpus):
        parts = node.spec.parts(gpu.compute)
        for p in range(parts):
            device = devices.get((k, p))
            if device is None:
                continue
            gpu_id = _gpu_id(gpu, p, parts, used)
            used.add(gpu_id)
            found.append(
                Partition(
                    index=len(found),
                    gpu=k,
                    part=p,
                    parts=parts,
                    kfd_node=node.cpu_nodes + len(found),
                    gpu_id=gpu_id,
                    render=device.render,
                    card=device.card,
                    memory=_memory(node, gpu, p, parts),
                )
            )
    return found


def _memory(node: Node, gpu: Gpu, part: int, parts: int) -> int:
    """Return the bytes that a partition can allocate: its share of its memory partition, or all of that.

    Memory partitions divide the HBM evenly; what the firmware keeps of it is missing at the end of the last one (kernel
    gmc_v9_0_init_sw_mem_ranges; seen on an MI308X in CPX/NPS4).
    """
    pools = int(node.memory.removeprefix("NPS"))
    pool = (node.spec.vram + RESERVED) // pools
    size = pool if part * pools // parts < pools - 1 else node.spec.vram - pool * (pools - 1)
    return size if gpu.mem_alloc == "ALL" else size // max(parts // pools, 1)


def _gpu_id(gpu: Gpu, part: int, parts: int, used: set[int]) -> int:
    """Return a 16-bit id, like KFD's hash of the device: stable, and unique in the node."""
    if gpu.kfd_ids and parts in (1, len(gpu.kfd_ids)):
        return gpu.kfd_ids[part]
    value = 1024 + zlib.crc32(f"{gpu.unique_id}/{gpu.compute}/{part}".encode()) % 64000
    while value in used:
        value += 1
    return value


def bdf_of(gpu: Gpu, part: int) -> str:
    """Return the PCI address of a partition, which is its function field."""
    return f"{gpu.bdf[:-1]}{part}"


def bus_of(bdf: str) -> tuple[int, int, int, int]:
    """Return (domain, bus, device, function) of a PCI address."""
    domain, bus, rest = bdf.split(":")
    device, function = rest.split(".")
    return int(domain, 16), int(bus, 16), int(device, 16), int(function, 16)


# ---------------------------------------------------------------- KFD property files


def _text(pairs: list[tuple[str, int]]) -> str:
    return "".join(f"{key} {value}\n" for key, value in pairs)


def system_properties() -> str:
    """Return topology/system_properties of the captured node."""
    return _text(
        [("platform_oem", 4777524452235890003), ("platform_id", 85015745549651), ("platform_rev", 2)]
    )


def _cpu_of(node: Node, gpu: Gpu) -> int:
    return min(gpu.numa_node, node.cpu_nodes - 1)


def cpu_properties(node: Node, parts: Sequence[Partition], index: int) -> str:
    """Return nodes/N/properties of a CPU node; parts: from partitions()."""
    own = sum(1 for p in parts if _cpu_of(node, node.gpus[p.gpu]) == index)
    zero = ("max_waves_per_simd", "lds_size_in_kb", "gds_size_in_kb", "num_gws", "wave_front_size",
            "array_count", "simd_arrays_per_engine", "cu_per_simd_array", "simd_per_cu",
            "max_slots_scratch_cu", "gfx_target_version", "vendor_id", "device_id", "location_id", "domain",
            "drm_render_minor", "hive_id", "num_sdma_engines", "num_sdma_xgmi_engines",
            "num_sdma_queues_per_engine", "num_cp_queues")  # fmt: skip
    return _text(
        [
            ("cpu_cores_count", node.cores_per_cpu),
            ("simd_count", 0),
            ("mem_banks_count", 1),
            ("caches_count", 0),
            ("io_links_count", own + node.cpu_nodes - 1),
            ("p2p_links_count", len(parts) - own),
            ("cpu_core_id_base", index * node.cores_per_cpu),
            ("simd_id_base", 0),
            *((key, 0) for key in zero),
            ("max_engine_clk_ccompute", 2750),
        ]
    )


def gpu_properties(node: Node, parts: Sequence[Partition], part: Partition) -> str:
    """Return nodes/N/properties of a GPU node. Counts of whole GPUs are scaled by the partition's XCCs."""
    gpu, spec = node.gpus[part.gpu], node.spec
    xcc = spec.xcc // part.parts
    domain, bus, device, _ = bus_of(gpu.bdf)
    simd_base = 0x80001140 + sum(40 * (spec.xcc // p.parts) for p in parts if p.index < part.index)
    return _text(
        [
            ("cpu_cores_count", 0),
            ("simd_count", spec.cu_per_xcc * 4 * xcc),
            ("mem_banks_count", 1),
            ("caches_count", spec.caches_per_xcc * xcc),
            ("io_links_count", len(parts)),
            ("p2p_links_count", node.cpu_nodes - 1),
            ("cpu_core_id_base", 0),
            ("simd_id_base", simd_base),
            ("max_waves_per_simd", 8),
            ("lds_size_in_kb", 64),
            ("gds_size_in_kb", 0),
            ("num_gws", 64),
            ("wave_front_size", 64),
            ("array_count", 4 * xcc),
            ("simd_arrays_per_engine", 1),
            ("cu_per_simd_array", 10),
            ("simd_per_cu", 4),
            ("max_slots_scratch_cu", 32),
            ("gfx_target_version", spec.gfx_target_version),
            ("vendor_id", 4098),
            ("device_id", spec.device_id),
            ("location_id", bus << 8 | device << 3 | part.part),
            ("domain", domain),
            ("drm_render_minor", part.render),
            ("hive_id", node.hive_id),
            ("num_sdma_engines", 2 * xcc),
            ("num_sdma_xgmi_engines", 0),
            ("num_sdma_queues_per_engine", 8),
            ("num_cp_queues", 24),
            ("max_engine_clk_fcompute", spec.max_clock),
            ("local_mem_size", 0),
            ("fw_version", 177),
            ("capability", 2893521536),
            ("debug_prop", 1511),
            ("sdma_fw_version", 24),
            ("unique_id", gpu.unique_id),
            ("num_xcc", xcc),
            ("max_engine_clk_ccompute", 2750),
        ]
    )


def mem_bank(node: Node, part: Partition | None) -> str:
    """Return mem_banks/0/properties of a GPU partition, or of a CPU node if part is None."""
    if part is None:
        values = [HEAP_SYSTEM, node.cpu_memory, 0, 64, 4800]
    else:
        values = [HEAP_VRAM_PUBLIC, part.memory, 0, 8192, node.spec.memory_clock]
    keys = ["heap_type", "size_in_bytes", "flags", "width", "mem_clk_max"]
    return _text(list(zip(keys, values, strict=True)))


@dataclass(frozen=True)
class Link:
    """One io_links/N entry."""

    kind: int
    source: int
    target: int
    weight: int
    bandwidth: tuple[int, int]

    def text(self) -> str:
        return _text(
            [
                ("type", self.kind),
                ("version_major", 0),
                ("version_minor", 0),
                ("node_from", self.source),
                ("node_to", self.target),
                ("weight", self.weight),
                ("min_latency", 0),
                ("max_latency", 0),
                ("min_bandwidth", self.bandwidth[0]),
                ("max_bandwidth", self.bandwidth[1]),
                ("recommended_transfer_size", 0),
                ("recommended_sdma_engine_id_mask", 3),
                ("flags", 1),
            ]
        )


PCIE, XGMI = 2, 11


def gpu_links(node: Node, parts: Sequence[Partition], part: Partition) -> list[Link]:
    """Return the io_links of a GPU node: to its CPU, then to every other GPU node in order."""
    links = [Link(PCIE, part.kfd_node, _cpu_of(node, node.gpus[part.gpu]), 20, (0, 64000))]
    for other in parts:
        if other.index == part.index:
            continue
        if other.gpu == part.gpu:
            weight, bandwidth = 13, (819200, 819200)
        else:
            weight, bandwidth = (15 if part.parts == other.parts == 1 else 41), (0, 0)
        links.append(Link(XGMI, part.kfd_node, other.kfd_node, weight, bandwidth))
    return links


def cpu_links(node: Node, parts: Sequence[Partition], index: int) -> list[Link]:
    """Return the io_links of a CPU node: to the other CPUs, then to its GPU nodes."""
    links = [Link(PCIE, index, cpu, 32, (0, 0)) for cpu in range(node.cpu_nodes) if cpu != index]
    links += [
        Link(PCIE, index, p.kfd_node, 20, (0, 64000))
        for p in parts
        if _cpu_of(node, node.gpus[p.gpu]) == index
    ]
    return links
