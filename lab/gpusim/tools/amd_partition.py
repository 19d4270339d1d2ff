# SPDX-License-Identifier: Apache-2.0
"""amd-smi's commands about partitions: partition, set -C and -M, reset -r and -G."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import ClassVar

from ..driver import faults
from ..machine.topology import Partition
from .amd_base import AMDSMI, SEE, AmdBase, Exit, UsageError
from .amd_format import Row, csv_text, json_text, table
from .smi import Status

YES = ("Yes", "yes", "y", "Y", "YES")
MEMORY_WARNING = """
            ******WARNING******

            After changing memory (NPS) partition modes, users MUST restart
            (reload) the AMD GPU driver. This command NO LONGER AUTOMATICALLY
            reloads the driver, see `amd-smi reset -h` and
            `sudo amd-smi reset -r` for more information.

            This change is intended to allow users the ability to control when is
            the best time to restart the AMD GPU driver, as it may not be desired
            to restart the AMD GPU driver immediately after changing the
            memory (NPS) partition mode.

            Please use `sudo amd-smi reset -r` AFTER successfully
            changing the memory (NPS) partition mode. A successful driver reload
            is REQUIRED in order to complete updating ALL GPUs in the hive to
            the requested partition mode.

            ******REMINDER******
            In order to reload the AMD GPU driver, users MUST quit all GPU
            workloads across all devices.
