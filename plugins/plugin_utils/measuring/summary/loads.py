# SPDX-License-Identifier: Apache-2.0
"""Sum up the instances of a deployment under each load: throughput per GPU, interactivity, power. Pure.

Interactivity is what one user sees, in output tokens/s: 1000 / median TPOT in ms.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.benchmarks.intervals import median_interval
from ..measurement.commands import options
from ..outliers.evidence import physical_indices
from .cell_summary import counted_runs, median
from .tables import total_of
from .titles import by_cell

Row = Mapping[str, Any]
Hosts = Mapping[str, Mapping[str, Any]]

_LOAD = re.compile(r"(^|-)(c[0-9.]+|r[0-9.]+(-c[0-9.]+)?|all)$")
_PARALLEL = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")


@dataclass(frozen=True)
class Interval:
    """A number, and the ends of its 95 % interval: None if any instance has fewer than three known runs."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        """Return half the width of the interval as a share of the value (0.02: ±2 %)."""
        if self.low is None or self.high is None or not self.value:
            return None
        return (self.high - self.low) / 2 / self.value


@dataclass(frozen=True)
class LoadFigures:
    """All instances of a deployment under one load.

    Attributes:
        rows: the cell summaries of the instances
        gpus: how many GPUs they have together; 0 if it is not known
        per_gpu: output tokens/s of each GPU; None if not known
        per_user: interactivity, median over the instances
        power_w: of one GPU; None unless it is valid for all instances
        joules: for each output token; None unless it is valid for all instances
        hbm, flop: shares of the roofline, medians over the instances
    """

    rows: Sequence[Row]
    gpus: int
    per_gpu: Interval | None
    per_user: Interval | None
    power_w: float | None
    joules: float | None
    hbm: float | None
    flop: float | None

    @property
    def cell(self) -> str:
        """Return the name of the cell."""
        return str(self.rows[0]["cell"])


@dataclass(frozen=True)
class Curve:
    """The loads of one shape, from the highest interactivity on. kind: concurrency or rate."""

    name: str
    kind: str
    points: tuple[tuple[str, LoadFigures], ...]


def load_figures(rows: Sequence[Row], runs: Sequence[Row], hosts: Hosts) -> list[LoadFigures]:
    """Return the loads of the serving benchmarks of a deployment. runs: the single runs, for the intervals."""
    of_cell: dict[tuple[str, str, str], list[Row]] = {}
    for run in runs:
        if run["kind"] == "serve":
            of_cell.setdefault((run["cell"], run["host"], run["instance"]), []).append(run)
    counted = {key: counted_runs(performed) for key, performed in of_cell.items()}
    return [
        _figures(own, [counted.get((row["cell"], row["host"], row["instance"]), []) for row in own], hosts)
        for own in by_cell(rows)
    ]


def curves(figures: Sequence[LoadFigures]) -> list[Curve]:
    """Return a curve for each shape: concurrencies and rates apart, as latency means another thing in each."""
    found: dict[tuple[str, str], list[tuple[str, LoadFigures]]] = {}
    for item in figures:
        if item.per_gpu is None or item.per_user is None:
            continue
        load = item.rows[0]["load"]
        kind = "rate" if load["kind"] == "rate" else "concurrency"
        label = "all" if load["value"] is None else f"{load['value']:g}"
        found.setdefault((kind, _shape(item.cell, item.rows[0])), []).append((label, item))
    return [
        Curve(name, kind, tuple(sorted(points, key=lambda point: -_value(point[1].per_user))))
        for (kind, name), points in found.items()
    ]


def gpu_count(rows: Sequence[Row], hosts: Hosts) -> int:
    """Return on how many GPUs instances run: partitions of one GPU count once, and GPUs of other nodes count too."""
    places: set[tuple[str, int]] = set()
    elsewhere = 0
    for row in rows:
        own = physical_indices(row["gpus"], hosts.get(row["host"], {}).get("gpus") or [])
        places |= {(row["host"], index) for index in own}
        # An engine across several nodes is measured at its first one, whose command line says how large it is.
        named = options(row.get("serve_command"))
        ranks = math.prod(int(value) for name in _PARALLEL if (value := named.get(name, "1")).isdigit())
        elsewhere += max(0, ranks - len(row["gpus"])) if row["gpus"] else 0
    return len(places) + elsewhere


def _figures(rows: Sequence[Row], runs: Sequence[Sequence[Row]], hosts: Hosts) -> LoadFigures:
    gpus = gpu_count(rows, hosts)
    output = total_of(rows, "output_throughput")
    power = total_of(rows, "power_w") if all(row["power_w"] is not None for row in rows) else None
    return LoadFigures(
        rows=rows,
        gpus=gpus,
        per_gpu=_per_gpu(rows, runs, gpus) if gpus and output else None,
        per_user=_per_user(rows, runs),
        power_w=power / gpus if power is not None and gpus else None,
        joules=power / output if power is not None and output else None,
        hbm=median([row["hbm_share"] for row in rows]),
        flop=median([row["flop_share"] for row in rows]),
    )


def _per_gpu(rows: Sequence[Row], runs: Sequence[Sequence[Row]], gpus: int) -> Interval:
    value = (total_of(rows, "output_throughput") or 0.0) / gpus
    halves = [_half(row, own, "output_throughput") for row, own in zip(rows, runs)]
    # Errors of instances are independent, so the error of their sum is smaller than the sum of their errors.
    known = [half for half in halves if half is not None]
    return _around(value, math.hypot(*known) / gpus if len(known) == len(halves) else None)


def _per_user(rows: Sequence[Row], runs: Sequence[Sequence[Row]]) -> Interval | None:
    tpots = [row["median_tpot_ms"] for row in rows if row["median_tpot_ms"]]
    if not tpots:
        return None
    value = 1000 / statistics.median(tpots)
    halves = [
        half / row["median_tpot_ms"]
        for row, own in zip(rows, runs)
        if (half := _half(row, own, "median_tpot_ms")) is not None
    ]
    return _around(value, value * math.hypot(*halves) / len(halves) if len(halves) == len(rows) else None)


def _half(row: Row, runs: Sequence[Row], key: str) -> float | None:
    """Return half the width of the interval of a metric over an instance's runs."""
    values = [run[key] for run in runs if run.get(key) is not None]
    found = median_interval(values) if values else row["interval"] if row["metric"] == key else None
    return (found[1] - found[0]) / 2 if found and row.get(key) is not None else None


def _around(value: float, half: float | None) -> Interval:
    return Interval(value) if half is None else Interval(value, value - half, value + half)


def _value(estimate: Interval | None) -> float:
    return estimate.value if estimate else 0.0


def _shape(cell: str, row: Row) -> str:
    """Return a shape for people, with the variant of the engine in front of it: "16k: 1,024 tokens in, 512 out"."""
    name, shape = _LOAD.sub("", cell), row["shape"]
    if not shape or not shape.get("input"):
        return name or "the data set's lengths"
    variant = name.rpartition(f"in{shape['input']}-out")[0].rstrip("-")
    text = f"{shape['input']:,} tokens in, {shape['output']:,} out"
    return f"{variant}: {text}" if variant else text
