# SPDX-License-Identifier: Apache-2.0
"""The amdgpu driver's reactions to requests: pure functions from a Node to (Node, errno).

errno 0 is success. The order of the checks is the driver's (amdgpu_gfx.c, aqua_vanjaram.c, amdgpu_gmc.c): a compute
mode must exist for the number of XCCs and be valid with the memory mode, a GPU in reset answers EPERM, writing the
present mode succeeds without further checks, and KFD users make it EBUSY. A memory mode is only recorded, for all GPUs
of the hive, and takes effect when the driver is reloaded.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..machine.models import COMPUTE_MODES, MEM_ALLOC_MODES, MEMORY_MODES
from ..machine.state import Holder, Node
from ..machine.topology import partitions
from . import faults
from .holders import uses


class Outcome(NamedTuple):
    """The node after a request, and its errno (0 for success)."""

    node: Node
    errno: int


def available_compute(node: Node) -> tuple[str, ...]:
    """Return the compute modes that are valid with the present memory mode, in the kernel's order."""
    return tuple(mode for mode in node.spec.compute_modes if node.memory in node.spec.memory_for(mode))


def _mode(text: str, modes: Sequence[str]) -> str | None:
    """Return the mode with which the text begins, ignoring case, as the driver compares it."""
    return next((mode for mode in modes if text.upper().startswith(mode)), None)


def _busy(node: Node, index: int, holders: Sequence[Holder]) -> bool:
    users = [h for h in holders if h.kfd]
    if node.driver.lingers:
        return True
    if not node.driver.busy_per_device:
        return bool(users)
    return any(uses(h, part) for h in users for part in partitions(node) if part.gpu == index)


def set_compute(node: Node, index: int, text: str, holders: Sequence[Holder]) -> Outcome:
    """Write current_compute_partition of GPU `index`; holders: the processes that use KFD."""
    gpu = node.gpus[index]
    tag = f"amdgpu {gpu.bdf}: amdgpu: "
    mode = _mode(text, COMPUTE_MODES)
    if mode is None or mode not in node.spec.compute_modes:
        return Outcome(node, errno.EINVAL)
    if gpu.reset:
        return Outcome(node, errno.EPERM)
    if mode not in available_compute(node):
        memories = int(node.memory.removeprefix("NPS"))
        line = f"{tag}Invalid compute partition mode requested, requested: {mode}, "
        return Outcome(node.logged(f"{line}available memory partitions: {memories}"), errno.EINVAL)
    forced = faults.errno_for(node, "compute-errno", index)
    if forced:
        return Outcome(node, forced)
    if mode == gpu.compute:
        return Outcome(node, 0)
    node, transient = faults.transient(node)
    if transient or _busy(node, index, holders):
        return Outcome(node, errno.EBUSY)
    if faults.value(node, "set-ignored"):
        return Outcome(node, 0)
    return Outcome(replace(node.gpu_set(index, compute=mode), generation=node.generation + 2), 0)


def set_mem_alloc(node: Node, index: int, text: str) -> Outcome:
    """Write compute_partition_mem_alloc_mode of GPU `index`."""
    mode = _mode(text, MEM_ALLOC_MODES)
    if mode is None:
        return Outcome(node, errno.EINVAL)
    if mode == node.gpus[index].mem_alloc:
        return Outcome(node, 0)
    return Outcome(replace(node.gpu_set(index, mem_alloc=mode), generation=node.generation + 2), 0)


def set_memory(node: Node, index: int, text: str) -> Outcome:
    """Write current_memory_partition of GPU `index`. Never EBUSY; it takes effect at the next load."""
    tag = f"amdgpu {node.gpus[index].bdf}: amdgpu: "
    mode = _mode(text, MEMORY_MODES)
    if mode is None or mode not in node.offered_memory:
        return Outcome(node, errno.EINVAL)
    forced = faults.errno_for(node, "memory-errno", index)
    if forced:
        return Outcome(node, forced)
    if mode == node.memory:
        return Outcome(node.logged(f"{tag}requested NPS mode is same as current NPS mode, skipping"), 0)
    node = replace(node, memory_requested=mode)
    return Outcome(node.logged(f"{tag}NPS mode change requested, please remove and reload the driver"), 0)


def unload(node: Node, holders: Sequence[Holder]) -> Outcome:
    """Run modprobe -r amdgpu: EBUSY while any process has /dev/kfd or /dev/dri open."""
    if not node.driver.loaded:
        return Outcome(node, 0)
    if holders or faults.value(node, "reload") == "refused":
        return Outcome(node, errno.EBUSY)
    requested = node.memory_requested
    node = replace(node, driver=replace(node.driver, loaded=False))
    if requested is None:
        return Outcome(node, 0)
    if faults.value(node, "nps-change-fails"):
        node = replace(node, memory_requested=None)
        return Outcome(node.logged("amdgpu: NPS mode change request failed"), 0)
    node = replace(node, memory=requested, memory_requested=None)
    return Outcome(
        node.logged("amdgpu: NPS mode change request done, reload driver to complete the change"), 0
    )


def load(node: Node) -> Outcome:
    """Run modprobe amdgpu: every GPU gets the memory mode's default compute mode; VRAM is free."""
    if node.driver.loaded:
        return Outcome(node, 0)
    if faults.value(node, "reload") in ("fail", "fail-once"):
        if faults.value(node, "reload") == "fail-once":
            node = faults.clear(node, "reload")
        return Outcome(node.logged("amdgpu: probe failed with error -22"), errno.EINVAL)
    mode = node.spec.auto_compute(node.memory)
    gpus = tuple(
        replace(gpu, compute=mode, boot_compute=mode, mem_alloc="CAPPING", reset=False, stranded=0)
        for gpu in node.gpus
    )
    node = replace(node, gpus=gpus, driver=replace(node.driver, loaded=True), first_minor=int(node.ast))
    return Outcome(replace(node, boot_memory=node.memory, generation=2), 0)


def linger(node: Node, held: bool) -> Outcome:
    """Apply the fault busy-after-exit: set whether the driver is still cleaning up.

    `held`: it has users or just had.

    The caller may have looked before the fault was cleared: then nothing lingers.
    """
    held = held and faults.value(node, "busy-after-exit") is not None
    if node.driver.lingers == held:
        return Outcome(node, 0)
    return Outcome(replace(node, driver=replace(node.driver, lingers=held)), 0)


def reboot(node: Node, blacklist: Collection[str] = ()) -> Node:
    """Return the node after a reboot: the driver loaded again, the host's settings those of its boot.

    Blacklisted modules are not loaded. The GPUs keep their memory mode (or get `memory_at_boot`): firmware holds it. A
    merely requested mode is lost: the driver passes it on when it is removed, not when the machine shuts down.
    """
    for name in faults.PASSING:
        node = faults.clear(node, name)
    down = replace(
        node,
        memory=node.memory_at_boot or node.memory,
        memory_requested=None,
        holders=(),
        host=node.boot_host,
        ast=node.bmc and "ast" not in blacklist,
        driver=replace(node.driver, loaded=False, lingers=False),
        log=(),
    )
    return down if "amdgpu" in blacklist else load(down).node
