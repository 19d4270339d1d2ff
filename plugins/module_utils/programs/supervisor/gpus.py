# SPDX-License-Identifier: Apache-2.0
"""Check that GPUs are clean: memory in use before vLLM starts belongs to another process, or is stranded."""

from __future__ import annotations

import os
from collections.abc import Sequence

CLEAN_BYTES = 2 << 30
"""Bytes that may be in use on an idle GPU; IDLE_VRAM in partition/checks.py explains the number."""
NEXT_STEP = (
    "amd-smi process names the process that holds it: stop that one. If it names none, a killed process "
    "left the memory stranded: "
    "playbooks/partition.yml -e gpu_clean=true --limit HOST,load_balancer reloads the driver."
)


def vram_used(node: str, sysfs: str = "/sys") -> int | None:
    """Return the bytes in use on the GPU of a render node (renderD128), or None if the driver does not report them."""
    try:
        with open(
            os.path.join(sysfs, "class/drm", node, "device/mem_info_vram_used"), encoding="ascii"
        ) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def unclean(nodes: Sequence[str], sysfs: str = "/sys") -> str:
    """Describe memory in use on the GPUs of these render nodes; "" if they are clean."""
    used = {node: vram_used(node, sysfs) or 0 for node in nodes}
    dirty = [f"{node} ({size / (1 << 30):.1f} GiB)" for node, size in used.items() if size > CLEAN_BYTES]
    return f"GPU memory is in use before vLLM was started: {', '.join(dirty)}" if dirty else ""
