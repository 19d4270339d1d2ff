# SPDX-License-Identifier: Apache-2.0
"""Build the report's sections of numbers: nodes, deployments, offline benchmarks.

Few rows are drawn individually, many as distributions. Control node only. Plots are functions ("draw") that return SVG,
called when the page is rendered.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ....module_utils.common.errors import natural
from ...base.text import plural
from ..plots import plots
from ..summary.cell_summary import relative_half_width
from ..summary.tables import rate, signed_percent, table
from ..summary.titles import by_cell, title
from .outliers import LIMIT, NodeSpeed, RelativeSpeed

MANY = 24
"""If there are more rows than this, plots show distributions, and tables start folded."""

LATENCY_PANELS = (("ttft", "TTFT, ms"), ("tpot", "TPOT, ms"), ("itl", "ITL, ms"), ("e2el", "E2EL, ms"))
SHOWN = ("p50", "p90", "p99")
_PRECISION: tuple[Any, ...] = (("95% ±", "spread"), ("CV", "spread"), "Runs")

Row = Mapping[str, Any]
Pairs = Sequence[tuple[Row, RelativeSpeed]]


def nodes_section(nodes: Sequence[NodeSpeed]) -> dict[str, Any] | None:
    """Compare the nodes with each other; left out if the instances' own plots already show the nodes."""
    compared = [node for node in nodes if node.value is not None]
    if len(nodes) < 2 or all(node.instances == 1 for node in nodes):
        return None
    rows = [
        {
            "slow": bool(node.slow),
            "cells": [
                node.host,
                node.instances,
                node.output_throughput,
                None if node.value is None else (node.value - 1) * 100,
            ],
        }
        for node in sorted(nodes, key=lambda node: node.value if node.value is not None else 9.0)
    ]
    columns = ["Node", "Instances", ("Output tok/s", "rate"), ("vs median", "percent")]
    plots = []
    if len(compared) > 1:
        plots.append(_nodes_plot(compared))
    return {
        "plots": plots,
        "table": table("Nodes, the slowest first", columns, rows, closed=True),
    }


def _nodes_plot(nodes: Sequence[NodeSpeed]) -> dict[str, Any]:
    title = "Output throughput of each node against the median node"
    if len(nodes) > MANY:
        dots = [plots.Dot(node.host, node.value or 0.0, bool(node.slow)) for node in nodes]
        return {"title": title, "key": "", "draw": lambda: plots.node_dots("nodes", title, dots, LIMIT)}
    bars = [
        plots.Bar(
            node.host,
            node.output_throughput,
            f"{rate(node.output_throughput)} tok/s  {signed_percent(node.value)}",
            bool(node.slow),
        )
        for node in nodes
    ]
    return {
        "title": "Output throughput per node",
        "key": "",
        "draw": lambda: plots.bars("nodes", title, bars, None, ""),
    }


def deployment_section(name: str, number: int, pairs: Pairs, best: Collection[str]) -> dict[str, Any]:
    """Return the plots and tables of a deployment's instances, for each of its cells.

    `number` distinguishes the ids of its plots from those of other deployments. Of many instances under several loads,
    only the cells of `best` are shown, to keep the page readable.
    """
    own = [(row, speed) for row, speed in pairs if row["deployment"] == name and row["kind"] == "serve"]
    rows = [row for row, _unused in own]
    speed_of = {id(row): speed for row, speed in own}
    cells = by_cell(rows)
    large = len(cells) > 1 and max(map(len, cells)) > MANY
    shown = [cell for cell in cells if not large or cell[0]["cell"] in best]
    return {
        "name": name,
        "model": rows[0]["model"],
        "scale": _scale(rows, sorted({row["host"] for row in rows}, key=natural)),
        "left_out": len(cells) - len(shown),
        "cells": [
            {
                "title": f"{cell[0]['cell']}: {title(cell[0])}" if len(cells) > 1 else "",
                **_cell_section(name, f"{number}-{position}", [(row, speed_of[id(row)]) for row in cell]),
            }
            for position, cell in enumerate(shown)
        ],
    }


def _cell_section(name: str, identity: str, own: Pairs) -> dict[str, Any]:
    rows = [row for row, _unused in own]
    hosts = sorted({row["host"] for row in rows}, key=natural)
    many = len(rows) > MANY
    return {
        "load": _load(rows),
        "plots": [_throughput_plot(name, identity, own, hosts), *_latency_plots(name, identity, own)],
        "tables": [_throughput_table(own, many), _latency_table(own, many)],
    }


