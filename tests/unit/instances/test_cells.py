# SPDX-License-Identifier: Apache-2.0
"""Cells: their names, shapes and loads from command lines of any release."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.cells import describe_cell

CASES: list[tuple[str, str, str, Any, tuple[str, Any], str]] = [
    (
        "serve", "vllm bench serve --dataset-name random --random-input-len 1024 --random-output-len=1024"
        " --max-concurrency 128", "in1024-out1024-c128", (1024, 1024), ("concurrency", 128), "output_throughput",
    ),
    (
        "serve", "python3 /x.py --random-input-len 8 --random-output-len 4 --request-rate 8", "in8-out4-r8", (8, 4),
        ("rate", 8.0), "median_tpot_ms",
    ),
    (
        "serve", "x --input-len 8 --output-len 4 --request-rate 0.5 --max-concurrency 64", "in8-out4-r0.5-c64", (8, 4),
        ("rate", 0.5), "median_tpot_ms",
    ),
    (
        "serve", "x --input-len 8 --output-len 4 --request-rate inf", "in8-out4-all", (8, 4), ("all", None),
        "output_throughput",
    ),
    (
        "serve", "x --dataset-name sharegpt --dataset-path /d --max-concurrency 4", "sharegpt-c4", None,
        ("concurrency", 4), "output_throughput",
    ),
    ("serve", "x --ignore-eos --max-concurrency", "random-all", None, ("all", None), "output_throughput"),
    (
        "latency", "x --input-len 128 --output-len 2048 --batch-size 1", "in128-out2048-b1", (128, 2048), ("batch", 1),
        "mean_batch_latency_ms",
    ),
    ("latency", "x --input-len 128 --output-len 8", "in128-out8-b8", (128, 8), ("batch", 8), "mean_batch_latency_ms"),
    (
        "throughput", "x --input-len 128 --output-len 8 --num-prompts 5", "in128-out8-all", (128, 8), ("all", None),
        "total_token_throughput",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "command", "name", "shape", "load", "metric"), CASES)
def test_cells(
    kind: str, command: str, name: str, shape: tuple[int, int] | None, load: tuple[str, Any], metric: str
) -> None:
    found = describe_cell(kind, shlex.split(command))
    assert found == {
        "cell": name,
        "kind": kind,
        "argv": shlex.split(command),
        "shape": shape and {"input": shape[0], "output": shape[1]},
        "load": {"kind": load[0], "value": load[1]},
        "metric": metric,
    }
