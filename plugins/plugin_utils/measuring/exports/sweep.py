# SPDX-License-Identifier: Apache-2.0
"""Write serving benchmarks as `vllm bench sweep serve` does, for `vllm bench sweep plot` and `plot_pareto`. Pure.

An experiment is <run>/SERVE--<server>-BENCH--<client>/{run=<i>.json,summary.json} and <run>/summary.csv, as in vLLM
0.11.1 and later. plot_pareto needs output_throughput of every run; for users it takes max_concurrency, else
max_concurrent_requests, and for GPUs TP x PP x DP.
"""

from __future__ import annotations

from typing import Any

from ...base.node_answers import file_name
from ..measurement.rows import cell_name, shape_of
from .export import Export, csv_table, json_text, omission_text, unique_name
from .run_results import Row, RunResults
from .setup import engine_setup

_VLLM = {"duration_s": "duration", "model": "model_id"}
"""vLLM's names of keys that have other names in rows."""
_SKIPPED = {"cell", "spec_hash", "serve_command", "command", "env", "other", "raw", "interval", "cv", "runs"}


def export(results: RunResults) -> Export:
    """Return the experiment <run>, with runs counted from 0 as vLLM does."""
    files: dict[str, str] = {}
    everything: list[dict[str, Any]] = []
    directories: list[str] = []
    experiment = file_name(results.run)
    served = [row for row in results.cells if row.get("kind") == "serve"]
    empty = [row for row in served if not _measured(results, row)]
    for row in (row for row in served if row not in empty):
        serve = {"host": row.get("host"), "instance": row.get("instance")}
        bench = {"label": cell_name(row)}
        name = "-".join(["SERVE-", *_pairs(serve), "BENCH-", *_pairs(bench)])
        directories.append(unique_name(file_name(name), directories))
        runs = [
            {**serve, **bench, **_record(run), "run_number": number}
            for number, run in enumerate(_measured(results, row))
        ]
        for number, run in enumerate(runs):
            files[f"{experiment}/{directories[-1]}/run={number}.json"] = json_text(run)
        files[f"{experiment}/{directories[-1]}/summary.json"] = json_text(runs)
        everything += runs
    if everything:
        columns = list(dict.fromkeys(key for record in everything for key in record))
        files[f"{experiment}/summary.csv"] = csv_table(columns, everything)
    offline = [row for row in results.cells if row.get("kind") != "serve"]
    out = omission_text(empty, "no answer, so no throughput to plot")
    return Export(files, omission_text(offline, "a sweep has serving benchmarks only") + out)


def _measured(results: RunResults, cell: Row) -> list[Row]:
    return [run for run in results.runs_of(cell) if run.get("output_throughput") is not None]


def _pairs(values: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _record(row: Row) -> dict[str, Any]:
    """Return a run under vLLM's own keys. max_concurrency stays, null without a limit, as vLLM writes it."""
    setup, (given, wanted) = engine_setup(row), shape_of(row)
    found = {
        _VLLM.get(key, key): value
        for key, value in row.items()
        if key not in _SKIPPED and isinstance(value, (int, float, str))
    }
    sizes = {
        "tensor_parallel_size": setup.tensor_parallel,
        "pipeline_parallel_size": setup.pipeline_parallel,
        "data_parallel_size": setup.data_parallel,
        "random_input_len": given,
        "random_output_len": wanted,
    }
    return {
        **found,
        **{key: value for key, value in sizes.items() if value is not None},
        "max_concurrency": row.get("max_concurrency"),
    }
