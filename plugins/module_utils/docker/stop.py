# SPDX-License-Identifier: Apache-2.0
"""Stop containers gracefully.

A container on AMD GPUs gets a chance to stop before it is killed: SIGKILL during HIP work strands GPU memory
(ROCm/mori#473, ROCm/rocm-systems#8263).
"""

from __future__ import annotations

import contextlib

from .client import DockerClient, NotFound


def stop_gracefully(client: DockerClient, container: str, seconds: int) -> str:
    """Ask a container to stop. Return a warning if Docker had to kill it after `seconds`, else ""."""
    before = client.container(container)
    if before is None or not before["State"]["Running"]:
        return ""
    with contextlib.suppress(NotFound):
        client.stop(container, seconds)
    after = client.container(container)
    if after is not None and after["State"]["ExitCode"] == 137 and not after["State"].get("OOMKilled"):
        return (
            f"{container} did not stop within {seconds} s and was killed: GPU memory may stay occupied. "
            "Check that it is free (amd-smi process; mem_info_vram_used), and raise runtime.stop_timeout."
        )
    return ""
