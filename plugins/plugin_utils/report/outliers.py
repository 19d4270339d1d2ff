# SPDX-License-Identifier: Apache-2.0
"""Compare nodes that do the same work: every instance with the median of comparable ones."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils.common.errors import natural
from .rows import ended

SLOW = 0.10
"""Ten percent worse than the median is slow. Equal nodes differ by a few percent between runs."""

Row = Mapping[str, Any]

# The metrics that are compared: the first is the speed, the others reveal slowness too. At a fixed request rate every
# node has the same throughput, and only the time per token reveals a slow one.
_MEASURES: Mapping[str, tuple[tuple[str, bool, str], ...]] = {
    "serve": (("output_throughput", True, "output tok/s"), ("median_tpot_ms", False, "TPOT p50")),
    "throughput": (("total_token_throughput", True, "total tok/s"),),
    "latency": (("mean_batch_latency_ms", False, "batch latency"),),
}


@dataclass(frozen=True)
class RelativeSpeed:
    """One row compared with similar ones. `value` is 1.0 at the median and None if there is no similar row."""

    value: float | None
    slow: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeSpeed:
    """A node: the sum of its instances against the sum of their medians, and why it is slow, if it is."""

    host: str
    instances: int
    output_throughput: float | None
    value: float | None
    slow: tuple[str, ...] = ()


def comparison_key(row: Row) -> tuple[Any, ...]:
    """Return the key that is equal for rows with the same work on the same number of GPUs."""
    load = (row["num_prompts"], row["max_concurrency"], row["request_rate"])
    return (row["deployment"], row["kind"], row["cell"], len(row["gpus"]), *load)


def speeds(rows: Sequence[Row]) -> list[RelativeSpeed]:
    """Return the the speed of each row, in the order of `rows`."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(comparison_key(row), []).append(row)
    return [_speed(row, groups[comparison_key(row)]) for row in rows]


def node_speeds(rows: Sequence[Row]) -> list[NodeSpeed]:
    """Return the the speed of each node, over its serving benchmarks, in natural order of the names."""
    served = [row for row in rows if row["kind"] == "serve"]
    per_row = speeds(served)
    nodes = []
    for host in sorted({row["host"] for row in served}, key=natural):
        own = [(row, speed) for row, speed in zip(served, per_row) if row["host"] == host]
        done = [row["output_throughput"] for row, _unused in own if row["output_throughput"] is not None]
        # An instance's median is its result divided by its relative speed.
        known = [
            (row["output_throughput"], row["output_throughput"] / speed.value)
            for row, speed in own
            if row["output_throughput"] is not None and speed.value
        ]
        expected = sum(median for _unused, median in known)
        value = sum(rate for rate, _unused in known) / expected if expected else None
        cells = len({row["cell"] for row, _unused in own})
        slow = [
            (f"{row['instance']}{', ' + row['cell'] if cells > 1 else ''}: " if len(own) > 1 else "")
            + ", ".join(speed.slow)
            for row, speed in own
            if speed.slow
        ]
        if value is not None and value < 1 - SLOW and len(own) > 1:
            slow.insert(0, f"output tok/s of the node {_percent(1 - value)} below the median")
        instances = len({row["instance"] for row, _unused in own})
        nodes.append(NodeSpeed(host, instances, sum(done) if done else None, value, tuple(slow)))
    return nodes


def sequential_hosts(rows: Sequence[Row]) -> list[str]:
    """Return hosts whose serving benchmarks did not run at the same time, so that their sum is not a real load.

    Only benchmarks of one host and one cell are compared, as clocks of several hosts may differ.
    """
    windows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row in rows:
        end = ended(row)
        if row["kind"] == "serve" and end is not None:
            windows.setdefault((row["host"], row["cell"]), []).append((row["started"], end))
    apart = {
        host
        for (host, _cell), own in windows.items()
        if max(start for start, _unused in own) > min(end for _unused, end in own)
    }
    return sorted(apart, key=natural)


def reference(values: Sequence[float], higher_is_better: bool) -> float:
    """Return the median; of an even number, the better of the middle two, so that one of two nodes can be slow."""
    return statistics.median_high(values) if higher_is_better else statistics.median_low(values)


def _speed(row: Row, group: Sequence[Row]) -> RelativeSpeed:
    first: float | None = None
    slow = []
    for position, (metric, higher, label) in enumerate(_MEASURES[row["kind"]]):
        values = [other[metric] for other in group if other[metric] is not None]
        if row[metric] is None or len(values) < 2:
            continue
        median = reference(values, higher)
        if not median or (not higher and not row[metric]):
            continue
        if position == 0:
            first = row[metric] / median if higher else median / row[metric]
        off = 1 - row[metric] / median if higher else row[metric] / median - 1
        if off > SLOW:
            slow.append(f"{label} {_percent(off)} {'below' if higher else 'above'} the median")
    return RelativeSpeed(first, tuple(slow))


def _percent(share: float) -> str:
    return f"{share * 100:.0f}%"
