# SPDX-License-Identifier: Apache-2.0
"""Describe what a benchmark's command line measures: the name of its cell, its shape and load. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

MAIN_METRIC: Mapping[str, str] = {
    "serve": "output_throughput",
    "latency": "mean_batch_latency_ms",
    "throughput": "total_token_throughput",
}
"""The metric of a kind of benchmark by which runs are compared."""
RATE_METRIC = "median_tpot_ms"
"""The same for requests that arrive at a rate: their throughput is the rate, whatever the server."""

# The flags of all releases' clients (catalog/vllm/bench_settings.yml).
_INPUT, _OUTPUT = ("--random-input-len", "--input-len"), ("--random-output-len", "--output-len")


def describe_cell(kind: str, argv: Sequence[str]) -> dict[str, Any]:
    """Return {cell, kind, argv, shape, load, metric} of a command line of a benchmark.

    cell: a name such as in1024-out1024-c128. load: {kind, value}, `concurrency`, `rate` (requests/s), `batch` or `all`
    at once. A rate with a limit of concurrency is a rate.
    """
    options = _options(argv)
    length_in, length_out = _number(options, *_INPUT), _number(options, *_OUTPUT)
    data_set = options.get("--dataset-name", "random")
    shape = None
    if data_set == "random" and length_in is not None and length_out is not None:
        shape = {"input": int(length_in), "output": int(length_out)}
    load, suffix = _load(kind, options)
    prefix = f"in{shape['input']}-out{shape['output']}" if shape else data_set
    metric = main_metric(kind, load["kind"])
    name = f"{prefix}-{suffix}"
    return {"cell": name, "kind": kind, "argv": list(argv), "shape": shape, "load": load, "metric": metric}


def main_metric(kind: str, load: str) -> str:
    """Return the metric by which the runs of a cell are compared, for its kind of benchmark and of load."""
    return RATE_METRIC if load == "rate" else MAIN_METRIC[kind]


def _load(kind: str, options: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    if kind == "latency":
        batch = int(_number(options, "--batch-size") or 8)  # the default of all releases
        return {"kind": "batch", "value": batch}, f"b{batch}"
    concurrency, rate = _number(options, "--max-concurrency"), _number(options, "--request-rate")
    if kind == "serve" and rate is not None and math.isfinite(rate):
        limit = f"-c{concurrency:g}" if concurrency else ""
        return {"kind": "rate", "value": rate}, f"r{rate:g}{limit}"
    if kind == "serve" and concurrency:
        return {"kind": "concurrency", "value": int(concurrency)}, f"c{concurrency:g}"
    return {"kind": "all", "value": None}, "all"


def _options(argv: Sequence[str]) -> dict[str, str]:
    """Return the first value of each option; "" for a flag."""
    found: dict[str, str] = {}
    for word, after in zip(argv, [*argv[1:], ""]):
        if word.startswith("--"):
            name, given, value = word.partition("=")
            found[name] = value if given else "" if after.startswith("--") else after
    return found


def _number(options: Mapping[str, str], *names: str) -> float | None:
    for name in names:
        try:
            return float(options[name])
        except (KeyError, ValueError):
            continue
    return None
