# SPDX-License-Identifier: Apache-2.0
"""Write the records of the PyTorch benchmark dashboard (HUD v3), one for each metric of a cell. Pure.

vLLM writes them itself with SAVE_TO_PYTORCH_BENCHMARK_FORMAT (benchmarks/lib/utils.py, 0.8 and later), each with all
arguments of its client. Here arguments have neither headers nor secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ....module_utils.benchmarks.bench_metrics import METRICS
from ....module_utils.common.redact import is_secret_name
from ..measurement.rows import cell_name
from .export import Export, json_text, known_values
from .run_results import Row, RunResults
from .setup import engine_options, engine_setup, integer, options_of

_OWN: Mapping[str, Mapping[str, tuple[str, float]]] = {
    "latency": {"mean_batch_latency_ms": ("latency", 0.001)},
    "throughput": {
        "request_throughput": ("requests_per_second", 1),
        "total_token_throughput": ("tokens_per_second", 1),
    },
}
"""vLLM's names of the offline metrics, and the factor to its unit, seconds."""
_LOADS = {"num_prompts", "request_rate", "burstiness", "max_concurrency"}
_PRIVATE = {"header", "headers", "extra_headers"}


def export(results: RunResults) -> Export:
    """Return pytorch_benchmark.json, a list of records."""
    return Export({"pytorch_benchmark.json": json_text(list(records(results)))})


def records(results: RunResults) -> Iterator[dict[str, Any]]:
    """Yield a record for each metric; its values are those of the runs of the cell."""
    for row in results.cells:
        runs, about = results.runs_of(row), _about(results, row)
        benchmark = {
            "name": "vLLM benchmark",
            "extra_info": {"args": arguments(row), "use_compile": "enforce_eager" not in engine_options(row)},
        }
        for name, key, factor in _metrics(str(row.get("kind"))):
            values = [run[key] * factor for run in runs if isinstance(run.get(key), (int, float))]
            if values:
                yield {
                    "benchmark": benchmark,
                    "model": {"name": row.get("model")},
                    "metric": {"name": name, "benchmark_values": values, "extra_info": about},
                }


def arguments(row: Row) -> dict[str, Any]:
    """Return the client's arguments, and the engine's tensor_parallel_size, which the dashboard shows."""
    found = {
        name: value
        for name, value in options_of(row.get("command")).items()
        if name not in _PRIVATE and not is_secret_name(name)
    }
    return known_values({**found, "tensor_parallel_size": engine_setup(row).tensor_parallel})


def _metrics(kind: str) -> Iterator[tuple[str, str, float]]:
    """Yield (name of the metric, key of the row, factor to its unit)."""
    for key in METRICS:
        if kind in _OWN:
            if key in _OWN[kind]:
                name, factor = _OWN[kind][key]
                yield name, key, factor
        elif key not in _LOADS:
            yield ("duration" if key == "duration_s" else key), key, 1


def _about(results: RunResults, row: Row) -> dict[str, Any]:
    versions = row.get("versions") or {}
    return known_values(
        {
            "run": results.run,
            "host": row.get("host"),
            "instance": row.get("instance"),
            "cell": cell_name(row),
            "device": results.gpu(row, "model"),
            "image": row.get("image"),
            "digest": row.get("digest"),
            "commit": row.get("commit"),
            "vllm": versions.get("vllm"),
            "gpus": integer(engine_setup(row).gpus),
        }
    )
