# SPDX-License-Identifier: Apache-2.0
"""amd-smi's output formats: indented text, JSON, CSV, tables, and the default view's boxes."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]
_DEVICE_KEYS = ("GPU", "CPU", "CORE")


def human(row: Row) -> str:
    """Return `GPU: 0` and everything else below it, indented by four, keys in capitals, no quotes."""
    head = [
        line for key, value in row.items() if key.upper() in _DEVICE_KEYS for line in _lines(key, value, 0)
    ]
    body = [
        line
        for key, value in row.items()
        if key.upper() not in _DEVICE_KEYS
        for line in _lines(key, value, 1)
    ]
    return "".join(f"{line}\n" for line in [*head, *body])


def _lines(key: str, value: Any, depth: int) -> list[str]:
    pad = "    " * depth
    name = key.upper()
    if isinstance(value, Mapping):
        return [f"{pad}{name}:", *(line for k, v in value.items() for line in _lines(k, v, depth + 1))]
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return [line for item in value for k, v in item.items() for line in _lines(k, v, depth)]
    if isinstance(value, list):
        if not value:
            return [f"{pad}{name}: N/A"]
        return [f"{pad}{name}:", *(f"{pad}    {item}" for item in value)]
    return [f"{pad}{name}: {value}".replace("'", "")]


def folded(text: str) -> str:
    """Break long values after the word that passes column 80, as in releases that print YAML.

    YAML counts with half the printed indentation, and with a quote if a value needs one.
    """
    lines = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip(" "))
        value = line.partition(": ")[2]
        column = indent // 2 + (1 if value.startswith("[") or " #" in value or ": " in value else 0)
        start = ""
        for word in line.strip(" ").split(" "):
            if start and column + len(start) > 80:
                lines.append(" " * indent + start)
                indent, column, start = indent + 4, indent // 2 + 2, ""
            start += f" {word}" if start else word
        lines.append(" " * indent + start)
    return "\n".join(lines)


def flat(row: Row) -> Row:
    """Return nested values as one level, for CSV: the innermost keys are the columns."""
    found: Row = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            found |= flat(dict(value))
        else:
            found[key] = value
    return found


def csv_text(rows: Sequence[Row]) -> str:
    """Return rows with a header line; missing values are N/A."""
    if not rows:
        return ""
    flattened = [flat(row) for row in rows]
    names = list(flattened[0])
    names += [name for row in flattened for name in row if name not in names]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(names)), restval="N/A")
    writer.writeheader()
    writer.writerows(flattened)
    return out.getvalue()


def json_text(value: Any) -> str:
    return json.dumps(value, indent=4)


def table(title: str, widths: Mapping[str, int], rows: Sequence[Row], warning: str = "") -> str:
    """Return left-aligned columns as wide as their headings require; lines end after their last value."""
    head = "".join(name.upper().ljust(width) for name, width in widths.items())
    body = "".join("".join(str(row[n]).ljust(w) for n, w in widths.items()).rstrip() + "\n" for row in rows)
    return f"{title}:\n{warning}{head}\n{body}".rstrip() if rows else ""


def size(number: float) -> str:
    """Return bytes as 169.0 GB: steps of 1024, one decimal."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if abs(number) < 1024:
            return f"{number:3.1f} {unit}"
        number /= 1024
    return f"{number:.1f} PB"


_OUTER = f"+{'-' * 78}+"
_INNER = f"|{'-' * 37}+{'-' * 40}|"


def driver_in_view(version: str) -> str:
    """Return the driver version as the default view shows it: eight characters."""
    return version[:8].ljust(8)


def default_view(info: Row) -> str:
    """Return the output of `amd-smi` without arguments: versions, two lines per GPU, processes."""
    v = info["version_info"]
    lines = [
        _OUTER,
        f"| AMD-SMI {v['amd-smi']:20.20s} amdgpu version: {driver_in_view(v['amdgpu version'])} "
        f"ROCm version: {v['rocm version']:8.8s} |",
        f"| Platform: {v['platform']:20.20s}{'':47s}|",
        _INNER,
        "| BDF                        GPU-Name | Mem-Uti   Temp   UEC       Power-Usage |",
        "| GPU  HIP-ID  OAM-ID  Partition-Mode | GFX-Uti    Fan               Mem-Usage |",
        f"|{'=' * 37}+{'=' * 40}|",
    ]
    gpus = info["gpu_info_list"]
    for number, g in enumerate(gpus):
        power, memory = g["power_usage"], g["mem_usage"]
        watts = "N/A" if power == "N/A" else f"{power['current_power']}/{power['power_limit']} W"
        used = f"{memory['used_vram']}/{memory['total_vram']} MB"
        memory_use, gfx_use = _percent(g["mem_util"]), _percent(g["gfx_util"])
        temperature = "N/A" if g["temp"] == "N/A" else f"{g['temp']} °C"
        lines += [
            f"| {g['bdf']:12.12s} {g['market_name']:>22.22s} | {memory_use:5.5s}   {temperature:>6.6s}   "
            f"{g['uncorr_ecc']!s:5.5s}   {watts:>13.13s} |",
            f"| {g['gpu_id']!s:>3.3s}  {g['hip_id']!s:>6.6s}  {g['oam_id']!s:>6.6s}  "
            f"{g['partition_mode']:>14.14s} | {gfx_use:5.5s}   {g['fan']:>6.6s}   {used:>21.21s} |",
        ]
        if number + 1 < len(gpus):
            lines.append(_INNER)
    lines += [
        f"+{'-' * 37}+{'-' * 40}+",
        _OUTER,
        "| Processes:                                                                   |",
        "|  GPU        PID  Process Name          GTT_MEM  VRAM_MEM  MEM_USAGE     CU % |",
        f"|{'=' * 78}|",
    ]
    for p in info["processes"]:
        name = re.sub(r".*/", "", p["name"])
        lines.append(
            f"| {p['gpu']!s:>4.4s}  {p['pid']!s:>9.9s}  {name:19.19s}  {p['gtt']:>8.8s}  "
            f"{p['vram']:>8.8s}  {p['mem_usage']:>9.9s}  {p['cu_occupancy']:>7.7s} |"
        )
    if not info["processes"]:
        lines.append("|  No running processes found                                                  |")
    return "\n".join([*lines, _OUTER])


def _percent(value: Any) -> str:
    return "N/A" if value == "N/A" else f"{value} %"
