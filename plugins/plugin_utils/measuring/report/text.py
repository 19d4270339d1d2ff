# SPDX-License-Identifier: Apache-2.0
"""Format a summary for the terminal: one line for the fleet, short tables, then GPUs to look at, and failures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ...base.text import plural
from ..summary.cell_summary import relative_half_width
from ..summary.gpu_findings import gpu_findings, undecided_differences
from ..summary.slo_searches import HEADS, is_probe, reason, text_cells, totals
from ..summary.tables import count, ms, rate, signed_percent, spread, total_of
from ..summary.titles import by_cell, headline_rows, notes, title
from .outliers import RelativeSpeed, speeds

LINES = 24
"""Maximum number of rows; if there are more, the slowest are shown, or a row for each cell."""

Row = Mapping[str, Any]
Pairs = Sequence[tuple[Row, RelativeSpeed]]
_FIGURES = ("tok/s", "95%", "CV", "runs")
_LATENCIES = ("TTFT p50", "p99 ms", "TPOT p50 ms", "failed")
_SERVE = ("host", "instance", *_FIGURES, "vs median", *_LATENCIES)
_CELLS = ("cell", "instances", *_FIGURES, *_LATENCIES)
_OFFLINE = ("host", "instance", "benchmark", "cell", "runs", "95%", "result")


def text_summary(summary: Mapping[str, Any]) -> str:
    """Return several lines without colours. Unknown numbers are dashes."""
    rows: Sequence[Row] = summary["benchmarks"]
    verdicts = summary["gpu_verdicts"]
    per_row = speeds(rows, verdicts)
    served = [
        (row, speed) for row, speed in zip(rows, per_row) if row["kind"] == "serve" and not is_probe(row)
    ]
    searches = summary["slo_searches"]
    offline = [row for row in rows if row["kind"] != "serve"]
    lines = [_headline(summary["run"], [row for row, _unused in served], rows, searches), *_served(served)]
    lines += _searched(searches)
    if offline:
        lines += align_columns(_OFFLINE, [_offline_cells(row) for row in offline[:LINES]], left=4)
        if len(offline) > LINES:
            lines.append(f"{len(offline) - LINES} more in benchmarks.csv")
    lines += [f"NOTE    {text}" for text in (*notes(rows), *undecided_differences(verdicts))]
    for finding in gpu_findings(verdicts):
        lines.append(f"{finding.verdict.upper():<8}{finding.place}: {finding.text}")
        lines.append(f"        {finding.next_step}")
    lines += [f"FAILED  {item['host']}: {item['what']}: {item['message']}" for item in summary["failures"]]
    return "\n".join(lines)


def _headline(run: str, served: Sequence[Row], rows: Sequence[Row], searches: Sequence[Row]) -> str:
    nodes = len({row["host"] for row in rows})
    parts = [f"Run {run}: {plural(len(rows), 'benchmark')}"]
    parts[0] += f" on {plural(nodes, 'node')}"
    releases = sorted({str(row["versions"]["vllm"]) for row in rows if row["versions"]["vllm"]})
    parts += [f"vLLM {', '.join(releases)}"] if releases else []
    if served:
        best = headline_rows(served)
        parts.append(f"{rate(total_of(best, 'output_throughput'))} output tok/s")
        parts.append(f"{rate(total_of(best, 'request_throughput'))} requests/s")
        cells = {row["cell"] for row in best}
        if len({row["cell"] for row in served}) > len(cells):
            parts[-1] += f" with {', '.join(sorted(cells))}"
        failed, asked = total_of(served, "failed"), total_of(served, "num_prompts")
        parts.append(f"{count(failed)} of {count(asked)} requests failed")
    for name, requests, tokens, of in totals(searches):
        parts.append(f"{rate(requests)} requests/s and {rate(tokens)} output tok/s at SLO {name} ({of})")
    return ", ".join(parts)


def _searched(searches: Sequence[Row]) -> list[str]:
    """Return the throughput at each SLO, and where and why each search ended."""
    if not searches:
        return []
    lines = align_columns(HEADS, [text_cells(item) for item in searches[:LINES]], left=4)
    if len(searches) > LINES:
        lines.append(f"{len(searches) - LINES} more in slo.csv")
    return [*lines, *(f"ENDED   {reason(item)}" for item in searches[:LINES])]


def _served(served: Pairs) -> list[str]:
    """Return a table for each cell; with too many rows one line for each cell, rates apart from the others."""
    speed_of = {id(row): speed for row, speed in served}
    cells = by_cell([row for row, _unused in served])
    if len(cells) < 2:
        return _instances(served) if served else []
    if len(served) <= LINES:
        lines = []
        for own in cells:
            lines += [
                f"{own[0]['cell']}: {title(own[0])}",
                *_instances([(row, speed_of[id(row)]) for row in own]),
            ]
        return lines
    lines = []
    for name, is_rate in (("At a concurrency", False), ("At a request rate", True)):
        shown = [_cell_cells(rows) for rows in cells if (rows[0]["load"]["kind"] == "rate") is is_rate]
        lines += [f"{name}:", *align_columns(_CELLS, shown, left=1)] if shown else []
    return [*lines, "tok/s are sums over the instances, the others medians; all of them in benchmarks.csv"]


def _instances(served: Pairs) -> list[str]:
    lines = align_columns(_SERVE, [_serve_cells(row, speed) for row, speed in _shown(served)], left=2)
    if len(served) > LINES:
        lines.append(f"the {LINES} slowest of {len(served)}; all of them in benchmarks.csv")
    return lines


def _shown(served: Pairs) -> Pairs:
    if len(served) <= LINES:
        return served
    return sorted(served, key=lambda pair: 9.0 if pair[1].value is None else pair[1].value)[:LINES]


def _serve_cells(row: Row, speed: RelativeSpeed) -> list[str]:
    return [
        row["host"],
        row["instance"],
        rate(row["output_throughput"]),
        spread(relative_half_width(row)),
        spread(row["cv"], sign=""),
        str(row["runs"]),
        signed_percent(speed.value) + (" slow" if speed.slow else ""),
        ms(row["p50_ttft_ms"]),
        ms(row["p99_ttft_ms"]),
        ms(row["p50_tpot_ms"]),
        count(row["failed"]),
    ]


def _cell_cells(rows: Sequence[Row]) -> list[str]:
    return [
        rows[0]["cell"],
        str(len(rows)),
        rate(total_of(rows, "output_throughput")),
        spread(_middle([relative_half_width(row) for row in rows])),
        spread(_middle([row["cv"] for row in rows]), sign=""),
        str(min(row["runs"] for row in rows)),
        *(ms(_middle([row[key] for row in rows])) for key in ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms")),
        count(total_of(rows, "failed")),
    ]


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _offline_cells(row: Row) -> list[str]:
    if row["kind"] == "throughput":
        output = rate(row["output_throughput"])
        result = f"{rate(row['total_token_throughput'])} total tok/s, {output} output tok/s"
    else:
        mean, p50 = ms(row["mean_batch_latency_ms"]), ms(row["p50_batch_latency_ms"])
        result = f"{mean} ms mean, {p50} ms p50 per batch"
    precision = spread(relative_half_width(row))
    return [row["host"], row["instance"], row["kind"], row["cell"], str(row["runs"]), precision, result]


def align_columns(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Align columns of equal width; the first `left` ones to the left, the others to the right."""
    widths = [max(len(line[at]) for line in (heads, *rows)) for at in range(len(heads))]
    return [
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in (heads, *rows)
    ]
