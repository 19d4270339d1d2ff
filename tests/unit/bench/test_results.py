# SPDX-License-Identifier: Apache-2.0
"""Results of runs: their outcomes, and per-request lists in a size that can be carried."""

from __future__ import annotations

import base64
import gzip
import json
import random
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.bench.results import (
    REQUEST_LISTS,
    compress_lists,
    outcome,
    run_entry,
    separate,
)
from ansible_collections.instinct.fleet.plugins.module_utils.benchmarks.bench_metrics import normalise

from tests import ROOT
from tests.worlds.bench_world import RESULT

OOM = "torch.OutOfMemoryError: HIP out of memory.\n"
DETAILED = {
    **RESULT,
    "start_times": [1000.5, 1000.0],
    "ttfts": [0.123456789, 0.2],
    "itls": [[0.01, 0.0200000001], []],
    "input_lens": [8, 8],
    "output_lens": [3, 1],
    "generated_texts": ["secret prompt", "x"],
    "errors": ["", "Traceback sk-key"],
    "spec_decode_per_position_acceptance_rates": [0.9, 0.5],
}


def unpacked(detail: str | None) -> Any:
    assert detail is not None
    return json.loads(gzip.decompress(base64.b64decode(detail)))


def record(result: Any, **more: Any) -> dict[str, Any]:
    """A run as programs/bench_job.py records it."""
    return {
        "cell": "c", "kind": "serve", "block": 1, "order": 1, "seed": 3, "started": 1.0, "seconds": 2.0, "code": 0,
        "client_cpu_share": None, "log": "said", "problem": "", "result": result, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("result", "code", "problem", "error"),
    [
        (RESULT, 0, "", None),
        ({**RESULT, "completed": 0, "failed": 10}, 0, "", "none of 10 requests was completed."),
        ({**RESULT, "completed": 7, "failed": 3}, 0, "", "3 of 10 requests failed."),
        (
            {k: RESULT[k] for k in RESULT if k != "failed"} | {"completed": 9},
            0,
            "",
            "1 of 10 requests failed.",
        ),
        (None, 0, "", "succeeded, but wrote no result"),
        (None, 0, "Expecting value: line 1", "wrote no usable result: Expecting value"),
        ({"x": 1}, 0, "", "has no number 'completed'"),
        (["x"], 0, "", "not a JSON object"),
        (None, 1, "", "out_of_memory: torch.OutOfMemoryError"),
    ],
)
def test_outcomes(result: Any, code: int, problem: str, error: str | None) -> None:
    found, why = outcome("serve", code, OOM, result, problem)
    if error is None:
        assert (found, why) == (RESULT, None)
    else:
        assert why is not None
        assert error in why


def test_nan_becomes_null() -> None:
    found, why = outcome("serve", 0, "", {**RESULT, "std_ttft_ms": float("nan")})
    assert found is not None
    assert (found["std_ttft_ms"], why) == (None, None)


def test_old_goodput_key_and_missing_counts_are_understood() -> None:
    old = {key: RESULT[key] for key in RESULT if key != "failed"} | {"request_goodput:": 3.5}
    found, why = outcome("serve", 0, "", old)
    assert why is None
    metrics = normalise("serve", found)
    assert (metrics["request_goodput"], metrics["failed"], metrics["total_token_throughput"]) == (
        3.5,
        0,
        150.0,
    )


def test_per_request_lists_travel_apart_without_texts() -> None:
    run = run_entry("serve", record(DETAILED), 10_000)
    assert run["result"] == {**RESULT, "spec_decode_per_position_acceptance_rates": [0.9, 0.5]}
    assert unpacked(run["detail"]) == {
        "start_times": [0.5, 0.0],
        "ttfts": [0.12346, 0.2],
        "itls": [[0.01, 0.02], []],
        "latencies": [0.15346, 0.2],
        "input_lens": [8, 8],
        "output_lens": [3, 1],
        "errors": ["", "failed"],
    }


def test_results_of_old_clients_have_lists_too_and_those_without_have_none() -> None:
    old = {key: value for key, value in DETAILED.items() if key not in ("start_times", "spec_decode")}
    assert "start_times" not in unpacked(run_entry("serve", record(old), 10_000)["detail"])
    assert run_entry("serve", record(RESULT), 10_000)["detail"] is None


def test_gaps_between_tokens_are_left_out_when_they_are_too_many() -> None:
    rng = random.Random(1)
    lists = separate("serve", {**DETAILED, "itls": [[rng.random() for _ in range(4000)], []]})[1]
    whole, less = compress_lists(lists, 100_000), compress_lists(lists, 2_000)
    assert set(unpacked(whole)) - set(unpacked(less)) == {"itls"}
    assert len(less or "") <= 2_000
    assert compress_lists(lists, 10) is None


def test_packing_gives_the_same_text_every_time() -> None:
    lists = separate("serve", DETAILED)[1]
    assert compress_lists(lists, 10_000) == compress_lists(lists, 10_000)


def test_offline_results_are_kept_as_they_are() -> None:
    latency = {"avg_latency": 1.5, "latencies": [1.5], "percentiles": {"50": 1.5}}
    run = run_entry("latency", record(latency, kind="latency"), 10_000)
    assert (run["result"], run["detail"]) == (latency, None)


def test_the_lists_are_those_of_the_catalogue() -> None:
    results = yaml.safe_load((ROOT / "catalog/vllm/bench_results.yml").read_text())
    listed = {item["key"] for item in results["serve"]["keys"] if item.get("detail")}
    assert listed <= set(REQUEST_LISTS)
    assert set(REQUEST_LISTS) - listed == {"server_ttfts", "server_queue_times"}


def test_the_log_of_a_run_is_kept_where_it_is_needed() -> None:
    assert run_entry("serve", record(RESULT), 0)["log"] == ""
    assert run_entry("serve", record(None, code=1), 0)["log"] == "said"
    throughput = {"elapsed_time": 1.0, "num_requests": 1}
    assert run_entry("throughput", record(throughput, kind="throughput"), 0)["log"] == "said"
