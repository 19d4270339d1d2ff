# SPDX-License-Identifier: Apache-2.0
"""Restore the recorded partition modes when a node boots, before Docker starts the containers that need them.

Compute modes do not survive a reboot, and Docker does not retry if a container's devices are missing. Runs from an
archive (see partition/boot_unit.py); systemd writes its output into the journal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from ..common.files import read_text
from ..common.module_main import NodeError, internal_error
from ..common.paths import PARTITION_RECORD
from ..leases.run_lock import run_lock
from ..partition.converge import change
from ..partition.gpus import PartitionedGpu, PartitionError, TargetModes
from ..partition.node import PartitionNode
from ..partition.record import DRIVER_SECONDS, SCHEMA, Record
from ..partition.request import NodeInterface, PartitionRequest

CHANGE_SECONDS = 90.0
RETRIES = 4


def parse_record(text: str) -> Record:
    """Parse the text of Record.to_text(). Raise ValueError for any other text."""
    try:
        data: dict[str, Any] = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}")
        return Record(data["memory"], {str(bdf): str(mode) for bdf, mode in data["compute"].items()})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def requests(record: Record, gpus: Sequence[PartitionedGpu]) -> tuple[PartitionRequest, ...]:
    """Return the changes to request.

    For several compute modes, first set the memory mode with all GPUs in one of them.
    """
    common: dict[str, Any] = {"timeout": CHANGE_SECONDS, "retries": RETRIES}
    modes = list(dict.fromkeys(record.compute.values()))
    whole = PartitionRequest(compute=modes[0], memory=record.memory, **common)
    if len(modes) == 1:
        return (whole,)
    first = [whole] if TargetModes(record.memory, {}).memory_differs(gpus) else []
    of_mode = {mode: tuple(bdf for bdf, own in record.compute.items() if own == mode) for mode in modes}
    return (*first, *(PartitionRequest(compute=mode, gpus=of_mode[mode], **common) for mode in modes))


def restore(node: NodeInterface, record: Record) -> tuple[bool, list[str]]:
    """Set the modes; return (whether all are as recorded, lines to print). Never raise."""
    try:
        if node.load_journal() is not None:
            return False, [
                "A partition change was interrupted here; playbooks/partition.yml finishes it. Nothing was done."
            ]
        missing = _wait(node, record)
        if missing:
            return False, [f"The driver does not show {', '.join(missing)}. Nothing was done."]
        lines: list[str] = []
        for request in requests(record, node.gpus()):
            outcome = change(node, request, False)
            lines += [*outcome.actions, *outcome.warnings]
            if outcome.error:
                return False, [*lines, outcome.error]
    except (NodeError, PartitionError) as error:
        return False, [str(error)]
    except Exception as error:  # systemd's journal should show a sentence
        return False, [internal_error(error)]
    modes = ", ".join(dict.fromkeys(record.compute.values()))
    memory = f", memory {record.memory}" if record.memory else ""
    return True, [*lines, f"GPUs are {modes}{memory}{'' if lines else ', as they were'}."]


def _wait(node: NodeInterface, record: Record) -> list[str]:
    """Wait until the driver shows every GPU; return those that are still missing."""
    end = node.now() + DRIVER_SECONDS
    while True:
        there = {gpu.bdf for gpu in node.gpus()}
        missing = [bdf for bdf in record.compute if bdf not in there]
        if not missing or node.now() >= end:
            return missing
        node.sleep(1.0)


def main() -> int:
    """Run the program; the exit code tells whether the modes are as recorded."""
    text = read_text(PARTITION_RECORD)
    if text is None:
        sys.stdout.write("No partition modes are recorded.\n")
        return 0
    try:
        record = parse_record(text)
        with run_lock("rocm_partition", CHANGE_SECONDS):
            good, lines = restore(PartitionNode(), record)
    except (ValueError, NodeError) as error:
        good, lines = False, [f"{PARTITION_RECORD}: {error}" if isinstance(error, ValueError) else str(error)]
    (sys.stdout if good else sys.stderr).write("\n".join([*lines, ""]))
    return 0 if good else 1
