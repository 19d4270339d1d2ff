# SPDX-License-Identifier: Apache-2.0
"""Find sums over instances that were not measured at the same time, from the starts and ends of their runs. Pure.

The clients of several instances are not synchronized: jobs start together, and each continues when it is done.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from .slo_searches import is_probe

Row = Mapping[str, Any]
CellOfInstance = tuple[str, str, str, str]
"""Host, instance, kind and cell."""

TOGETHER = 0.9
"""Share of the time from which runs count as simultaneous."""
STAMPS, CLOCKS = 1.0, 5.0
"""Seconds by which starts may be off relative to each other: on one host (they are whole seconds), and on two, whose
clocks may differ by as much as the audit accepts (`clock` in catalog/host_items.yml)."""


def overlaps(rows: Iterable[Row]) -> dict[CellOfInstance, float]:
    """Return, for each cell of an instance, the share of its time in which another instance ran the same cell.

    It is the mean over the deployment's other instances. Runs are compared with those of the same block: a repeat that
    only some instances needed did not run together with the others. A cell of a single instance, or without times, has
    no share; nor has a probe of a search, as each instance has its own loads.
    """
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["started"] and row["seconds"] and not is_probe(row):
            groups.setdefault((row["deployment"], row["kind"], row["cell"]), []).append(row)
    found: dict[CellOfInstance, float] = {}
    for own in groups.values():
        others = len({_key(row) for row in own}) - 1
        if others:
            for key, (together, seconds) in _seconds(own).items():
                found[key] = round(together / (others * seconds), 3)
    return found


def non_overlapping_sums(rows: Sequence[Row]) -> dict[tuple[str, str, str], float]:
    """Return the sums that were not measured at the same time (deployment, kind, cell), with their shares."""
    shares: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row.get("overlap") is not None:
            shares.setdefault((row["deployment"], row["kind"], row["cell"]), []).append(row["overlap"])
    return {key: share for key, own in shares.items() if (share := statistics.fmean(own)) < TOGETHER}


def _key(row: Row) -> CellOfInstance:
    return row["host"], row["instance"], row["kind"], row["cell"]


def _seconds(rows: Sequence[Row]) -> dict[CellOfInstance, tuple[float, float]]:
    """Return the seconds for which each instance's runs overlap with the others', summed, and those of its runs."""
    import numpy as np

    found: dict[CellOfInstance, tuple[float, float]] = {}
    blocks: dict[object, list[Row]] = {}
    for row in rows:
        blocks.setdefault(row["block"], []).append(row)
    for own in blocks.values():
        starts, ends = np.array([_window(row) for row in own]).T
        lengths = ends - starts
        hosts = np.unique([row["host"] for row in own], return_inverse=True)[1]
        for at, row in enumerate(own):
            wrong = np.where(hosts == hosts[at], STAMPS, CLOCKS)
            both = np.minimum(ends, ends[at]) - np.maximum(starts, starts[at]) + wrong
            both = np.clip(both, 0, np.minimum(lengths, lengths[at]))
            both[at] = 0
            together, seconds = found.get(_key(row), (0.0, 0.0))
            found[_key(row)] = together + float(both.sum()), seconds + float(lengths[at])
    return found


def _window(row: Row) -> tuple[float, float]:
    """Return when the requests of a run began and ended, in seconds; the start-up of the client is before them."""
    started = datetime.strptime(f"{row['started']}+0000", "%Y-%m-%dT%H:%M:%SZ%z").timestamp()
    end = started + row["seconds"]
    return end - min(row["seconds"], row.get("duration_s") or row["seconds"]), end
