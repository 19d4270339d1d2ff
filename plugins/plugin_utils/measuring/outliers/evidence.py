# SPDX-License-Identifier: Apache-2.0
"""Gather what is known of each GPU that was measured: its facts, what its sensors showed, and its faults. Pure.

The facts are those of summary.json: `hosts` (node_state), and `gpu_telemetry` of the rows (bench/telemetry.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .robust import robust_spread
from .samples import InstanceKey, Row

THERMAL = ("prochot", "socket_thermal", "vr_thermal", "hbm_thermal", "gfx_clk_below_host_limit_thermal")
"""Throttle counters that no healthy GPU raises. Power (ppt) is not among them: full load at the power cap is normal."""
UNUSUAL = 3.5
"""Robust z from which a reading is unusual among its equals (Iglewicz and Hoaglin)."""
POWER_LIMITED = 0.01
"""Share of the time below the power limit's clock from which a GPU counts as limited by power."""

# Readings by key of the telemetry: label, unit, and the largest difference that is usual.
_READINGS = {
    "hotspot_c": ("hotspot temperature", "°C", 3.0),
    "memory_c": ("memory temperature", "°C", 3.0),
    "gfx_clock_mhz": ("GFX clock", "MHz", 20.0),
    "memory_clock_mhz": ("memory clock", "MHz", 20.0),
    "power_w": ("power", "W", 15.0),
}
_FACTS = {
    "vbios": "VBIOS",
    "power_cap_w": "power cap, W",
    "link_speed_max": "maximum link speed",
}


@dataclass(frozen=True)
class GpuEvidence:
    """A GPU that was measured.

    Attributes:
        index: number on its host in PCI order; None if the host's facts are unknown
        instances: names of the instances that ran on it
        factors: what may explain its speed, as label and value
        readings: sensor averages by key of the telemetry
        faults: what makes it bad, each as (kind, text); kind is ecc, link or thermal
    """

    host: str
    index: int | None
    bdf: str | None
    unique_id: str | None
    instances: tuple[str, ...]
    factors: Mapping[str, str] = field(default_factory=dict)
    readings: Mapping[str, float] = field(default_factory=dict)
    faults: tuple[tuple[str, str], ...] = ()


def gather(rows: Sequence[Row], hosts: Mapping[str, Mapping[str, Any]]) -> list[GpuEvidence]:
    """Return the GPUs of all rows, by host and index."""
    used: dict[tuple[str, int], dict[str, None]] = {}
    for row in rows:
        for index in physical_indices(row["gpus"], hosts.get(row["host"], {}).get("gpus") or []):
            used.setdefault((row["host"], index), {})[row["instance"]] = None
    telemetry = _telemetry(rows)
    return [
        _evidence(host, index, tuple(instances), hosts.get(host, {}), telemetry)
        for (host, index), instances in sorted(used.items())
    ]


