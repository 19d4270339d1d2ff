# SPDX-License-Identifier: Apache-2.0
"""Reduce the rows of a measurement to one speed per instance: the median of its runs, over all cells that it ran. Pure.

A row is a run of a cell, or a cell summary with `runs` and `interval` (catalog/schemas/summary.schema.json).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
InstanceKey = tuple[str, str]
"""Host and name of an instance."""
Interval = tuple[float, float]


@dataclass(frozen=True)
class SpeedMetric:
    """A key of rows by which instances are compared, and how a message names it."""

    key: str
    higher: bool
    label: str


# The first metric is the speed; the second confirms it. At a fixed request rate every instance has the same throughput,
# and only the time per token shows a slow one.
_LOADED = (
    SpeedMetric("output_throughput", True, "output tok/s"),
    SpeedMetric("median_tpot_ms", False, "TPOT p50"),
)
_AT_RATE = (
    SpeedMetric("median_tpot_ms", False, "TPOT p50"),
    SpeedMetric("median_e2el_ms", False, "E2EL p50"),
)
_OFFLINE = {
    "throughput": (SpeedMetric("total_token_throughput", True, "total tok/s"),),
    "latency": (SpeedMetric("mean_batch_latency_ms", False, "batch latency"),),
}


@dataclass(frozen=True)
class CellSpeed:
    """An instance in one cell.

    Attributes:
        speeds: log speed by each metric of the cell, higher is faster; None where not measured
        interval: of the first one, over its runs; None if they are too few
    """

    instance: InstanceKey
    cell: tuple[Any, ...]
    metrics: tuple[SpeedMetric, ...]
    speeds: tuple[float | None, ...]
    runs: int
    interval: Interval | None


def comparison_key(row: Row) -> tuple[Any, ...]:
    """Return the key that is equal for rows with the same work on the same number of GPUs."""
    load = (row["num_prompts"], row["max_concurrency"], row["request_rate"])
    return (row["deployment"], row["kind"], row.get("cell"), len(row["gpus"]), *load)


def metrics_of(row: Row) -> tuple[SpeedMetric, ...]:
    """Return the metrics by which a row is compared, the speed first."""
    if row["kind"] in _OFFLINE:
        return _OFFLINE[row["kind"]]
    rate = row["request_rate"]
    return _AT_RATE if isinstance(rate, (int, float)) and math.isfinite(rate) else _LOADED


def cell_speeds(rows: Sequence[Row]) -> list[CellSpeed]:
    """Return each instance in each of its cells.

    Left out are rows without the cell's first metric, rows measured through a load balancer, where any instance
    answered, and the probes of a search: beyond an engine's capacity, small differences become large ones.
    """
    groups: dict[tuple[InstanceKey, tuple[Any, ...]], list[Row]] = {}
    for row in rows:
        if row.get("live") or row.get("probe"):
            continue
        groups.setdefault(((row["host"], row["instance"]), comparison_key(row)), []).append(row)
    found = []
    for (instance, cell), own in groups.items():
        metrics = metrics_of(own[0])
        values = [[_log(row.get(metric.key), metric) for row in own] for metric in metrics]
        main = [value for value in values[0] if value is not None]
        if not main:
            continue
        speeds = tuple(_median(column) for column in values)
        runs = sum(row.get("runs") or 1 for row in own)
        found.append(CellSpeed(instance, cell, metrics, speeds, runs, _interval(own, metrics[0], main)))
    return found


def _log(value: Any, metric: SpeedMetric) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
        return None
    return math.log(value) if metric.higher else -math.log(value)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _interval(rows: Sequence[Row], metric: SpeedMetric, speeds: Sequence[float]) -> Interval | None:
    """Return the interval that a summary states; of single runs, the range of at least three."""
    if len(rows) == 1:
        if rows[0].get("metric", metric.key) != metric.key:
            return None
        ends = [_log(end, metric) for end in rows[0].get("interval") or ()]
        known = sorted(end for end in ends if end is not None)
        return (known[0], known[-1]) if len(known) == 2 else None
    return (min(speeds), max(speeds)) if len(speeds) >= 3 else None
