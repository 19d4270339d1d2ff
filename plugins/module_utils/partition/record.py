# SPDX-License-Identifier: Apache-2.0
"""The record of a node's desired partition modes, kept on its disk for the next boot."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..common.files import read_text, write_atomic
from ..common.paths import PARTITION_RECORD
from .gpus import PartitionedGpu

SCHEMA = 1
DRIVER_SECONDS = 90.0
"""Seconds that the driver may take at boot to show the GPUs."""
ABOUT = (
    "The partition modes that this node's GPUs are to have, compute modes by PCI address. They are set again at every "
    "boot by instinct-partition.service. Written by instinct-fleet; change gpu_partition_compute and "
    "gpu_partition_memory in the inventory, not this file."
)


@dataclass(frozen=True)
class Record:
    """Modes to set at boot; memory None: the driver has no memory modes."""

    memory: str | None
    compute: Mapping[str, str]

    def to_text(self) -> str:
        """Return the text of the record's file."""
        data = {"schema": SCHEMA, "about": ABOUT, "memory": self.memory, "compute": dict(self.compute)}
        return json.dumps(data, indent=1) + "\n"


def record_of(
    gpus: Sequence[PartitionedGpu], compute: str | None = None, memory: str | None = None
) -> Record:
    """Return the modes to keep: the requested or else the present ones."""
    modes = {gpu.bdf: compute or gpu.mode for gpu in gpus}
    memories = {memory or gpu.memory_mode for gpu in gpus}
    kept = memories.pop() if len(memories) == 1 else None
    return Record(kept, {bdf: mode for bdf, mode in modes.items() if mode})


def follow(path: Callable[[str], str], gpus: Sequence[PartitionedGpu]) -> list[str]:
    """Write the present modes into an existing record: the next boot would undo a change. Return the actions."""
    text = record_of(gpus).to_text()
    if read_text(path(PARTITION_RECORD)) in (None, text):
        return []
    write_atomic(path(PARTITION_RECORD), text, 0o600)
    return [f"write {PARTITION_RECORD}"]
