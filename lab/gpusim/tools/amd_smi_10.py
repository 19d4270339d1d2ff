# SPDX-License-Identifier: Apache-2.0
"""amd-smi of ROCm 10.0.

According to its released sources, a failure of one GPU does not end the command, the exit code reports errors, no
command reloads the driver, and the memory allocation mode of partitions can be set. Its default view is shown as that
of 7.0.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from ..machine.models import MEM_ALLOC_MODES
from ..machine.topology import Partition
from .amd_base import AMDSMI, SEE, Exit, UsageError
from .amd_format import Row
from .amd_smi_7 import AmdSmi72
from .smi import Status

MEMORY_WARNING = """
            ******WARNING******

            After changing memory (NPS) partition modes, users MUST restart
            (reload) the AMD GPU driver. Use modprobe to reload the driver:

                sudo modprobe -r amdgpu
                sudo modprobe amdgpu

            This change is intended to allow users the ability to control when is
            the best time to restart the AMD GPU driver, as it may not be desired
            to restart the AMD GPU driver immediately after changing the
            memory (NPS) partition mode.

            Please reload the AMD GPU driver AFTER successfully
            changing the memory (NPS) partition mode. A successful driver reload
            is REQUIRED in order to complete updating ALL GPUs in the hive to
            the requested partition mode.

            ******REMINDER******
            In order to reload the AMD GPU driver, users MUST quit all GPU
            workloads across all devices.
            """
# Exit codes of the command line, by the negative code of older releases: number and name.
EXITS = {
    -1: (194, "INVALID_COMMAND"),
    -2: (195, "INVALID_PARAMETER"),
    -3: (196, "DEVICE_NOT_FOUND"),
    -5: (198, "INVALID_PARAMETER_VALUE"),
    -7: (200, "COMMAND_NOT_SUPPORTED"),
    -9: (202, "REQUIRED_COMMAND"),
}
MIXED, NOT_LOADED, ABORTED = 204, 206, 207


class AmdSmi100(AmdSmi72):
    """amd-smi 27.0 of ROCm 10.0."""

    version = "27.0.0+unknown"
    library = "27.0.0"
    compute_options = ("-C", "--compute-partition", "--accelerator-partition")
    reset_options = ("-G/--gpureset",)
    memory_warning = MEMORY_WARNING
    aborted = ABORTED
    not_loaded_exit = NOT_LOADED

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._failures: set[int] = set()

    # ------------------------------------------------------------ exit codes

    def exit_code(self) -> int:
        if len(self._failures) > 1:
            return MIXED
        return next(iter(self._failures), 0)

    def usage_error(self, e: UsageError, argv: list[str]) -> int:
        code, name = EXITS[e.code]
        command = " -h" if e.code == -1 else f" {argv[0]} -h"
        text = e.text if e.code in (-3, -7) else e.text.replace(SEE, f"Run 'amd-smi{command}' for more info.")
        self._say(text, code, name)
        return code

    def _say(self, text: str, code: int, name: str) -> None:
        if self.format == "json":
            self.t.print(json.dumps({"error": text, "code": code, "error_type": name}))
        elif self.format == "csv":
            self.t.print(f"error,code,error_type\n{text},{code},{name}")
        else:
            self.t.print(f"{text} Error code: {code} [{name}]")

    def _denied(self, command: str) -> None:
        number, name, _ = AMDSMI[Status.PERMISSION]
        text = f"AMD-SMI Command '{command}' requires elevation (sudo privileges required)"
        self._say(text, number, f"AMDSMI_STATUS_{name}")
        raise Exit(number)

    def _failed(self, status: Status) -> str:
        """Record a failure of one GPU and return its name."""
        number, name, _ = AMDSMI[status]
        self._failures.add(number & 0xFF)
        return f"[AMDSMI_STATUS_{name}]"

    # ------------------------------------------------------------ shown

    def uuid(self, device: Partition) -> str:
        return f"GPU-{self.lib.start.gpus[device.gpu].unique_id + device.part & 0xFFFFFFFFFFFFFFFF:016x}"

    def enumeration(self, device: Partition) -> Row:
        oam = self.lib.gpu(device).oam if device.primary else "N/A"
        return {**super().enumeration(device), "oam_id": oam}

    def partition_row(self, device: Partition) -> Row:
        row = super().partition_row(device)
        mode = self.lib.mem_alloc_get(device)[1] or "N/A"
        return {**row, "compute_partition_mem_alloc_mode": mode}

    def do_version(self, args: argparse.Namespace) -> None:
        driver, kernel = self.lib.node.driver, os.uname().release
        row: Row = {
            "tool": "AMDSMI Tool",
            "version": self.version,
            "amdsmi_library_version": self.library,
            "rocm_version": self.lib.node.release,
            "driver_kernel_version": kernel,
            "driver_version": driver.version,
            "driver_build_version": driver.build,
            "driver_full_version": f"{driver.version}-{driver.build}",
            "amd_hsmp_driver_version": "N/A",
            "nic_driver_version": "N/A",
        }
        if self.format != "text":
            self.emit([row])
            return
        text = f"AMDSMI Tool: {self.version} | AMDSMI Library version: {self.library}"
        text += f" | ROCm version: {self.lib.node.release}"
        if args.gpu_version or not args.cpu_version:
            text += f" | Kernel version: {kernel} | Driver version: {driver.version}"
            text += f" | Build version: {driver.build}"
        if args.cpu_version:
            text += " | hsmp version: N/A"
        self.t.print(f"{text} | ionic version: N/A" if not (args.gpu_version or args.cpu_version) else text)

    # ------------------------------------------------------------ set

    def _arguments(self, parser: argparse.ArgumentParser, command: str) -> None:
        super()._arguments(parser, command)
        if command == "set" and self.bare:
            parser.add_argument(
                "--compute-partition-mem-alloc-mode", type=str.upper, choices=MEM_ALLOC_MODES, metavar="MODE"
            )

    def profile(self, text: str) -> str:
        """Return any given mode; each GPU then judges it."""
        modes = self.lib.node.spec.compute_modes
        known = text.isdigit() and int(text) < len(modes)
        return modes[int(text)] if known else text.upper()

    def do_set(self, args: argparse.Namespace) -> None:
        alloc: str | None = getattr(args, "compute_partition_mem_alloc_mode", None)
        if alloc is None:
            super().do_set(args)
            return
        devices = self.selected(args)
        for device in devices:
            status = self.lib.mem_alloc_set(device, alloc)
            if status is Status.PERMISSION:
                self._denied("set")
            text = f"Successfully set compute partition memory allocation mode to {alloc}"
            if status is not Status.SUCCESS:
                text = f"{self._failed(status)} Unable to set compute partition memory allocation mode to {alloc}"
            self.emit([{"gpu": device.index, "compute_partition_mem_alloc_mode": text}])
        self.end_each(devices)

    def set_compute(self, device: Partition, mode: str) -> Row:
        modes = self.lib.node.spec.compute_modes
        key = "accelerator_partition"
        if mode not in modes:
            self._failures.add(EXITS[-5][0])
            return {"gpu": device.index, key: f"Invalid accelerator configuration {mode}"}
        status = self.lib.compute_set(device, mode)
        if status is Status.PERMISSION:
            self._denied("set")
        profile = f"{mode} (profile #{modes.index(mode)})"
        if status is Status.SUCCESS:
            return {"gpu": device.index, key: f"Successfully set accelerator partition to {profile}"}
        text = f"{self._failed(status)} Unable to set accelerator partition to {profile}"
        if status is Status.SETTING_UNAVAILABLE:
            text += (
                ".\nPlease check `sudo amd-smi partition -am` for available profiles.\n"
                "Some modes may require a memory partition change to enable."
            )
        return {"gpu": device.index, key: text}

    def set_memory(self, device: Partition, mode: str) -> None:
        status = self.lib.memory_request(device, mode)
        if status is Status.SUCCESS:
            text = (
                f"Successfully set memory partition to {mode}, use `sudo modprobe -r amdgpu && "
                "sudo modprobe amdgpu` to reload driver"
            )
        elif status is Status.PERMISSION:
            text = "[AMDSMI_STATUS_NO_PERM] Command requires elevation"
        else:
            text = f"{self._failed(status)} Unable to set memory partition to {mode}"
        if status is Status.INVALID_ARGS:
            self.t.print(f"Valid Memory partition Modes: {','.join(self.lib.memory_caps(device)) or 'N/A'}\n")
        self.emit([{"gpu": device.index, "memory_partition": text}])
        if status is Status.PERMISSION:
            self._denied("set")
