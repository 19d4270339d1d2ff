# SPDX-License-Identifier: Apache-2.0
"""Compare two sides cell by cell: better, worse, the same within a tolerance, or not clear and what is needed. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..statistics.designs import DRIFT, Effect, TimedValue, effect
from ..statistics.holm import step_down
from ..statistics.needed_runs import needs_of
from ..statistics.shift import LEVEL
from .cells import CellKey, Side, UnmatchedCell, by_cell, unmatched_cells
from .rows import (
    MOST_FAILED,
    TPOT,
    TTFT,
    ComparedMetric,
    Row,
    failed_share,
    has_success,
    main_metrics,
    value_of,
)

BETTER, WORSE, SAME, NOT_CLEAR = "better", "worse", "same", "not clear"
TOLERANCE = 0.02
"""Differences up to this share do not matter."""


@dataclass(frozen=True)
class ComparisonRules:
    """tolerance: share within which cells are the same. drift: between sessions, a standard deviation as a share."""

    tolerance: float = TOLERANCE
    drift: float = DRIFT


@dataclass(frozen=True)
class CellVerdict:
    """One cell, a against b. change, low, high: shares (-0.05: 5 % less); level: of the interval, after Holm.

    a, b: medians of the runs. needs: what would make it clear, "" if it is clear. others: change of the other metrics.
    """

    key: CellKey
    metric: ComparedMetric
    verdict: str
    a: float | None
    b: float | None
    runs: tuple[int, int]
    change: float | None = None
    low: float | None = None
    high: float | None = None
    level: float = LEVEL
    design: str = ""
    units: int = 0
    needs: str = ""
    others: Mapping[str, float | None] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunComparison:
    """All cells that both sides measured, and those that only one did."""

    cells: tuple[CellVerdict, ...]
    unmatched: tuple[UnmatchedCell, ...]

    @property
    def worse(self) -> tuple[CellVerdict, ...]:
        """Return the cells in which a is worse."""
        return tuple(cell for cell in self.cells if cell.verdict == WORSE)

    @property
    def mean(self) -> float | None:
        """Return the geometric mean of the ratios a/b of speed over the cells, minus 1; None without any."""
        logs = [
            math.log1p(cell.change) * (1 if cell.metric.more_is_better else -1)
            for cell in self.cells
            if cell.change is not None
        ]
        return math.expm1(statistics.fmean(logs)) if logs else None


def compare(a: Side, b: Side, rules: ComparisonRules | None = None) -> RunComparison:
    """Judge side a against side b, with a probability of 5 % that any cell is wrongly called better or worse.

    Holm's procedure corrects for the number of cells.
    """
    rules = rules or ComparisonRules()
    new, old = by_cell(a), by_cell(b)
    both = {key: (new[key], old[key]) for key in new if key in old}
    decided = step_down(
        both,
        lambda key, level: _judge(key, *both[key], rules, level),
        lambda cell: cell.verdict != NOT_CLEAR,
        LEVEL,
    )
    missing = (*unmatched_cells("a", new, old), *unmatched_cells("b", old, new))
    return RunComparison(tuple(decided.values()), missing)


def _judge(
    key: CellKey, new: Sequence[Row], old: Sequence[Row], rules: ComparisonRules, level: float
) -> CellVerdict:
    metric = _metric(new, old)
    values = {"a": _timed("a", new, metric), "b": _timed("b", old, metric)}
    a, b = (_median(values[side]) for side in "ab")
    runs = len(values["a"]), len(values["b"])
    failures = {side: failed_share(rows) for side, rows in (("a", new), ("b", old))}
    failing = [side for side, share in failures.items() if share > MOST_FAILED]
    notes = (
        *(f"{failures[side]:.0%} of the requests failed in {side}" for side in failing),
        *_one_sided("a", "b", new, old),
        *_one_sided("b", "a", old, new),
    )
    if not any(map(has_success, new)) and values["b"]:
        return CellVerdict(key, metric, WORSE, None, b, runs, notes=("no request succeeded in a", *notes))
    found = effect([*values["a"], *values["b"]], rules.drift, level)
    if found is None:
        needs = "needs runs of both on one instance"
        return CellVerdict(key, metric, NOT_CLEAR, a, b, runs, needs=needs, notes=notes)
    verdict = _verdict(found, metric, rules.tolerance)
    needs = needs_of(found, rules.tolerance, level) if verdict == NOT_CLEAR else ""
    if failing:  # an engine that fails its hardest requests is fast with the others
        verdict = WORSE if failing == ["a"] else NOT_CLEAR
        needs = "" if verdict == WORSE else f"needs runs of {' and '.join(failing)} whose requests succeed"
    estimate = found.estimate
    return CellVerdict(
        key, metric, verdict, a, b, runs,
        change=math.expm1(estimate.estimate),
        low=_finite(estimate.low),
        high=_finite(estimate.high),
        level=level,
        design=found.design,
        units=found.units,
        needs=needs,
        others={item.key: _change(new, old, item) for item in (TTFT, TPOT) if item != metric},
        notes=notes,
    )  # fmt: skip


def _verdict(found: Effect, metric: ComparedMetric, tolerance: float) -> str:
    low, high = sorted(
        value * (1 if metric.more_is_better else -1) for value in (found.estimate.low, found.estimate.high)
    )
    limits = math.log1p(-tolerance), math.log1p(tolerance)
    if high < limits[0]:
        return WORSE
    if low > limits[1]:
        return BETTER
    return SAME if limits[0] <= low and high <= limits[1] else NOT_CLEAR


def _metric(new: Sequence[Row], old: Sequence[Row]) -> ComparedMetric:
    candidates = list(main_metrics(new[0]))
    rows = [row for row in (*new, *old) if has_success(row)]
    complete = (metric for metric in candidates if all(value_of(row, metric) for row in rows))
    return next(complete, candidates[0])


def _timed(side: str, rows: Sequence[Row], metric: ComparedMetric) -> list[TimedValue]:
    return [
        TimedValue(
            (row["host"], row["instance"]),
            side,
            str(row.get("started") or ""),
            math.log(value),
            str(row.get("run") or ""),
        )
        for row in rows
        if (value := value_of(row, metric)) is not None
    ]


def _median(values: Sequence[TimedValue]) -> float | None:
    return statistics.median(math.exp(item.log) for item in values) if values else None


def _change(new: Sequence[Row], old: Sequence[Row], metric: ComparedMetric) -> float | None:
    a, b = (_median(_timed("", rows, metric)) for rows in (new, old))
    return a / b - 1 if a and b else None


def _one_sided(side: str, other: str, rows: Sequence[Row], others: Sequence[Row]) -> tuple[str, ...]:
    """Return which instances have results on only one side, and therefore do not count."""
    own, theirs = (
        {(row["host"], row["instance"]) for row in part if has_success(row)} for part in (rows, others)
    )
    names = sorted("/".join(unit) for unit in own - theirs)
    return (f"not compared, as only {side} has results: {', '.join(names)}",) if names else ()


def _finite(log: float) -> float | None:
    return math.expm1(log) if math.isfinite(log) else None


def cell_json(cell: CellVerdict) -> dict[str, Any]:
    """Return an entry of `cells` in compare.json."""
    key = cell.key
    return {
        "deployment": key.deployment,
        "kind": key.kind,
        "cell": key.cell,
        "load": key.load.to_json(),
        "shape": {"input": key.shape.input, "output": key.shape.output},
        "model": key.model,
        "commit": key.commit or None,
        "precision": key.precision or None,
        "gpus": key.gpus,
        "partition": key.partition or None,
        "metric": cell.metric.key,
        "a": cell.a,
        "b": cell.b,
        "runs": list(cell.runs),
        "change": cell.change,
        "interval": None if cell.low is None or cell.high is None else [cell.low, cell.high],
        "level": cell.level,
        "design": cell.design or None,
        "instances": cell.units,
        "verdict": cell.verdict,
        "needs": cell.needs or None,
        "other_changes": dict(cell.others or {}),
        "notes": list(cell.notes),
    }
