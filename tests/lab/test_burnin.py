# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/runbooks/slow-gpu.md: hosts are drained and tested, and serve again; what was stopped stays so.

The lab has no GPU that computes. So the program runs on the CPU, with the PyTorch of the lab's image, and nothing is
judged; with `device: gpu` it fails and says why, and everything serves again as well.
"""

from __future__ import annotations

import json

import pytest

from .conftest import Lab
from .helpers import completion, deployment

BOOK = "docs/runbooks/slow-gpu.md"
SMALL = {
    "burnin_device": "cpu",
    "burnin_seconds": 0.5,
    "burnin_size": 256,
    "burnin_copy_mib": 16,
    "burnin_reduce_mib": [1],
}


def running(lab: Lab, host: str) -> set[str]:
    return set(lab.on(host, "docker ps --format '{{.Names}}' --filter name=instinct-llama").split())


@pytest.mark.deep
def test_drained_tested_and_serving_again(lab: Lab) -> None:
    lab.write_vars(vllm_deployments=[deployment(instances_per_host=2)], **SMALL)
    deployed = lab.play("site", "--skip-tags", "benchmark")
    assert deployed.rc == 0, deployed.out
    results = lab.tmp / "results"
    places = "-e", f"burnin_results_dir={results}"

    # All at once would leave nothing in service.
    refused = lab.play("burnin", *places)
    assert refused.rc == 2, refused.out
    assert "this would leave 0" in refused.out
    assert "gpu_burnin" not in refused.modules()

    # An instance that the operator stopped is not started by a test.
    host, other = lab.hosts[:2]
    stopped = lab.play("stop", "-e", "instance=llama-1", "--limit", host, "-e", "at_once=true")
    assert stopped.rc == 0, stopped.out
    assert running(lab, host) == {"instinct-llama-0"}

    tested = lab.play("burnin", *places, "-e", "at_once=true", "-e", "burnin_run=first")
    assert tested.rc == 0, tested.out
    found = json.loads((results / "first/burnin.json").read_text())
    assert sorted(found["hosts"]) == sorted(lab.hosts)
    assert {item["verdict"] for item in found["verdicts"]} == {None}
    assert found["failed"] == {}
    for node in lab.hosts:
        (first, _second) = found["hosts"][node]["gpus"]
        assert first["gemm"]["bf16"]["wrong_elements"] == 0
        assert first["gemm"]["bf16"]["rows_right"] is True
        assert found["hosts"][node]["reduce"][0]["rates"]["1"] > 0
        assert "instinct-burnin" not in lab.on(node, "docker ps -a --format '{{.Names}}'")
    assert running(lab, host) == {"instinct-llama-0"}
    assert running(lab, other) == {"instinct-llama-0", "instinct-llama-1"}
    assert completion(lab, other, 8001)["usage"]["completion_tokens"] == 4

    # The image's PyTorch sees no GPU: said, nothing is judged, and all that served serves again.
    failed = lab.play(
        "burnin", *places, "-e", "at_once=true", "-e", "burnin_run=second", "-e", "burnin_device=gpu"
    )
    assert failed.rc == 2, failed.out
    assert "PyTorch sees no GPU" in failed.out
    assert sorted(json.loads((results / "second/burnin.json").read_text())["failed"]) == sorted(lab.hosts)
    assert running(lab, other) == {"instinct-llama-0", "instinct-llama-1"}
    assert completion(lab, host, 8000)["usage"]["completion_tokens"] == 4
