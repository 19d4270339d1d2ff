# SPDX-License-Identifier: Apache-2.0
"""The speed of rows and nodes against the median of those that did the same work, and which of them are slow.

What is slow was judged when the summary was built (outliers/verdicts.py, `gpu_verdicts` of summary.json).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from ...module_utils.common.errors import natural
from ..outliers.robust import MIN_SLOWER
from ..outliers.samples import cell_speeds, comparison_key
from .rows import ended
from .tables import total_of

LIMIT = 1 - MIN_SLOWER
"""Speed, as a share of the median, above which nothing is called slow."""

Row = Mapping[str, Any]
Verdicts = Sequence[Mapping[str, Any]]
"""`gpu_verdicts` of summary.json."""


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
    return [_speed(row, groups.get(comparison_key(row), []), verdicts) for row in rows]


def node_speeds(rows: Sequence[Row], verdicts: Verdicts) -> list[NodeSpeed]:
    """Return the speed of each node by rows of which each deployment has one cell, in natural order of the names."""
    served = [row for row in rows if row["kind"] == "serve"]
    per_row = speeds(served, verdicts)
    nodes = []
    for host in sorted({row["host"] for row in served}, key=natural):
        own = [(row, speed) for row, speed in zip(served, per_row) if row["host"] == host]
        known = [speed.value for _unused, speed in own if speed.value is not None]
        instances = {row["instance"] for row, _unused in own}
        # One slow GPU of several does not make the node slow.
        whole = [item for item in verdicts if item["scope"] == "node" or len(instances) == 1]
        nodes.append(
            NodeSpeed(
                host=host,
                instances=len(instances),
                output_throughput=total_of([row for row, _unused in own], "output_throughput"),
                value=statistics.fmean(known) if known else None,
                slow=_reasons(host, instances, whole),
            )
        )
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


def _speed(row: Row, group: Sequence[float], verdicts: Verdicts) -> RelativeSpeed:
    own = cell_speeds([row])
    value = None
    if own and len(group) > 1:
        value = math.exp((own[0].speeds[0] or 0.0) - statistics.median(group))
    return RelativeSpeed(value, _reasons(row["host"], {row["instance"]}, verdicts))


def _reasons(host: str, instances: Set[str], verdicts: Verdicts) -> tuple[str, ...]:
    """Return why instances of a host are slow, each reason once; empty if they are not."""
    found = (
        reason
        for verdict in verdicts
        if verdict["host"] == host and verdict["speed"] == "slow"
        if not instances.isdisjoint(verdict["instances"])
        for reason in verdict["reasons"]
    )
    return tuple(dict.fromkeys(found))
