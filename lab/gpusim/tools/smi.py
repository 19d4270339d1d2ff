# SPDX-License-Identifier: Apache-2.0
"""The view of rocm_smi_lib and amdsmi: logical GPUs, readings, and requests with their status.

Both tools enumerate the logical GPUs once, at their start. Only partition 0 of a GPU has the sysfs files of the device;
the others have their KFD node and little else.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TextIO

from ..driver import faults, kernel
from ..driver.holders import Scanner, uses, vram_of, vram_used
from ..machine import topology
from ..machine.models import MIB, release_of
from ..machine.state import Gpu, Holder, Node
from ..machine.store import Store
from ..machine.topology import Partition


class Status(IntEnum):
    """RSMI status codes; amdsmi's names and numbers are mapped from them in amd_smi.py."""

    SUCCESS = 0
    INVALID_ARGS = 1
    NOT_SUPPORTED = 2
    PERMISSION = 4
    INTERNAL_EXCEPTION = 6
    UNEXPECTED_SIZE = 13
    UNEXPECTED_DATA = 15
    BUSY = 16
    SETTING_UNAVAILABLE = 18
    AMDGPU_RESTART_ERR = 19
    NOT_FOUND = 10
    UNKNOWN = 0xFFFFFFFF


_OF_ERRNO = {
    0: Status.SUCCESS,
    errno.EACCES: Status.PERMISSION,
    errno.EPERM: Status.NOT_SUPPORTED,
    errno.ENOENT: Status.NOT_SUPPORTED,
    errno.EBUSY: Status.BUSY,
    errno.EINVAL: Status.INVALID_ARGS,
    errno.EIO: Status.UNEXPECTED_SIZE,
    errno.ENXIO: Status.UNEXPECTED_DATA,
    errno.ESRCH: Status.NOT_FOUND,
}


def status_of(number: int) -> Status:
    """Return the library's status for an errno."""
    return _OF_ERRNO.get(number, Status.UNKNOWN)


