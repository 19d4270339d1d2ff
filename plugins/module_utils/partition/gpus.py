# SPDX-License-Identifier: Apache-2.0
"""A node's GPUs for the purpose of partitioning: present modes, desired modes, and texts for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

COMPUTE_MODES = ("SPX", "DPX", "TPX", "QPX", "CPX")
MEMORY_MODES = ("NPS1", "NPS2", "NPS4")

# Accelerator dies (XCC) by PCI device id. Sources: the kernel's aqua_vanjaram, AMD's product pages.
XCC = {0x74A0: 6, 0x74A1: 8, 0x74A2: 4, 0x74A5: 8, 0x75A0: 8, 0x75A3: 8}
PARTITIONS = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
# The compute mode that the driver chooses when it is loaded (__aqua_vanjaram_get_auto_mode), for 8 dies.
AUTO: Mapping[str, str] = {"NPS1": "SPX", "NPS2": "DPX", "NPS4": "CPX"}


class PartitionError(Exception):
    """Partitioning is impossible or failed; the text says why and what to do."""


@dataclass(frozen=True)
class PartitionedGpu:
    """One GPU as the driver presents it. `partitions` counts KFD nodes, `bytes` is the memory of each.

    `mode` is None if there is none or it cannot be read; `unread` then says why. `vram_used`: bytes.
    """

    index: int
    bdf: str
    sysfs_path: str
    mode: str | None
    memory_mode: str | None
    available: tuple[str, ...]
    writable: bool
    partitions: int
    xcc: int | None
    missing_nodes: tuple[str, ...] = ()
    unread: str | None = None
    available_memory: tuple[str, ...] = ()
    memory_writable: bool = False
    vram_total: int | None = None
    vram_used: int | None = None
    bytes: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the name used in messages."""
        return f"GPU {self.index} ({self.bdf})"


@dataclass(frozen=True)
class TargetModes:
    """Desired modes: the node's memory mode (None: unchanged) and compute modes by GPU index."""

    memory: str | None
    compute: Mapping[int, str]

    def reached(self, gpus: Sequence[PartitionedGpu]) -> bool:
        """Return whether all GPUs are in their desired modes."""
        return not self.memory_differs(gpus) and not differing(gpus, self.compute)

    def memory_differs(self, gpus: Sequence[PartitionedGpu]) -> bool:
        """Return whether some GPU is in another memory mode."""
        return self.memory is not None and any(gpu.memory_mode != self.memory for gpu in gpus)


def present(gpus: Sequence[PartitionedGpu]) -> TargetModes:
    """Return the GPUs' present modes."""
    memory = {gpu.memory_mode for gpu in gpus}
    return TargetModes(
        memory.pop() if len(memory) == 1 else None, {gpu.index: gpu.mode for gpu in gpus if gpu.mode}
    )


def gpu_names(gpus: Sequence[PartitionedGpu]) -> str:
    """Return up to three GPUs by name, more as ranges of indices: "GPUs 0-4, 6"."""
    if len(gpus) <= 3:
        return ", ".join(gpu.name for gpu in gpus)
    ranges: list[list[int]] = []
    for index in sorted(gpu.index for gpu in gpus):
        if ranges and ranges[-1][-1] == index - 1:
            ranges[-1].append(index)
        else:
            ranges.append([index])
    return "GPUs " + ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in ranges)


def gpus_of(
    state: Sequence[Mapping[str, Any]],
    writable: frozenset[str],
    render_nodes: frozenset[str],
    unread: Mapping[str, str],
) -> tuple[PartitionedGpu, ...]:
    """Return GPUs from node_state's list.

    Args:
        writable: mode files that the driver lets be written
        unread: why a mode could not be read, by sysfs_path
        render_nodes: names in /dev/dri
    """
    sums: dict[int | None, int] = {}
    for entry in state:
        counts = [part["num_xcc"] or 0 for part in entry["partitions"]]
        sums[entry["device_id"]] = max(sums.get(entry["device_id"], 0), sum(counts))
    return tuple(
        PartitionedGpu(
            index=entry["index"],
            bdf=entry["bdf"],
            sysfs_path=entry["sysfs_path"],
            mode=entry["compute_partition"],
            memory_mode=entry["memory_partition"],
            available=tuple(entry["available_compute_partitions"]),
            writable=f"{entry['sysfs_path']}/current_compute_partition" in writable,
            partitions=len(entry["partitions"]),
            # A missing partition would make a GPU's own sum too small; a GPU of the same model has the same sum.
            xcc=XCC.get(entry["device_id"] or 0) or sums[entry["device_id"]] or None,
            missing_nodes=tuple(
                part["render_node"]
                for part in entry["partitions"]
                if part["render_node"] and part["render_node"] not in render_nodes
            ),
            unread=unread.get(entry["sysfs_path"]),
            available_memory=tuple(entry.get("available_memory_partitions") or ()),
            memory_writable=f"{entry['sysfs_path']}/current_memory_partition" in writable,
            vram_total=entry.get("vram_total"),
            vram_used=entry.get("vram_used"),
            bytes=tuple(part.get("memory_bytes") or 0 for part in entry["partitions"]),
        )
        for entry in state
    )


