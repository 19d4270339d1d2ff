# SPDX-License-Identifier: Apache-2.0
"""amd-smi's commands that describe devices: version, list, static."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ..machine.models import MIB
from ..machine.topology import Partition
from .amd_base import AmdBase
from .amd_format import Row


class AmdViews(AmdBase):
    """Read-only commands, as in ROCm 7.0."""

    hsmp = "amd_hsmp version"
    firmware = "vbios"

    # ------------------------------------------------------------ version, list, static

    def do_version(self, args: argparse.Namespace) -> None:
        node = self.lib.node
        both = not (args.gpu_version or args.cpu_version)
        row: Row = {
            "tool": "AMDSMI Tool",
            "version": self.version,
            "amdsmi_library_version": self.library,
            "rocm_version": node.release,
        }
        text = f"AMDSMI Tool: {self.version} | AMDSMI Library version: {self.library}"
        text += f" | ROCm version: {node.release}"
        if both or args.gpu_version:
            row["amdgpu_version"] = node.driver.version
            text += f" | amdgpu version: {node.driver.version}"
        if both or args.cpu_version:
            row["amd_hsmp_driver_version"] = "N/A"
            text += f" | {self.hsmp}: N/A"
        if self.format == "text":
            self.t.print(text)
        else:
            self.emit([row])

    def do_list(self, args: argparse.Namespace) -> None:
        names = ("gpu_bdf", "gpu_uuid") if self.format == "csv" else ("bdf", "uuid")
        rows = []
        for d in self.selected(args):
            row: Row = {
                "gpu": d.index,
                names[0]: self.bdf(d),
                names[1]: self.uuid(d),
            }
            if self.list_kfd:
                row |= {"kfd_id": d.gpu_id, "node_id": d.kfd_node, "partition_id": d.part}
            if getattr(args, "enumeration", False):
                row |= self.enumeration(d)
            rows.append(row)
        self.emit(rows)

    list_kfd = True

    def enumeration(self, device: Partition) -> Row:
        """Return the fields that list -e adds."""
        return {
            "render": f"renderD{device.render}",
            "card": f"card{device.card}",
            "hsa_id": device.kfd_node,
            "hip_id": device.index,
            "hip_uuid": f"GPU-{self.lib.gpu(device).unique_id:016x}",
        }

    def partition_row(self, device: Partition) -> Row:
        return {
            "accelerator_partition": self.lib.compute_get(device)[1] or "N/A",
            "memory_partition": self.lib.memory_get(device)[1] or "N/A",
            "partition_id": device.part,
        }

    def do_static(self, args: argparse.Namespace) -> None:
        sections: dict[str, Callable[[Partition], Any]] = {
            "asic": self._asic,
            "bus": lambda d: {
                "bdf": self.bdf(d),
                "max_pcie_width": 16,
                "max_pcie_speed": self.unit(32, "GT/s"),
                "pcie_interface_version": "Gen 5",
                "slot_type": "OAM",
            },
            self.firmware: lambda d: {
                "name": "AMD MI300X_HW_SRIOV_CVS_1VF",
                "build_date": "2024/10/29 14:08",
                "part_number": self.lib.node.vbios,
                "version": self.lib.node.ifwi,
            },
            "limit": self._limit,
            "driver": lambda d: {"name": "amdgpu", "version": self.lib.node.driver.version},
            "board": lambda d: {
                "model_number": "102-G30211-0C",
                "product_serial": "N/A",
                "fru_id": "113-AMDG302110C04",
                "product_name": f"{self.lib.node.spec.market_name} OAM",
                "manufacturer_name": "AMD",
            },
            "ras": lambda d: {
                "eeprom_version": "0x30000",
                "bad_page_threshold": 128 if self.lib.euid == 0 else "N/A",
                "parity_schema": "DISABLED",
                "single_bit_schema": "DISABLED",
                "double_bit_schema": "DISABLED",
                "poison_schema": "ENABLED",
            },
            "partition": self.partition_row,
            "process_isolation": lambda d: "Disabled",
            "numa": lambda d: {"node": self.lib.gpu(d).numa_node, "affinity": self.lib.gpu(d).numa_node},
            "vram": self._vram,
            "cache_info": lambda d: "N/A",
        }
        options = {"cache_info": "cache", "ifwi": "vbios"}
        chosen = [n for n in sections if getattr(args, options.get(n, n), False)]
        names = chosen or [n for n in sections if n != "partition"]
        rows = [{"gpu": d.index, **{name: sections[name](d) for name in names}} for d in self.selected(args)]
        self.emit(rows, wrap=self.static_wrap)

    def _asic(self, device: Partition) -> Row:
        spec, gpu = self.lib.node.spec, self.lib.gpu(device)
        return {
            "market_name": spec.market_name,
            "vendor_id": "0x1002",
            "vendor_name": "Advanced Micro Devices Inc. [AMD/ATI]",
            "subvendor_id": "0x1002",
            "device_id": f"0x{spec.device_id:04x}",
            "subsystem_id": f"0x{spec.device_id:04x}",
            "rev_id": "0x00",
            "asic_serial": f"0x{gpu.unique_id:016X}",
            "oam_id": gpu.oam if device.primary else "N/A",
            "num_compute_units": spec.compute_units // device.parts,
            "target_graphics_version": spec.gfx,
        }

    def _limit(self, device: Partition) -> Row:
        cap = self.lib.node.spec.power_cap if device.primary else "N/A"

        def degrees(value: int) -> Any:
            return {"value": value, "unit": "C"} if self.format == "json" else f"{value} °C"

        return {
            "max_power": self.unit(cap, "W"),
            "min_power": self.unit(0 if device.primary else "N/A", "W"),
            "socket_power": self.unit(cap, "W"),
            "slowdown_edge_temperature": "N/A",
            "slowdown_hotspot_temperature": degrees(100),
            "slowdown_vram_temperature": degrees(105),
            "shutdown_edge_temperature": "N/A",
            "shutdown_hotspot_temperature": degrees(110),
            "shutdown_vram_temperature": degrees(115),
        }

    def _vram(self, device: Partition) -> Row:
        spec = self.lib.node.spec
        return {
            "type": spec.vram_type,
            "vendor": "HYNIX",
            "size": self.unit(self.lib.vram(device)[1] // MIB, "MB"),
            "bit_width": 8192,
            "max_bandwidth": self.unit(spec.max_bandwidth, "GB/s"),
        }
