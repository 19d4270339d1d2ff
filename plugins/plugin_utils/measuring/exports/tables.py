# SPDX-License-Identifier: Apache-2.0
"""Write a run as CSV, for spreadsheets and data frames, and as Markdown, for tickets and pull requests. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..measurement.rows import cell_name, load_of
from .export import Export, csv_table, json_text
from .run_results import Row, RunResults

_TITLES = {
    ("serve", "concurrency"): "Serving at a concurrency",
    ("serve", "rate"): "Serving at a request rate",
    ("serve", "all"): "Serving, all requests at once",
    ("throughput", "all"): "Offline throughput",
    ("latency", "batch"): "Latency of a batch",
}
_SERVE = (
    ("Output tok/s", "output_throughput"),
    ("Requests/s", "request_throughput"),
    ("TTFT p50 ms", "p50_ttft_ms"),
    ("TTFT p99 ms", "p99_ttft_ms"),
    ("TPOT p50 ms", "p50_tpot_ms"),
    ("HBM %", "hbm_share"),
    ("FLOP %", "flop_share"),
    ("Failed", "failed"),
)
_COLUMNS = {
    "serve": _SERVE,
    "throughput": (("Total tok/s", "total_token_throughput"), ("Output tok/s", "output_throughput")),
    "latency": (("Mean ms", "mean_batch_latency_ms"), ("p50 ms", "p50_batch_latency_ms")),
}
_IDENTITY = ("host", "instance", "deployment", "kind", "suite", "cell", "block", "order", "seed", "started")


def export_csv(results: RunResults) -> Export:
    """Return cells.csv, medians, and runs.csv with every run; nested values have dotted column names."""
    return Export({"cells.csv": _csv(results, results.cells), "runs.csv": _csv(results, results.runs)})


def export_markdown(results: RunResults) -> Export:
    """Return benchmarks.md; loads of different kinds never share a table."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in results.cells:
        groups.setdefault((str(row.get("kind")), load_of(row).kind), []).append(row)
    parts = [f"# Run {_text(results.run)}", *_setting(results)]
    for (kind, load), rows in groups.items():
        title = _TITLES.get((kind, load), f"{kind}, {load}")
        parts += [f"## {title}", _table(kind, rows)]
    if results.failures:
        failed = [f"* {_text(item.get('host'))}, {_text(item.get('what'))}: {_text(item.get('message'))}"
                  for item in results.failures]  # fmt: skip
        parts += ["## Failures", "\n".join(failed)]
    return Export({"benchmarks.md": "\n\n".join(parts) + "\n"})


def _csv(results: RunResults, rows: Sequence[Row]) -> str:
    flat = [{"run_name": results.run, **dict(_flat({**row, "cell": cell_name(row)}))} for row in rows]
    found = dict.fromkeys(key for row in flat for key in row)
    first = [key for key in ("run_name", *_IDENTITY) if key in found]
    return csv_table([*first, *(key for key in found if key not in first)], flat)


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool):
            yield f"{prefix}{key}", "true" if value else "false"
        else:
            yield f"{prefix}{key}", json_text(value).strip() if isinstance(value, (list, tuple)) else value


def _setting(results: RunResults) -> list[str]:
    """Return what was measured, one line for each model, image and GPU."""
    found: dict[str, None] = {}
    for row in results.cells:
        gpu = results.gpu(row, "model")
        parts = [
            str(row.get("model") or "unknown model"),
            str(row.get("digest") or row.get("image") or "unknown image"),
        ]
        found[f"* {_text(', '.join([*parts, *([gpu] if gpu else [])]))}"] = None
    return ["\n".join(found)] if found else []


def _table(kind: str, rows: Sequence[Row]) -> str:
    columns = _COLUMNS.get(kind, ())
    heads = ["Instance", "Cell", "Runs", *(name for name, _key in columns), "CV"]
    lines = [heads, ["---", "---", *["---:"] * (len(heads) - 2)]]
    for row in rows:
        cells = [f"{row.get('host')}/{row.get('instance')}", cell_name(row), _number(row.get("runs"))]
        cells += [_column(name, row.get(key)) for name, key in columns]
        spread = row.get("cv")
        lines.append([_text(cell) for cell in (*cells, "" if spread is None else f"{spread * 100:.1f} %")])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _column(name: str, value: Any) -> str:
    return _number(value * 100 if name.endswith("%") and value is not None else value)


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _text(value: object) -> str:
    """Return a text that neither ends a cell of a table nor starts HTML."""
    return str(value).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")
