# SPDX-License-Identifier: Apache-2.0
"""Speeds are relative to those of the same work, and rows and nodes are slow where a verdict says so."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.outliers.verdicts import gpu_verdicts
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.outliers import (
    node_speeds,
    speeds,
)

from tests.worlds.bench_samples import large_fleet, mixed_fleet, summary_of


def row(host: str, output: float | None = 100.0, **more: Any) -> dict[str, Any]:
    return {
        "host": host,
        "instance": "llama-0",
        "deployment": "llama",
        "kind": "serve",
        "cell": "in8-out8-c4",
        "gpus": [0],
        "num_prompts": 10,
        "max_concurrency": 4,
        "request_rate": "inf",
        "started": "2026-01-31T10:00:00Z",
        "seconds": 60.0,
        "output_throughput": output,
        "median_tpot_ms": 10.0,
        "median_e2el_ms": None,
        "total_token_throughput": None,
        "mean_batch_latency_ms": None,
        **more,
    }


def test_speed_against_the_median() -> None:
    rows = [row(f"n{number}", output) for number, output in enumerate((100.0, 50.0, 102.0, None))]
    assert [speed.value for speed in speeds(rows, [])] == [1.0, pytest.approx(0.5), pytest.approx(1.02), None]
    assert [speed.value for speed in speeds(rows[:1], [])] == [None]


def test_at_a_fixed_rate_it_is_the_time_per_token() -> None:
    rows = [row(f"n{n}", 100.0, request_rate=4, median_tpot_ms=t) for n, t in enumerate((10.0, 10.0, 12.5))]
    assert [speed.value for speed in speeds(rows, [])] == [1.0, 1.0, pytest.approx(0.8)]


@pytest.mark.parametrize(
    "other",
    [
        {"deployment": "x"},
        {"gpus": [0, 1]},
        {"max_concurrency": 8},
        {"num_prompts": 99},
        {"request_rate": 1.0},
        {"cell": "in8-out64-c4"},
    ],
)
def test_only_like_is_compared_with_like(other: dict[str, Any]) -> None:
    assert [speed.value for speed in speeds([row("n1"), row("n2", 10.0, **other)], [])] == [None, None]


def test_a_node_is_the_sum_of_its_instances() -> None:
    summary = summary_of(mixed_fleet())
    nodes = {node.host: node for node in node_speeds(summary["benchmarks"], summary["gpu_verdicts"])}
    assert list(nodes) == ["n1", "n2", "n10"]
    assert {node.instances for node in nodes.values()} == {3}
    assert all(0.95 < (node.value or 0) < 1.05 and not node.slow for node in nodes.values())


def test_a_node_is_slow_as_a_whole_and_not_by_one_of_its_gpus() -> None:
    summary = summary_of(large_fleet(42, 6))
    repeated = [{**item, "runs": 5} for item in summary["benchmarks"]]
    verdicts = [item.to_json() for item in gpu_verdicts(repeated, summary["hosts"])]
    nodes = node_speeds(repeated, verdicts)
    assert [(node.host, node.slow) for node in nodes if node.slow] == [
        ("gpu017", ("the whole node: output tok/s 16% below the other nodes' median",))
    ]
    slow = [
        item["host"] for item, speed in zip(repeated, speeds(repeated, verdicts), strict=True) if speed.slow
    ]
    assert slow == ["gpu017"] * 6 + ["gpu041"]