def _scale(rows: Sequence[Row], hosts: Sequence[str]) -> str:
    gpus = sorted({len(row["gpus"]) for row in rows if row["gpus"]})
    instances = {(row["host"], row["instance"]) for row in rows}
    text = f"{plural(len(instances), 'instance')} on "
    text += hosts[0] if len(hosts) == 1 else f"{len(hosts)} nodes"
    if gpus:
        text += f", {' or '.join(map(str, gpus))} {'GPU' if gpus == [1] else 'GPUs'} each"
    return text


def _load(rows: Sequence[Row]) -> str:
    """Return the load of the first instance, with a remark if others had a different one."""

    def words(row: Row) -> str:
        parts = [] if row["num_prompts"] is None else [f"{row['num_prompts']:,} requests"]
        if row["completed"] and row["total_input_tokens"] and row["total_output_tokens"]:
            tokens_in = row["total_input_tokens"] / row["completed"]
            tokens_out = row["total_output_tokens"] / row["completed"]
            parts.append(f"{tokens_in:,.0f} tokens in and {tokens_out:,.0f} out on average")
        if row["max_concurrency"] is not None:
            parts.append(f"at most {row['max_concurrency']:,} at once")
        if isinstance(row["request_rate"], (int, float)):
            parts.append(f"{row['request_rate']:g} requests/s offered")
        return ", ".join(parts)

    loads = {(row["num_prompts"], row["max_concurrency"], row["request_rate"]) for row in rows}
    return words(rows[0]) + (" (other instances had another load)" if len(loads) > 1 else "")


def _labels(rows: Iterable[Row]) -> Callable[[Row], str]:
    """Return what names a row: the host, with the instance if the host has several."""
    instances: dict[str, set[str]] = {}
    for row in rows:
        instances.setdefault(row["host"], set()).add(row["instance"])

    def label_of(row: Row) -> str:
        alone = len(instances[row["host"]]) == 1
        return str(row["host"]) if alone else f"{row['host']}  {row['instance']}"

    return label_of


def _throughput_plot(name: str, number: str, own: Pairs, hosts: Sequence[str]) -> dict[str, Any]:
    rows = [row for row, _unused in own]
    identity, label_of = f"throughput-{number}", _labels(rows)
    if len(own) > MANY and len(own) > len(hosts):
        title = f"{name}: every instance against the median"
        per_host: dict[str, int] = {}
        cells = []
        for row, speed in own:
            position = per_host[row["host"]] = per_host.get(row["host"], -1) + 1
            tip = f"{row['host']}, {row['instance']}: {rate(row['output_throughput'])} tok/s"
            tip += f", {signed_percent(speed.value)}"
            cells.append(plots.Cell(row["host"], f"instance {position}", speed.value, tip))
        lanes = [f"instance {position}" for position in range(max(per_host.values()) + 1)]
        return {
            "title": "Output throughput of every instance against the median",
            "key": "heat",
            "draw": lambda: plots.heat_map(identity, title, cells, hosts, lanes),
        }
    title = f"{name}: output throughput per instance"
    if len(own) > MANY:
        dots = [
            plots.Dot(label_of(row), speed.value, bool(speed.slow))
            for row, speed in own
            if speed.value is not None
        ]
        return {
            "title": "Output throughput of every instance against the median",
            "key": "",
            "draw": lambda: plots.node_dots(identity, title, dots, LIMIT),
        }
    known = [row["output_throughput"] for row in rows if row["output_throughput"] is not None]
    median = statistics.median(known) if len(known) > 2 else None
    bars = [
        plots.Bar(
            label_of(row),
            row["output_throughput"],
            f"{rate(row['output_throughput'])} tok/s"
            + (f"  {signed_percent(speed.value)}" if speed.slow else ""),
            bool(speed.slow),
            row["interval"] if row["metric"] == "output_throughput" else None,
        )
        for row, speed in own
    ]
    text = f"median {rate(median)}" if median is not None else ""
    return {
        "title": "Output throughput",
        "key": "",
        "draw": lambda: plots.bars(identity, title, bars, median, text),
    }


def _latency_plots(name: str, number: str, own: Pairs) -> list[dict[str, Any]]:
    rows = [row for row, _unused in own]
    panels = [
        (metric, label)
        for metric, label in LATENCY_PANELS
        if any(row[f"{stat}_{metric}_ms"] is not None for row in rows for stat in SHOWN)
    ]
    if not panels:
        return []
    label_of = _labels(rows)
    items = [
        plots.Ranges(
            label_of(row),
            {metric: tuple(row[f"{stat}_{metric}_ms"] for stat in SHOWN) for metric, _unused in panels},
            bool(speed.slow),
        )
        for row, speed in own
    ]
    identity, title = f"latency-{number}", f"{name}: latency percentiles per instance"
    if len(items) > MANY:
        return [
            {
                "title": "Latency percentiles, one dot per instance",
                "key": "lanes",
                "draw": lambda: plots.strips(identity, title, items, panels),
            }
        ]
    return [
        {
            "title": "Latency percentiles",
            "key": "",
            "draw": lambda: plots.percentile_rows(identity, title, items, panels),
        }
    ]


