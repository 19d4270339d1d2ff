# SPDX-License-Identifier: Apache-2.0
"""Build what the report says of a deployment as a whole: its loads, and the spread of its GPUs.

Control node only. Plots are functions ("draw", "narrow" for a phone) that return SVG, called when the page is rendered.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...base.text import plural
from ..plots.load_plots import PHONE, interactivity_plot
from ..plots.spread_plot import spread_plot
from ..summary.gpu_spread import MOST_LANES, gpu_readings, lanes, spread_table
from ..summary.loads import Curve, Hosts, LoadFigures, curves
from ..summary.tables import EN_DASH, TIMES, table, total_of

Row = Mapping[str, Any]
_TITLES = {
    "concurrency": "Throughput per GPU against interactivity",
    "rate": "Throughput per GPU against interactivity, at request rates",
}
ROOFLINE = (
    "Roofline. HBM: what a GPU must read in a decode step (weights, touched experts, KV cache) / "
    f"(median TPOT {TIMES} peak bandwidth). FLOP: 2 {TIMES} active parameters {TIMES} tokens/s / "
    f"(GPUs {TIMES} peak dense FLOPS of their data types)."
)
_POINTS = {
    "concurrency": "at the points: requests in flight at each instance",
    "rate": "at the points: requests/s sent to each instance",
}


def loads_section(
    identity: str, figures: Sequence[LoadFigures], slos: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the curves and the table of a deployment's loads; None for a single load, which other figures show."""
    if len(figures) < 2:
        return None
    found = curves(figures)
    plots = []
    for kind, title in _TITLES.items():
        own = [curve for curve in found if curve.kind == kind]
        if sum(len(curve.points) for curve in own) > 1:
            plots.append(_curves_plot(f"curves-{kind}-{identity}", title, own, slos))
    return {"plots": plots, "table": _table(figures, slos), "note": roofline_text(figures)}


def roofline_text(figures: Sequence[LoadFigures]) -> str:
    """Return how the shares of the roofline are computed and why some are missing; "" if all are missing."""
    missing = dict.fromkeys(
        str(row["roofline_note"]) for item in figures for row in item.rows if row["roofline_note"]
    )
    if all(item.hbm is None and item.flop is None for item in figures):
        return ""
    lacks = f" {EN_DASH}: {'; '.join(missing)}." if missing else ""
    return f"{ROOFLINE}{lacks}"


def gpus_section(
    identity: str, rows: Sequence[Row], hosts: Hosts, verdicts: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the GPUs under one load of a deployment, by PCI address; None if nothing is known that could differ."""
    readings = [reading for reading in gpu_readings(rows, hosts, verdicts) if reading.values]
    if len(readings) < 2 or (len(rows) == 1 and not any(reading.telemetry for reading in readings)):
        return None
    title = f"Every GPU by PCI address, {rows[0]['cell']}"
    key = ["a dot for each GPU"]
    if any(reading.flagged for reading in readings):
        key.append("orange: needs attention")
    if any(len(row["gpus"]) > 1 for row in rows):
        key.append("GPUs of one instance share its throughput")
    omitted = len({reading.bdf for reading in readings}) - len(lanes(readings))
    if omitted:
        key.append(f"{plural(omitted, 'rarer address', 'es')} beyond {MOST_LANES} only in the table")
    return {
        "plots": [_both(title, " · ".join(key), f"gpus-{identity}", spread_plot, title, readings)],
        "table": spread_table(readings),
    }


def _curves_plot(
    name: str, title: str, own: Sequence[Curve], slos: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    # Suites may have several limits of the same time: one line names them all.
    limits: dict[float, list[str]] = {}
    for slo in slos:
        if slo["tpot_ms"]:
            limits.setdefault(1000 / slo["tpot_ms"], []).append(slo["name"])
    lines = {f"SLO {', '.join(names)}: TPOT {1000 / value:g} ms": value for value, names in limits.items()}
    key = [_POINTS[own[0].kind]]
    if any(
        point.per_gpu and point.per_gpu.low is not None for curve in own for _label, point in curve.points
    ):
        key.append("bars: 95% intervals over the runs")
    if lines:
        key.append("right of a dashed line, the median request keeps that limit")
    return _both(title, " · ".join(key), name, interactivity_plot, title, own, lines)


def _both(title: str, words: str, name: str, draw: Callable[..., str], *args: Any) -> dict[str, Any]:
    """Return a plot that is drawn for a page and for a phone."""
    return {
        "title": title,
        "key": "words",
        "words": words,
        "draw": lambda: draw(name, *args),
        "narrow": lambda: draw(f"{name}-phone", *args, width=PHONE),
    }


def _table(figures: Sequence[LoadFigures], slos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns: list[Any] = [
        "Load",
        ("per GPU", "rate", "Output tok/s"),
        ("95% ±", "spread", "Output tok/s"),
        ("per user", "rate", "Output tok/s"),
        ("p50", "ms", "TTFT, ms"),
        ("p99", "ms", "TTFT, ms"),
        ("p50", "ms", "TPOT, ms"),
        ("p99", "ms", "TPOT, ms"),
    ]
    with_power = any(item.power_w is not None for item in figures)
    with_roofline = any(item.hbm is not None or item.flop is not None for item in figures)
    columns += [("W per GPU", "rate"), ("J per token", "rate")] if with_power else []
    columns += [("HBM", "share", "Roofline"), ("FLOP", "share", "Roofline")] if with_roofline else []
    columns += [(slo["name"], "rate", "Requests/s within the SLO") for slo in slos]
    columns += ["Failed", "Runs"]
    rows = [
        {
            "slow": False,
            "cells": [
                item.cell,
                item.per_gpu.value if item.per_gpu else None,
                item.per_gpu.half_width if item.per_gpu else None,
                item.per_user.value if item.per_user else None,
                *(
                    _middle(item.rows, f"{stat}_{name}_ms")
                    for name in ("ttft", "tpot")
                    for stat in ("p50", "p99")
                ),
                *([item.power_w, item.joules] if with_power else []),
                *([item.hbm, item.flop] if with_roofline else []),
                *(_goodput(item.rows, slo["name"]) for slo in slos),
                total_of(item.rows, "failed"),
                _range([row["runs"] for row in item.rows]),
            ],
        }
        for item in figures
    ]
    return table("Loads", columns, rows)


def _middle(rows: Sequence[Row], key: str) -> float | None:
    known = [row[key] for row in rows if row[key] is not None]
    return statistics.median(known) if known else None


def _goodput(rows: Sequence[Row], name: str) -> float | None:
    known = [value for row in rows if (value := row["goodput"].get(name)) is not None]
    return sum(known) if known else None


def _range(counts: Sequence[int]) -> int | str:
    low, high = min(counts), max(counts)
    return low if low == high else f"{low} to {high}"
