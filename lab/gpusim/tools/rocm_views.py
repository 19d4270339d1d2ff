# SPDX-License-Identifier: Apache-2.0
"""rocm-smi's views of devices: ids, memory, processes, readings, the concise view.

Partitions other than a GPU's first have few values, except in releases that show the GPU's data for them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from ..machine.topology import Partition, bus_of
from .rocm_base import Action, RocmBase
from .smi import Status


class RocmViews(RocmBase):
    """Read-only options."""

    pci_names = False  # devices have the names of pci.ids, not marketing names
    functions = True  # a partition's number is the function of its PCI address

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
        ]

    # ------------------------------------------------------------ what a device is

    def _rows(self, device: Partition) -> dict[str, str]:
        """Return the identity of a device as the tool prints it; partitions other than the first have few values."""
        node, spec, gpu = self.lib.node, self.lib.node.spec, self.lib.gpu(device)
        did = f"0x{spec.device_id:x}" if self.lib.first(device) else "N/A"
        domain, bus, slot, _ = bus_of(gpu.bdf)
        return {
            "name": (spec.pci_name if self.pci_names else spec.market_name)
            if self.lib.first(device)
            else "N/A",
            "did": did,
            "rev": "0x00" if self.lib.first(device) else "N/A",
            "subsystem": f"0x{spec.device_id:x}" if self.lib.first(device) else "N/A",
            "guid": str(device.gpu_id),
            "node": str(device.kfd_node),
            "gfx": spec.gfx,
            "bus": f"{domain:04X}:{bus:02X}:{slot:02X}.{device.part if self.functions else 0:X}",
            "vbios": node.vbios if self.lib.first(device) and not spec.apu else "N/A",
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
            first = self.lib.first(device)
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
            memory = "DISABLED" if self.lib.node.spec.apu else "ENABLED"
            ras = ["ENABLED", "ENABLED", memory] if self.lib.first(device) else ["N/A"] * 3
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
            if not self.lib.first(device):
                return []
            return [("Temperature (Sensor junction) (C)", float(s.hotspot)),
                    ("Temperature (Sensor memory) (C)", float(s.memory))]  # fmt: skip

        self._section("Temperature", devices, lines)

    def _show_max_power(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        cap = float(self.lib.node.spec.power_cap)
        self._section("Power Cap", [d for d in devices if self.lib.first(d)],
                      lambda d: [("Max Graphics Package Power (W)", cap)])  # fmt: skip

    def _show_power(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        name = "Current Socket Graphics Package Power (W)"
        self._section("Power Consumption", [d for d in devices if self.lib.first(d)],
                      lambda d: [(name, float(self.lib.gpu(d).sensors.power))])  # fmt: skip

    def _show_use(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        def lines(device: Partition) -> list[tuple[str, Any]]:
            if not self.lib.first(device):
                return [("GPU use Unsupported", None)]
            busy = self.lib.gpu(device).sensors.gfx_busy
            return [("GPU use (%)", busy), ("GFX Activity", busy)]

        self._section("% time GPU is busy", devices, lines)

    def _show_memory_use(self, devices: list[Partition], _: Any, __: argparse.Namespace) -> None:
        def lines(device: Partition) -> list[tuple[str, Any]]:
            used, total = self.lib.vram(device)
            found: list[tuple[str, Any]] = [("GPU Memory Allocated (VRAM%)", 100 * used // total)]
            if self.lib.first(device):
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
                used: int | None
                used, total = self.lib.vram(device)
                if kind == "GTT":
                    used, total = 12 << 20, self.lib.node.cpu_memory // 2
                elif not self.lib.first(device):  # KFD states such a partition's size, but not its use
                    self.ok(Status.NOT_SUPPORTED, device, f"get_memory_usage_{kind}", silent=False)
                    used = None
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
