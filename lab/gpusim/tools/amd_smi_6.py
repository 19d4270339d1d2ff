# SPDX-License-Identifier: Apache-2.0
"""amd-smi of ROCm 6.2, 6.3 and 6.4, as they differ from 7.0 and from each other.

6.3.0 here is the development state that was recorded in full; 6.3.2 asks before it changes a memory mode and shows a
bar while it reloads the driver (ROCm/legacy-rocm-build issue 4439). 6.4 is recorded in parts. 6.2 follows the source of
its released command line. Up to 6.4, the tool reloads the driver after a change of the memory mode.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import ClassVar

from ..machine.models import release_of
from ..machine.topology import Partition
from .amd_base import AMDSMI, SEE, Exit, UsageError
from .amd_format import Row, json_text, table
from .amd_smi_7 import AmdSmi70
from .smi import Status

_MEMORY_WARNING = """
          ****** WARNING ******

          Setting Dynamic Memory (NPS) partition modes require users to quit all GPU workloads.
          AMD SMI will then attempt to change memory (NPS) partition mode.
          Upon a successful set, AMD SMI will then initiate an action to restart AMD GPU driver.
          This action will change all GPU's in the hive to the requested memory (NPS) partition mode.

          Please use this utility with caution.
          """
BAR_SECONDS = 140
OPEN_FILES = 15  # logical GPUs after which a memory change in 6.4.0 runs out of file descriptors


class AmdSmi64(AmdSmi70):
    """amd-smi 25.2 of ROCm 6.4: no default view, JSON as lists, set -M reloads the driver."""

    version = "25.2.0+f4ad5ee"
    library = "25.3.0"
    commands = tuple(c for c in AmdSmi70.commands if c != "default")
    static_wrap = None
    reset_options = ("-G/--gpureset",)
    memory_warning = _MEMORY_WARNING
    folds = True
    attempted = "(profile #{number}"

    def _no_arguments(self) -> list[str]:
        return ["--help"]

    def uuid(self, device: Partition) -> str:
        """Return the UUID, the same for all partitions of a GPU."""
        return self.uuid_text(self.lib.start.gpus[device.gpu].unique_id, 0xFF)

    def do_set(self, args: argparse.Namespace) -> None:
        """Report compute modes at the end, in one list: the first failure ends the command without a report."""
        compute: str | None = getattr(args, "compute_partition", None)
        if compute is None:
            super().do_set(args)
        else:
            devices = self.selected(args)
            self.emit([self.set_compute(device, compute) for device in devices])
            self.end_each(devices)

    def profile(self, text: str) -> str:
        """Return a compute mode given by name or index; whether it can be set shows when it is tried."""
        modes = self.lib.node.spec.compute_modes
        if text.isdigit() and int(text) < len(modes):
            return modes[int(text)]
        if text.upper() not in modes:
            indices = [str(index) for index in range(len(modes))]
            self.t.err.write(f"Valid inputs are {', '.join([*modes, *indices])}\n")
            raise UsageError(f"Value '{text.upper()}' is not of valid type or format. {SEE}", -5)
        return text.upper()

    def partition_row(self, device: Partition) -> Row:
        return {
            "compute_partition": self.lib.compute_get(device)[1] or "N/A",
            "memory_partition": self.lib.memory_get(device)[1] or "N/A",
            "partition_id": device.part,
        }

    def process_more(self) -> Row:
        return {}

    def print_partition(self, found: dict[str, list[Row]]) -> None:
        """Print the tables; in JSON, one document per table."""
        if self.format != "json":
            super().print_partition(found)
            return
        for rows in found.values():
            self.t.print(json_text(rows))

    def set_memory(self, device: Partition, mode: str) -> None:
        if device.index >= OPEN_FILES and release_of(self.lib.node.release) < (6, 4, 1):
            self.t.err.write("OSError: [Errno 24] Too many open files\n")
            raise Exit(1)
        status, drawn = self._reloading(device, mode, "")
        if status is Status.AMDGPU_RESTART_ERR:
            status, _ = self._reloading(device, mode, "Trying again - ", drawn)
            drawn = True
        if drawn:
            self.t.print("\n")
        if status is Status.PERMISSION:
            self.elevation()
        name, text = AMDSMI[status][1] if status in AMDSMI else "", ""
        where = f"on GPU ID: {device.index} BDF:{self.bdf(device)}"
        if status is Status.SUCCESS:
            text = f"Successfully set memory partition to {mode}"
        elif status is Status.NOT_SUPPORTED:
            text = (
                f"[AMDSMI_STATUS_{name}] Device does not support setting memory partition to {mode} {where}"
            )
        elif status is Status.AMDGPU_RESTART_ERR:
            text = (
                f"[AMDSMI_STATUS_{name}] Could not successfully restart driver after applying {mode} {where}"
            )
        else:  # without a status, whatever the driver's reason
            text = f"Unable to set memory partition to {mode} {where}"
        if status is Status.INVALID_ARGS:
            self.t.print(f"Valid Memory partition Modes: {','.join(self.lib.memory_caps(device)) or 'N/A'}\n")
        self.emit([{"gpu": device.index, "memory_partition": text}])

    def _reloading(
        self, device: Partition, mode: str, prefix: str, drawn: bool = False
    ) -> tuple[Status, bool]:
        """Set a memory mode with a bar if it takes time; return its status, and whether a bar was drawn."""
        title = f"{prefix}Updating memory partition for gpu {device.index}: "
        shown = [drawn]

        def progress(second: int) -> None:
            if second == 0 and shown[0]:
                self.t.print("\r", end="")
            shown[0] = True
            self.t.bar(title, second, BAR_SECONDS)

        tried = mode in self.lib.memory_caps(device)
        if (tried or prefix) and self.lib.euid == 0 and self.lib.memory_get(device) != (Status.SUCCESS, mode):
            progress(0)
        return self.lib.memory_set(device, mode, progress, again=bool(prefix)), shown[0]


class AmdSmi63(AmdSmi64):
    """amd-smi 24.7 of ROCm 6.3: other names in its output, the first failure ends the loop."""

    version = "24.7.1+b446d6c"
    library = "24.7.1.0"
    lower_arguments = False
    gpu_required = False
    current_widths: ClassVar[Mapping[str, int]] = {**AmdSmi70.current_widths, "gpu_id": 13}
    profile_widths: ClassVar[Mapping[str, int]] = {
        **AmdSmi70.profile_widths,
        "gpu_id": 13,
        "partition_id": 14,
    }
    no_profile: ClassVar[Row] = {"num_partitions": 0}
    unnamed = (Status.SETTING_UNAVAILABLE, Status.AMDGPU_RESTART_ERR)

    def _arguments(self, parser: argparse.ArgumentParser, command: str) -> None:
        if command == "reset":
            parser.add_argument("-G", "--gpureset", action="store_true")
            self.reset_modes(parser)
            parser.add_argument("-g", "--gpu", nargs="+", metavar="GPU", required=self.gpu_required)
            self._modifiers(parser)
        elif command == "set":
            parser.add_argument("-g", "--gpu", nargs="+", metavar="GPU", required=self.gpu_required)
            parser.add_argument("-f", "--fan", metavar="%")
            parser.add_argument("-l", "--perf-level", metavar="LEVEL")
            parser.add_argument("-P", "--profile", metavar="SETPROFILE")
            parser.add_argument("-d", "--perf-determinism", metavar="SCLKMAX")
            if self.bare:
                modes = ["CPX", "SPX", "DPX", "TPX", "QPX"]
                memory = ["NPS1", "NPS2", "NPS4", "NPS8"]
                parser.add_argument(
                    "-C", "--compute-partition", type=str.upper, choices=modes, metavar="PARTITION"
                )
                parser.add_argument(
                    "-M", "--memory-partition", type=str.upper, choices=memory, metavar="PARTITION"
                )
            parser.add_argument("-o", "--power-cap", metavar="WATTS")
            self.policies(parser)
            parser.add_argument("-R", "--process-isolation", metavar="STATUS")
            self._modifiers(parser)
        else:
            super()._arguments(parser, command)

    def reset_modes(self, parser: argparse.ArgumentParser) -> None:
        """Add options of reset for partition modes: none since 6.3."""

    def policies(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("-p", "--dpm-policy", metavar="POLICY_ID")
        parser.add_argument("-x", "--xgmi-plpd", metavar="POLICY_ID")
        parser.add_argument("-L", "--clk-limit", nargs=3, metavar=("CLK_TYPE", "LIM_TYPE", "VALUE"))

    def do_version(self, args: argparse.Namespace) -> None:
        row = {
            "tool": "AMDSMI Tool",
            "version": self.version,
            "amdsmi_library_version": self.library,
            "rocm_version": self.lib.node.release,
        }
        if self.format != "text":
            self.emit([row])
            return
        self.t.print(
            f"AMDSMI Tool: {self.version} | AMDSMI Library version: {self.library} | "
            f"ROCm version: {self.lib.node.release}"
        )

    def print_partition(self, found: dict[str, list[Row]]) -> None:
        config = self.lib.node.driver.partition_config
        for row in found.get("current_partition", []):
            row["partition_id"] = int(str(row["partition_id"])) if config else "N/A"
        memory = [
            {
                "gpu": row["gpu_id"],
                "memory_partition": {
                    "caps": str(row["memory_partition_caps"]).replace(",", ", ") if config else "N/A",
                    "current": row["current_memory_partition"],
                },
            }
            for row in found.get("memory_partition", [])
        ]
        profiles = [
            {**row, "memory_partition_caps": str(row["memory_partition_caps"]).replace(",", ", ")}
            for row in found.get("partition_profiles", [])
        ]
        if self.format == "json":
            for rows in (found.get("current_partition"), memory, profiles):
                if rows:
                    self.t.print(json_text(rows))
            return
        if "current_partition" in found:
            self.t.print(table("CURRENT_PARTITION", self.current_widths, found["current_partition"]))
        if memory:
            self.emit(memory)
        if profiles:
            self.t.print(table("ACCELERATOR_PARTITION_PROFILES", self.profile_widths, profiles))

    def do_set(self, args: argparse.Namespace) -> None:
        compute: str | None = getattr(args, "compute_partition", None)
        if compute is not None:
            self.set_all("compute", compute, self.lib.compute_set, self.selected(args))
        elif getattr(args, "memory_partition", None) is not None:
            super().do_set(args)
        else:
            self.t.err.write(
                "ValueError: No GPU, CPU, or CORE arguments provided, specific arguments are needed\n"
            )
            raise Exit(1)

    def set_all(
        self, kind: str, mode: str, put: Callable[[Partition, str], Status], devices: list[Partition]
    ) -> None:
        """Set a mode on all devices and report that at the end; the first failure ends the command without a report."""
        rows: list[Row] = []
        for device in devices:
            status = put(device, mode)
            if status is Status.PERMISSION:
                self.elevation()
            if status is not Status.SUCCESS:
                where = f"GPU ID: {device.index} BDF:{self.bdf(device)}"
                self.chain(status, f"ValueError: Unable to set {kind} partition to {mode} on {where}")
            text = f"Successfully set {kind} partition to {mode}"
            rows.append({"gpu": device.index, f"{kind}partition": text})
        self.emit(rows)


class AmdSmi63Dev(AmdSmi63):
    """The recorded state of 6.3: set needs a list of GPUs, and no question is asked."""

    gpu_required = True

    def do_set(self, args: argparse.Namespace) -> None:
        memory: str | None = getattr(args, "memory_partition", None)
        if getattr(args, "compute_partition", None) is None and memory is not None:
            self.set_all("memory", memory, self.lib.memory_set, self.selected(args))
        else:
            super().do_set(args)


class AmdSmi62(AmdSmi63Dev):
    """amd-smi 24.6 of ROCm 6.2: no partition command; modes can be reset to those of the boot."""

    version = "24.6.3+9578815"
    library = "24.6.3.0"
    commands = tuple(c for c in AmdSmi63Dev.commands if c != "partition")
    list_kfd = False

    def reset_modes(self, parser: argparse.ArgumentParser) -> None:
        if self.bare:
            parser.add_argument("-C", "--compute-partition", action="store_true")
            parser.add_argument("-M", "--memory-partition", action="store_true")

    def policies(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("-p", "--soc-pstate", metavar="POLICY_ID")
        parser.add_argument("-x", "--xgmi-plpd", metavar="POLICY_ID")

    def partition_row(self, device: Partition) -> Row:
        return {key: value for key, value in super().partition_row(device).items() if key != "partition_id"}

    def do_reset(self, args: argparse.Namespace) -> None:
        kind = next((k for k in ("compute", "memory") if getattr(args, f"{k}_partition", False)), None)
        if kind is None:
            super().do_reset(args)
            return
        rows: list[Row] = []
        for device in self.selected(args):
            if kind == "compute":
                status = self.lib.compute_set(device, self.lib.gpu(device).boot_compute)
            else:
                status = self.lib.memory_set(device, self.lib.node.boot_memory)
            if status is Status.PERMISSION:
                self.elevation()
            text = f"Successfully reset {kind} partition" if status is Status.SUCCESS else "N/A"
            rows.append({"gpu": device.index, f"reset_{kind}_partition": text})
        self.emit(rows)
