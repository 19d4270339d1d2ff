# SPDX-License-Identifier: Apache-2.0
"""What the first instance of the real vLLM compiled makes the start of the others quick, on its node and on another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.config import VLLM_VERSION

from .conftest import Lab, Run
from .helpers import deployment, docker_time

IMAGE = f"registry.lab:5000/lab/vllm:cpu_vllm_{VLLM_VERSION}"
GOAL = 0.5  # of the seconds of a cold start


def serve(lab: Lab) -> None:
    """What the inventory wants: an engine that compiles its graphs, as it does without enforce_eager."""
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        # PyTorch builds this header of its C++ kernels in /tmp at each start, even if it then compiles nothing: 5.5 s
        # that no cache saves (_precompile_header in torch/_inductor/codecache.py). A GPU needs none.
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    }
    args: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 16}
    lab.write_vars(vllm_deployments=[deployment(image=IMAGE, engine_args=args, env=env)])


def started(run: Run, host: str) -> dict[str, float]:
    """Seconds until the first tokens of the instances that a run started on a host."""
    assert run.rc == 0, run.out[-4000:]
    return {
        server["name"]: float(server["ready_seconds"])
        for record in run.records
        if record["host"] == host and record["module"].endswith("vllm_server")
        for server in record["result"]["servers"]
        if server["changed"]
    }


STEPS = (
    "Initializing a V1 LLM engine", "Starting to load model", "Loading weights took", "Dynamo bytecode transform time",
    "torch.compile took", "graph compilation", "init engine", "Application startup complete",
)  # fmt: skip


def phases(lab: Lab, host: str) -> str:
    """Seconds of a start at which vLLM's log has a step."""
    begun = lab.on(host, "docker inspect -f '{{.State.StartedAt}}' instinct-llama-0")
    found = []
    for line in lab.on(host, "docker logs --timestamps instinct-llama-0 2>&1").splitlines():
        at, _, text = line.partition(" ")
        if step := next((step for step in STEPS if step in text), ""):
            found.append(f"{docker_time(at) - docker_time(begun):.1f} s {step}")
    return ", ".join(found)


def restored(run: Run, host: str) -> list[str]:
    return [text for text in run.actions().get(host, []) if text.startswith("restore ")]


@pytest.mark.deep
def test_the_second_start_is_at_most_half_as_long(fresh_lab: Lab) -> None:
    lab, (first, second) = fresh_lab, fresh_lab.hosts[:2]
    serve(lab)
    cold_run = lab.play("deploy", "--limit", first)
    cold = started(cold_run, first)["llama-0"]
    print(f"cold: {phases(lab, first)}")
    assert restored(cold_run, first) == []
    packed = [text for text in cold_run.actions()[first] if text.startswith("pack ")]
    assert len(packed) == 1, cold_run.out[-4000:]

    elsewhere = lab.play("deploy", "--limit", second)
    other_node = started(elsewhere, second)["llama-0"]
    print(f"other node: {phases(lab, second)}")
    assert len(restored(elsewhere, second)) == 1

    # Root's alone, complete, and nothing but what was recorded.
    records = list((lab.tmp / "cache/instinct-fleet/bundles").glob("*.json"))
    assert len(records) == 1
    record = json.loads(records[0].read_text(encoding="utf-8"))
    assert (record["host"], record["instance"]) == (first, "llama-0")
    blob = f"/var/lib/instinct-fleet/store/blobs/sha256/{record['sha256']}"
    for host in (first, second):
        assert lab.on(host, f"sha256sum {blob}").split()[0] == record["sha256"]
    strangers = "find /var/lib/instinct-fleet/cache/llama-0 ! -user root -o -perm /6000 | head"
    assert lab.on(second, strangers) == ""
    again = lab.play("deploy", "--limit", second)
    assert (again.rc, again.actions()) == (0, {})

    # Without its instances a node still has the bundle. As with the cold start, no other engine computes meanwhile.
    lab.write_vars(vllm_deployments=[])
    gone = lab.play("deploy")
    assert gone.rc == 0, gone.out[-4000:]
    serve(lab)
    once_more = lab.play("deploy", "--limit", first)
    same_node = started(once_more, first)["llama-0"]
    print(f"same node: {phases(lab, first)}")
    assert len(restored(once_more, first)) == 1
    ratios = {"another node": other_node / cold, "the same node": same_node / cold}
    print(
        f"{packed[0]}; cold {cold:.1f} s, other node {other_node:.1f} s, same node {same_node:.1f} s: {ratios}"
    )
    assert max(ratios.values()) <= GOAL, ratios
