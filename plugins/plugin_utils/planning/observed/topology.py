# SPDX-License-Identifier: Apache-2.0
"""Compute the logical GPUs of a host in a compute partition mode: one per partition, GPU by GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...knowledge.catalog.gpus import GpuCatalog, GpuModel
from .node_state import ObservedGpu

SOCKETS = 2


@dataclass(frozen=True)
class LogicalGpu:
    """The GPU that one index of a deployment's `gpus` stands for; numa: the NUMA node of its slot, if known."""

    index: int
    gpu: int
    partition: int
    render_minor: int
    memory_bytes: int
    numa: int | None = None
    whole: bool = True  # its physical GPU is not partitioned

    @property
    def render_node(self) -> str:
        """Return the device's name under /dev/dri."""
        return f"renderD{self.render_minor}"


def observed_gpus(
    gpus: Sequence[ObservedGpu], compute: str | None, catalog: GpuCatalog
) -> tuple[LogicalGpu, ...]:
    """Return the logical GPUs once every GPU is in mode `compute` (None: in their current modes).

    A GPU that is already in the mode is taken as observed. For others the numbers follow the driver's rule: at load it
    registers a fixed block of render nodes per GPU, in any mode, so partition p of a GPU is that GPU's first minor + p,
    and the memory is divided evenly (compute_partition_mem_alloc_mode CAPPING).
    """
    found: list[LogicalGpu] = []
    for position, gpu in enumerate(gpus):
        base = catalog.first_minor + catalog.minors_per_gpu * position
        minors = [part.render_minor for part in gpu.partitions if part.render_minor is not None]
        if minors:
            base = min(minors)
        if compute is None or gpu.compute == compute:
            memory = [part.memory_bytes for part in gpu.partitions]
            nodes = [
                base + number if part.render_minor is None else part.render_minor
                for number, part in enumerate(gpu.partitions)
            ]
        else:
            count = partition_count(gpu, compute, catalog)
            memory = [gpu.vram_total // count] * count
            nodes = [base + number for number in range(count)]
        start = len(found)
        found.extend(
            LogicalGpu(start + number, gpu.index, number, node, size, gpu.numa_node, len(nodes) == 1)
            for number, (node, size) in enumerate(zip(nodes, memory))
        )
    return tuple(found)


def partition_count(gpu: ObservedGpu, compute: str, catalog: GpuCatalog) -> int:
    """Return the number of partitions of this GPU in a mode; 0 if its model is unknown or does not have the mode."""
    model = catalog.by_pci_id(gpu.pci_id)
    return (model.count(compute) if model else None) or 0


def declared_gpus(
    model: GpuModel, count: int, compute: str | None, catalog: GpuCatalog
) -> tuple[LogicalGpu, ...]:
    """Return the logical GPUs of a host that was not observed, from `instinct_gpus` alone.

    Its sockets are assumed to be two with half of the GPUs each, as in AMD's platforms of eight.
    """
    parts = model.count(compute or model.modes[0]) or 0
    return tuple(
        LogicalGpu(
            index=gpu * parts + part,
            gpu=gpu,
            partition=part,
            render_minor=catalog.first_minor + catalog.minors_per_gpu * gpu + part,
            memory_bytes=model.memory_bytes // parts,
            numa=gpu * SOCKETS // count,
            whole=parts == 1,
        )
        for gpu in range(count)
        for part in range(parts)
    )
