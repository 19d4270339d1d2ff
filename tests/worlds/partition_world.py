# SPDX-License-Identifier: Apache-2.0
"""A node in memory whose partition modes can be changed, crash included, for tests of the transaction."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.partition.backends import Command, SysfsWrite
from ansible_collections.instinct.fleet.plugins.module_utils.partition.gpus import (
    AUTO,
    PartitionedGpu,
    PartitionError,
)
from ansible_collections.instinct.fleet.plugins.module_utils.partition.holders import GpuHolder, Service
from ansible_collections.instinct.fleet.plugins.module_utils.partition.journal import Journal, parse_journal
from ansible_collections.instinct.fleet.plugins.module_utils.partition.modes import CommandResult

GIB = 1 << 30
VRAM = 192 * GIB
PARTS = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}
OFFERED = {"NPS1": ("SPX", "DPX", "QPX", "CPX"), "NPS2": ("DPX",), "NPS4": ("QPX", "CPX")}


class Crash(BaseException):
    """The module ends here, without a chance to clean up."""


class World:
    """Driver, services, journal and clock. `faults` are words; `crash_at`: the operation that is the last."""

    def __init__(self, count: int = 2, memory: str = "NPS1", mode: str = "SPX") -> None:
        self.memory, self.requested = memory, None
        self.modes = [mode] * count
        self.driver = True
        self.running: dict[Service, int] = {}  # service: its pid, 0 for one that holds nothing
        self.stopped_by_hand: set[Service] = set()
        self.strangers: list[GpuHolder] = []
        self.stranded = 0
        self.text: str | None = None
        self.faults: set[str] = set()
        self.busy = 0
        self.takes = {"load": 0.0, "unload": 0.0}  # seconds of modprobe
        self.shown_at = 0.0  # when the GPUs are there again after a reload
        self.clock = 0.0
        self.operations: list[str] = []
        self.crash_at: int | None = None
        self.full_at: int | None = None  # how often the journal can be written
        self.journalled = 0

    # ---- what tests do with it -------------------------------------------------------------------------

    def operation(self, name: str) -> None:
        """Note something that changes the node; the one that is the last is not done."""
        if self.crash_at is not None and len(self.operations) >= self.crash_at:
            raise Crash
        self.operations.append(name)
        assert len(self.operations) < 1000, f"it goes on for ever: {self.operations[-10:]}"

    def again(self) -> None:
        """Another run may begin."""
        self.operations, self.crash_at = [], None

    def reboot(self) -> None:
        """Modes are lost or taken on; what was not stopped by hand starts."""
        self.memory, self.requested = self.requested or self.memory, None
        self.modes = [AUTO[self.memory]] * len(self.modes)
        self.driver, self.stranded = True, 0
        for service in self.running:
            if service.kind == "unit" or service not in self.stopped_by_hand:
                self.stopped_by_hand.discard(service)
        self.again()

    def up(self) -> set[str]:
        """Names of the services that run."""
        return {service.name for service in self.running if service not in self.stopped_by_hand}

    # ---- the driver ------------------------------------------------------------------------------------

    def gpus(self) -> tuple[PartitionedGpu, ...]:
        if not self.driver or self.clock < self.shown_at:
            return ()
        return tuple(self._gpu(index, mode) for index, mode in enumerate(self.modes))

    def _gpu(self, index: int, mode: str) -> PartitionedGpu:
        count = PARTS[mode] - ("lost" in self.faults and mode == "CPX" and index == 0)
        offered = ("NPS1", "NPS2", "NPS4")
        return PartitionedGpu(
            index=index, bdf=f"0000:{index:02x}:00.0", sysfs_path=f"/gpu{index}", mode=mode,
            memory_mode=self.memory, available=OFFERED[self.memory], writable=True, partitions=count, xcc=8,
            available_memory=offered, memory_writable=True, vram_total=VRAM,
            vram_used=self.stranded or GIB // 4, bytes=(VRAM // PARTS[mode],) * count,
        )  # fmt: skip

    def holders(self) -> list[GpuHolder]:
        ours = [
            GpuHolder(pid, service.name, service=service)
            for service, pid in self.running.items()
            if pid and service not in self.stopped_by_hand
        ]
        return [*ours, *self.strangers]

    def loaded(self, module: str) -> bool:
        return module == "amdgpu" and self.driver

    def module_users(self) -> int:
        return 1 if "pinned" in self.faults else 0

    def _modprobe(self, seconds: float, timeout: float) -> None:
        """It takes its time, and is killed when it has no more."""
        self.clock += min(seconds, timeout)
        if seconds > timeout:
            raise PartitionError(f"modprobe did not end within {timeout:.0f} s and was killed")

    def run(self, command: Command, timeout: float) -> CommandResult:
        self.operation(command.text)
        if command.argv == ("modprobe", "-r", "amdgpu"):
            self._modprobe(math.inf if "hang" in self.faults else self.takes["unload"], timeout)
            if "refused" in self.faults or self.holders():
                return CommandResult(1, "", "modprobe: FATAL: Module amdgpu is in use.\n")
            self.driver = False
            if self.requested and "kept" not in self.faults:
                self.memory = self.requested
            self.requested, self.stranded = None, 0
            return CommandResult(0, "", "")
        assert command.argv == ("modprobe", "amdgpu")
        self._modprobe(self.takes["load"], timeout)
        if "broken" in self.faults or "broken once" in self.faults:
            self.faults.discard("broken once")
            return CommandResult(1, "", "modprobe: ERROR: could not insert 'amdgpu': Invalid argument\n")
        self.driver = True
        self.modes = [AUTO[self.memory]] * len(self.modes)
        return CommandResult(0, "", "")

    def write(self, step: SysfsWrite) -> None:
        self.operation(step.text)
        if "memory" in step.path:
            if step.value != self.memory:
                self.requested = step.value
            return
        index = step.covers[0]
        if self.holders() or self.busy > 0:
            self.busy -= 1
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if f"einval {index}" in self.faults or step.value not in OFFERED[self.memory]:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.modes[index] = step.value

    def now(self) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def tools(self) -> tuple[dict[str, str | None], str | None]:
        return {}, "7.0.0"

    def euid(self) -> int:
        return 0

    def virtual(self) -> bool:
        return False

    # ---- services and journal --------------------------------------------------------------------------

    def alive(self, service: Service) -> bool:
        return service in self.running and service not in self.stopped_by_hand

    def monitors(self) -> list[Service]:
        return [service for service in self.running if service.kind == "unit" and self.alive(service)]

    def stop(self, wanted: Sequence[Service]) -> list[str]:
        for service in wanted:
            self.operation(f"stop {service.name}")
            self.stopped_by_hand.add(service)
        return []

    def start(self, service: Service) -> None:
        self.operation(f"start {service.name}")
        if f"dead {service.name}" in self.faults:
            raise PartitionError("it does not")
        self.stopped_by_hand.discard(service)

    def refresh_cdi(self, *, check: bool = False) -> tuple[list[str], list[str]]:
        return [], []

    def load_journal(self) -> Journal | None:
        return parse_journal(self.text) if self.text else None

    def _journalled(self, operation: str) -> None:
        """Note what happens to the journal, and fail if its turn has come; `full_at`: from which one on."""
        self.operation(operation)
        self.journalled += 1
        if self.full_at is not None and self.journalled > self.full_at:
            raise PartitionError("the journal cannot be written (No space left on device)")

    def reserve_journal(self) -> None:
        self._journalled("reserve")

    def save_journal(self, journal: Journal) -> None:
        self._journalled(f"journal {journal.step}")
        self.text = json.dumps(journal.to_json())

    def drop_journal(self) -> None:
        self.operation("no journal")  # which a full disk allows
        self.text = None


def served(world: World, names: Iterable[str] = ("instinct-llama-0", "instinct-llama-1")) -> World:
    """The world with instances, an exporter in a container, and a unit with another one beside it."""
    for number, name in enumerate(names):
        world.running[Service("instance", name, 120)] = 100 + number
    world.running[Service("container", "exporter")] = 200
    world.running[Service("unit", "gpuagent.service")] = 300
    world.running[Service("unit", "amd-metrics-exporter.service")] = 0
    return world


def journal_of(world: World) -> dict[str, Any]:
    """The journal as it is on disk."""
    return json.loads(world.text or "null")
