# SPDX-License-Identifier: Apache-2.0
"""amd-smi's commands that show devices: version, list, static, metric, monitor, process, default."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .amd_base import AmdBase
from .amd_format import Row, default_view, human, json_text, size
from .models import MIB
from .topology import Partition


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
        """What list -e adds."""
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
                "part_number": "113-M3000100-103",
                "version": "022.040.003.043.000001",
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

    static_wrap: str | None = "gpu_data"

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

    # ------------------------------------------------------------ metric, monitor, process, default

    def do_metric(self, args: argparse.Namespace) -> None:
        def degrees(value: Any) -> Any:
            if value == "N/A":
                return value
            return {"value": value, "unit": "C"} if self.format == "json" else f"{value} °C"

        rows = []
        for d in self.selected(args):
            s = self.lib.gpu(d).sensors
            used, total = self.lib.vram(d)
            v: Callable[[Any], Any] = (lambda value: value) if d.primary else (lambda value: "N/A")
            sections: Row = {
                "usage": {
                    "gfx_activity": self.unit(v(s.gfx_busy), "%"),
                    "umc_activity": self.unit(v(s.memory_busy), "%"),
                    "mm_activity": "N/A",
                },
                "power": {
                    "socket_power": self.unit(v(s.power), "W"),
                    "gfx_voltage": "N/A",
                    "soc_voltage": "N/A",
                    "mem_voltage": "N/A",
                    "throttle_status": "N/A",
                    "power_management": v("ENABLED"),
                },
                "clock": {
                    "gfx_0": {"clk": self.unit(v(s.gfx_clock), "MHz")},
                    "mem_0": {"clk": self.unit(v(s.memory_clock), "MHz")},
                },
                "temperature": {"edge": "N/A", "hotspot": degrees(v(s.hotspot)), "mem": degrees(v(s.memory))},
                "pcie": {"width": v(16), "speed": self.unit(v(32), "GT/s"), "replay_count": v(0)},
                "ecc": {
                    "total_correctable_count": v(0),
                    "total_uncorrectable_count": v(s.uncorrectable),
                    "total_deferred_count": v(0),
                },
                "mem_usage": {
                    "total_vram": self.unit(total // MIB, "MB"),
                    "used_vram": self.unit(used // MIB, "MB"),
                    "free_vram": self.unit((total - used) // MIB, "MB"),
                },
            }
            chosen = [name for name in sections if getattr(args, name)]
            rows.append({"gpu": d.index, **{name: sections[name] for name in chosen or sections}})
        self.emit(rows, wrap=self.static_wrap)

    def do_monitor(self, args: argparse.Namespace) -> None:
        groups = (
            "power_usage",
            "temperature",
            "gfx",
            "mem",
            "encoder",
            "decoder",
            "vram_usage",
            "ecc",
            "pcie",
        )
        chosen = [g for g in groups if getattr(args, g)]
        default = not chosen
        chosen = chosen or [g for g in groups if g not in ("ecc", "pcie")]
        rows = []
        columns: dict[str, tuple[str, int]] = {"gpu": ("GPU", 3)}
        for d in self.selected(args):
            s, spec = self.lib.gpu(d).sensors, self.lib.node.spec
            used, total = (n // MIB for n in self.lib.vram(d))
            v: Callable[[Any], Any] = (lambda value: value) if d.primary else (lambda value: "N/A")
            cells: dict[str, tuple[str, int, Any, str]] = {}
            if "power_usage" in chosen:
                cells["power_usage"] = ("POWER", 7, v(s.power), "W")
                if not default:
                    cells["max_power"] = ("PWR_CAP", 9, v(spec.power_cap), "W")
            if "temperature" in chosen:
                cells["hotspot_temperature"] = ("GPU_T", 8, v(s.hotspot), "°C")
                cells["memory_temperature"] = ("MEM_T", 8, v(s.memory), "°C")
            if "gfx" in chosen:
                cells["gfx_clk"] = ("GFX_CLK", 10, v(s.gfx_clock), "MHz")
                cells["gfx"] = ("GFX%", 7, v(s.gfx_busy), "%")
            if "mem" in chosen:
                cells["mem"] = ("MEM%", 7, v(s.memory_busy), "%")
                if not default:
                    cells["mem_clock"] = ("MEM_CLOCK", 11, v(s.memory_clock), "MHz")
            if "encoder" in chosen:
                cells["encoder"] = ("ENC%", 7, "N/A", "%")
            if "decoder" in chosen:
                cells["decoder"] = ("DEC%", 7, v(0), "%")
            if "vram_usage" in chosen:
                text = f"{used / 1024:.1f}/{total / 1024:.1f}"
                if default:
                    cells["vram_usage"] = ("VRAM_USAGE", 16, text, "GB")
                else:
                    cells["vram_used"] = ("VRAM_USED", 11, used, "MB")
                    cells["vram_free"] = ("VRAM_FREE", 12, total - used, "MB")
                    cells["vram_total"] = ("VRAM_TOTAL", 12, total, "MB")
                    cells["vram_percent"] = ("VRAM%", 9, round(100 * used / total, 2), "%")
            if "ecc" in chosen:
                cells["single_bit_ecc"] = ("SINGLE_ECC", 12, v(0), "")
                cells["double_bit_ecc"] = ("DOUBLE_ECC", 12, v(s.uncorrectable), "")
                cells["pcie_replay"] = ("PCIE_REPLAY", 13, v(0), "")
            if "pcie" in chosen:
                cells["pcie_bw"] = ("PCIE_BW", 12, "N/A", "Mb/s")
            row: Row = {"gpu": d.index}
            for name, (title, width, value, unit) in cells.items():
                columns[name] = (title, width)
                row[name] = self.unit(value, unit.replace("°", "") if self.format == "json" else unit)
                if not unit:
                    row[name] = value
            rows.append(row)
        if self.format != "text":
            self.emit(rows)
            return
        self.t.print("".join(title.rjust(width) for title, width in columns.values()))
        for row in rows:
            self.t.print(
                "".join(str(row[name]).rjust(width) for name, (_, width) in columns.items()).rstrip()
            )

    def process_row(self, name: str, pid: int, vram: int) -> Row:
        gtt, cpu = 2 * MIB, 4096
        return {
            "name": name,
            "pid": pid,
            "memory_usage": {
                "gtt_mem": self.bytes(gtt),
                "cpu_mem": self.bytes(cpu),
                "vram_mem": self.bytes(vram),
            },
            "mem_usage": self.bytes(gtt + vram),
            "usage": {"gfx": self.unit(0, "ns"), "enc": self.unit(0, "ns")},
            **self.process_more(),
        }

    def process_more(self) -> Row:
        return {"cu_occupancy": "N/A"}

    def do_process(self, args: argparse.Namespace) -> None:
        rows = []
        for d in self.selected(args):
            found = [
                self.process_row(h.name, h.pid, vram)
                for h, vram in self.lib.processes(d)
                if args.pid in (None, h.pid) and args.name in (None, h.name.lower())
            ]
            infos: list[Any] = list(found) or ["No running processes detected"]
            entries: list[Row] = [{"process_info": info} for info in infos]
            if self.format == "json":
                rows.append({"gpu": d.index, "process_list": entries})
            elif self.format == "csv":
                rows += [{"gpu": d.index, **entry} for entry in entries]
            else:
                rows.append({"gpu": d.index, "processes": entries})
        if self.format == "text":
            blocks = [human(row) for row in rows]
            self.t.print(blocks[0] if len(blocks) == 1 else "".join(f"{block}\n" for block in blocks))
        else:
            self.emit(rows)

    def do_default(self, args: argparse.Namespace) -> None:
        node, gpus, processes = self.lib.node, [], []
        for d in self.lib.devices:
            s, first = self.lib.gpu(d).sensors, d.primary
            used, total = self.lib.vram(d)
            modes = [self.lib.compute_get(d)[1], self.lib.memory_get(d)[1]]
            gpus.append(
                {
                    "gpu_id": d.index,
                    "partition_mode": "/".join(modes) if all(modes) else "N/A",
                    "market_name": node.spec.market_name,
                    "oam_id": self.lib.gpu(d).oam if first else "N/A",
                    "bdf": self.bdf(d),
                    "hip_id": d.index,
                    "mem_util": s.memory_busy if first else "N/A",
                    "gfx_util": s.gfx_busy if first else "N/A",
                    "temp": s.hotspot if first else "N/A",
                    "power_usage": {"current_power": s.power, "power_limit": node.spec.power_cap}
                    if first
                    else "N/A",
                    "mem_usage": {"used_vram": used // MIB, "total_vram": total // MIB},
                    "uncorr_ecc": s.uncorrectable,
                    "fan": "N/A",
                }
            )
            processes += [
                {
                    "gpu": d.index,
                    "pid": h.pid,
                    "name": h.name,
                    "gtt": size(2 * MIB),
                    "vram": size(vram),
                    "mem_usage": size(2 * MIB + vram),
                    "cu_occupancy": "0.0 %",
                }
                for h, vram in self.lib.processes(d)
            ]
        version = {
            "amd-smi": self.version,
            "amdgpu version": node.driver.version,
            "rocm version": node.release,
            "platform": self._platform(),
        }
        info = {"version_info": version, "gpu_info_list": gpus, "processes": processes}
        if self.format == "json":
            self.t.print(json_text(info))
        elif self.format == "csv":
            self.emit(gpus)
        else:
            self.t.print(default_view(info))
