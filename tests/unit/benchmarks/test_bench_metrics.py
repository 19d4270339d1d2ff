# SPDX-License-Identifier: Apache-2.0
"""vLLM's result keys over its versions become one set of metrics; what was not measured is None."""

from __future__ import annotations

import math
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.benchmarks.bench_metrics import (
    METRICS,
    normalise,
    other_scalars,
)
from ansible_collections.instinct.fleet.plugins.module_utils.benchmarks.bench_results import (
    ResultError,
    finite,
)

from tests.worlds.bench_samples import latency_result, throughput_result

BASE: dict[str, Any] = {
    "date": "20260131-101502",
    "model_id": "m",
    "tokenizer_id": "m",
    "num_prompts": 10,
    "request_rate": "inf",
    "duration": 4.0,
    "completed": 10,
    "total_input_tokens": 100,
    "total_output_tokens": 60,
    "request_throughput": 2.5,
    "output_throughput": 15.0,
    "total_token_throughput": 40.0,
    "mean_ttft_ms": 20.0,
    "median_ttft_ms": 18.0,
    "std_ttft_ms": 1.0,
    "p99_ttft_ms": 30.0,
}
V = {
    "0.6.3": {**BASE, "backend": "vllm", "best_of": 1},
    "0.9.1": {
        **BASE,
        "endpoint_type": "vllm",
        "request_goodput:": 1.5,
        "max_concurrency": None,
        "burstiness": 1.0,
    },
    "0.9.2": {**BASE, "endpoint_type": "vllm", "request_goodput": None, "max_concurrency": 4},
    "0.11.0": {**BASE, "backend": "openai", "max_output_tokens_per_s": 21.0, "max_concurrent_requests": 5},
    "0.11.1": {**BASE, "backend": "openai", "completed": 8, "failed": 1, "request_goodput": 2.0},
    "0.14.0": {
        **BASE,
        "failed": 0,
        "spec_decode_acceptance_rate": 71.2,
        "p50_ttft_ms": 18.5,
        "p99.9_ttft_ms": 31.0,
    },
    "0.33.0": {
        **BASE,
        "failed": 0,
        "rtfx": 0.0,
        "probe_completed": 3,
        "p90_e2el_ms": 900.0,
        "latencies": [0.9],
    },
}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.6.3", {"failed": 0, "request_goodput": None, "max_concurrency": None, "p99_ttft_ms": 30.0}),
        ("0.9.1", {"request_goodput": 1.5, "burstiness": 1.0, "max_concurrency": None}),
        ("0.9.2", {"request_goodput": None, "max_concurrency": 4}),
        ("0.11.0", {"max_output_tokens_per_s": 21.0, "max_concurrent_requests": 5, "failed": 0}),
        ("0.11.1", {"completed": 8, "failed": 1, "request_goodput": 2.0}),
        ("0.14.0", {"median_ttft_ms": 18.0, "p50_ttft_ms": 18.5, "p99.9_ttft_ms": 31.0}),
        (
            "0.33.0",
            {"p90_e2el_ms": 900.0, "p99_e2el_ms": None, "median_e2el_ms": None, "request_rate": "inf"},
        ),
    ],
)
def test_serve_of_every_version(version: str, expected: dict[str, Any]) -> None:
    metrics = normalise("serve", V[version])
    assert {key: metrics[key] for key in expected} == expected
    assert set(METRICS) <= set(metrics)
    assert metrics["duration_s"] == 4.0
    assert metrics["total_token_throughput"] == 40.0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"failed": None, "completed": 7}, {"failed": 3}),
        ({"completed": 7, "num_prompts": None}, {"failed": None, "num_prompts": None}),
        ({"completed": 12}, {"failed": None}),
        ({"total_token_throughput": None}, {"total_token_throughput": 40.0}),
        ({"total_token_throughput": None, "total_input_tokens": None}, {"total_token_throughput": None}),
        ({"total_token_throughput": None, "duration": 0}, {"total_token_throughput": None}),
        ({"output_throughput": None}, {"output_throughput": 15.0}),
        ({"request_throughput": math.nan}, {"request_throughput": 2.5}),
        (
            {"request_throughput": math.nan, "duration": None},
            {"request_throughput": None, "duration_s": None},
        ),
        ({"request_rate": 4}, {"request_rate": 4}),
        ({"request_rate": math.inf}, {"request_rate": "inf"}),
        ({"request_rate": "fast"}, {"request_rate": None}),
        ({"median_ttft_ms": None}, {"median_ttft_ms": None, "p50_ttft_ms": None, "p99_ttft_ms": 30.0}),
        ({"median_ttft_ms": None, "p50_ttft_ms": 17.0}, {"median_ttft_ms": 17.0}),
        ({}, {"p50_ttft_ms": 18.0}),
        ({"p99_ttft_ms": math.inf}, {"p99_ttft_ms": None}),
        ({"p99_ttft_ms": "30"}, {"p99_ttft_ms": None}),
        ({"std_ttft_ms": 0}, {"std_ttft_ms": 0}),
    ],
)
def test_serve_missing_and_odd_values(change: dict[str, Any], expected: dict[str, Any]) -> None:
    metrics = normalise("serve", {**BASE, **change})
    assert {key: metrics[key] for key in expected} == expected


