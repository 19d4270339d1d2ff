# SPDX-License-Identifier: Apache-2.0
"""Format a summary for the terminal: one line for the fleet, a short table, then failures and slow nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..text import plural
from .outliers import RelativeSpeed, node_speeds, sequential_hosts, speeds
from .tables import count, ms, rate, signed, total_of

LINES = 24
"""Maximum number of rows; if there are more, the slowest are shown."""

Row = Mapping[str, Any]
_SERVE = ("host", "instance", "tok/s", "vs median", "TTFT p50", "p99 ms", "TPOT p50 ms", "failed")
_OFFLINE = ("host", "instance", "benchmark", "result")


def text_summary(summary: Mapping[str, Any]) -> str:
    """Return several lines without colours. Unknown numbers are dashes."""
    rows: Sequence[Row] = summary["benchmarks"]
    per_row = speeds(rows)
    served = [(row, speed) for row, speed in zip(rows, per_row) if row["kind"] == "serve"]
    offline = [row for row in rows if row["kind"] != "serve"]
    lines = [_headline(summary["run"], [row for row, _unused in served], rows)]
    if served:
        lines += _aligned(_SERVE, [_serve_cells(row, speed) for row, speed in _shown(served)], left=2)
        if len(served) > LINES:
            lines.append(f"the {LINES} slowest of {len(served)}; all of them in benchmarks.csv")
    if offline:
        lines += _aligned(_OFFLINE, [_offline_cells(row) for row in offline[:LINES]], left=4)
        if len(offline) > LINES:
            lines.append(f"{len(offline) - LINES} more in benchmarks.csv")
    sequential = sequential_hosts(rows)
    if sequential:
        lines.append(f"note: on {', '.join(sequential)} the instances were not measured at the same time")
    lines += [f"SLOW    {node.host}: {'; '.join(node.slow[:3])}" for node in node_speeds(rows) if node.slow]
    lines += [f"FAILED  {item['host']}: {item['what']}: {item['message']}" for item in summary["failures"]]
    return "\n".join(lines)


def _headline(run: str, served: Sequence[Row], rows: Sequence[Row]) -> str:
    nodes = len({row["host"] for row in rows})
    parts = [f"Run {run}: {plural(len(rows), 'benchmark')}"]
    parts[0] += f" on {plural(nodes, 'node')}"
    if served:
        parts.append(f"{rate(total_of(served, 'output_throughput'))} output tok/s")
        parts.append(f"{rate(total_of(served, 'request_throughput'))} requests/s")
        parts.append(
            f"{count(total_of(served, 'failed'))} of {count(total_of(served, 'num_prompts'))} requests failed"
        )
    return ", ".join(parts)


def _shown(served: Sequence[tuple[Row, RelativeSpeed]]) -> list[tuple[Row, RelativeSpeed]]:
    if len(served) <= LINES:
        return list(served)
    return sorted(served, key=lambda pair: 9.0 if pair[1].value is None else pair[1].value)[:LINES]


def _serve_cells(row: Row, speed: RelativeSpeed) -> list[str]:
    return [
        row["host"],
        row["instance"],
        rate(row["output_throughput"]),
        signed(speed.value) + (" slow" if speed.slow else ""),
        ms(row["p50_ttft_ms"]),
        ms(row["p99_ttft_ms"]),
        ms(row["p50_tpot_ms"]),
        count(row["failed"]),
    ]


def _offline_cells(row: Row) -> list[str]:
    if row["kind"] == "throughput":
        output = rate(row["output_throughput"])
        result = f"{rate(row['total_token_throughput'])} total tok/s, {output} output tok/s"
    else:
        p50, p99 = ms(row["p50_batch_latency_ms"]), ms(row["p99_batch_latency_ms"])
        result = f"{p50} ms p50, {p99} ms p99 per batch"
    return [row["host"], row["instance"], row["kind"], result]


def _aligned(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Align columns of equal width; the first `left` ones to the left, the others to the right."""
    widths = [max(len(line[at]) for line in (heads, *rows)) for at in range(len(heads))]
    return [
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in (heads, *rows)
    ]
