# SPDX-License-Identifier: Apache-2.0
"""Parse the JSON of `amd-smi metric` and `amd-smi static`: counters, ECC, energy, power cap, VBIOS. Pure.

Keys differ between releases: `ppt_accumulated` and `ppt_violation_accumulated`, a number or a list of one per XCC, rows
in a list or below `gpu_data`, "N/A" where a GPU or a partition has no such reading. What is not understood is None.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_ENDINGS = ("_violation_accumulated", "_accumulated")


def parse_metric(text: str) -> dict[int, dict[str, Any]]:
    """Return the readings of each GPU by amd-smi's number. Raise ValueError if the text is not such JSON.

    Keys: throttle (counters by cause), throttle_counter, ecc_uncorrectable, ecc_correctable, energy_j.
    """
    found = {}
    for row in _rows(text):
        ecc, throttle = _section(row, "ecc"), _section(row, "throttle")
        found[row["gpu"]] = {
            "throttle": _counters(throttle),
            "throttle_counter": _number(throttle.get("accumulation_counter")),
            "ecc_uncorrectable": _number(ecc.get("total_uncorrectable_count")),
            "ecc_correctable": _number(ecc.get("total_correctable_count")),
            "energy_j": _energy(_section(row, "energy")),
        }
    return found


def parse_static(text: str) -> dict[int, dict[str, Any]]:
    """Return what each GPU is: bdf, vbios, power_cap_w. Raise ValueError if the text is not such JSON."""
    found = {}
    for row in _rows(text):
        limit = _section(row, "limit")
        firmware = _section(row, "vbios") or _section(row, "ifwi")
        bdf = _section(row, "bus").get("bdf")
        caps = [limit.get(key) for key in ("socket_power", "current_socket_power", "max_power")]
        if isinstance(limit.get("ppt0"), Mapping):  # amd-smi of ROCm 7.1 and later has a section per limit
            caps.insert(0, limit["ppt0"].get("socket_power_limit"))
        known = [cap for cap in map(_number, caps) if cap is not None]
        found[row["gpu"]] = {
            "bdf": bdf.lower() if isinstance(bdf, str) and bdf.count(":") == 2 else None,
            "vbios": _text(firmware.get("version")) or _text(firmware.get("part_number")),
            "power_cap_w": known[0] if known else None,
        }
    return found


def throttle_shares(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the share of the time between two readings of a GPU for which each cause throttled it.

    The counters rise once per count of `throttle_counter`. None if they cannot be compared: not read, or reset between.
    """
    first, last = before.get("throttle_counter"), after.get("throttle_counter")
    if first is None or last is None or last <= first:
        return None
    shares = {}
    for cause, count in (after.get("throttle") or {}).items():
        start = (before.get("throttle") or {}).get(cause)
        if start is not None and count >= start:
            shares[cause] = min(1.0, (count - start) / (last - first))
    return shares or None


def _rows(text: str) -> Iterator[Mapping[str, Any]]:
    # A warning (about missing groups) may come first.
    start = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
    if start < 0:
        raise ValueError(f"not JSON: {text.strip()[:80]!r}")
    data = json.loads(text[start:])
    rows = data.get("gpu_data") if isinstance(data, dict) else data
    if not isinstance(rows, list):
        raise ValueError("no list of GPUs")
    for row in rows:
        if isinstance(row, dict) and isinstance(row.get("gpu"), int):
            yield row


def _section(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def _counters(throttle: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for key, value in throttle.items():
        ending = next((ending for ending in _ENDINGS if key.endswith(ending)), None)
        count = _largest(value)
        if ending and count is not None:
            found[key[: -len(ending)]] = count
    return found


def _largest(value: Any) -> float | None:
    """Return the largest number of a counter that may have one per XCP and XCC."""
    if isinstance(value, dict) and "value" not in value:
        value = list(value.values())
    if isinstance(value, list):
        known = [count for count in map(_largest, value) if count is not None]
        return max(known) if known else None
    return _number(value)


def _energy(energy: Mapping[str, Any]) -> float | None:
    for key in ("total_energy_consumption", "energy_consumption"):
        value = _number(energy.get(key))
        if value is not None:
            return value
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value
    try:
        return float(str(value).split()[0])
    except (ValueError, IndexError):
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value and value != "N/A" else None
