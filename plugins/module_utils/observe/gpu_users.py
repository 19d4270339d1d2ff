# SPDX-License-Identifier: Apache-2.0
"""Processes that use the GPUs, and whether partition modes are being changed."""

from __future__ import annotations

import json
import os

from .source import Source, integer

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any


def read_users(source: Source, gpus: list[dict[str, Any]], pids: list[int]) -> list[int]:
    """Add to every GPU the processes that KFD counts on it. Return those that are zombies."""
    known = {part["gpu_id"]: gpu for gpu in gpus for part in gpu["partitions"]}
    for gpu in gpus:
        gpu["users"] = []
    zombies = []
    for pid in pids:
        for name in source.names(f"/sys/class/kfd/kfd/proc/{pid}"):
            users = known.get(integer(name[5:]) or 0, {}).get("users") if name.startswith("vram_") else None
            if users is not None and pid not in users:
                users.append(pid)
        # The program's name is in parentheses and may contain any character.
        if (source.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()[:1] == ["Z"]:
            zombies.append(pid)
    return zombies


def partition_change(source: Source, data_dir: str) -> str | None:
    """Return the step of a partition change that is in progress or was interrupted; None if there is none."""
    path = os.path.join(data_dir, "partition.json")
    try:
        with open(path, encoding="utf-8") as file:
            return str(json.load(file)["step"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        source.problem(path, f"broken journal: {error}")
        return "unknown"
