# SPDX-License-Identifier: Apache-2.0
"""amd-smi's commands that show what devices do: metric, monitor, process, default."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from ..driver import faults
from ..machine.models import MIB
from .amd_base import AmdBase
from .amd_format import Row, default_view, human, json_text, size


class AmdMetrics(AmdBase):
    """Readings and processes, as in ROCm 7.0."""

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
                "throttle": self._throttle(d.gpu) if d.primary else "N/A",
                "energy": {"total_energy_consumption": self.unit(v(round(s.power * time.time(), 3)), "J")},
                "mem_usage": {
                    "total_vram": self.unit(total // MIB, "MB"),
                    "used_vram": self.unit(used // MIB, "MB"),
                    "free_vram": self.unit((total - used) // MIB, "MB"),
                },
            }
            chosen = [name for name in sections if getattr(args, name)]
            rows.append({"gpu": d.index, **{name: sections[name] for name in chosen or sections}})
        self.emit(rows, wrap=self.static_wrap)

    def _throttle(self, gpu: int) -> Row:
        """The accumulators of MI300: they rise with a counter of 1 kHz while the GPU is throttled."""
        counter = int(time.time() * 1000)
        hot = gpu in (faults.value(self.lib.node, "thermal") or ())
        counts = dict.fromkeys(("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal"), 0)
        counts["hbm_thermal"] = counter // 4 if hot else 0
        return {
            "accumulation_counter": counter,
            **{f"{cause}_accumulated": count for cause, count in counts.items()},
            **{
                f"{cause}_violation_status": "ACTIVE" if count else "NOT ACTIVE"
                for cause, count in counts.items()
            },
            **{
                f"{cause}_violation_activity": self.unit(25 if count else 0, "%")
                for cause, count in counts.items()
            },
        }

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
