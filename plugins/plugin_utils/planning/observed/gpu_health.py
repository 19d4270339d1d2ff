# SPDX-License-Identifier: Apache-2.0
"""Decide whether a host's GPUs are healthy enough to start instances, and whether a driver reload would repair them.

A host with a fault is quarantined: instances there would run out of memory, hang or compute wrong results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....module_utils.common.gpu_memory import IDLE_VRAM
from .node_state import NodeState, ObservedGpu

CLEAN = "Run again with -e gpu_clean=true: that reloads the driver, and stops what runs on the host to do so"


@dataclass(frozen=True)
class GpuFault:
    """A fault of a host's GPUs. `reload`: reloading the driver repairs it."""

    what: str
    fix: str
    reload: bool = False

    @property
    def text(self) -> str:
        """Return the fault and its fix as text."""
        return f"{self.what}. {self.fix}."


def gpu_faults(state: NodeState) -> tuple[GpuFault, ...]:
    """Return the faults; empty if the GPUs are clean."""
    found: list[GpuFault] = []
    held = [gpu for gpu in state.gpus if not gpu.users and gpu.vram_used > IDLE_VRAM]
    if held:
        most = max(gpu.vram_used for gpu in held)
        what = f"{_named(held)}: VRAM in use that no process holds, up to {most / (1 << 30):.0f} GiB"
        found.append(GpuFault(what, CLEAN, reload=True))
    if state.kfd_zombies:
        pids = ", ".join(str(pid) for pid in state.kfd_zombies)
        fix = "Stop its parent (ps -o ppid= -p PID); a container that leaves zombies needs --init"
        found.append(GpuFault(f"zombie processes hold the GPUs (pid {pids})", fix))
    resetting = [gpu for gpu in state.gpus if gpu.in_reset]
    if resetting:
        fix = "Wait until it ends (dmesg | grep 'GPU reset'); if it does not, reboot the host"
        found.append(GpuFault(f"{_named(resetting)}: a reset of the GPU is in progress", fix))
    broken = [gpu for gpu in state.gpus if gpu.ecc_uncorrectable]
    if broken:
        count = sum(gpu.ecc_uncorrectable for gpu in broken)
        fix = "Check amd-smi metric --ecc, reboot the host, and replace the GPU if the errors return"
        found.append(GpuFault(f"{_named(broken)}: {count} uncorrectable memory errors", fix))
    return tuple(found)


def quarantine_reason(state: NodeState, clean: bool) -> str:
    """Return why a host is quarantined, or "".

    clean: this run reloads the driver, so faults that a reload repairs do not count.
    """
    found = gpu_faults(state)
    if clean and all(trouble.reload for trouble in found):
        return ""
    return " ".join(trouble.text for trouble in found)


def needs_reload(state: NodeState | None) -> bool:
    """Return whether the host has a fault that a driver reload repairs."""
    return state is not None and any(trouble.reload for trouble in gpu_faults(state))


def _named(gpus: Sequence[ObservedGpu]) -> str:
    numbers = ", ".join(str(gpu.index) for gpu in gpus)
    return f"GPU{'s' if len(gpus) > 1 else ''} {numbers}"
