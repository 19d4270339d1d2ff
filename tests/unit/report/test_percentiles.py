# SPDX-License-Identifier: Apache-2.0
"""Percentiles: how many requests they take."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.report.percentiles import (
    lacking,
    needed,
    supported,
)


@pytest.mark.parametrize(("percentile", "requests"), [(90, 44), (95, 90), (99, 459), (99.9, 4603)])
def test_needed_requests_are_those_of_mlperf(percentile: float, requests: int) -> None:
    assert needed(percentile) == requests


@pytest.mark.parametrize(
    ("completed", "left"),
    [
        (43, ["median_ttft_ms", "p50_ttft_ms"]),
        (44, ["median_ttft_ms", "p50_ttft_ms", "p90_ttft_ms"]),
        (90, ["median_ttft_ms", "p50_ttft_ms", "p90_ttft_ms", "p95_ttft_ms"]),
        (459, ["median_ttft_ms", "p50_ttft_ms", "p90_ttft_ms", "p95_ttft_ms", "p99_ttft_ms"]),
        (None, ["median_ttft_ms", "p50_ttft_ms"]),
    ],
)
def test_percentiles_of_too_few_requests_are_null(completed: int | None, left: list[str]) -> None:
    metrics: dict[str, Any] = {f"p{name}_ttft_ms": 1.0 for name in ("50", "90", "95", "99", "99.9")}
    found = supported({"median_ttft_ms": 1.0, **metrics, "completed": completed, "iterations": None})
    assert [key for key, value in found.items() if value == 1.0] == left


def test_batches_count_like_requests() -> None:
    found = supported(
        {"p90_batch_latency_ms": 1.0, "p25_batch_latency_ms": 1.0, "completed": None, "iterations": 5}
    )
    assert found == {
        "p90_batch_latency_ms": None,
        "p25_batch_latency_ms": 1.0,
        "completed": None,
        "iterations": 5,
    }


def test_lacking() -> None:
    assert lacking({"kind": "serve", "completed": 89}) == ["p95", "p99"]
    assert lacking({"kind": "serve", "completed": 459}) == []
    assert lacking({"kind": "latency", "completed": None}) == []