@dataclass
class Terminal:
    """A tool's input and output; buffers in tests."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    stdin: TextIO = field(default_factory=lambda: sys.stdin)

    def print(self, text: str = "", end: str = "\n") -> None:
        self.out.write(text + end)

    def ask(self, question: str) -> str:
        """Return the answer to a prompt. Raise EOFError without input, like input()."""
        self.out.write(question)
        self.out.flush()
        line = self.stdin.readline()
        if not line:
            raise EOFError("EOF when reading a line")
        return line.rstrip("\n")

    def bar(self, title: str, second: int, seconds: int) -> None:
        """Draw a progress bar of so many seconds over that of the previous second."""
        done = 40 * second // seconds
        text = f"[{'█' * done}{'.' * (40 - done)}] {second}/{seconds} secs remain"
        self.print(("\r" if second else "") + title + text, end="")
        self.out.flush()

    @classmethod
    def buffers(cls, stdin: str = "") -> Terminal:
        return cls(io.StringIO(), io.StringIO(), io.StringIO(stdin))


class Lib:
    """The library as used by one run of a tool."""

    def __init__(
        self, store: Store, find_holders: Callable[[], Sequence[Holder]], euid: int | None = None
    ) -> None:
        self.store = store
        self.holders = Scanner(find_holders, store.read)
        self.euid = os.geteuid() if euid is None else euid
        self.start = store.read()
        self.devices = topology.partitions(self.start)
        # Before 6.4.1 both tools show the GPU's data for each of its partitions.
        self.mirrored = release_of(self.start.release) < (6, 4, 1)
        self.sleep = time.sleep

    @property
    def node(self) -> Node:
        return self.store.read()

    def _parts(self, node: Node) -> list[Partition]:
        return self.devices if node is self.start else topology.partitions(node)

    def gpu(self, device: Partition) -> Gpu:
        return self.node.gpus[device.gpu]

    def first(self, device: Partition) -> bool:
        """Return whether this device shows the data of the whole GPU."""
        return device.primary or self.mirrored

    # ------------------------------------------------------------ partitions

    def _has_files(self, device: Partition) -> bool:
        driver = self.node.driver
        return self.first(device) and driver.loaded and driver.partition_files

    def compute_get(self, device: Partition) -> tuple[Status, str]:
        if not self._has_files(device):
            return Status.NOT_SUPPORTED, ""
        gpu = self.gpu(device)
        if gpu.reset:  # the libraries' read path, unlike writing, makes an exception of EPERM
            return Status.INTERNAL_EXCEPTION, ""
        forced = faults.errno_for(self.node, "read-errno", device.gpu)
        return status_of(forced), "" if forced else gpu.compute

    def memory_get(self, device: Partition) -> tuple[Status, str]:
        if not self._has_files(device):
            return Status.NOT_SUPPORTED, ""
        return Status.SUCCESS, self.node.memory

    def memory_caps(self, device: Partition) -> tuple[str, ...]:
        """Return the offered memory modes, () if the file is missing (only one mode, or no such files)."""
        offered = self.node.offered_memory
        return offered if self._has_files(device) and len(offered) > 1 else ()

    def compute_set(self, device: Partition, mode: str) -> Status:
        """Set the compute mode; unavailable modes are refused before any write."""
        if self.euid != 0:
            return Status.PERMISSION
        if not self._has_files(device) or self.node.platform == "guest":
            return Status.NOT_SUPPORTED
        if mode not in kernel.available_compute(self.node):
            return Status.SETTING_UNAVAILABLE
        status, current = self.compute_get(device)
        if status is Status.INTERNAL_EXCEPTION or (status is Status.SUCCESS and current == mode):
            return status
        holders = self.holders.fresh()
        time.sleep(faults.delay(self.node))
        failed = self.store.change(lambda node: kernel.set_compute(node, device.gpu, mode, holders))
        return status_of(failed)

    def memory_request(self, device: Partition, mode: str) -> Status:
        """Request a memory mode; the driver keeps the request until it is reloaded."""
        if self.euid != 0:
            return Status.PERMISSION
        if not self._has_files(device) or not self.memory_caps(device):
            return Status.NOT_SUPPORTED
        return status_of(self.store.change(lambda node: kernel.set_memory(node, device.gpu, mode)))

    def mem_alloc_get(self, device: Partition) -> tuple[Status, str]:
        if not self._has_files(device) or not self.node.driver.mem_alloc_files:
            return Status.NOT_SUPPORTED, ""
        return Status.SUCCESS, self.gpu(device).mem_alloc

    def mem_alloc_set(self, device: Partition, mode: str) -> Status:
        """Set how much of the VRAM a partition may allocate."""
        if self.euid != 0:
            return Status.PERMISSION
        if self.mem_alloc_get(device)[0] is not Status.SUCCESS or self.node.platform == "guest":
            return Status.NOT_SUPPORTED
        return status_of(self.store.change(lambda node: kernel.set_mem_alloc(node, device.gpu, mode)))

    def reload(self, progress: Callable[[int], None] = lambda second: None) -> Status:
        """Unload and load the driver. `progress` is called every second with the seconds passed."""
        if self.euid != 0:
            return Status.PERMISSION
        while faults.value(self.node, "reload") == "hang":
            self.sleep(0.5)
        holders = self.holders.fresh()
        if self.store.change(lambda node: kernel.unload(node, holders)):
            return Status.AMDGPU_RESTART_ERR
        seconds = float(faults.value(self.node, "slow-reload") or 0)
        for second in range(int(seconds)):
            self.sleep(1)
            progress(second + 1)
        self.sleep(seconds % 1)
        failed = self.store.change(kernel.load)
        return Status.AMDGPU_RESTART_ERR if failed else Status.SUCCESS

    def memory_set(
        self,
        device: Partition,
        mode: str,
        progress: Callable[[int], None] = lambda second: None,
        again: bool = False,
    ) -> Status:
        """Request a memory mode and reload the driver, as rocm_smi_lib does in one call.

        `again`: after a reload that failed, when there may be no driver to query.
        """
        if self.euid == 0 and self.memory_get(device) == (Status.SUCCESS, mode):
            return Status.SUCCESS
        asked = again and not self.node.driver.loaded
        status = Status.SUCCESS if asked else self.memory_request(device, mode)
        if status is not Status.SUCCESS:
            return status
        status = self.reload(progress)
        if status is Status.SUCCESS and self.node.memory != mode:
            return Status.AMDGPU_RESTART_ERR
        return status

    # ------------------------------------------------------------ memory and processes

    def vram(self, device: Partition) -> tuple[int, int]:
        """Return (used, total) bytes as the tools show them: those of the whole GPU for partition 0."""
        node, holders = self.node, self.holders()
        if self.first(device):
            return vram_used(node, holders, self._parts(node), device.gpu), node.spec.vram
        idle = 984 * MIB // device.parts
        used = idle + min(device.memory, sum(vram_of(h, device) for h in holders))
        return min(device.memory, used), device.memory

    def processes(self, device: Partition) -> list[tuple[Holder, int]]:
        """Return the processes that can use a logical GPU, with the VRAM that they hold there."""
        found = sorted(self.holders(), key=lambda h: h.pid)
        return [(h, vram_of(h, device)) for h in found if h.kfd and uses(h, device)]
