# SPDX-License-Identifier: Apache-2.0
"""vLLM's offline benchmarks, by tag: the instances stop for them, and serve again afterwards."""

from __future__ import annotations

import json

import pytest

from .conftest import Lab
from .helpers import completion, deployment


@pytest.mark.deep
def test_latency_and_throughput_by_tag(lab: Lab) -> None:
    small = {"input_len": 16, "output_len": 16, "num_iters": 2, "num_iters_warmup": 1}
    lab.write_vars(
        vllm_deployments=[deployment(instances_per_host=2)],
        benchmark_latency_args=small,
        benchmark_throughput_args={"input_len": 16, "output_len": 16, "num_prompts": 8},
    )
    deployed = lab.play("site", "--skip-tags", "benchmark")
    assert deployed.rc == 0, deployed.out

    results = lab.tmp / "results"
    command = "--tags", "latency,throughput", "-e", f"benchmark_results_dir={results}"
    run = lab.play("benchmark", *command)
    assert run.rc == 0, run.out
    assert "Benchmark: 4 groups of 4 done." in run.out
    summary = json.loads((results / "latest/summary.json").read_text())
    measured = sorted((b["host"], b["instance"], b["kind"]) for b in summary["benchmarks"])
    assert measured == sorted(
        (host, instance, kind)
        for host in lab.hosts
        for instance in ("llama-0", "llama-1")
        for kind in ("latency", "throughput")
    )
    assert summary["failures"] == []
    for host in lab.hosts:
        for port in (8000, 8001):
            assert completion(lab, host, port)["usage"]["completion_tokens"] == 4
    again = lab.play("site", "--skip-tags", "benchmark")
    assert again.changed() == []
