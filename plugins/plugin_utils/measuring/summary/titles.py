# SPDX-License-Identifier: Apache-2.0
"""Group the rows of a summary by cell, with a title that says what load it was. Pure.

Rates and concurrencies never share a title: at a rate, latency includes the queue in front of the server; at a
concurrency, the client waits instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....module_utils.common.errors import natural
from ..statistics.percentiles import shortfall, supported_percentiles
from .overlap import non_overlapping_sums
from .tables import total_of

Row = Mapping[str, Any]
_KINDS = ("concurrency", "all", "rate", "batch")
_PERCENTILES = (90.0, 95.0, 99.0)


def by_cell(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each cell: concurrencies first, then rates; by shape and value."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["cell"], []).append(row)
    return sorted(
        groups.values(), key=lambda own: (_KINDS.index(own[0]["load"]["kind"]), natural(own[0]["cell"]))
    )


def title(row: Row) -> str:
    """Return what a cell measures: "1,024 tokens in, 1,024 out, at most 128 requests at once"."""
    shape, load = row["shape"], row["load"]
    parts = [f"{shape['input']:,} tokens in, {shape['output']:,} out"] if shape else []
    value = load["value"]
    parts.append(
        {
            "concurrency": f"at most {value:,} requests at once" if value else "",
            "rate": f"{value:g} requests/s offered" if value else "",
            "batch": f"batches of {value:,}" if value else "",
            "all": "all requests at once",
        }[load["kind"]]
    )
    return ", ".join(parts)


def headline_rows(served: Sequence[Row]) -> list[Row]:
    """Return the rows whose sum is the fleet's figure: of each deployment the cell of highest output throughput."""
    chosen: list[Row] = []
    for name in sorted({row["deployment"] for row in served}, key=natural):
        cells = by_cell([row for row in served if row["deployment"] == name])
        totals = [total_of(own, "output_throughput") or 0.0 for own in cells]
        chosen += cells[totals.index(max(totals))]
    return chosen


def notes(rows: Sequence[Row]) -> list[str]:
    """Return what a reader of the figures must know, each as one sentence."""
    found = []
    if sums := non_overlapping_sums(rows):
        names = _listed(list(dict.fromkeys(cell for _deployment, _kind, cell in sums)))
        found.append(
            f"Not measured at the same time: {names}. The instances' runs overlapped for {min(sums.values()):.0%} of "
            "the time, so their sum is not that of a fleet under load at the same time. benchmark.yml -e at_once=true "
            "measures all instances together."
        )
    bound = [row for row in rows if row["client_bound"]]
    if bound:
        found.append(f"The client, not the server, was the limit of {_named(bound)}.")
    short: dict[tuple[float, ...], list[Row]] = {}
    for row in rows:
        if row["kind"] == "serve" and row["completed"] is not None:
            short.setdefault(supported_percentiles(_PERCENTILES, row["completed"]), []).append(row)
    for own in short.values():
        if few := shortfall(_PERCENTILES, max(row["completed"] for row in own)):
            found.append(f"{_named(own)}: {few}; they are null.")
    for text in dict.fromkeys(text for row in rows for text in row["warnings"]):
        found.append(f"{_named([row for row in rows if text in row['warnings']])}: {text}.")
    return found


def _named(rows: Sequence[Row]) -> str:
    return _listed(list(dict.fromkeys(row["cell"] for row in rows)))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more cells" if len(names) > 4 else "")
