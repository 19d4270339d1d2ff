# SPDX-License-Identifier: Apache-2.0
"""Rows of runs with a set speed, noise and drift, for comparisons: as a suite writes them to runs.jsonl."""

from __future__ import annotations

import datetime
import json
import math
import random
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.benchmarks.bench_metrics import METRICS
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.cells import Side

BEGIN = datetime.datetime(2026, 1, 31, 10, 0, tzinfo=datetime.UTC)
COMMAND = (
    "vllm serve meta-llama/Llama-3.1-70B-Instruct --port 8000 --tensor-parallel-size 8 --max-num-seqs 512"
)
HOST = {
    "compute_partition": "SPX",
    "memory_partition": "NPS1",
    "driver": "6.14.14",
    "kernel": "5.15.0-143-generic",
    "rocm": "7.0.0",
    "gpus": [{"model": "MI300X"}] * 8,
}


def row(host: str = "n1", minute: int = 0, speed: float = 1000.0, **more: Any) -> dict[str, Any]:
    """A run of a serving cell; minute: of its start."""
    return {
        **dict.fromkeys(METRICS),
        "host": host,
        "instance": "llama-0",
        "deployment": "llama",
        "kind": "serve",
        "started": (BEGIN + datetime.timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": 60.0,
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "commit": "1605565b47bb9346c5515c34102e054115b4f98b",
        "image": "vllm/vllm-openai-rocm:v0.14.0",
        "digest": "sha256:" + "a" * 64,
        "completed": 640,
        "failed": 0,
        "num_prompts": 640,
        "output_throughput": speed,
        "request_throughput": speed / 1000,
        "total_token_throughput": speed * 2,
        "median_ttft_ms": 4e5 / speed,
        "median_tpot_ms": 3e4 / speed,
        "median_e2el_ms": 3e7 / speed,
        "gpus": list(range(8)),
        "serve_command": COMMAND,
        "env": {"VLLM_ROCM_USE_AITER": "1"},
        "command": "vllm bench serve",
        "suite": "serving",
        "cell": "in1024-out1024-c128",
        "shape": {"input": 1024, "output": 1024},
        "load": {"kind": "concurrency", "value": 128},
        "versions": {"vllm": "0.14.0", "torch": "2.9.0"},
        **more,
    }


def side(name: str, rows: list[dict[str, Any]], **facts: Any) -> Side:
    """A side of a comparison."""
    return Side(name, tuple(rows), {item["host"]: {**HOST, **facts} for item in rows})


def before_after(
    rng: random.Random, change: float, cv: float, drift: float, nodes: int = 2, runs: int = 5
) -> tuple[Side, Side]:
    """Two sessions of some runs each, b first, on the same nodes; each session drifts as a whole."""
    rows: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    speeds = [1000 * math.exp(rng.gauss(0, 0.03)) for _ in range(nodes)]
    for number, name in enumerate("ba"):
        session = math.exp(rng.gauss(0, drift)) * (1 + change * (name == "a"))
        for node, speed in enumerate(speeds):
            for run in range(runs):
                value = speed * session * math.exp(rng.gauss(0, cv))
                rows[name].append(row(f"n{node}", number * 1440 + run * 5, value))
    return side("a", rows["a"]), side("b", rows["b"])


def interleaved(
    rng: random.Random, change: float, cv: float, drift: float, nodes: int = 2, blocks: int = 5
) -> tuple[Side, Side]:
    """a and b in turns on each node, each of them first in every other block; each block drifts as a whole."""
    rows: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    for node in range(nodes):
        speed = 1000 * math.exp(rng.gauss(0, 0.03))
        for block in range(blocks):
            session = math.exp(rng.gauss(0, drift))
            for number, name in enumerate("ba" if block % 2 else "ab"):
                value = speed * session * (1 + change * (name == "a")) * math.exp(rng.gauss(0, cv))
                rows[name].append(row(f"n{node}", block * 60 + number * 30, value, run=f"{name}-{block}"))
    return side("a", rows["a"]), side("b", rows["b"])


def crossed(
    rng: random.Random, change: float, cv: float, drift: float, nodes: int = 8, runs: int = 3
) -> tuple[Side, Side]:
    """Half of the nodes have a first, the others b; each of the two sessions drifts as a whole."""
    rows: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    sessions = [math.exp(rng.gauss(0, drift)) for _ in range(2)]
    for node in range(nodes):
        speed = 1000 * math.exp(rng.gauss(0, 0.03))
        for number, name in enumerate("ab" if node % 2 else "ba"):
            for run in range(runs):
                value = speed * sessions[number] * (1 + change * (name == "a")) * math.exp(rng.gauss(0, cv))
                rows[name].append(row(f"n{node}", number * 1440 + run * 5, value))
    return side("a", rows["a"]), side("b", rows["b"])


def store(results_dir: Path, name: str, part: Side) -> None:
    """Write a side as a run: runs.jsonl, and summary.json with its hosts."""
    directory = results_dir / name
    directory.mkdir(parents=True)
    started = min(item["started"] for item in part.rows)
    summary = {"schema": 1, "run": name, "started": started, "benchmarks": [], "hosts": dict(part.hosts)}
    (directory / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    lines = "".join(json.dumps(item) + "\n" for item in part.rows)
    (directory / "runs.jsonl").write_text(lines, encoding="utf-8")
