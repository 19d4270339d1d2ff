# SPDX-License-Identifier: Apache-2.0
"""Whether GPUs are clean: memory that is in use before vLLM starts would be missing to it, or is another's."""

from __future__ import annotations

import os
from collections.abc import Sequence

CLEAN_BYTES = 2 << 30
"""What a GPU on which nothing runs may have in use; partition_checks.IDLE_VRAM says why."""
NEXT_STEP = (
    "amd-smi process names who holds it: stop that. With no process there, a killed one has left it stranded: "
    "ansible-playbook playbooks/partition.yml -e gpu_clean=true --limit HOST reloads the driver."
)


def vram_used(node: str, sysfs: str = "/sys") -> int | None:
    """Bytes in use on the GPU of a render node (renderD128); None where the driver does not tell."""
    try:
        with open(
            os.path.join(sysfs, "class/drm", node, "device/mem_info_vram_used"), encoding="ascii"
        ) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def unclean(nodes: Sequence[str], sysfs: str = "/sys") -> str:
    """What is wrong with GPUs that are to be used; "" when they are clean."""
    used = {node: vram_used(node, sysfs) or 0 for node in nodes}
    told = [f"{node} ({size / (1 << 30):.1f} GiB)" for node, size in used.items() if size > CLEAN_BYTES]
    return f"GPU memory is in use before vLLM was started: {', '.join(told)}" if told else ""
