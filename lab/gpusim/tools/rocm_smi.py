# SPDX-License-Identifier: Apache-2.0
"""rocm-smi of the simulated node, by release: how partition modes are shown and set.

Layout, messages and exit codes are those of the recorded samples; for 6.2 and 6.3, those of the changelogs and the
released command line. It is not recorded in which release between 6.3.0 and 7.0 the question before a memory mode
appeared; 6.4 asks here. Options that change clocks, fans, power and the like are refused with a message, because they
are not simulated.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ..machine.models import release_of
from ..machine.state import Node
from ..machine.topology import Partition
from .rocm_base import Action, Exit
from .rocm_views import RocmViews
from .smi import Status

MEMORY_WARNING = """
          ******WARNING******

          Setting Dynamic Memory (NPS) partition modes require users to quit all GPU workloads.
          ROCm SMI will then attempt to change memory (NPS) partition mode.
          Upon a successful set, ROCm SMI will then initiate an action to restart AMD GPU driver.
          This action will change all GPU's in the hive to the requested memory (NPS) partition mode.

          Please use this utility with caution.
          """
YES = ("Yes", "yes", "y", "Y", "YES")


class RocmSmi70(RocmViews):
    """rocm-smi 7.x (SMI 4.0.0): memory modes ask first and reload the driver, no reset of modes."""

    version = "4.0.0+4179531dcd"
    library = "7.8.0"
    asks = True
    bar_seconds = 140
    dies_without_data = True
    bar_first = False  # the bar appears even if nothing takes time

    def actions(self) -> list[Action]:
        return [
            *super().actions(),
            ("showcomputepartition", self._show_compute),
            ("showmemorypartition", self._show_memory_mode),
            ("setcomputepartition", self._set_compute),
            ("setmemorypartition", self._set_memory),
        ]

    # ------------------------------------------------------------ show

    def _show_mode(
        self, devices: list[Partition], kind: str, get: Callable[[Partition], tuple[Status, str]], failed: str
    ) -> None:
        self.spacer(f" Current {kind.title()} Partition ")
        for device in devices:
            status, mode = get(device)
            if self.ok(status) and mode:
                self.log(device, f"{kind.title()} Partition", mode)
            elif status is Status.NOT_SUPPORTED:
                self.log(device, "Not supported on the given system")
            else:
                self.ok(status, device, f"get_{kind}_partition", silent=False)
                self.error(device, f"Failed to retrieve {failed} partition, even though device supports it.")
        self.spacer()

    def _show_compute(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        self._show_mode(devices, "compute", self.lib.compute_get, "compute")

    def _show_memory_mode(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        self._show_mode(devices, "memory", self.lib.memory_get, "current memory")

    # ------------------------------------------------------------ set

    def _seen(self, status: Status) -> Status:
        return self.invalid if status is Status.INVALID_ARGS else status

    def _set_compute(self, devices: list[Partition], value: list[str], _: argparse.Namespace) -> None:
        mode = value[0].upper()
        self.spacer(f" Set compute partition to {mode} ")
        for device in devices:
            status = self._seen(self.lib.compute_set(device, mode))
            if self.ok(status):
                self.log(device, f"Successfully set compute partition to {mode}")
            elif status is Status.SETTING_UNAVAILABLE:
                self.log(device, f"Requested setting ({mode}) is unavailable for current device")
            elif not self._common(device, status):
                self.ok(status, device, "set_compute_partition", silent=False)
                self.error(device, "Failed to retrieve compute partition, even though device supports it.")
        self.spacer()

    def _common(self, device: Partition, status: Status) -> bool:
        """Print the line of a failure that both kinds of mode share, and return whether there was one."""
        text = {
            Status.PERMISSION: "Permission denied",
            Status.NOT_SUPPORTED: "Not supported on the given system",
            Status.BUSY: "Device is currently busy, try again later",
        }.get(status)
        if text:
            self.log(device, text)
        return text is not None

    def _confirm(self, respond: str | None) -> None:
        self.t.print(MEMORY_WARNING)
        answer = respond or self.t.ask("Do you accept these terms? [Y/N] ")
        if answer in YES:
            self.t.print("")
            return
        self.t.print("Confirmation not given. Exiting without setting value")
        self.spacer()
        raise Exit(1)

    def _progress(self, second: int) -> None:
        if self.json_data is None:
            self.t.bar("Updating memory partition: ", second, self.bar_seconds)

    def _set_memory(self, devices: list[Partition], value: list[str], args: argparse.Namespace) -> None:
        mode = value[0].upper()
        self.spacer(f" Set memory partition to {mode} ")
        if self.asks:
            self._confirm(args.autorespond)
        drawn: list[int] = []

        def progress(second: int) -> None:
            drawn.append(second)
            self._progress(second)

        if self.bar_first:
            progress(0)
        for device in devices:
            if self.lib.memory_get(device)[0] is not Status.SUCCESS:
                self.log(device, "Not supported on the given system")
                continue
            status = self._seen(self.lib.memory_set(device, mode, progress))
            if drawn and self.json_data is None:
                self.t.print("")
                drawn.clear()
            self._report_memory(device, mode, status)
        self.spacer()

    def _report_memory(self, device: Partition, mode: str, status: Status) -> None:
        if self.ok(status):
            self.log(device, f"Successfully set memory partition to {mode}")
        elif status is Status.INVALID_ARGS:
            self.log(device, f"Device does not support setting to {mode}")
            modes = ", ".join(self.lib.memory_caps(device))
            self.log(device, f"Available memory partition modes: {modes}")
        elif status is Status.AMDGPU_RESTART_ERR:
            self.log(device, "Issue reloading driver, please check dmsg for errors")
        elif not self._common(device, status):
            self.ok(status, device, "set_memory_partition", silent=False)
            self.error(device, "Failed to retrieve memory partition, even though device supports it.")


class RocmSmi64(RocmSmi70):
    """rocm-smi 6.4."""

    version = "3.0.0+unknown"
    dies_without_data = False
    library = "7.5.0"


class RocmSmi63(RocmSmi64):
    """rocm-smi 6.3: does not ask before it changes the memory mode."""

    library = "7.4.0"
    asks = False
    bar_seconds = 40
    bar_first = True


class RocmSmi62(RocmSmi63):
    """rocm-smi 6.2: modes can be reset to those of the boot, no --showmetrics."""

    version = "2.3.0+8e78352"
    library = "7.3.0"
    metrics = False
    reset_partition = True
    invalid = Status.UNKNOWN
    bar_seconds = 13

    def actions(self) -> list[Action]:
        return [
            *super().actions(),
            ("resetcomputepartition", self._reset_compute),
            ("resetmemorypartition", self._reset_memory),
        ]

    def _reset(
        self,
        devices: list[Partition],
        kind: str,
        boot: Callable[[Partition], str],
        get: Callable[[Partition], tuple[Status, str]],
        put: Callable[[Partition, str], Status],
    ) -> None:
        self.spacer(f" Reset {kind} partition to its boot state ")
        for device in devices:
            before, mode = get(device)[1], boot(device)
            status = self._seen(put(device, mode))
            if self.ok(status):
                self.log(device, f"Successfully reset {kind} partition ({before}) to boot state ({mode})")
            elif not self._common(device, status):
                self.ok(status, device, f"reset_{kind}_partition", silent=False)
                article = "the " if kind == "compute" else ""
                self.error(device, f"Failed to reset {article}{kind} partition to boot state")
        self.spacer()

    def _reset_compute(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        get, put = self.lib.compute_get, self.lib.compute_set
        self._reset(devices, "compute", lambda d: self.lib.gpu(d).boot_compute, get, put)

    def _reset_memory(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        boot = self.lib.node.boot_memory
        self._reset(devices, "memory", lambda d: boot, self.lib.memory_get, self.lib.memory_set)


class RocmSmi61(RocmSmi62):
    """rocm-smi 6.1: other names and addresses of devices."""

    library = "7.2.0"
    pci_names = True
    functions = False


class RocmSmi60(RocmSmi61):
    """rocm-smi 6.0."""

    version = "2.0.0+8e78352"
    library = "6.0.0"


_RELEASES: tuple[tuple[tuple[int, int], type[RocmSmi70]], ...] = (
    ((6, 0), RocmSmi60),
    ((6, 1), RocmSmi61),
    ((6, 2), RocmSmi62),
    ((6, 3), RocmSmi63),
    ((6, 4), RocmSmi64),
    ((7, 0), RocmSmi70),
)
GONE = (10, 0)  # ROCm 10 no longer contains it


def tool_for(node: Node) -> type[RocmSmi70]:
    """Return the rocm-smi of the node's ROCm release."""
    release = release_of(node.release)
    return next(tool for since, tool in reversed(_RELEASES) if release >= since)


def installed(node: Node) -> bool:
    """Return whether the node's ROCm release has a rocm-smi."""
    return release_of(node.release) < GONE
