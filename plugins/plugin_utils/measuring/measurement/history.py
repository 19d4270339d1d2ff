# SPDX-License-Identifier: Apache-2.0
"""Follow the cells of a deployment over its runs. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ....module_utils.benchmarks.intervals import median_interval
from .requests import LoadPoint
from .rows import ComparedMetric, Row, TokenLengths, cell_name, load_of, main_metrics, shape_of, value_of


@dataclass(frozen=True)
class HistoryPoint:
    """A cell in one run: the median over instances and repeats, and the interval of the repeats (None below 3).

    image, digest, vllm: what served, several joined by a comma, "" if unknown. changed: those that are new.
    """

    run: str
    started: str
    value: float
    low: float | None
    high: float | None
    runs: int
    instances: int
    image: str
    digest: str
    vllm: str
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class CellHistory:
    """The points of a cell in the order of their runs."""

    cell: str
    kind: str
    load: LoadPoint
    gpus: int
    metric: ComparedMetric
    points: tuple[HistoryPoint, ...]

    @property
    def change(self) -> float | None:
        """Return the change of the last value from the one before, as a share; None if there is only one."""
        return self.points[-1].value / self.points[-2].value - 1 if len(self.points) > 1 else None


_Key = tuple[str, str, TokenLengths, LoadPoint, int]


def cell_histories(rows: Iterable[tuple[str, Row]]) -> list[CellHistory]:
    """Return the histories of the cells in (run, row), whose runs are in the order in which they were measured.

    Runs without a request that succeeded leave no point.
    """
    cells: dict[_Key, dict[str, list[Row]]] = {}
    for run, row in rows:
        key = (str(row["kind"]), cell_name(row), shape_of(row), load_of(row), len(row.get("gpus") or ()))
        cells.setdefault(key, {}).setdefault(run, []).append(row)
    found = []
    for (kind, cell, _shape, load, gpus), runs in cells.items():
        metric = _metric([row for own in runs.values() for row in own])
        points: list[HistoryPoint] = []
        for run, own in runs.items():
            point = _point(run, own, metric, points[-1] if points else None)
            points += [point] if point else []
        if points:
            found.append(CellHistory(cell, kind, load, gpus, metric, tuple(points)))
    return found


def _metric(rows: Sequence[Row]) -> ComparedMetric:
    candidates = list(main_metrics(rows[0]))
    return next(
        (metric for metric in candidates if any(value_of(row, metric) for row in rows)), candidates[0]
    )


def _point(
    run: str, rows: Sequence[Row], metric: ComparedMetric, last: HistoryPoint | None
) -> HistoryPoint | None:
    values = [(row, value) for row in rows if (value := value_of(row, metric)) is not None]
    if not values:
        return None
    blocks: dict[int, list[float]] = {}
    for row, value in values:
        blocks.setdefault(row.get("block") or 0, []).append(value)
    repeats = [statistics.median(own) for own in blocks.values()]
    low, high = median_interval(repeats) or (None, None)
    served = [row for row, _value in values]
    point = HistoryPoint(
        run=run,
        started=min(str(row.get("started") or "") for row in served),
        value=statistics.median(value for _row, value in values),
        low=low,
        high=high,
        runs=len(repeats),
        instances=len({(row["host"], row["instance"]) for row in served}),
        image=_joined(row.get("image") for row in served),
        digest=_joined(row.get("digest") for row in served),
        vllm=_joined(_version(row) for row in served),
    )
    changed = tuple(
        name for name in ("image", "digest", "vllm") if last and getattr(last, name) != getattr(point, name)
    )
    return HistoryPoint(**{**point.__dict__, "changed": changed})


def _version(row: Row) -> object:
    versions = row.get("versions")
    return versions.get("vllm") if isinstance(versions, Mapping) else None


def _joined(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values if value}))
