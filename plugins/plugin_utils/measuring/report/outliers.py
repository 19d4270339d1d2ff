# SPDX-License-Identifier: Apache-2.0
"""The speed of rows and nodes against the median of those that did the same work, and which of them are slow.

What is slow was judged when the summary was built (outliers/verdicts.py, `gpu_verdicts` of summary.json).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.common.errors import natural
from ..outliers.robust import MIN_SLOWER
from ..outliers.samples import InstanceKey, cell_speeds, comparison_key
from ..summary.tables import total_of

LIMIT = 1 - MIN_SLOWER
"""Speed, as a share of the median, above which nothing is called slow."""

Row = Mapping[str, Any]
Verdicts = Sequence[Mapping[str, Any]]
"""`gpu_verdicts` of summary.json."""
Reasons = Mapping[InstanceKey, tuple[str, ...]]


@dataclass(frozen=True)
class RelativeSpeed:
    """One row compared with similar ones. `value` is 1.0 at the median and None if there is no similar row."""

    value: float | None
    slow: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeSpeed:
    """A node: its instances' throughput, its speed (1.0 at the median), and why it is slow, if it is."""

    host: str
    instances: int
    output_throughput: float | None
    value: float | None
    slow: tuple[str, ...] = ()


def speeds(rows: Sequence[Row], verdicts: Verdicts) -> list[RelativeSpeed]:
    """Return the speed of each row, in the order of `rows`."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for cell in cell_speeds(rows):
        groups.setdefault(cell.cell, []).append(cell.speeds[0] or 0.0)
    medians = {cell: statistics.median(group) for cell, group in groups.items() if len(group) > 1}
    reasons = _reasons(verdicts)
    return [_speed(row, medians.get(comparison_key(row)), reasons) for row in rows]


def node_speeds(rows: Sequence[Row], verdicts: Verdicts) -> list[NodeSpeed]:
    """Return the speed of each node by rows of which each deployment has one cell, in natural order of the names."""
    served = [row for row in rows if row["kind"] == "serve"]
    per_row = speeds(served, verdicts)
    whole = _reasons([verdict for verdict in verdicts if verdict["scope"] == "node"])
    by_host: dict[str, list[tuple[Row, RelativeSpeed]]] = {}
    for row, speed in zip(served, per_row):
        by_host.setdefault(row["host"], []).append((row, speed))
    nodes = []
    for host in sorted(by_host, key=natural):
        own = by_host[host]
        known = [speed.value for _unused, speed in own if speed.value is not None]
        instances = {row["instance"] for row, _unused in own}
        # One slow GPU of several does not make the node slow.
        slow = [reason for name in sorted(instances) for reason in whole.get((host, name), ())]
        if len(instances) == 1:
            slow = [reason for _unused, speed in own for reason in speed.slow]
        nodes.append(
            NodeSpeed(
                host=host,
                instances=len(instances),
                output_throughput=total_of([row for row, _unused in own], "output_throughput"),
                value=statistics.fmean(known) if known else None,
                slow=tuple(dict.fromkeys(slow)),
            )
        )
    return nodes


def _speed(row: Row, median: float | None, reasons: Reasons) -> RelativeSpeed:
    own = cell_speeds([row])
    value = math.exp((own[0].speeds[0] or 0.0) - median) if own and median is not None else None
    return RelativeSpeed(value, reasons.get((row["host"], row["instance"]), ()))


def _reasons(verdicts: Verdicts) -> Reasons:
    """Return why instances are slow, each reason once, by host and instance; only for those that are slow."""
    found: dict[InstanceKey, dict[str, None]] = {}
    for verdict in verdicts:
        if verdict["speed"] == "slow":
            for instance in verdict["instances"]:
                found.setdefault((verdict["host"], instance), {}).update(dict.fromkeys(verdict["reasons"]))
    return {key: tuple(reasons) for key, reasons in found.items()}