def _throughput_table(own: Pairs, many: bool) -> dict[str, Any]:
    columns = [
        "Node",
        "Instance",
        ("Output tok/s", "rate"),
        *_PRECISION,
        ("vs median", "percent"),
        ("tok/s per GPU", "rate"),
        ("Total tok/s", "rate"),
        ("Requests/s", "rate"),
        "Completed",
        "Failed",
        ("Duration s", "rate"),
    ]
    rows = []
    for row, speed in own:
        output = row["output_throughput"]
        per_gpu = output / len(row["gpus"]) if output is not None and row["gpus"] else None
        rows.append(
            {
                "slow": bool(speed.slow),
                "cells": [
                    row["host"],
                    row["instance"],
                    output,
                    *_precision(row),
                    None if speed.value is None else (speed.value - 1) * 100,
                    per_gpu,
                    row["total_token_throughput"],
                    row["request_throughput"],
                    row["completed"],
                    row["failed"],
                    row["duration_s"],
                ],
            }
        )
    return table("Throughput", columns, rows, many)


def _precision(row: Row) -> list[float | None]:
    return [relative_half_width(row), row["cv"], row["runs"]]


def _latency_table(own: Pairs, many: bool) -> dict[str, Any]:
    columns: list[Any] = ["Node", "Instance"]
    columns += [(stat, "ms", label) for _unused, label in LATENCY_PANELS for stat in SHOWN]
    rows = [
        {
            "slow": bool(speed.slow),
            "cells": [
                row["host"],
                row["instance"],
                *(row[f"{stat}_{metric}_ms"] for metric, _unused in LATENCY_PANELS for stat in SHOWN),
            ],
        }
        for row, speed in own
    ]
    return table("Latency", columns, rows, many)


def offline_sections(pairs: Pairs) -> list[dict[str, Any]]:
    """Return the sections of offline benchmarks: a table each, and bars of what they measure."""
    shapes: tuple[tuple[str, str, str, list[Any]], ...] = (
        (
            "throughput",
            "Offline throughput",
            "All prompts are given to the engine at once, without a server.",
            [
                ("Total tok/s", "rate", "total_token_throughput"),
                ("Output tok/s", "rate", "output_throughput"),
                ("Requests/s", "rate", "request_throughput"),
                ("Requests", "count", "completed"),
                ("Duration s", "rate", "duration_s"),
            ],
        ),
        (
            "latency",
            "Offline latency",
            "One batch from start to end, again and again, without a server.",
            [
                ("Mean ms", "ms", "mean_batch_latency_ms"),
                ("p50 ms", "ms", "p50_batch_latency_ms"),
                ("p90 ms", "ms", "p90_batch_latency_ms"),
                ("p99 ms", "ms", "p99_batch_latency_ms"),
                ("Iterations", "count", "iterations"),
            ],
        ),
    )
    return [
        _offline_section(
            caption, text, measures, [(row, speed_of) for row, speed_of in pairs if row["kind"] == kind]
        )
        for kind, caption, text, measures in shapes
        if any(row["kind"] == kind for row, _unused in pairs)
    ]


def _offline_section(caption: str, text: str, measures: Sequence[Any], own: Pairs) -> dict[str, Any]:
    """Return a table for each cell of a kind of offline benchmark."""
    speed_of = {id(row): speed for row, speed in own}
    columns = [
        "Node",
        "Instance",
        *((label, form) for label, form, _unused in measures),
        *_PRECISION,
        ("vs median", "percent"),
    ]
    tables = []
    for cell in by_cell([row for row, _unused in own]):
        rows = [
            {
                "slow": bool(speed_of[id(row)].slow),
                "cells": [
                    row["host"],
                    row["instance"],
                    *(row[key] for _unused, _unused, key in measures),
                    *_precision(row),
                    None if (value := speed_of[id(row)].value) is None else (value - 1) * 100,
                ],
            }
            for row in cell
        ]
        tables.append(table(f"{cell[0]['cell']}: {title(cell[0])}", columns, rows, len(rows) > MANY))
    return {"title": caption, "text": text, "tables": tables}
