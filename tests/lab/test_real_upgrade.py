# SPDX-License-Identifier: Apache-2.0
"""An upgrade and a rollback of the real vLLM under load: no request is lost.

Two engines, one on each node, behind the load balancer; what a whole answer is, tests/stream.py says. With the
stand-in, test_rollout does the same with more instances, more requests and more that goes wrong.
"""

from __future__ import annotations

from typing import Any

import pytest

from lab.config import VLLM_VERSION

from .conftest import Lab
from .endpoint import Endpoint
from .helpers import deployment

IMAGE = f"registry.lab:5000/lab/vllm:cpu_vllm_{VLLM_VERSION}"
RATE = 3  # requests per second: two cores compute the tokens, start engines and measure the canary
# The measurement is short and forgives much: what is proved is that nobody notices it, not its verdict.
CANARY = {
    "canary_runs": 4,
    "canary_max_runs": 4,
    "canary_tolerance": 60,
    "canary_latency_tolerance": 300,
    "canary_args": {
        "dataset_name": "random", "random_input_len": 16, "random_output_len": 8, "num_prompts": 8,
        "max_concurrency": 2, "temperature": 0, "ignore_eos": True,
    },
    "rollout_soak": 2,
}  # fmt: skip


def serve(lab: Lab, requests: int) -> None:
    """What the inventory wants: an engine on each node, which takes so many requests at once."""
    args: dict[str, Any] = {
        "max_model_len": 512,
        "max_num_seqs": requests,
        "enforce_eager": True,
        "shutdown_timeout": 30,
    }
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    lab.write_vars(vllm_deployments=[deployment(image=IMAGE, engine_args=args, env=env)], **CANARY)


def runs(lab: Lab) -> set[str]:
    """How many requests at once the engines take, over all nodes."""
    show = "grep -ho 'max-num-seqs [0-9]*' /etc/instinct-fleet/instances/llama-0/serve.sh"
    return {lab.on(host, show).split()[1] for host in lab.hosts}


def containers(lab: Lab) -> set[str]:
    """Which containers run, over all nodes."""
    return {number for host in lab.hosts for number in lab.on(host, "docker ps -q --no-trunc").split()}


@pytest.fixture(scope="module")
def endpoint(balanced_lab: Lab) -> Endpoint:
    serve(balanced_lab, 32)
    return Endpoint.deployed(balanced_lab, "deploy")


@pytest.mark.deep
def test_the_plan_has_what_the_real_vllm_measured(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    run = lab.play("plan")
    assert run.rc == 0, run.out[-4000:]
    for host in lab.hosts:
        show = "docker logs instinct-llama-0 2>&1 | grep -o 'KV cache size: [0-9,]* tokens' | tail -n 1"
        logged = int(lab.on(host, show).split()[3].replace(",", ""))
        fit = run.plan["hosts"][host]["instances"][0]["fit"]
        assert fit["measured"]["host"] in lab.hosts
        assert (fit["measured"]["kv_cache_tokens"], fit["kv_cache_tokens"]) == (logged, logged)
        # What was read back asks for nothing.
        assert run.plan["hosts"][host]["actions"] == []
    # Another number of requests at once is another engine.
    serve(lab, 33)
    other = lab.play("plan")
    serve(lab, 32)
    assert all(host["instances"][0]["fit"]["measured"] is None for host in other.plan["hosts"].values())


@pytest.mark.deep  # six minutes; in every run, test_rollout proves as much of the stand-in
def test_an_upgrade_and_a_rollback_of_the_real_vllm_lose_no_request(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    first = containers(lab)
    # A real engine that has no core is silent, and late, and its answers are whole all the same.
    with endpoint.load(RATE, limit=300.0, stall=120.0) as load:
        load.wait_for(2 * RATE)  # some are whole before anything happens

        serve(lab, 33)
        upgrade = lab.play("upgrade")
        assert upgrade.rc == 0, upgrade.out[-4000:]
        assert "Upgrade: 2 groups of 2 done." in upgrade.out
        assert "canary_verdict" in upgrade.modules()
        assert runs(lab) == {"33"}
        second = containers(lab)
        print(f"upgrade: {load.now:.0f} s, {load.summary()}", flush=True)
        assert load.problems() == {}

        rollback = lab.play("rollback", "-e", "deployment=llama")
        assert rollback.rc == 0, rollback.out[-4000:]
        assert runs(lab) == {"32"}
        third = containers(lab)
        load.wait_for(load.begun + 2 * RATE)  # and some after everything
    assert len(first | second | third) == len(first) + len(second) + len(third) == 6
    found = load.assert_nothing_lost()
    print(f"{found} at {RATE}/s")
    assert {item.tokens for item in load.outcomes} == {load.target.tokens}
