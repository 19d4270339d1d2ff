# SPDX-License-Identifier: Apache-2.0
"""Summarise the runs of a cell: medians, and how well the runs agree. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....module_utils.benchmarks.bench_metrics import METRICS
from ....module_utils.benchmarks.intervals import median_interval, variation
from ....module_utils.common.errors import natural
from ..measurement.client_bound import client_bound
from .overlap import overlaps
from .roofline import KEYS
from .rows import UNMEASURED, Row
from .telemetry import most_throttled

_OF_ONE_RUN = ("block", "order", "seed")
_SUMMED_UP = (
    *METRICS,
    *UNMEASURED,
    "seconds",
    "client_cpu_share",
    "steady_output_throughput",
    "steady_share",
    "power_w",
    "joules_per_output_token",
    *KEYS,
)
_ERRORS = ("ecc_uncorrectable", "ecc_uncorrectable_new", "ecc_correctable_new")


def cell_summaries(rows: Iterable[Row]) -> list[Row]:
    """Return one row for each (host, instance, kind, cell), in that order, with medians over its runs.

    runs: their number. cv: coefficient of variation of output_throughput. interval: 95 % interval of the median of the
    cell's `metric`. Medians and intervals are those of counted_runs. What a median would hide is taken from the worst
    run: failed requests, throttling, memory errors, invalid energy. `started` is that of the first run. overlap: the
    share of its run time in which its deployment's other instances were measured too; None for a single instance.
    """
    performed = list(rows)
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in performed:
        groups.setdefault((row["host"], row["instance"], row["kind"], row["cell"]), []).append(row)
    shares = overlaps(performed)
    return [
        {**_summary(groups[key]), "overlap": shares.get(key)}
        for key in sorted(groups, key=lambda key: [natural(part) for part in key])
    ]


def counted_runs(performed: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the runs of a cell on an instance that its figures are made from.

    Runs with failed requests, as of an engine that died, only count if there are no others.
    """
    return [row for row in performed if not row.get("failed")] or performed


def relative_half_width(row: Mapping[str, Any]) -> float | None:
    """Return half the width of a cell's interval relative to its middle (0.02: ±2 %); None if there is none."""
    if not row.get("interval"):
        return None
    low, high = row["interval"]
    return (high - low) / (high + low) if high + low else None


def _summary(performed: Sequence[Row]) -> Row:
    runs = counted_runs(performed)
    first = min(runs, key=lambda row: (row["started"] or "", row["block"] or 0))
    keys = {key for row in runs for key in row}
    made = {**first, **dict.fromkeys(_OF_ONE_RUN)}
    for key in keys:
        if key in _SUMMED_UP or key.endswith("_ms"):
            made[key] = median([row.get(key) for row in runs])
    rates = [row["output_throughput"] for row in runs if row["output_throughput"] is not None]
    main = [row[first["metric"]] for row in runs if row.get(first["metric"]) is not None]
    other = {key: median([row["other"].get(key) for row in runs]) for row in runs for key in row["other"]}
    made |= {
        "failed": _most(performed, "failed"),
        "other": {key: value for key, value in other.items() if value is not None},
        **{
            key: {name: median([row[key].get(name) for row in runs]) for row in runs for name in row[key]}
            for key in ("goodput", "slo_attainment")
        },
        **_telemetry(performed),
        "warnings": list(dict.fromkeys(text for row in performed for text in row["warnings"])),
        "runs": len(runs),
        "cv": variation(rates),
        "interval": list(interval) if (interval := median_interval(main)) else None,
    }
    made["client_bound"] = client_bound(made["client_cpu_share"], made["send_lag_ms"])
    return made


def _telemetry(runs: Sequence[Row]) -> Row:
    gpus: dict[str, list[Mapping[str, Any]]] = {}
    for row in runs:
        for gpu in row["gpu_telemetry"]:
            gpus.setdefault(gpu["bdf"], []).append(gpu)
    valid = [row["power_valid"] for row in runs if row["power_valid"] is not None]
    return {
        "gpu_telemetry": [_gpu(own) for own in gpus.values()],
        "power_valid": all(valid) if valid else None,
        "throttled": most_throttled(runs),
        "ecc": _most(runs, "ecc"),
    }


def _gpu(own: Sequence[Mapping[str, Any]]) -> Row:
    made = {key: median([gpu.get(key) for gpu in own]) for key in own[0]}
    return {**made, "throttled": most_throttled(own), **{key: _most(own, key) for key in _ERRORS}}


def _most(items: Sequence[Mapping[str, Any]], key: str) -> Any:
    return max((item[key] for item in items if item.get(key) is not None), default=None)


def median(values: Sequence[Any]) -> Any:
    """Return the median of the known values: a whole number for whole numbers. Of anything else, the first value."""
    known = [value for value in values if value is not None]
    numbers = [value for value in known if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) < len(known) or not known:
        return known[0] if known else None
    whole = all(isinstance(value, int) for value in numbers)
    return statistics.median_low(numbers) if whole else statistics.median(numbers)
