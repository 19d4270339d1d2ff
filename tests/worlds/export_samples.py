# SPDX-License-Identifier: Apache-2.0
"""A measured run as exports get it: results of before suites, and of a suite with runs.jsonl."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.exports.run_results import (
    RunResults,
    parse_run,
)

from tests.worlds.bench_samples import MODEL, entry, latency_result, summary_of, throughput_result, variables

FP8 = "amd/Llama-3.1-70B-Instruct-FP8-KV"
OF_SUITES = {
    *("suite", "cell", "shape", "load", "metric", "block", "order", "seed", "live", "runs", "cv", "interval"),
    *(
        "steady_output_throughput",
        "steady_share",
        "client_cpu_share",
        "send_lag_ms",
        "client_bound",
        "goodput",
        "warnings",
    ),
    *(
        "kv_usage_max",
        "preemptions",
        "prefix_hit_rate",
        "acceptance_length",
        "power_w",
        "joules_per_output_token",
    ),
    *("power_valid", "throttled", "ecc", "versions"),
}
"""Keys that rows did not have before suites."""
SECRET = "hf_Abcdefghijklmnopqrstuvwx"
KEY = "s3cret-of-the-gateway"


def offline_entry(kind: str, **more: Any) -> dict[str, Any]:
    """An offline benchmark as AMD's report runs it: 2048 tokens in, 128 or 2048 out, on 8 GPUs."""
    options = "--batch-size 8 --input-len 2048 --output-len 128"
    if kind == "throughput":
        options = "--num-prompts 1500 --input-len 2048 --output-len 2048"
    command = f"vllm bench {kind} --model /models/snapshot --tensor-parallel-size 8 --dtype float16 {options}"
    result = latency_result() if kind == "latency" else throughput_result()
    return entry("n1", gpus=tuple(range(8)), **{"kind": kind, "command": command, "result": result, **more})


def old_results(**serve: Any) -> RunResults:
    """A run without suites on one host: serving of a quantized model, latency and throughput of another."""
    own = variables("n1", [entry("n1", gpus=tuple(range(8)), **{"model": FP8, **serve})])
    own["__benchmark_offline"] = {"benchmarks": [offline_entry("latency"), offline_entry("throughput")]}
    summary = json.loads(json.dumps(summary_of({"n1": own})))
    rows = [{key: row[key] for key in row if key not in OF_SUITES} for row in summary["benchmarks"]]
    return parse_run({**summary, "benchmarks": rows})


def suite_results(**more: Any) -> RunResults:
    """Two cells at a concurrency and one at a rate, three runs each, with everything that a run may know.

    `more` are keys of all rows.
    """
    summary = json.loads(json.dumps(summary_of({"n1": variables("n1", [entry("n1", gpus=tuple(range(8)))])})))
    measured = summary["benchmarks"][0]
    cells, runs = [], []
    for order, (kind, value) in enumerate((("concurrency", 128), ("concurrency", 16), ("rate", 2.0))):
        base: dict[str, Any] = {
            **measured,
            "suite": "serving",
            "cell": f"in1024-out1024-{kind[0]}{value:g}",
            "shape": {"input": 1024, "output": 1024},
            "load": {"kind": kind, "value": value},
            "max_concurrency": value if kind == "concurrency" else None,
            "request_rate": value if kind == "rate" else "inf",
            "live": False,
            "output_throughput": 25.0 * value,
            "total_token_throughput": 50.0 * value,
            "power_valid": True,
            "power_w": 4000.0,
            "joules_per_output_token": 2.0,
            "total_output_tokens": 655360,
            "total_input_tokens": 655360,
            "prefix_hit_rate": 0.25,
            "goodput": {"chat": 3.5},
            "client_bound": None,
            "ecc": None,
            "versions": {"vllm": "0.11.1", "torch": "2.9.0", "rocm": "7.0.0", "aiter": None},
            "metric": "output_throughput" if kind == "concurrency" else "median_tpot_ms",
            **more,
        }
        for block in (1, 2, 3):
            speed = base["output_throughput"] + block - 2 if base["output_throughput"] is not None else None
            runs.append({**base, "block": block, "order": order, "seed": block, "output_throughput": speed})
        cells.append(
            {**base, "block": None, "runs": 3, "cv": 0.004, "interval": [base["output_throughput"], 1.0]}
        )
    summary["benchmarks"] = cells
    return parse_run(summary, "".join(json.dumps(row) + "\n" for row in runs))


__all__ = ["FP8", "KEY", "MODEL", "SECRET", "offline_entry", "old_results", "suite_results"]
