# SPDX-License-Identifier: Apache-2.0
"""The lines of madengine's perf.csv: one for each metric of a benchmark, and one for each that failed. Pure.

Columns: ROCm/madengine, deployment/base.py (2.0). `madengine report to-html` takes any CSV; its console table reads the
columns model, n_gpus, nnodes, gpus_per_node, performance, metric, status and test_duration, which are all here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..measurement.rows import cell_name, load_of, shape_of
from .export import known_values
from .run_results import Row, RunResults
from .setup import engine_setup, integer, options_of

COLUMNS = (
    "model",
    "n_gpus",
    "nnodes",
    "gpus_per_node",
    "training_precision",
    "pipeline",
    "args",
    "tags",
    "docker_file",
    "base_docker",
    "docker_sha",
    "docker_image",
    "git_commit",
    "machine_name",
    "deployment_type",
    "launcher",
    "gpu_architecture",
    "performance",
    "metric",
    "relative_change",
    "status",
    "build_duration",
    "test_duration",
    "dataname",
    "data_provider_type",
    "data_size",
    "data_download_duration",
    "build_number",
    "additional_docker_run_options",
)
_METRICS = {
    "serve": (("output_throughput", "tok/sec"), ("p50_ttft_ms", "ms"), ("p50_tpot_ms", "ms")),
    "latency": (("mean_batch_latency_ms", "ms"),),
    "throughput": (("total_token_throughput", "tok/sec"),),
}
"""What is reported of each kind, with madengine's name of the unit."""
_DTYPES = {"fp8": "float8", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


def model_name(row: Row) -> str:
    """Return the model's name without its organization, as AMD's files have it."""
    return str(row.get("model") or "unknown").rstrip("/").rsplit("/", 1)[-1]


def dtype(row: Row) -> str:
    """Return the number format as AMD's option -d names it; "auto" if the checkpoint decides."""
    precision = engine_setup(row).precision
    return _DTYPES.get(precision, precision) if precision else "auto"


def lines(results: RunResults) -> Iterator[dict[str, Any]]:
    """Yield the lines of perf.csv. What is not known is left out, an empty cell."""
    for row in results.cells:
        common = _common(results, row)
        metrics = _METRICS.get(str(row.get("kind")), ())
        for metric, unit in metrics:
            name = _name(row) if len(metrics) == 1 else f"{_name(row)}_{metric.removesuffix('_ms')}"
            yield known_values({**common, "model": name, "performance": row.get(metric), "metric": unit})
    for failure in results.failures:
        yield {
            "model": failure.get("what"),
            "machine_name": failure.get("host"),
            "deployment_type": "local",
            "status": "FAILURE",
        }


def _name(row: Row) -> str:
    """Return the model's name joined with what identifies the benchmark, as in AMD's perf_MODEL.csv."""
    setup, load, (given, wanted) = engine_setup(row), load_of(row), shape_of(row)
    if row.get("kind") == "serve":
        parts: list[Any] = [model_name(row), setup.tensor_parallel, cell_name(row), dtype(row)]
    else:
        amount = integer(load.value if row.get("kind") == "latency" else row.get("num_prompts"))
        parts = [model_name(row), setup.tensor_parallel, amount, given, wanted, dtype(row)]
    return "_".join("" if part is None else str(part) for part in parts)


def _common(results: RunResults, row: Row) -> Mapping[str, Any]:
    setup = engine_setup(row)
    local = len(row.get("gpus") or []) or setup.gpus
    client = options_of(row.get("command"))
    return {
        "n_gpus": setup.gpus,
        "nnodes": -(-setup.gpus // local) if setup.gpus and local else None,
        "gpus_per_node": local,
        "training_precision": setup.precision,
        "args": row.get("command"),
        "tags": "vllm",
        "docker_sha": row.get("digest"),
        "docker_image": row.get("image"),
        "machine_name": row.get("host"),
        "deployment_type": "local",
        "launcher": "vllm",
        "gpu_architecture": results.gpu(row, "gfx"),
        "status": "SUCCESS",
        "test_duration": row.get("seconds"),
        "dataname": client.get("dataset_name"),
    }