def select(gpus: Sequence[PartitionedGpu], wanted: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of the GPUs named by `wanted`: "all", indices or PCI addresses. Raise PartitionError."""
    if list(wanted) == ["all"]:
        return tuple(gpu.index for gpu in gpus)
    names = {**{str(gpu.index): gpu.index for gpu in gpus}, **{gpu.bdf: gpu.index for gpu in gpus}}
    unknown = [name for name in wanted if name.lower() not in names]
    if unknown or not wanted:
        raise PartitionError(
            f"gpus: {', '.join(unknown) or 'the list is empty'}: no such GPU. This node has "
            + ", ".join(f"{gpu.index} ({gpu.bdf})" for gpu in gpus)
            + "; or write all."
        )
    return tuple(sorted({names[name.lower()] for name in wanted}))


def differing(gpus: Sequence[PartitionedGpu], modes: Mapping[int, str]) -> tuple[PartitionedGpu, ...]:
    """Return the GPUs that are not in their desired compute mode."""
    return tuple(gpu for gpu in gpus if gpu.index in modes and gpu.mode != modes[gpu.index])


def expected_partitions(mode: str | None, xcc: int | None) -> int | None:
    """Return the number of logical GPUs that a GPU has in this mode; None if unknown."""
    return xcc if mode == "CPX" else PARTITIONS.get(mode or "")


def same_gpus(before: Sequence[PartitionedGpu], now: Sequence[PartitionedGpu]) -> None:
    """Raise PartitionError if the GPUs are not the same ones: their indices would mean other GPUs."""
    there = {gpu.bdf for gpu in now}
    gone = [gpu for gpu in before if gpu.bdf not in there]
    if gone or len(now) != len(before):
        raise PartitionError(
            f"The list of GPUs changed in the meantime: {gpu_names(gone) or 'one'} is "
            f"{'gone' if gone else 'new'}. Check dmesg | grep amdgpu before anything else."
        )


def gpu_entries(gpus: Sequence[PartitionedGpu]) -> list[dict[str, Any]]:
    """Return GPUs in the form of the module's result."""
    return [
        {
            "index": gpu.index,
            "bdf": gpu.bdf,
            "compute_partition": gpu.mode,
            "memory_partition": gpu.memory_mode,
            "partitions": gpu.partitions,
        }
        for gpu in gpus
    ]


def predicted_gpus(gpus: Sequence[PartitionedGpu], target: TargetModes) -> tuple[PartitionedGpu, ...]:
    """Return the GPUs as they will be."""
    found = []
    for gpu in gpus:
        mode = target.compute.get(gpu.index, gpu.mode)
        if mode != gpu.mode or target.memory_differs(gpus):
            count = gpu.partitions if mode == gpu.mode else expected_partitions(mode, gpu.xcc)
            gpu = replace(gpu, mode=mode, partitions=count)  # type: ignore[arg-type]  # None: not known  # noqa: PLW2901
        found.append(gpu if target.memory is None else replace(gpu, memory_mode=target.memory))
    return tuple(found)


def diff_text(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return one line per GPU, for --diff."""
    lines = []
    for entry in entries:
        modes = [entry["compute_partition"] or "unreadable", entry["memory_partition"]]
        text = "/".join(mode for mode in modes if mode)
        lines.append(f"GPU {entry['index']} {entry['bdf']}: {text} x {entry['partitions']}\n")
    return "".join(lines)


def modes_text(
    gpus: Sequence[PartitionedGpu], memory: str | None = None, compute: Mapping[int, str] | None = None
) -> str:
    """Return a node's modes in brief: "CPX/NPS4", "SPX on 3 and CPX on 5 GPUs/NPS1"."""
    modes = [(compute or {}).get(gpu.index) or gpu.mode or "unreadable" for gpu in gpus]
    counts = {mode: modes.count(mode) for mode in dict.fromkeys(modes)}
    text = " and ".join(f"{mode} on {count}" for mode, count in counts.items()) + " GPUs"
    if len(counts) == 1:
        text = modes[0]
    memories = {memory} if memory else {gpu.memory_mode or "" for gpu in gpus}
    return "/".join([text, *sorted(memories - {""})])