def physical_indices(logical: Iterable[int], gpus: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the indices of GPUs behind logical ones: a GPU in CPX mode is several of them."""
    owners = [gpu["index"] for gpu in gpus for _unused in range(max(1, gpu.get("partitions") or 1))]
    found = (owners[index] if index < len(owners) else index for index in logical)
    return list(dict.fromkeys(found))


def gpus_of(rows: Sequence[Row], hosts: Mapping[str, Mapping[str, Any]]) -> dict[InstanceKey, list[int]]:
    """Return the GPUs (index on their host) of each instance."""
    return {
        (row["host"], row["instance"]): physical_indices(
            row["gpus"], hosts.get(row["host"], {}).get("gpus") or []
        )
        for row in rows
    }


def add_reading_factors(gpus: Sequence[GpuEvidence]) -> list[GpuEvidence]:
    """Return the GPUs with a factor for each reading: usual, or the value if it is unusual among all of them."""
    factors: list[dict[str, str]] = [dict(gpu.factors) for gpu in gpus]
    for key, (label, unit, floor) in _READINGS.items():
        known = [gpu.readings[key] for gpu in gpus if key in gpu.readings]
        if len(known) < 3:
            continue
        centre, spread = statistics.median(known), robust_spread(known, floor)
        for gpu, own in zip(gpus, factors):
            if key not in gpu.readings:
                continue
            off = (gpu.readings[key] - centre) / spread
            if abs(off) <= UNUSUAL:
                own[label] = f"about {centre:.0f} {unit}"
            else:
                own[label] = f"{'above' if off > 0 else 'below'} the usual {centre:.0f} {unit}"
    return [
        GpuEvidence(gpu.host, gpu.index, gpu.bdf, gpu.unique_id, gpu.instances, own, gpu.readings, gpu.faults)
        for gpu, own in zip(gpus, factors)
    ]


def _telemetry(rows: Sequence[Row]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        for gpu in row.get("gpu_telemetry") or []:
            if gpu.get("bdf"):
                found.setdefault((row["host"], gpu["bdf"].lower()), []).append(gpu)
    return found


def _evidence(
    host: str,
    index: int,
    instances: tuple[str, ...],
    facts: Mapping[str, Any],
    telemetry: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]],
) -> GpuEvidence:
    gpus: Sequence[Mapping[str, Any]] = facts.get("gpus") or []
    gpu = next((gpu for gpu in gpus if gpu["index"] == index), {})
    bdf = gpu.get("bdf")
    seen = telemetry.get((host, (bdf or "").lower()), ())
    return GpuEvidence(
        host=host,
        index=index,
        bdf=bdf,
        unique_id=gpu.get("unique_id"),
        instances=instances,
        factors=_factors(facts, gpu, seen),
        readings=_readings(seen),
        faults=tuple(faults(seen)),
    )


def _factors(
    facts: Mapping[str, Any], gpu: Mapping[str, Any], seen: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    speed, width = gpu.get("link_speed"), gpu.get("link_width")
    modes = [gpu.get("compute_partition"), gpu.get("memory_partition")]
    balancing = facts.get("numa_balancing")
    values: dict[str, Any] = {
        "driver": facts.get("driver"),
        "ROCm": facts.get("rocm"),
        "kernel": facts.get("kernel"),
        "NUMA balancing": None if balancing is None else "on" if balancing else "off",
        "NUMA node": gpu.get("numa_node"),
        "PCIe link": f"{speed} x{width}" if speed and width else None,
        "partition mode": "/".join(mode for mode in modes if mode) or None,
        **{label: _last(seen, key) for key, label in _FACTS.items()},
    }
    limited = _shares(seen).get("ppt")
    if limited is not None:
        values["power limit"] = "reached" if limited > POWER_LIMITED else "not reached"
    return {label: str(value) for label, value in values.items() if value is not None}


def _readings(seen: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    found = {}
    for key in _READINGS:
        known = [gpu[key] for gpu in seen if gpu.get(key) is not None]
        if known:
            found[key] = statistics.median(known)
    return found


def _shares(seen: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the largest share of a measurement for which each throttle counter rose."""
    found: dict[str, float] = {}
    for gpu in seen:
        for cause, share in (gpu.get("throttled") or {}).items():
            if share is not None:
                found[cause] = max(share, found.get(cause, 0.0))
    return found


def faults(seen: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return what makes a GPU bad by its telemetry, each as (ecc, link or thermal; text)."""
    found = []
    errors = max((gpu.get("ecc_uncorrectable") or 0 for gpu in seen), default=0)
    if errors:
        # Each run has the differences over its whole call, so they must not be added up.
        before = min(
            gpu["ecc_uncorrectable"] - (gpu.get("ecc_uncorrectable_new") or 0)
            for gpu in seen
            if gpu.get("ecc_uncorrectable") is not None
        )
        fresh = errors - before
        when = f"{fresh} of them during the measurement" if fresh else "all before the measurement"
        found.append(("ecc", f"{errors} uncorrectable memory errors, {when}"))
    links = [(gpu.get("link_width"), gpu.get("link_width_max")) for gpu in seen]
    narrow = [(width, most) for width, most in links if width and most and width < most]
    if narrow:
        found.append(("link", f"PCIe link x{narrow[0][0]} of x{narrow[0][1]}"))
    hot = {cause: share for cause, share in _shares(seen).items() if cause in THERMAL and share > 0}
    if hot:
        shares = ", ".join(f"{cause} {share * 100:.1f}%" for cause, share in sorted(hot.items()))
        found.append(("thermal", f"throttled by temperature ({shares} of the time)"))
    return found


def _last(seen: Sequence[Mapping[str, Any]], key: str) -> Any:
    return next((gpu[key] for gpu in reversed(seen) if gpu.get(key) is not None), None)
