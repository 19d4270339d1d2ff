# SPDX-License-Identifier: Apache-2.0
"""A suite of the operator's own: its cells in blocks, its data set, and a run that was killed in the middle."""

from __future__ import annotations

import gzip
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from .conftest import Lab
from .helpers import deployment, wait_for

SUITE = """\
schema: 1
suite: small
title: Small
repeats: {warmups: 1, blocks: 3, most: 3, half_width: 0.02}
percentiles: [50, 90]
groups:
  - title: Small
    kind: serve
    dataset: random
    shapes: [{input: 16, output: 16}]
    load: {concurrency: [2, 4]}
    num_prompts: {count: 64}
    args: {ignore_eos: true, temperature: 0}
  - title: Conversations
    kind: serve
    dataset: sharegpt
    load: {concurrency: [4]}
    num_prompts: {count: 64}
    args: {temperature: 0}
"""
CELLS = ("in16-out16-c2", "in16-out16-c4", "sharegpt-c4")
CHATS = [
    {"conversations": [{"value": f"Count to {number}"}, {"value": "one two " * 32}]} for number in range(9)
]
NODE = "/var/lib/instinct-fleet/bench/cut"


@pytest.mark.deep  # four minutes; test_benchmark_service has a shorter one
def test_a_killed_suite_goes_on(lab: Lab) -> None:
    lab.write_vars(vllm_deployments=[deployment()])
    deployed = lab.play("site", "--skip-tags", "benchmark")
    assert deployed.rc == 0, deployed.out
    suite = lab.tmp / "small.yml"
    suite.write_text(SUITE, encoding="utf-8")
    chats = lab.tmp / "chats.json"
    given = {"benchmark_suite": str(suite), "benchmark_suite_args": {"dataset_path": str(chats)}}
    command = "benchmark", "-e", json.dumps(given), "-e", "benchmark_run=cut"
    refused = lab.play(*command)
    assert refused.rc == 2
    assert f"{chats} cannot be read on the control node" in " ".join(refused.out.split())
    chats.write_text(json.dumps(CHATS), encoding="utf-8")
    victim = lab.start(*command)
    try:
        wait_for(
            "two finished runs",
            lambda: int(lab.on(lab.hosts[0], f"ls {NODE}/*/[01].[1-3].json 2>/dev/null | wc -l")) > 1,
        )
    finally:
        # With its workers, which are in sessions of their own, and their connections: else the measurement goes on.
        processes = [victim.pid]
        for process in processes:
            children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8")
            processes += map(int, children.split())
        for process in processes:
            os.kill(process, signal.SIGKILL)
        victim.communicate()
    run = lab.play(*command)
    assert run.rc == 0, run.out
    assert "of cut kept from an interrupted call" in " ".join(run.out.split())

    results = lab.tmp / "results/cut"
    rows: list[dict[str, Any]] = [
        json.loads(line) for line in (results / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert sorted((row["host"], row["cell"], row["block"]) for row in rows) == [
        (host, cell, block) for host in lab.hosts for cell in CELLS for block in (1, 2, 3)
    ]
    for host in lab.hosts:
        assert len({row["seed"] for row in rows if row["host"] == host}) == len(CELLS) * 3
        assert lab.on(host, f"ls {NODE} 2>/dev/null", check=False) == ""
        assert lab.on(host, "stat -c '%a %U' /var/lib/instinct-fleet/dataset/*/chats.json") == "644 root\n"
    summary = json.loads((results / "summary.json").read_text(encoding="utf-8"))
    assert summary["failures"] == []
    for cell in summary["benchmarks"]:
        low, high = cell["interval"]
        assert low <= cell["output_throughput"] <= high
        assert (cell["suite"], cell["runs"], cell["p99_ttft_ms"]) == ("small", 3, None)
        assert cell["versions"]["vllm"]
    (first, *_others) = sorted((results / "raw").glob("*.json.gz"))
    assert len(json.loads(gzip.decompress(first.read_bytes()))["ttfts"]) == 64
