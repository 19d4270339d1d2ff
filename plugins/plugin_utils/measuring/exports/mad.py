# SPDX-License-Identifier: Apache-2.0
"""Write the reports of AMD's vllm_benchmark_report.sh, and perf.csv of madengine. Pure.

AMD's report covers the offline benchmarks of one model on one machine, so each instance gets a directory with AMD's own
file names. Columns and units: ROCm/MAD, scripts/vllm/vllm_benchmark_report.{sh,py} and parse_csv.py (release of 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...base.node_answers import file_name
from ..measurement.rows import load_of, shape_of
from . import madengine
from .export import Export, csv_table, omission_text, ratio
from .run_results import Row, RunResults
from .setup import engine_setup, integer

LATENCY = (
    "model",
    "latency (ms)",
    "latency_per_tkn (ms)",
    "tp",
    "batch_size",
    "input_len",
    "output_len",
    "dtype",
)
THROUGHPUT = (
    "model",
    "throughput_tot (tok/sec)",
    "throughput_gen (tok/sec)",
    "tp",
    "requests",
    "input_len",
    "output_len",
    "dtype",
)
PERFORMANCE = ("model", "performance", "metric")

Line = dict[str, Any]


def export(results: RunResults) -> Export:
    """Return HOST__INSTANCE/reports_DTYPE/summary/…, HOST__INSTANCE/perf_MODEL.csv, and perf.csv of all benchmarks."""
    tables: dict[str, tuple[tuple[str, ...], list[Line]]] = {}

    def add(path: str, columns: tuple[str, ...], line: Line) -> None:
        tables.setdefault(path, (columns, []))[1].append(line)

    for row in results.cells:
        if row.get("kind") not in ("latency", "throughput"):
            continue
        place = file_name(row.get("host"), row.get("instance"))
        model, dtype = madengine.model_name(row), madengine.dtype(row)
        columns, line = (LATENCY, latency(row)) if row["kind"] == "latency" else (THROUGHPUT, throughput(row))
        report = f"{file_name(model)}_{row['kind']}_report.csv"
        add(f"{place}/{file_name(f'reports_{dtype}')}/summary/{report}", columns, line)
        add(f"{place}/perf_{file_name(model)}.csv", PERFORMANCE, performance(line))
    files = {path: csv_table(columns, lines) for path, (columns, lines) in sorted(tables.items())}
    files["perf.csv"] = csv_table(madengine.COLUMNS, madengine.lines(results))
    served = [row for row in results.cells if row.get("kind") == "serve"]
    why = "AMD's report has no serving benchmark; it is in perf.csv alone"
    return Export(files, omission_text(served, why))


def latency(row: Row) -> Line:
    """Return a line of AMD's latency report: milliseconds of a batch, and per token of an answer."""
    given, wanted = shape_of(row)
    milliseconds = row.get("mean_batch_latency_ms")
    return {
        "model": madengine.model_name(row),
        "latency (ms)": milliseconds,
        "latency_per_tkn (ms)": ratio(milliseconds, wanted),
        "tp": engine_setup(row).tensor_parallel,
        "batch_size": integer(load_of(row).value),
        "input_len": given,
        "output_len": wanted,
        "dtype": madengine.dtype(row),
    }


def throughput(row: Row) -> Line:
    """Return a line of AMD's throughput report: whole tokens per second, as AMD cuts them.

    AMD computes the generated tokens from the requested length. Without a known length they are what vLLM printed.
    """
    given, wanted = shape_of(row)
    requests = integer(row.get("num_prompts"))
    asked = requests * wanted if requests is not None and wanted is not None else None
    generated = ratio(asked, row.get("duration_s"))
    return {
        "model": madengine.model_name(row),
        "throughput_tot (tok/sec)": integer(row.get("total_token_throughput")),
        "throughput_gen (tok/sec)": integer(row.get("output_throughput") if generated is None else generated),
        "tp": engine_setup(row).tensor_parallel,
        "requests": requests,
        "input_len": given,
        "output_len": wanted,
        "dtype": madengine.dtype(row),
    }


def performance(line: Mapping[str, Any]) -> Line:
    """Return a line of perf_MODEL.csv; AMD's name joins what identifies the benchmark."""
    amount = "batch_size" if "batch_size" in line else "requests"
    metric = ("latency (ms)", "ms") if amount == "batch_size" else ("throughput_tot (tok/sec)", "tok/sec")
    parts = (line[key] for key in ("model", "tp", amount, "input_len", "output_len", "dtype"))
    return {
        "model": "_".join("" if part is None else str(part) for part in parts),
        "performance": line[metric[0]],
        "metric": metric[1],
    }