def test_zeros_of_no_sample_are_none() -> None:
    """np.mean([] or 0): a run with one token per request has no TPOT, one without answers has no TTFT."""
    raw = {**BASE, "completed": 0, "request_throughput": 0.0}
    for name in ("ttft", "tpot"):
        raw |= {f"{stat}_{name}_ms": 0.0 for stat in ("mean", "median", "std", "p90", "p99", "p99.9")}
    metrics = normalise("serve", raw)
    assert [value for key, value in metrics.items() if key.endswith("_ms") and value is not None] == []
    assert metrics["completed"] == 0
    assert metrics["request_throughput"] == 0.0
    assert metrics["failed"] == 10


def test_latency_is_seconds_in_and_milliseconds_out() -> None:
    metrics = normalise("latency", latency_result())
    assert metrics["mean_batch_latency_ms"] == pytest.approx(17306)
    assert metrics["median_batch_latency_ms"] == metrics["p50_batch_latency_ms"] == pytest.approx(17300)
    assert metrics["p99_batch_latency_ms"] == pytest.approx(17348.4)
    assert metrics["min_batch_latency_ms"] == pytest.approx(17280)
    assert metrics["iterations"] == 5
    assert metrics["output_throughput"] is None
    assert metrics["completed"] is None


def test_latency_without_iterations() -> None:
    metrics = normalise("latency", {"avg_latency": 2.0})
    assert metrics["mean_batch_latency_ms"] == 2000.0
    assert metrics["iterations"] is None
    assert metrics["p50_batch_latency_ms"] is None


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", {"output_throughput": None, "total_output_tokens": None}),
        (
            "noise\nThroughput: 5.00 requests/s, 10880.00 total tokens/s, 10240.10 output tokens/s\n",
            {"output_throughput": 10240.1, "total_output_tokens": None},
        ),
        (
            "Throughput: 5.00 requests/s, 10880.00 total tokens/s, 10240.10 output tokens/s\n"
            "Total num prompt tokens:  192000\nTotal num output tokens:  3072000\n",
            {"output_throughput": 10240.0, "total_output_tokens": 3072000, "total_input_tokens": 192000},
        ),
    ],
)
def test_throughput(log: str, expected: dict[str, Any]) -> None:
    metrics = normalise("throughput", throughput_result(), log)
    assert {key: metrics[key] for key in expected} == expected
    assert metrics["total_token_throughput"] == 10880.0
    assert metrics["request_throughput"] == 5.0
    assert (metrics["completed"], metrics["failed"], metrics["duration_s"]) == (1500, 0, 300.0)


@pytest.mark.parametrize(
    ("kind", "raw", "message"),
    [
        ("sweep", {}, "unknown kind of benchmark 'sweep'; known: serve, latency, throughput"),
        ("serve", [1], "is list, not a JSON object"),
        ("serve", latency_result(), "no number 'completed'"),
        ("latency", BASE, "no number 'avg_latency'"),
        ("throughput", {"elapsed_time": "3"}, "no number 'elapsed_time'"),
        ("serve", {"completed": True}, "no number 'completed'"),
    ],
)
def test_what_is_no_result(kind: str, raw: Any, message: str) -> None:
    with pytest.raises(ResultError, match=message):
        normalise(kind, raw)


def test_other_scalars_keep_what_has_no_column() -> None:
    raw = {**V["0.14.0"], "owner": "x", "bad": math.nan, "list": [1], "none": None, "request_goodput:": 1}
    found = other_scalars(raw)
    assert found["spec_decode_acceptance_rate"] == 71.2
    assert found["owner"] == "x"
    assert not {"bad", "list", "none", "completed", "p99_ttft_ms", "request_goodput:", "duration"} & set(
        found
    )


def test_finite_is_valid_json() -> None:
    assert finite({"a": [math.nan, 1.5, {"b": -math.inf}], 3: True}) == {
        "a": [None, 1.5, {"b": None}],
        "3": True,
    }
