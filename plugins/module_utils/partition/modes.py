# SPDX-License-Identifier: Apache-2.0
"""Set GPU modes: request them, reload the driver if a memory mode needs it, read back, try another backend.

The same code sets modes and restores them. The modes read back from the driver decide; a tool's messages only explain.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .backends import (
    LOAD,
    UNLOAD,
    AttemptResult,
    Command,
    Step,
    SysfsWrite,
    judge_attempt,
    memory_first_steps,
    steps,
    tool_indices,
)
from .gpus import PartitionedGpu, PartitionError, TargetModes, differing, gpu_names, same_gpus
from .holders import GpuHolder, busy_message
from .smi_set_output import (
    BROKEN,
    BUSY,
    DONE,
    PENDING,
    REFUSED,
    UNEXPLAINED,
    SetResult,
    amd_smi_set,
    kind_of,
    rocm_smi_set,
)

PAUSE_MAX = 16.0
SETTLE = 10.0  # seconds for KFD's nodes and udev's device files to appear after a change
LOAD_SETTLE = 60.0  # … and after the driver was loaded
LOAD_TRIES = 3
UNLOAD_MIN = 30.0  # minimum time for unloading, even after a tool used up the rest
LOOK_AGAIN = 0.25

_WRITE_ERRORS = {
    errno.EBUSY: (BUSY, "the driver has users"),
    errno.EINVAL: (REFUSED, "the driver does not accept this mode for this GPU"),
    errno.EPERM: (REFUSED, "the GPU is being reset; wait for the end of the reset and run again"),
    errno.EACCES: (REFUSED, "no permission to write"),
    errno.EIO: (REFUSED, "KFD did not start in the new mode; see dmesg"),
}


@dataclass(frozen=True)
class CommandResult:
    """The result of a program."""

    code: int
    stdout: str
    stderr: str


class DriverInterface(Protocol):
    """The part of a node that setting modes needs."""

    def gpus(self) -> tuple[PartitionedGpu, ...]:
        """Return the GPUs' present state."""

    def holders(self) -> list[GpuHolder]:
        """Return the processes that hold the GPUs, with their services."""

    def loaded(self, module: str) -> bool:
        """Return whether a kernel module is loaded."""

    def run(self, command: Command, timeout: float) -> CommandResult:
        """Run a program. Raise PartitionError if it does not start, or does not end in time."""

    def write(self, step: SysfsWrite) -> None:
        """Write a mode. Raise OSError with the driver's errno."""

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""

    def sleep(self, seconds: float) -> None:
        """Sleep."""


