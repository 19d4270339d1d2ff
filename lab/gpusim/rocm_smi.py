# SPDX-License-Identifier: Apache-2.0
"""rocm-smi of the simulated node, by release.

Layout, messages and exit codes are those of the recorded samples. What was not recorded follows the
notes: concise view, --showhw, ids, memory, processes, --csv. Options that change clocks, fans, power
and the like are refused with a message, because nothing behind them is simulated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from .rocm_base import Action, Exit, RocmBase
from .smi import Status
from .state import Node
from .topology import Partition, bus_of

MEMORY_WARNING = """
          ******WARNING******

          Setting Dynamic Memory (NPS) partition modes require users to quit all GPU workloads.
          ROCm SMI will then attempt to change memory (NPS) partition mode.
          Upon a successful set, ROCm SMI will then initiate an action to restart AMD GPU driver.
          This action will change all GPU's in the hive to the requested memory (NPS) partition mode.

          Please use this utility with caution.
          """
YES = ("Yes", "yes", "y", "Y", "YES")


class RocmSmi70(RocmBase):
    """rocm-smi 7.x (SMI 4.0.0): memory modes ask first and reload the driver, no reset of modes."""

    version = "4.0.0+4179531dcd"
    library = "7.8.0"

    def actions(self) -> list[Action]:
        return [
            ("showhw", self._show_hardware),
            ("showdriverversion", self._show_driver),
            ("showid", self._show_id),
            ("showuniqueid", self._show_unique_id),
            ("showvbios", self._show_vbios),
            ("showtemp", self._show_temperatures),
            ("showmaxpower", self._show_max_power),
            ("showpower", self._show_power),
            ("showuse", self._show_use),
            ("showmemuse", self._show_memory_use),
            ("showpids", self._show_pids),
            ("showpidgpus", self._show_pid_gpus),
            ("showbus", self._show_bus),
            ("showmeminfo", self._show_memory),
            ("showproductname", self._show_product),
            ("showcomputepartition", self._show_compute),
            ("showmemorypartition", self._show_memory_mode),
            ("setcomputepartition", self._set_compute),
            ("setmemorypartition", self._set_memory),
        ]

    # ------------------------------------------------------------ what a device is

    def _rows(self, device: Partition) -> dict[str, str]:
        """Identity of a device as the tool prints it; partitions other than the first know little."""
        node, spec, gpu = self.lib.node, self.lib.node.spec, self.lib.gpu(device)
        did = f"0x{spec.device_id:x}" if device.primary else "N/A"
        domain, bus, slot, _ = bus_of(gpu.bdf)
        return {
            "name": spec.market_name if device.primary else "N/A",
            "did": did,
            "rev": "0x00" if device.primary else "N/A",
            "subsystem": f"0x{spec.device_id:x}" if device.primary else "N/A",
            "guid": str(device.gpu_id),
            "node": str(device.kfd_node),
            "gfx": spec.gfx,
            "bus": f"{domain:04X}:{bus:02X}:{slot:02X}.{device.part:X}",
            "vbios": "113-M3000100-103" if device.primary else "N/A",
            "unique": hex(gpu.unique_id),
            "memory": self.lib.memory_get(device)[1] or "N/A",
            "compute": self.lib.compute_get(device)[1] or "N/A",
            "driver": node.driver.version,
        }

    def show_version(self, csv: bool) -> None:
        values = {"ROCM-SMI version": self.version, "ROCM-SMI-LIB version": self.library}
        if csv:
            self.t.print("name, value")
            for key, value in values.items():
                self.t.print(f"{key}, {value}")
        elif self.json_data is not None:
            self.t.print(json.dumps(values, indent=2))
        else:
            for key, value in values.items():
                self.t.print(f"{key}: {value}")

    def show_concise(self, devices: list[Partition]) -> None:
        header = ["Device", "Node", "IDs", "", "Temp", "Power", "Partitions", "SCLK", "MCLK", "Fan", "Perf",
                  "PwrCap", "VRAM%", "GPU%"]  # fmt: skip
        sub = ["", "", "(DID,", "GUID)", "(Junction)", "(Socket)", "(Mem, Compute, ID)", *[""] * 7]
        rows = []
        for device in devices:
            r, s = self._rows(device), self.lib.gpu(device).sensors
            used, total = self.lib.vram(device)
            first = device.primary
            rows.append(
                [
                    str(device.index), r["node"], f"{r['did']}, ", r["guid"],
                    f"{float(s.hotspot)}°C" if first else "N/A",
                    f"{float(s.power)}W" if first else "N/A",
                    f"{r['memory']}, {r['compute']}, {device.part}",
                    f"{s.gfx_clock}Mhz" if first else "N/A",
                    f"{s.memory_clock}Mhz" if first else "N/A",
                    "0%",
                    "auto" if first else "n/a",
                    f"{float(self.lib.node.spec.power_cap)}W" if first else "N/A",
                    f"{100 * used // total}%",
                    f"{s.gfx_busy}%" if first else "N/A",
                ]
            )  # fmt: skip
        self._table(" Concise Info ", header, sub, rows)

    def _show_hardware(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        header = ["GPU", "NODE", "DID", "GUID", "GFX VER", "GFX RAS", "SDMA RAS", "UMC RAS", "VBIOS", "BUS",
                  "PARTITION ID"]  # fmt: skip
        rows = []
        for device in devices:
            r = self._rows(device)
            ras = ["ENABLED", "ENABLED", "ENABLED"] if device.primary else ["N/A"] * 3
            rows.append(
                [str(device.index), r["node"], r["did"], r["guid"], r["gfx"], *ras, r["vbios"], r["bus"],
                 str(device.part)]
            )  # fmt: skip
        self._table(" Concise Hardware Info ", header, None, rows)

    # ------------------------------------------------------------ sections

    def _section(
        self, title: str, devices: list[Partition], lines: Callable[[Partition], list[tuple[str, Any]]]
    ) -> None:
        self.spacer(f" {title} ")
        for device in devices:
            for name, value in lines(device):
                self.log(device, name, value)
        self.spacer()

    def _show_driver(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        self.spacer(" Version of System Component ")
        self.log_system("Driver version", self.lib.node.driver.version)
        self.spacer()

    def _show_id(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        def lines(device: Partition) -> list[tuple[str, Any]]:
            r = self._rows(device)
            return [("Device Name", f"\t\t{r['name']}"), ("Device ID", f"\t\t{r['did']}"),
                    ("Device Rev", f"\t\t{r['rev']}"), ("Subsystem ID", f"\t{r['subsystem']}"),
                    ("GUID", f"\t\t{r['guid']}")]  # fmt: skip

        self._section("ID", devices, lines)

    def _show_product(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        def lines(device: Partition) -> list[tuple[str, Any]]:
            r = self._rows(device)
            vendor = "Advanced Micro Devices, Inc. [AMD/ATI]"
            sku = r["vbios"].split("-")[1] if r["vbios"].count("-") == 2 else "N/A"
            return [("Card Series", f"\t\t{r['name']}"), ("Card Model", f"\t\t{r['did']}"),
                    ("Card Vendor", f"\t\t{vendor}"), ("Card SKU", f"\t\t{sku}"),
                    ("Subsystem ID", f"\t{r['subsystem']}"), ("Device Rev", f"\t\t{r['rev']}"),
                    ("Node ID", f"\t\t{r['node']}"), ("GUID", f"\t\t{r['guid']}"),
                    ("GFX Version", f"\t\t{r['gfx']}")]  # fmt: skip

        self._section("Product Info", devices, lines)

    def _show_unique_id(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        self._section("Unique ID", devices, lambda d: [("Unique ID", self._rows(d)["unique"])])

    def _show_vbios(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        self._section("VBIOS", devices, lambda d: [("VBIOS version", self._rows(d)["vbios"])])

    def _show_bus(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        self._section("PCI Bus ID", devices, lambda d: [("PCI Bus", self._rows(d)["bus"])])

    def _show_temperatures(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        def lines(device: Partition) -> list[tuple[str, Any]]:
            s = self.lib.gpu(device).sensors
            if not device.primary:
                return []
            return [("Temperature (Sensor junction) (C)", float(s.hotspot)),
                    ("Temperature (Sensor memory) (C)", float(s.memory))]  # fmt: skip

        self._section("Temperature", devices, lines)

    def _show_max_power(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        cap = float(self.lib.node.spec.power_cap)
        self._section("Power Cap", [d for d in devices if d.primary],
                      lambda d: [("Max Graphics Package Power (W)", cap)])  # fmt: skip

    def _show_power(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        name = "Current Socket Graphics Package Power (W)"
        self._section("Power Consumption", [d for d in devices if d.primary],
                      lambda d: [(name, float(self.lib.gpu(d).sensors.power))])  # fmt: skip

    def _show_use(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        def lines(device: Partition) -> list[tuple[str, Any]]:
            if not device.primary:
                return [("GPU use Unsupported", None)]
            busy = self.lib.gpu(device).sensors.gfx_busy
            return [("GPU use (%)", busy), ("GFX Activity", busy)]

        self._section("% time GPU is busy", devices, lines)

    def _show_memory_use(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        def lines(device: Partition) -> list[tuple[str, Any]]:
            used, total = self.lib.vram(device)
            found: list[tuple[str, Any]] = [("GPU Memory Allocated (VRAM%)", 100 * used // total)]
            if device.primary:
                busy = self.lib.gpu(device).sensors.memory_busy
                found += [("GPU Memory Read/Write Activity (%)", busy), ("Memory Activity", busy)]
            return found

        self._section("Current Memory Use", devices, lines)

    def _show_memory(self, devices: list[Partition], types: list[str], _: argparse.Namespace) -> None:
        kinds = ["VRAM", "VIS_VRAM", "GTT"] if "all" in types else [t.upper() for t in types]

        def lines(device: Partition) -> list[tuple[str, Any]]:
            found: list[tuple[str, Any]] = []
            for kind in kinds:
                if kind not in ("VRAM", "VIS_VRAM", "GTT"):
                    self.error(device, f"Invalid memory type {kind}")
                    continue
                used, total = self.lib.vram(device)
                if kind == "GTT":
                    used, total = 12 << 20, self.lib.node.cpu_memory // 2
                found += [(f"{kind} Total Memory (B)", total), (f"{kind} Total Used Memory (B)", used)]
            return found

        self._section("Memory Usage (Bytes)", devices, lines)

    def _show_pids(self, devices: list[Partition], verbose: str, _: argparse.Namespace) -> None:
        self.spacer(" KFD Processes ")
        details = verbose == "details"
        rows: list[list[str]] = []
        for holder in sorted((h for h in self.lib.holders() if h.kfd), key=lambda h: h.pid):
            used = [
                vram for d in self.lib.devices for h, vram in self.lib.processes(d) if h.pid == holder.pid
            ]
            for vram in used if details else [sum(used)]:
                rows.append([str(holder.pid), holder.name[:15], str(len(used)), str(vram), "0", "UNKNOWN"])
        if not rows:
            self.log(None, "No KFD PIDs currently running")
            self.spacer()
            return
        header = [
            "PID",
            "PROCESS NAME",
            "GPU" if details else "GPU(s)",
            "VRAM USED",
            "SDMA USED",
            "CU OCCUPANCY",
        ]
        self.log(None, "KFD process information:")
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        for position, row in enumerate([header, *rows]):
            if self.json_data is None:
                self.t.print("".join(f"{cell.ljust(w)}\t" for cell, w in zip(row, widths, strict=True)))
            elif position:
                self.log_system(f"PID{row[0]}", ", ".join(" ".join(row[1:]).lower().split()))
        self.spacer()

    def _show_pid_gpus(self, devices: list[Partition], pids: list[str], _: argparse.Namespace) -> None:
        self.spacer(" GPUs Indexed by PID ")
        wanted = pids or [str(h.pid) for h in self.lib.holders() if h.kfd]
        if not wanted:
            self.log(None, "No KFD PIDs currently running")
        for pid in wanted:
            used = [d.index for d in self.lib.devices for h, _ in self.lib.processes(d) if str(h.pid) == pid]
            line = f"PID {pid} is using {len(used)} DRM device(s)"
            text = f"{line}:\n{''.join(f'{index} ' for index in used)}" if used else line
            self.log(None, text)
        self.spacer()

    # ------------------------------------------------------------ partitions

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
        """Print the line of a failure that both kinds of mode share."""
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

    def _set_memory(self, devices: list[Partition], value: list[str], args: argparse.Namespace) -> None:
        mode = value[0].upper()
        self.spacer(f" Set memory partition to {mode} ")
        self._confirm(args.autorespond)
        for device in devices:
            if self.lib.memory_get(device)[0] is not Status.SUCCESS:
                self.log(device, "Not supported on the given system")
                continue
            status = self._seen(self.lib.memory_set(device, mode))
            if self.ok(status):
                self.log(device, f"Successfully set memory partition to {mode}")
            elif status is Status.INVALID_ARGS:
                self.log(device, f"Device does not support setting to {mode}")
                self.log(
                    device, f"Available memory partition modes: {', '.join(self.lib.memory_caps(device))}"
                )
            elif status is Status.AMDGPU_RESTART_ERR:
                self.log(device, "Issue reloading driver, please check dmsg for errors")
            elif not self._common(device, status):
                self.ok(status, device, "set_memory_partition", silent=False)
                self.error(device, "Failed to set memory partition, even though device supports it.")
        self.spacer()


class RocmSmi60(RocmSmi70):
    """rocm-smi 6.0: no prompt but a progress bar, modes can be reset to those of the boot."""

    version = "2.0.0+8e78352"
    library = "6.0.0"
    metrics = False
    reset_partition = True
    invalid = Status.UNKNOWN

    def actions(self) -> list[Action]:
        return [
            *super().actions(),
            ("resetcomputepartition", self._reset_compute),
            ("resetmemorypartition", self._reset_memory),
        ]

    def _confirm(self, respond: str | None) -> None:
        if self.json_data is None:
            self.t.print(f"Updating memory partition: [{'.' * 40}] 0/13 secs remain")

    def _reset(
        self,
        devices: list[Partition],
        kind: str,
        boot: str,
        get: Callable[[Partition], tuple[Status, str]],
        put: Callable[[Partition, str], Status],
    ) -> None:
        self.spacer(f" Reset {kind} partition to its boot state ")
        for device in devices:
            mode = boot if kind == "memory" else self.lib.gpu(device).boot_compute
            before = get(device)[1]
            status = put(device, mode)
            if self.ok(status):
                self.log(device, f"Successfully reset {kind} partition ({before}) to boot state ({mode})")
            elif not self._common(device, status):
                self.ok(status, device, f"reset_{kind}_partition", silent=False)
                self.error(device, f"Failed to reset {kind} partition to boot state")
        self.spacer()

    def _reset_compute(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        self._reset(devices, "compute", "", self.lib.compute_get, self.lib.compute_set)

    def _reset_memory(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        boot = self.lib.node.boot_memory
        self._reset(devices, "memory", boot, self.lib.memory_get, self.lib.memory_set)


def tool_for(node: Node) -> type[RocmSmi70]:
    """The rocm-smi of the node's ROCm release."""
    return RocmSmi60 if int(node.release.split(".")[0]) < 7 else RocmSmi70
