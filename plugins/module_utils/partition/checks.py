# SPDX-License-Identifier: Apache-2.0
"""Refuse changes that cannot work before anything is touched, and verify changes by reading them back."""

from __future__ import annotations

from collections.abc import Sequence

from ..common.gpu_memory import IDLE_VRAM
from .gpus import (
    PARTITIONS,
    PartitionedGpu,
    PartitionError,
    TargetModes,
    differing,
    expected_partitions,
    gpu_names,
)

# A partition may have slightly less than its share: the driver reserves memory, and sizes are rounded.
SHARE_TOLERANCE = 0.05
INSTALL = "install AMD's Instinct driver (amdgpu-dkms) on the bare-metal host"


def check_possible(
    gpus: Sequence[PartitionedGpu],
    target: TargetModes,
    chosen: Sequence[int],
    *,
    euid: int,
    virtual: bool | None,
) -> None:
    """Raise PartitionError if the change cannot work.

    `chosen`: the GPUs that the caller named; the others must keep their modes.
    """
    changing = target.memory_differs(gpus)
    targets = gpus if changing else differing(gpus, target.compute)
    unread = [gpu for gpu in targets if gpu.unread]
    if unread:
        raise PartitionError(
            f"{gpu_names(unread)}: the current mode cannot be read: {unread[0].unread}. Look at "
            "dmesg | grep amdgpu, wait for a reset to end, and run again."
        )
    lacking = [gpu for gpu in targets if gpu.mode is None or not gpu.available]
    if lacking:
        raise PartitionError(
            f"{gpu_names(lacking)}: the amdgpu driver offers no compute partition modes. The kernel's own "
            f"driver may not have them, and virtual functions never do; {INSTALL}."
        )
    if changing:
        _refuse_memory(gpus, target, chosen)
    else:
        _refuse_compute(targets, target)
    if euid != 0:
        raise PartitionError("Setting a partition mode needs root: use become: true (-b).")
    where = "inside this virtual machine" if virtual else "here"
    for name, fixed in (
        ("current_compute_partition", [gpu for gpu in differing(gpus, target.compute) if not gpu.writable]),
        ("current_memory_partition", [gpu for gpu in gpus if changing and not gpu.memory_writable]),
    ):
        if fixed:
            raise PartitionError(
                f"{gpu_names(fixed)}: the driver does not let the mode be changed {where} "
                f"({name} is read-only). Set it on the bare-metal host."
            )


def _refuse_compute(targets: Sequence[PartitionedGpu], target: TargetModes) -> None:
    refusing = [gpu for gpu in targets if target.compute[gpu.index] not in gpu.available]
    if refusing:
        offered = sorted({gpu.available for gpu in refusing})
        raise PartitionError(
            f"{gpu_names(refusing)}: mode {target.compute[refusing[0].index]} is not offered in memory partition "
            f"mode {refusing[0].memory_mode or 'unknown'}. "
            f"Offered: {'; '.join(', '.join(modes) for modes in offered)}."
        )


def _refuse_memory(gpus: Sequence[PartitionedGpu], target: TargetModes, chosen: Sequence[int]) -> None:
    if len(chosen) < len(gpus):
        raise PartitionError(
            f"memory: {target.memory} is a mode of the whole node, as its GPUs are one hive, and gpus names "
            f"{len(chosen)} of {len(gpus)}. Name all, or leave memory out."
        )
    lacking = [gpu for gpu in gpus if target.memory not in gpu.available_memory]
    if lacking:
        offered = ", ".join(lacking[0].available_memory) or lacking[0].memory_mode or "none"
        raise PartitionError(
            f"{gpu_names(lacking)}: memory partition mode {target.memory} is not offered by the firmware and the "
            f"driver. Offered: {offered}."
        )
    # The kernel's rule: never more memory partitions than compute partitions. Other limits of a model show after the
    # reload, which is then undone.
    pools = int((target.memory or "NPS1").removeprefix("NPS"))
    for gpu in gpus:
        mode = target.compute.get(gpu.index)
        count = expected_partitions(mode, gpu.xcc)
        if count is not None and count < pools:
            raise PartitionError(
                f"{gpu.name}: {mode} cannot be combined with {target.memory}: {count} compute partition"
                f"{'s' if count > 1 else ''} cannot use {pools} memory partitions. Choose a compute mode "
                f"with at least {pools}: "
                + ", ".join(
                    name for name, parts in {**PARTITIONS, "CPX": gpu.xcc or 8}.items() if parts >= pools
                )
                + "."
            )


def verify(gpus: Sequence[PartitionedGpu], target: TargetModes, ast_loaded: bool) -> str | None:
    """Return what is wrong with the GPUs that should be in `target`, or None.

    This counts KFD nodes and render nodes, and checks their memory: the mode can read back correctly while a partition
    is missing.
    """
    wrong = [
        f"{gpu.name} is {gpu.mode or 'unreadable'}, not {target.compute[gpu.index]}"
        for gpu in differing(gpus, target.compute)
    ]
    if target.memory_differs(gpus):
        wrong += [
            f"{gpu.name} is in {gpu.memory_mode or 'no memory mode'}, not {target.memory}"
            for gpu in gpus
            if gpu.memory_mode != target.memory
        ]
    if wrong:
        return "; ".join(wrong)
    problems, small, have, want = [], [], 0, 0
    for gpu in (gpu for gpu in gpus if gpu.index in target.compute):
        expected = expected_partitions(gpu.mode, gpu.xcc)
        if expected is None:
            continue
        have, want = have + gpu.partitions, want + expected
        share = (gpu.vram_total or 0) // expected
        if gpu.partitions != expected:
            problems.append(f"{gpu.name} shows {gpu.partitions} of {expected} partitions")
        elif gpu.missing_nodes:
            problems.append(f"{gpu.name} is missing /dev/dri/{', /dev/dri/'.join(gpu.missing_nodes)}")
        elif any(0 < size < share * (1 - SHARE_TOLERANCE) for size in gpu.bytes):
            small.append(
                f"{gpu.name} has a partition with {min(gpu.bytes) >> 30} GiB of memory instead of {share >> 30}"
            )
    if not problems:
        return f"{'; '.join(small)}." if small else None
    text = f"{have} of {want} partitions are visible: {'; '.join(problems)}."
    if have < want:
        state = "is loaded here" if ast_loaded else "is not loaded now, but may have been when amdgpu was"
        text += (
            " A display driver that takes one of the 64 DRM minor numbers has this effect; ast, the BMC's "
            f"graphics, {state}. Fix: modprobe -r ast; modprobe -r amdgpu; modprobe amdgpu; blacklist ast."
        )
    return text


def stranded_gpus(gpus: Sequence[PartitionedGpu]) -> tuple[PartitionedGpu, ...]:
    """Return the GPUs with VRAM in use, on a node where no process holds one."""
    return tuple(gpu for gpu in gpus if (gpu.vram_used or 0) > IDLE_VRAM)
