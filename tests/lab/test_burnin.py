# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/runbooks/slow-gpu.md: a host is drained and tested while the other serves, and serves again;
what an operator stopped stays so.

The lab has no GPU that computes. So the program runs on the CPU, with the PyTorch of the real vLLM's image, and nothing
is judged; with `device: gpu` it fails and says why, and everything serves again as well.
"""

from __future__ import annotations

import json

import pytest

from lab.config import VLLM_VERSION
from tests import ROOT

from .conftest import Lab
from .endpoint import HOST, Endpoint
from .helpers import MODEL, deployment, wait_for

RUNBOOK = (ROOT / "docs/runbooks/slow-gpu.md").read_text(encoding="utf-8")
IMAGE = f"registry.lab:5000/lab/vllm:cpu_vllm_{VLLM_VERSION}"
RATE = 2  # requests per second
SMALL = {
    "burnin_device": "cpu",
    "burnin_seconds": 0.5,
    "burnin_size": 256,
    "burnin_copy_mib": 16,
    "burnin_reduce_mib": [1],
}


def running(lab: Lab, host: str) -> set[str]:
    names = lab.on(host, "docker ps -a --format '{{.Names}} {{.State}}' --filter name=instinct-").splitlines()
    return {name.split()[0] for name in names if name.endswith(" running")}


@pytest.fixture(scope="module")
def endpoint(balanced_lab: Lab) -> Endpoint:
    """The real vLLM on each node behind a load balancer, and a stand-in beside it."""
    args = {"max_model_len": 512, "max_num_seqs": 16, "enforce_eager": True, "shutdown_timeout": 30}
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    other = deployment(name="other", port=8100, served_model_name="other", gpus=[1])
    balanced_lab.write_vars(
        vllm_deployments=[deployment(image=IMAGE, engine_args=args, env=env), other], **SMALL
    )
    return Endpoint.deployed(balanced_lab)


@pytest.mark.deep
def test_drained_tested_and_serving_again(endpoint: Endpoint) -> None:
    lab, host = endpoint.lab, HOST
    (other,) = set(lab.hosts) - {host}
    both = {"instinct-llama-0", "instinct-other-0"}
    results = lab.tmp / "results"
    places = "-e", f"burnin_results_dir={results}"

    # All at once would leave nothing in service.
    refused = lab.play("burnin", *places)
    assert refused.rc == 2, refused.out
    assert "this would leave 0" in refused.out
    assert not {"gpu_burnin", "vllm_server", "balancer_server"} & set(refused.modules())

    # An instance that the operator stopped is not started by a test.
    stopped = lab.play("stop", "-e", "instance=other-0", "--limit", host)
    assert stopped.rc == 0, stopped.out
    assert running(lab, host) == {"instinct-llama-0"}

    with endpoint.load(RATE, limit=300.0, stall=120.0) as load:
        load.wait_for(2 * RATE)
        assert "playbooks/burnin.yml --limit mi300x-01,lb-01" in RUNBOOK  # here the host is both
        tested = lab.play("burnin", "--limit", host, *places, "-e", "burnin_run=first")
        assert tested.rc == 0, tested.out
        load.wait_for(load.begun + 2 * RATE)
    load.assert_nothing_lost()
    print(tested.out, flush=True)
    found = json.loads((results / "first/burnin.json").read_text())
    assert sorted(found["hosts"]) == [host]
    assert {item["verdict"] for item in found["verdicts"]} == {None}
    assert found["failed"] == {}
    (first, _second) = found["hosts"][host]["gpus"]
    assert first["gemm"]["bf16"]["wrong_elements"] == 0
    assert first["gemm"]["bf16"]["rows_right"] is True
    assert found["hosts"][host]["reduce"][0]["rates"]["1"] > 0
    assert running(lab, host) == {"instinct-llama-0"}
    assert running(lab, other) == both
    wait_for("both instances in the balancer", lambda: endpoint.in_service() == 2)
    assert 0 not in endpoint.stat("weight").values()

    # The image's PyTorch sees no GPU: said, nothing is judged, and all that served serves again.
    failed = lab.play(
        "burnin", *places, "-e", "at_once=true", "-e", "burnin_run=second", "-e", "burnin_device=gpu"
    )
    print(failed.out, flush=True)
    assert failed.rc == 2, failed.out
    assert "PyTorch sees no GPU" in failed.out
    assert sorted(json.loads((results / "second/burnin.json").read_text())["failed"]) == sorted(lab.hosts)
    assert running(lab, host) == {"instinct-llama-0"}
    assert running(lab, other) == both
    wait_for("both instances in the balancer", lambda: endpoint.in_service() == 2)
    asked = {"model": MODEL, "prompt": "Hello", "max_tokens": 4}
    assert endpoint.ask("/v1/completions", asked)[0] == 200
    for node in lab.hosts:
        assert "instinct-burnin" not in lab.on(node, "docker ps -a --format '{{.Names}}'")