@dataclass
class ModeChange:
    """A setter of modes on a node.

    Attributes:
        end: when to give up, by the node's clock
        actions: the steps that were run
        make_way: called while the driver is busy, to stop processes that open a GPU only now and then
        requested: a memory mode that the driver has accepted but not applied

    A requested memory mode cannot be withdrawn (kernel, current_memory_partition_store: the present mode is skipped);
    only a reload settles it.
    """

    node: DriverInterface
    gpus: tuple[PartitionedGpu, ...]
    tools: Mapping[str, str | None]
    retries: int
    end: float
    actions: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    backend: str | None = None
    requested: str | None = None
    make_way: Callable[[], None] = lambda: None

    def look(self) -> tuple[PartitionedGpu, ...]:
        """Return the GPUs' present state. Raise PartitionError if they are not the same GPUs."""
        gpus = self.node.gpus()
        same_gpus(self.gpus, gpus)
        return gpus

    def reach(self, target: TargetModes, backends: Sequence[str]) -> None:
        """Set the GPUs to their modes. Raise PartitionError with the reason if that is impossible."""
        self.ensure_loaded()
        gpus = self.look()
        if target.memory is not None and target.memory_differs(gpus):
            if backends[0] != "sysfs":
                first = memory_first_steps(gpus)
                self.set_all("SPX", {gpu.index: "SPX" for gpu in first}, backends)
            self.set_all(target.memory, {}, backends)
            gpus = self.look()
        for mode in dict.fromkeys(target.compute.values()):
            wanted = {index: name for index, name in target.compute.items() if name == mode}
            self.set_all(mode, wanted, backends)

    # ---- one mode ------------------------------------------------------------------------------------

    def left(
        self, gpus: Sequence[PartitionedGpu], mode: str, wanted: Mapping[int, str]
    ) -> tuple[PartitionedGpu, ...]:
        """Return the GPUs that are not yet in a mode; `wanted`: the compute modes, {} for a memory mode."""
        if kind_of(mode) == "memory":
            return tuple(gpu for gpu in gpus if gpu.memory_mode != mode)
        return differing(gpus, wanted)

    def set_all(self, mode: str, wanted: Mapping[int, str], backends: Sequence[str]) -> None:
        """Try the backends in order until all GPUs read back the mode."""
        if not self.left(self.look(), mode, wanted):
            return
        judgement = AttemptResult(BROKEN)
        for number, backend in enumerate(backends):
            self.backend = backend
            following = backends[number + 1 :]
            judgement = self.patiently(backend, mode, wanted, last=not following)
            if judgement.verdict == DONE:
                if judgement.message:
                    self.warnings.append(f"{backend} set the mode, but reported: {judgement.message}")
                return
            if judgement.verdict != BROKEN:
                raise PartitionError(
                    judgement.message if judgement.message.endswith(".") else f"{judgement.message}."
                )
            if following:
                self.warnings.append(f"{backend} does not work: {judgement.message}. Using {following[0]}.")
        raise PartitionError(f"{backends[-1]} did not set the mode: {judgement.message}.")

    def patiently(self, backend: str, mode: str, wanted: Mapping[int, str], *, last: bool) -> AttemptResult:
        """Run one backend, and retry with growing pauses while the driver is busy."""
        attempts, pause = 0, 1.0
        while True:
            attempts += 1
            judgement = self.attempt(backend, mode, wanted, last=last)
            if judgement.verdict not in (BUSY, UNEXPLAINED):
                return judgement
            if attempts > self.retries or self.node.now() + pause >= self.end:
                held = self.node.holders()
                if judgement.verdict == UNEXPLAINED and not held:  # another tool may name the reason
                    return AttemptResult(BROKEN, f"{judgement.message} ({attempts} attempts)")
                return AttemptResult(BUSY, busy_message(judgement.message, held, attempts))
            self.make_way()
            self.node.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX)

    def attempt(self, backend: str, mode: str, wanted: Mapping[int, str], *, last: bool) -> AttemptResult:
        """Set the mode of the GPUs that still differ, and read them back."""
        before = self.look()
        kind = kind_of(mode)
        targets = self.left(before, mode, wanted)
        if not targets:
            return AttemptResult(DONE)
        places = {gpu.index: gpu.index for gpu in before} if backend == "sysfs" else tool_indices(before)
        planned = steps(backend, self.tools.get(backend), before, targets, mode)
        results = [self.step(backend, step, mode, last) for step in planned]
        self.ensure_loaded()
        gpus = self.look() if kind == "compute" else self.settled()
        untouched = {gpu.index: gpu.mode for gpu in before if gpu.mode and gpu.index not in wanted}
        strays = differing(gpus, untouched) if kind == "compute" else ()
        if strays:
            return AttemptResult(REFUSED, f"{backend} changed {gpu_names(strays)}, which was not requested")
        left = self.left(gpus, mode, wanted)
        if not left:
            return AttemptResult(DONE, "; ".join(result.failure[1] for result in results if result.failure))
        judgement = judge_attempt(results, places, left, kind)
        return self.load_again(mode) if judgement.verdict == PENDING else judgement

    def step(self, backend: str, step: Step, mode: str, last: bool) -> SetResult:
        """Run or write one step. A tool gets half of the remaining time if another one is left to try."""
        self.actions.append(step.text)
        if isinstance(step, SysfsWrite):
            try:
                self.node.write(step)
            except OSError as error:
                verdict, meaning = _WRITE_ERRORS.get(error.errno or 0, (BROKEN, "unexpected"))
                return SetResult({step.covers[0]: (verdict, f"{error.strerror}: {meaning}")})
            return SetResult({step.covers[0]: (DONE, "written")})
        left = self.time_left()
        try:
            ran = self.node.run(step, left if last else left / 2)
        except PartitionError as error:
            return SetResult({}, (BROKEN, str(error)))
        set_by = rocm_smi_set if backend == "rocm-smi" else amd_smi_set
        return set_by(ran.stdout, ran.stderr, mode)

    def time_left(self) -> float:
        """Return the remaining time in seconds, at least 1."""
        return max(self.end - self.node.now(), 1.0)

    # ---- the driver ----------------------------------------------------------------------------------

    def load_again(self, mode: str) -> AttemptResult:
        """Reload the driver, so that a requested memory mode comes into effect."""
        self.requested = mode
        judgement = self.reload()
        if judgement.verdict != DONE:
            return judgement
        self.requested = None
        left = self.left(self.settled(), mode, {})
        if left:
            message = (
                f"the driver was reloaded, and {gpu_names(left)} did not change to {mode}; look at "
                "dmesg | grep 'NPS mode'"
            )
            return AttemptResult(REFUSED, message)
        return AttemptResult(DONE)

    def reload(self) -> AttemptResult:
        """Unload and load the driver. Raise PartitionError if it is unloaded and cannot be loaded."""
        self.actions.append(" ".join(UNLOAD))
        try:
            ran = self.node.run(Command(UNLOAD), max(self.time_left(), UNLOAD_MIN))
        except PartitionError as error:
            after = "the driver is still loaded" if self.node.loaded("amdgpu") else "the driver is gone"
            return AttemptResult(REFUSED, f"{error}; {after}. If that happens again, reboot the node")
        if self.node.loaded("amdgpu"):
            message = (ran.stderr or ran.stdout).strip().rpartition("\n")[2] or f"exit code {ran.code}"
            return AttemptResult(BUSY if "in use" in message else REFUSED, f"modprobe -r amdgpu: {message}")
        self.ensure_loaded()
        return AttemptResult(DONE)

    def ensure_loaded(self) -> None:
        """Load the driver if it is not loaded. Raise PartitionError if that fails."""
        message = ""
        for number in range(LOAD_TRIES):
            if self.node.loaded("amdgpu"):
                break
            if number:
                self.node.sleep(float(2**number))
            self.actions.append(" ".join(LOAD))
            ran = self.node.run(Command(LOAD), max(self.time_left(), LOAD_SETTLE))
            message = (ran.stderr or ran.stdout).strip().rpartition("\n")[2]
        else:
            if not self.node.loaded("amdgpu"):
                raise PartitionError(
                    f"The amdgpu driver does not load ({message}), and without it the node has no GPUs. Look "
                    "at dmesg | grep amdgpu, reboot the node, and run again"
                )

    def settled(self) -> tuple[PartitionedGpu, ...]:
        """Return the GPUs once all are back after a reload. Raise PartitionError if some stay away."""
        end = self.node.now() + LOAD_SETTLE
        while True:
            try:
                return self.look()
            except PartitionError:
                if self.node.now() >= end:
                    raise
            self.node.sleep(LOOK_AGAIN)
