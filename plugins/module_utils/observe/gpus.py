# SPDX-License-Identifier: Apache-2.0
"""The GPUs as amdgpu and KFD present them: modes, partitions and memory."""

from __future__ import annotations

import os

from .source import Source, integer, pairs

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any
AMD = 0x1002


def modes(text: str | None) -> list[str]:
    """Return "SPX, DPX" as a list; "Not supported" as an empty one."""
    words = [word.strip().upper() for word in (text or "").split(",")]
    return [word for word in words if word.isalnum()]


def mode(text: str | None) -> str | None:
    """Return one mode, or None: the driver writes UNKNOWN, or a sentence, if it has none."""
    words = modes(text)
    return words[0] if len(words) == 1 and words[0] != "UNKNOWN" else None


def gfx_name(version: int | None) -> str | None:
    """Return gfx942 for 90402; minor and stepping are hexadecimal digits."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else None


def location(bdf: str) -> tuple[int, int] | None:
    """Return (domain, bus and device) of a PCI address as KFD numbers them: bus << 8 | device << 3."""
    try:
        domain, bus, rest = bdf.split(":")
        return int(domain, 16), int(bus, 16) << 8 | int(rest.split(".")[0], 16) << 3
    except ValueError:
        return None


def read_kfd_nodes(source: Source) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Return KFD's GPU nodes, by the location of their GPU."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    top = "/sys/class/kfd/kfd/topology/nodes"
    for name in source.names(top):
        node = f"{top}/{name}"
        gpu_id = source.number(f"{node}/gpu_id")
        if not gpu_id:  # a CPU
            continue
        values = pairs(source.text(f"{node}/properties"))
        place, minor = integer(values.get("location_id")), integer(values.get("drm_render_minor"))
        if place is None:
            source.problem(f"{node}/properties", "no location_id")
            continue
        memory = 0
        for bank in source.names(f"{node}/mem_banks"):
            heap = pairs(source.text(f"{node}/mem_banks/{bank}/properties"))
            if heap.get("heap_type") in ("1", "2"):  # the GPU's own memory, visible to the host or not
                memory += integer(heap.get("size_in_bytes")) or 0
        # Newer drivers put the partition's number into bits 31:28, others into the PCI function.
        found.setdefault((integer(values.get("domain")) or 0, place & 0xFFF8), []).append({
            "id": place >> 28 & 0xF or place & 7,
            "render_node": f"renderD{minor}" if minor else None,
            "render_minor": minor or None,
            "kfd_node": integer(name),
            "gpu_id": gpu_id,
            "simd_count": integer(values.get("simd_count")),
            "num_xcc": integer(values.get("num_xcc")),
            "memory_bytes": memory or None,
            "gfx_target_version": integer(values.get("gfx_target_version")),
            "unique_id": integer(values.get("unique_id")),
        })  # fmt: skip
    return found


def read_gpus(source: Source) -> list[dict[str, Any]]:
    """Return the GPUs of the amdgpu driver in PCI order, each with its partitions.

    Render nodes of partitions beyond the first belong to a platform device, which has no vendor file.
    """
    nodes = read_kfd_nodes(source)
    gpus: dict[tuple[int, int], dict[str, Any]] = {}
    for name in source.names("/sys/class/drm"):
        device = f"/sys/class/drm/{name}/device"
        if not name.startswith("renderD") or source.number(f"{device}/vendor", 16) != AMD:
            continue
        slot = pairs(source.text(f"{device}/uevent"), "=").get("PCI_SLOT_NAME")
        bdf = slot or os.path.basename(os.path.realpath(source.root + device))
        place = location(bdf)
        if place is None:
            source.problem(device, f"not a PCI address: {bdf!r}")
            continue
        parts = sorted(nodes.get(place, []), key=lambda part: (part["id"], part["kfd_node"]))
        if len({part["id"] for part in parts}) < len(parts):  # the driver does not number them
            parts = sorted(parts, key=lambda part: part["render_minor"] or 0)
            for number, part in enumerate(parts):
                part["id"] = number
        mode_file = f"{device}/current_compute_partition"
        problems = len(source.problems)
        compute = mode(source.text(mode_file))
        in_reset = any("being reset" in problem["error"] for problem in source.problems[problems:])
        versions = [part.pop("gfx_target_version") for part in parts] or [None]
        serials = [part.pop("unique_id") for part in parts] or [None]
        numa = source.number(f"{device}/numa_node")
        gpus[place] = {
            "bdf": bdf.lower(),
            "sysfs_path": device,
            "vendor_id": AMD,
            "device_id": source.number(f"{device}/device", 16),
            "gfx": gfx_name(versions[0]),
            "unique_id": source.text(f"{device}/unique_id") or (f"{serials[0]:016x}" if serials[0] else None),
            "vram_total": source.number(f"{device}/mem_info_vram_total"),
            "vram_used": source.number(f"{device}/mem_info_vram_used"),
            "numa_node": numa if numa is not None and numa >= 0 else None,
            "compute_partition": compute,
            "available_compute_partitions": modes(source.text(f"{device}/available_compute_partition")),
            "memory_partition": mode(source.text(f"{device}/current_memory_partition")),
            "available_memory_partitions": modes(source.text(f"{device}/available_memory_partition")),
            "link_speed": source.text(f"{device}/current_link_speed"),
            "link_width": source.number(f"{device}/current_link_width"),
            "in_reset": in_reset,
            "ecc_uncorrectable": integer(pairs(source.text(f"{device}/ras/umc_err_count"), ":").get("ue")),
            "partitions": parts,
        }
    return [{"index": index, **gpus[place]} for index, place in enumerate(sorted(gpus))]


def kfd_processes(source: Source) -> list[int]:
    """Return the processes known to KFD: any of them makes the driver refuse a change as busy."""
    return sorted(int(name) for name in source.names("/sys/class/kfd/kfd/proc") if name.isdigit())
