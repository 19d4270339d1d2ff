# SPDX-License-Identifier: Apache-2.0
"""amd-smi of the simulated node, by release.

Version 7.0 is the base class, 6.3 differs from it in its own. Recorded for 7.0 are the default view, list,
and the prompt and failure of `set -M`; 6.3 is recorded in full. The rest of 7.0 follows the changelog of
ROCm 7.0.0, the documented outputs and the notes. Where those leave it open:
* usage errors exit with 0, as in 6.x (the changelog changes that only after 7.2);
* `static --partition` says ACCELERATOR_PARTITION, as the documentation since then does;
* a successful `set -M` adds "reload driver when ready";
* a partition other than the first shows its mode in the partition tables but no memory mode.
Commands that need hardware behind them (topology, xgmi, event, firmware, bad-pages, ras, profile) are
refused with a message and exit code 64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import ClassVar

from .amd_base import SEE, UsageError
from .amd_format import Row, json_text, table
from .amd_partition import AmdPartitions
from .amd_views import AmdViews
from .smi import Status
from .state import Node
from .topology import Partition


class AmdSmi70(AmdViews, AmdPartitions):
    """amd-smi 26.0 of ROCm 7.0."""

    version = "26.0.0+37d158ab"
    library = "26.0.0"


class AmdSmi63(AmdSmi70):
    """amd-smi 24.7 of ROCm 6.3 (development state): GPUs must be named to set, a failure ends the loop."""

    version = "24.7.1+b446d6c"
    library = "24.7.1.0"
    lower_arguments = False
    commands = tuple(c for c in AmdSmi70.commands if c != "default")
    static_wrap = None
    current_widths: ClassVar[Mapping[str, int]] = {**AmdSmi70.current_widths, "gpu_id": 13}
    profile_widths: ClassVar[Mapping[str, int]] = {
        **AmdSmi70.profile_widths,
        "gpu_id": 13,
        "partition_id": 14,
    }
    no_profile: ClassVar[Row] = {"num_partitions": 0}

    def _no_arguments(self) -> list[str]:
        return ["--help"]

    def _arguments(self, parser: argparse.ArgumentParser, command: str) -> None:
        if command == "reset":
            parser.add_argument("-G", "--gpureset", action="store_true")
            parser.add_argument("-g", "--gpu", nargs="+", metavar="GPU", required=True)
            self._modifiers(parser)
        elif command == "set":
            parser.add_argument("-g", "--gpu", nargs="+", metavar="GPU", required=True)
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
            parser.add_argument("-p", "--dpm-policy", metavar="POLICY_ID")
            parser.add_argument("-x", "--xgmi-plpd", metavar="POLICY_ID")
            parser.add_argument("-L", "--clk-limit", nargs=3, metavar=("CLK_TYPE", "LIM_TYPE", "VALUE"))
            parser.add_argument("-R", "--process-isolation", metavar="STATUS")
            self._modifiers(parser)
        else:
            super()._arguments(parser, command)

    def uuid(self, device: Partition) -> str:
        """The same for all partitions of a GPU."""
        return self.uuid_text(self.lib.start.gpus[device.gpu].unique_id, 0xFF)

    def partition_row(self, device: Partition) -> Row:
        """Every partition shows its GPU's modes."""
        return {
            "compute_partition": self.lib.gpu(device).compute,
            "memory_partition": self.lib.node.memory,
            "partition_id": device.part,
        }

    def process_more(self) -> Row:
        return {}

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

    def _current(self, device: Partition) -> Row:
        return {**super()._current(device), "memory": self.lib.node.memory}

    def print_partition(self, found: dict[str, list[Row]]) -> None:
        config = self.lib.node.driver.partition_config
        for row in found.get("current_partition", []):
            row["partition_id"] = row["partition_id"] if config else "N/A"
        memory = [
            {
                "gpu": row["gpu_id"],
                "memory_partition": {
                    "caps": row["memory_partition_caps"] if config else "N/A",
                    "current": row["current_memory_partition"],
                },
            }
            for row in found.get("memory_partition", [])
        ]
        profiles = found.get("partition_profiles", [])
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
        memory: str | None = getattr(args, "memory_partition", None)
        if compute is not None:
            self._set_all("compute", compute, self.lib.compute_set, self.selected(args))
        elif memory is not None:
            self._set_all("memory", memory, self.lib.memory_set, self.selected(args))
        else:
            raise UsageError(f"Command 'set' requires a target argument. {SEE}", -9)

    def _set_all(
        self, kind: str, mode: str, put: Callable[[Partition, str], Status], devices: list[Partition]
    ) -> None:
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


def tool_for(node: Node) -> type[AmdSmi70]:
    """The amd-smi of the node's ROCm release."""
    return AmdSmi63 if int(node.release.split(".")[0]) < 7 else AmdSmi70
