# SPDX-License-Identifier: Apache-2.0
"""Slow nodes stand out, equal ones do not, and what cannot be compared is not."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.report.outliers import (
    node_speeds,
    reference,
    sequential_hosts,
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
        "total_token_throughput": None,
        "mean_batch_latency_ms": None,
        **more,
    }


@pytest.mark.parametrize(
    ("values", "higher", "expected"),
    [([80, 100], True, 100), ([80, 100], False, 80), ([1, 2, 9], True, 2), ([1, 2, 3, 9], False, 2)],
)
def test_reference(values: list[float], higher: bool, expected: float) -> None:
    assert reference(values, higher) == expected


@pytest.mark.parametrize(
    ("outputs", "expected", "slow"),
    [
        ([100.0], [None], []),
        ([100.0, 100.0], [1.0, 1.0], []),
        ([100.0, 90.0], [1.0, 0.9], []),
        ([100.0, 85.0], [1.0, 0.85], [1]),
        ([100.0, 50.0, 102.0], [1.0, 0.5, 1.02], [1]),
        ([100.0, None], [None, None], []),
        ([100.0, None, 50.0], [1.0, None, 0.5], [2]),
        ([0.0, 0.0], [None, None], []),
    ],
)
def test_speed_against_the_median(
    outputs: list[float | None], expected: list[float | None], slow: list[int]
) -> None:
    found = speeds([row(f"n{number}", output) for number, output in enumerate(outputs)])
    assert [speed.value for speed in found] == expected
    assert [number for number, speed in enumerate(found) if speed.slow] == slow


def test_at_a_fixed_rate_the_time_per_token_tells_the_slow_node() -> None:
    rows = [row(f"n{n}", 100.0, request_rate=4, median_tpot_ms=t) for n, t in enumerate((10.0, 10.2, 12.0))]
    assert [speed.slow for speed in speeds(rows)] == [(), (), ("TPOT p50 18% above the median",)]
    assert [node.slow for node in node_speeds(rows)][2] == ("TPOT p50 18% above the median",)


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
    assert [speed.value for speed in speeds([row("n1"), row("n2", 10.0, **other)])] == [None, None]


def test_offline_kinds() -> None:
    rows = [
        row(f"n{n}", None, kind="throughput", total_token_throughput=v)
        for n, v in enumerate((9.0, 10.0, 5.0))
    ]
    rows += [
        row(f"n{n}", None, kind="latency", mean_batch_latency_ms=v) for n, v in enumerate((9.0, 10.0, 18.0))
    ]
    found = speeds(rows)
    values = [1.0, 10 / 9, 5 / 9, 10 / 9, 1.0, 10 / 18]
    assert [speed.value for speed in found] == [pytest.approx(value) for value in values]
    assert [bool(speed.slow) for speed in found] == [False, False, True, False, False, True]
    assert node_speeds(rows) == []


def test_a_node_is_the_sum_of_its_instances() -> None:
    nodes = {node.host: node for node in node_speeds(summary_of(mixed_fleet())["benchmarks"])}
    assert list(nodes) == ["n1", "n2", "n10"]
    assert {node.instances for node in nodes.values()} == {3}
    assert all(0.95 < (node.value or 0) < 1.05 and not node.slow for node in nodes.values())


def test_a_large_fleet_names_its_slow_node_and_its_slow_gpu() -> None:
    nodes = {node.host: node for node in node_speeds(summary_of(large_fleet(42, 6))["benchmarks"])}
    slow = {host: node.slow for host, node in nodes.items() if node.slow}
    assert set(slow) == {"gpu017", "gpu041"}
    assert slow["gpu017"][0] == "output tok/s of the node 16% below the median"
    assert len(slow["gpu041"]) == 1
    assert slow["gpu041"][0].startswith("llama8b-5: output tok/s 29% below the median")


@pytest.mark.parametrize(
    ("starts", "seconds", "expected"),
    [
        (["10:00:00", "10:00:05"], 60.0, []),
        (["10:00:00", "10:01:05"], 60.0, ["n1"]),
        (["10:00:00"], 60.0, []),
        (["10:00:00", "10:05:00"], None, []),
    ],
)
def test_instances_measured_one_after_another(
    starts: list[str], seconds: float | None, expected: list[str]
) -> None:
    rows = [row("n1", started=f"2026-01-31T{start}Z", seconds=seconds) for start in starts]
    rows.append(row("n2", started="2026-01-31T12:00:00Z"))
    assert sequential_hosts(rows) == expected
