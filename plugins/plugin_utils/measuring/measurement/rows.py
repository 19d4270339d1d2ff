# SPDX-License-Identifier: Apache-2.0
"""Read rows of results, including those from before suites: the cell that a row measured, and its main metric. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .commands import options
from .requests import LoadPoint

Row = Mapping[str, Any]

_LENGTHS = {
    "input": ("--random-input-len", "--input-len", "--sonnet-input-len"),
    "output": ("--random-output-len", "--output-len", "--sonnet-output-len", "--sharegpt-output-len"),
}


@dataclass(frozen=True)
class ComparedMetric:
    """A number by which runs are compared."""

    key: str
    label: str
    unit: str
    more_is_better: bool


OUTPUT = ComparedMetric("output_throughput", "output throughput", "tok/s", True)
REQUESTS = ComparedMetric("request_throughput", "request throughput", "requests/s", True)
TOTAL = ComparedMetric("total_token_throughput", "total throughput", "tok/s", True)
E2EL = ComparedMetric("median_e2el_ms", "median E2EL", "ms", False)
TPOT = ComparedMetric("median_tpot_ms", "median TPOT", "ms", False)
TTFT = ComparedMetric("median_ttft_ms", "median TTFT", "ms", False)
BATCH = ComparedMetric("mean_batch_latency_ms", "batch latency", "ms", False)
METRICS = (OUTPUT, REQUESTS, TOTAL, E2EL, TPOT, TTFT, BATCH)

MOST_FAILED = 0.01
"""Share of failed requests up to which the others show what an engine can do: failures are seldom random."""


class TokenLengths(NamedTuple):
    """Tokens of a request; None where the data set decides."""

    input: int | None = None
    output: int | None = None


def load_of(row: Row) -> LoadPoint:
    """Return the load of a row: as the row says, or by the client's arguments."""
    given = row.get("load")
    if isinstance(given, Mapping):
        return LoadPoint(str(given.get("kind")), _number(given.get("value")))
    if row.get("kind") == "latency":
        return LoadPoint("batch", _number(options(row.get("command")).get("--batch-size")))
    rate, limit = _number(row.get("request_rate")), _number(row.get("max_concurrency"))
    if rate is not None:
        return LoadPoint("rate", rate)
    return LoadPoint("all") if limit is None else LoadPoint("concurrency", limit)


def shape_of(row: Row) -> TokenLengths:
    """Return the lengths of a row's requests."""
    given = row.get("shape")
    if isinstance(given, Mapping):
        lengths = {name: _number(given.get(name)) for name in _LENGTHS}
    else:
        named = options(row.get("command"))
        lengths = {
            name: next((_number(named[option]) for option in names if option in named), None)
            for name, names in _LENGTHS.items()
        }
    return TokenLengths(*(None if value is None else int(value) for value in lengths.values()))


def cell_name(row: Row) -> str:
    """Return the name of a row's cell, such as in1024-out1024-c128."""
    if row.get("cell"):
        return str(row["cell"])
    shape, load = shape_of(row), load_of(row)
    parts = [f"in{shape.input}"] if shape.input else []
    parts += [f"out{shape.output}"] if shape.output else []
    letter = {"concurrency": "c", "rate": "r", "batch": "b"}.get(load.kind)
    parts += [f"{letter}{load.value:g}"] if letter and load.value is not None else []
    return "-".join(parts) or str(row.get("kind"))


def main_metrics(row: Row) -> Iterator[ComparedMetric]:
    """Yield the metrics that decide on a row's cell, best first; the first one that all runs have is used.

    At a given rate, every engine that keeps up has the same throughput: there the latency decides.
    """
    if row["kind"] == "latency":
        yield BATCH
    elif row["kind"] == "throughput":
        yield from (TOTAL, REQUESTS)
    elif load_of(row).kind == "rate":
        yield from (E2EL, TPOT, TTFT)
    else:
        yield from (OUTPUT, REQUESTS)


def has_success(row: Row) -> bool:
    """Return whether a row has a request that succeeded or, offline, a result."""
    if row["kind"] == "latency":
        return bool(row.get(BATCH.key))
    return bool(row.get("completed"))


def failed_share(rows: Iterable[Row]) -> float:
    """Return the share of the requests of rows that failed; 0.0 where none was sent."""
    counts = [(row.get("failed") or 0, row.get("completed") or 0) for row in rows]
    failed = sum(count for count, _completed in counts)
    total = failed + sum(completed for _failed, completed in counts)
    return failed / total if total else 0.0


def value_of(row: Row, metric: ComparedMetric) -> float | None:
    """Return a row's value of a metric; None if it was not measured, as 0 means too."""
    value = _number(row.get(metric.key))
    return value if value and has_success(row) else None


def _number(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) != float("inf") else None
