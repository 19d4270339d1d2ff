# SPDX-License-Identifier: Apache-2.0
"""What each GPU did under one load, by its PCI address (BDF): throughput, power, clock, temperature. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....module_utils.common.errors import natural
from ..outliers.evidence import physical_indices
from .gpu_findings import ATTENTION
from .tables import table

Row = Mapping[str, Any]
MOST_LANES = 16
"""More addresses than this are not drawn: nodes of many kinds."""

READINGS = (
    ("per_gpu", "Output tok/s per GPU"),
    ("power_w", "Power, W"),
    ("gfx_clock_mhz", "GFX clock, MHz"),
    ("hotspot_c", "Hotspot temperature, °C"),
)


@dataclass(frozen=True)
class GpuReading:
    """A GPU under one load. values: by key of READINGS, what is known; interval: of per_gpu over the runs."""

    host: str
    index: int
    bdf: str
    instances: tuple[str, ...]
    values: Mapping[str, float]
    interval: tuple[float, float] | None = None
    verdict: str | None = None
    relative: float | None = None
    telemetry: Mapping[str, Any] = field(default_factory=dict)

    @property
    def flagged(self) -> bool:
        """Return whether the GPU needs attention."""
        return self.verdict in ATTENTION


def gpu_readings(
    rows: Sequence[Row], hosts: Mapping[str, Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]
) -> list[GpuReading]:
    """Return the GPUs of a cell's rows, by host and number. GPUs whose address is not known are left out."""
    judged = {(item["host"], item["gpu"]): item for item in verdicts}
    owners: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        for index in physical_indices(row["gpus"], hosts.get(row["host"], {}).get("gpus") or []):
            owners.setdefault((row["host"], index), []).append(row)
    found = []
    for (host, index), own in sorted(owners.items(), key=lambda item: (natural(item[0][0]), item[0][1])):
        facts = hosts.get(host, {}).get("gpus") or []
        bdf = next((gpu["bdf"] for gpu in facts if gpu["index"] == index and gpu.get("bdf")), None)
        if bdf:
            found.append(_reading(host, index, bdf, own, hosts, judged.get((host, index), {})))
    return found


def lanes(readings: Sequence[GpuReading]) -> list[str]:
    """Return the addresses that are drawn, in order: all, or the most frequent of many."""
    count = Counter(reading.bdf for reading in readings)
    return sorted(bdf for bdf, _number in count.most_common(MOST_LANES))


def spread_table(readings: Sequence[GpuReading]) -> dict[str, Any]:
    """Return the folded table of all GPUs."""
    columns = [
        "Node",
        "GPU",
        "BDF",
        "Instance",
        *((label, "rate") for _key, label in READINGS),
        ("Memory, °C", "rate"),
        ("Throttled", "spread"),
        ("vs median", "percent"),
        "Verdict",
    ]
    rows = [
        {
            "slow": reading.flagged,
            "cells": [
                reading.host,
                str(reading.index),
                reading.bdf,
                ", ".join(reading.instances[:2]) + (" …" if len(reading.instances) > 2 else ""),
                *(reading.values.get(key) for key, _label in READINGS),
                reading.telemetry.get("memory_c"),
                max((reading.telemetry.get("throttled") or {}).values(), default=None),
                None if reading.relative is None else (reading.relative - 1) * 100,
                reading.verdict or "not judged",
            ],
        }
        for reading in readings
    ]
    return table("Every GPU", columns, rows, closed=True)


def _reading(
    host: str,
    index: int,
    bdf: str,
    own: Sequence[Row],
    hosts: Mapping[str, Mapping[str, Any]],
    verdict: Mapping[str, Any],
) -> GpuReading:
    seen: Mapping[str, Any] = next(
        (
            gpu
            for row in own
            for gpu in row.get("gpu_telemetry") or ()
            if str(gpu.get("bdf")).lower() == bdf.lower()
        ),
        {},
    )
    values = {key: float(seen[key]) for key, _label in READINGS if seen.get(key) is not None}
    outputs = [row["output_throughput"] for row in own]
    interval = None
    # Instances on partitions of a GPU add up; an instance of several GPUs is spread over them evenly.
    shares = [len(physical_indices(row["gpus"], hosts.get(host, {}).get("gpus") or [])) for row in own]
    if all(output is not None for output in outputs):
        values["per_gpu"] = sum(output / share for output, share in zip(outputs, shares))
        if len(own) == 1 and own[0]["interval"] and own[0]["metric"] == "output_throughput":
            low, high = own[0]["interval"]
            interval = low / shares[0], high / shares[0]
    return GpuReading(
        host=host,
        index=index,
        bdf=bdf,
        instances=tuple(row["instance"] for row in own),
        values=values,
        interval=interval,
        verdict=verdict.get("verdict"),
        relative=verdict.get("relative"),
        telemetry=seen,
    )