"""
RELOAD_WARNING = """
          ****** WARNING ******

          AMD SMI is about to initiate an AMD GPU driver restart (module reload).

          Reloading the AMD GPU driver REQUIRES users to quit all GPU activity across all
          devices.

          If user is initiating a driver reload AFTER changing memory (NPS) partition
          modes (`sudo amd-smi set -M <NPS_MODE>`), a AMD GPU driver reload is REQUIRED
          to complete updating the partition mode. This change will effect ALL GPUs in
          the hive. Advise using `amd-smi list -e` and `amd-smi partition -c -m`
          afterwards to ensure changes were applied as expected.

          Please use this utility with caution.
          """
ROOT_WARNING = "\n" + "\n".join(
    (
        "*" * 75,
        "** WARNING:                                                              **",
        "** ACCELERATOR_PARTITION_PROFILES requires sudo/root permissions to run. **",
        "** Please run the command with sudo permissions to get accurate results. **",
        "*" * 75,
        "",
        "",
    )
)


class AmdPartitions(AmdBase):
    """Partition tables and changes, as in ROCm 7.0."""

    # ------------------------------------------------------------ partition

    current_widths: ClassVar[Mapping[str, int]] = {
        "gpu_id": 8,
        "memory": 8,
        "accelerator_type": 18,
        "accelerator_profile_index": 27,
        "partition_id": 14,
    }
    profile_widths: ClassVar[Mapping[str, int]] = {
        "gpu_id": 8,
        "profile_index": 15,
        "memory_partition_caps": 23,
        "accelerator_type": 18,
        "partition_id": 17,
        "num_partitions": 16,
        "num_resources": 15,
        "resource_index": 16,
        "resource_type": 15,
        "resource_instances": 20,
        "resources_shared": 18,
    }
    resource_widths: ClassVar[Mapping[str, int]] = {
        "resource_index": 16,
        "resource_type": 15,
        "resource_instances": 20,
        "resources_shared": 18,
    }

    def _current(self, device: Partition) -> Row:
        node = self.lib.node
        compute = self.lib.gpu(device).compute if node.driver.partition_config else None
        return {
            "gpu_id": device.index,
            "memory": self.lib.memory_get(device)[1] or "N/A",
            "accelerator_type": compute or "N/A",
            "accelerator_profile_index": node.spec.compute_modes.index(compute) if compute else "N/A",
            "partition_id": str(device.part) if compute else "N/A",
        }

    def _resources(self) -> list[list[Row]]:
        """Return for each compute mode its share of a GPU's XCCs, decoders, DMA engines and JPEG engines."""
        spec, index, found = self.lib.node.spec, 0, []
        for mode in spec.compute_modes:
            parts = spec.parts(mode)
            rows = []
            for kind, total in (("XCC", spec.xcc), ("DECODER", 4), ("DMA", 2 * spec.xcc), ("JPEG", 32)):
                groups = min(parts, 4) if kind in ("DECODER", "JPEG") else parts
                rows.append(
                    {
                        "resource_index": index,
                        "resource_type": kind,
                        "resource_instances": total // groups,
                        "resources_shared": parts // groups,
                    }
                )
                index += 1
            found.append(rows)
        return found

    def _profiles(self, device: Partition) -> list[Row]:
        """Return one GPU's rows in the profile table; the present mode has a star and the partition's id."""
        node, spec = self.lib.node, self.lib.node.spec
        blank = dict.fromkeys(self.profile_widths, "N/A")
        if not node.driver.partition_config or self.lib.euid != 0:
            return [{**blank, "gpu_id": device.index, **self.no_profile}]
        rows: list[Row] = []
        current = self.lib.gpu(device).compute
        for number, (mode, resources) in enumerate(zip(spec.compute_modes, self._resources(), strict=True)):
            head: Row = {
                "gpu_id": device.index if number == 0 else "",
                "profile_index": number,
                "memory_partition_caps": ",".join(node.memory_for(mode)),
                "accelerator_type": f"{mode}*" if mode == current else mode,
                "partition_id": str(device.part) if mode == current else "N/A",
                "num_partitions": spec.parts(mode),
                "num_resources": len(resources),
            }
            for row in resources:
                rows.append({**head, **row})
                head = dict.fromkeys(head, "")
        return rows

    no_profile: ClassVar[Row] = {"partition_id": "0"}

    def do_partition(self, args: argparse.Namespace) -> None:
        devices = self.selected(args)
        every = not (args.current or args.memory or args.accelerator)
        if every:
            args.current = args.memory = args.accelerator = True
        found: dict[str, list[Row]] = {}
        if args.current:
            found["current_partition"] = [self._current(d) for d in devices]
        if args.memory:
            found["memory_partition"] = [
                {
                    "gpu_id": d.index,
                    "memory_partition_caps": ",".join(self.lib.memory_caps(d)) or "N/A",
                    "current_memory_partition": self.lib.memory_get(d)[1] or "N/A",
                }
                for d in devices
            ]
        if args.accelerator:
            found["partition_profiles"] = [row for d in devices for row in self._profiles(d)]
            found["partition_resources"] = self._all_resources(devices)
        self.print_partition(found)

    def _all_resources(self, devices: list[Partition]) -> list[Row]:
        if not self.lib.node.driver.partition_config or self.lib.euid != 0:
            return [dict.fromkeys(self.resource_widths, "N/A") for _ in devices]
        return [row for _ in devices for rows in self._resources() for row in rows]

    def print_partition(self, found: dict[str, list[Row]]) -> None:
        if self.format == "json":
            if faults.value(self.lib.node, "split-json"):
                for rows in found.values():
                    self.t.print(json_text(rows))
            else:
                self.t.print(json_text(found))
            return
        if self.format == "csv":
            for rows in found.values():
                self.t.print(csv_text(rows))
            return
        memory = {"gpu_id": 8, "memory_partition_caps": 23, "current_memory_partition": 26}
        warning = ROOT_WARNING if self.lib.euid != 0 else ""
        if "current_partition" in found:
            self.t.print(table("CURRENT_PARTITION", self.current_widths, found["current_partition"]))
        if "memory_partition" in found:
            self.t.print(table("\nMEMORY_PARTITION", memory, found["memory_partition"]))
        if "partition_profiles" in found:
            title = "\nACCELERATOR_PARTITION_PROFILES"
            self.t.print(table(title, self.profile_widths, found["partition_profiles"], warning))
            title = "\nACCELERATOR_PARTITION_RESOURCES"
            self.t.print(table(title, self.resource_widths, found["partition_resources"]))
            self.t.print("\n\nLegend:\n  * = Current mode")

    # ------------------------------------------------------------ set, reset

    memory_warning = MEMORY_WARNING
    aborted = 1  # exit code if a question is not answered with yes
    attempted = "(profile #{number})"  # in the message about a mode that is not valid

    def _confirm(self, warning: str) -> None:
        self.t.print(warning)
        if self.t.ask("Do you accept these terms? [Y/N] ") in YES:
            self.t.print("")
            return
        self.t.print("Confirmation not given. Exiting without setting value")
        raise Exit(self.aborted)

    def do_set(self, args: argparse.Namespace) -> None:
        compute: str | None = getattr(args, "compute_partition", None)
        memory: str | None = getattr(args, "memory_partition", None)
        devices = self.selected(args)
        if compute is not None:
            for device in devices:
                self.emit([self.set_compute(device, compute)])
        elif memory is not None:
            self._confirm(self.memory_warning)
            for device in devices:
                self.set_memory(device, memory)
        else:
            raise UsageError(f"Command 'set' requires a target argument. {SEE}", -9)
        self.end_each(devices)

    def set_compute(self, device: Partition, mode: str) -> Row:
        status = self.lib.compute_set(device, mode)
        where = f"GPU ID: {device.index} BDF:{self.bdf(device)}"
        number = self.lib.node.spec.compute_modes.index(mode)
        profile = f"{mode} (profile #{number})"
        if status is Status.SUCCESS:
            return {
                "gpu": device.index,
                "accelerator_partition": f"Successfully set accelerator partition to {profile}",
            }
        if status is Status.PERMISSION:
            self.elevation()
        if status is Status.NOT_SUPPORTED:
            text = f"[AMDSMI_STATUS_NOT_SUPPORTED] Unable to set compute partition to {profile}"
            return {"gpu": device.index, "accelerator_partition": text}
        prefix = ""
        if status is Status.SETTING_UNAVAILABLE:
            prefix = "[AMDSMI_STATUS_SETTING_UNAVAILABLE] "
            self.t.print(
                f"\nAttempted to set accelerator partition to {mode} {self.attempted.format(number=number)}"
                f" on {where}\n\n"
                f"{prefix}Please check amd-smi partition --memory --accelerator for available profiles.\n"
                "Users may need to switch memory partition to another mode in order to enable the desired"
                " accelerator partition.\n"
            )
        self.chain(status, f"ValueError: {prefix}Unable to set accelerator partition to {mode} on {where}")

    def set_memory(self, device: Partition, mode: str) -> None:
        status = self.lib.memory_request(device, mode)
        row: Row = {"gpu": device.index}
        if status is Status.SUCCESS:
            row["memory_partition"] = f"Successfully set memory partition to {mode}, reload driver when ready"
            self.emit([row])
            return
        name = AMDSMI[status][1]
        row["memory_partition"] = f"[AMDSMI_STATUS_{name}] Unable to set memory partition to {mode}"
        if status is Status.PERMISSION:
            row["memory_partition"] = "[AMDSMI_STATUS_NO_PERM] Command requires elevation"
            self.emit([row])
            self.elevation()
        if status is Status.INVALID_ARGS:
            self.t.print(f"Valid Memory partition Modes: {','.join(self.lib.memory_caps(device)) or 'N/A'}\n")
        self.emit([row])

    def do_reset(self, args: argparse.Namespace) -> None:
        devices = self.selected(args)
        if args.gpureset:
            self._reset_gpus(devices)
        elif getattr(args, "reload_driver", False):
            self._reload(devices)
        else:
            raise UsageError(f"Command 'reset' requires a target argument. {SEE}", -9)
        self.end_each(devices)

    def _reset_gpus(self, devices: list[Partition]) -> None:
        if self.lib.euid != 0:
            self.elevation()
        for device in devices:
            k = device.gpu
            self.lib.store.change(lambda node, k=k: (node.gpu_set(k, reset=False, stranded=0), None))  # type: ignore[misc]
            self.emit([{"gpu": device.index, "gpu_reset": f"Successfully reset GPU {device.index}"}])

    def _reload(self, devices: list[Partition]) -> None:
        if self.lib.euid != 0:
            text = "[AMDSMI_STATUS_NO_PERM] Command requires elevation"
            self.emit([{"gpu": devices[0].index, "reload_driver": text}])
            self.t.err.write("PermissionError: Command requires elevation\n")
            raise Exit(1)
        self._confirm(RELOAD_WARNING)
        self.t.print(f"Reloading driver for all AMD GPUs: \n\r[{'.' * 40}] 0/140 secs remain\r\n\n", end="")
        status = self.lib.reload()
        if status is Status.SUCCESS:
            text = "Successfully reloaded driver"
        else:
            text = f"[AMDSMI_STATUS_{AMDSMI[status][1]}] Unable to successfully restart driver"
        for device in devices:
            self.emit([{"gpu": device.index, "reload_driver": text}])
