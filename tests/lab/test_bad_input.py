# SPDX-License-Identifier: Apache-2.0
"""Bad input is refused before anything is touched: the message names what, where, and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Lab
from .helpers import GATED, completion, deployment, node_state

ABSENT = "registry.lab:5000/lab/standin@sha256:" + "0" * 64

CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown key": (
        {"vllm_deployments": [deployment(tensor_paralel_size=2)]},
        ["vllm_deployments[0].tensor_paralel_size", "tensor_parallel_size"],
    ),
    "two instances on one port": (
        {"vllm_deployments": [deployment(), deployment(name="second", gpus=[1])]},
        ["8000", "llama", "second"],
    ),
    "two instances on one GPU": (
        {"vllm_deployments": [deployment(), deployment(name="second", gpus=[0], port=8001)]},
        ["GPU 0", "llama", "second"],
    ),
    "tensor parallel size larger than the GPUs given": (
        {"vllm_deployments": [deployment(gpus=[0, 1], tensor_parallel_size=4)]},
        ["tensor_parallel_size", "4", "2"],
    ),
    "unknown partition mode": (
        {"vllm_deployments": [deployment()], "gpu_partition_compute": "CPQ"},
        ["gpu_partition_compute", "CPQ", "CPX"],
    ),
    "no such tag": (
        {"vllm_deployments": [deployment(image="registry.lab:5000/lab/standin:nonesuch")]},
        ["vllm_deployments[0].image", "nonesuch"],
    ),
    "no such digest": (
        {"vllm_deployments": [deployment(image=ABSENT)]},
        ["vllm_deployments[0].image", "0000"],
    ),
    "unreachable registry": (
        {"vllm_deployments": [deployment(image="registry.lab:5999/lab/standin:latest")]},
        ["registry.lab:5999", "vllm_deployments[0].image"],
    ),
    "no such model": (
        {"vllm_deployments": [deployment(model="lab/nonesuch")]},
        ["vllm_deployments[0].model", "lab/nonesuch"],
    ),
    "no such revision": (
        {"vllm_deployments": [deployment(revision="v99")]},
        ["vllm_deployments[0].revision", "v99"],
    ),
    "gated model without a token": (
        {"vllm_deployments": [deployment(model=GATED)]},
        [GATED, "hf_model_token"],
    ),
    "gated model with a wrong token": (
        {
            "vllm_deployments": [deployment(model=GATED)],
            "hf_model_token": "hf_wrong_but_long_enough",
            "hf_model_insecure": True,
        },
        [GATED, "token"],
    ),
}


IN_EVERY_RUN = (
    "unknown key",
    "no such tag",
    "unreachable registry",
    "no such model",
    "gated model without a token",
)
"""One for each place that refuses: the inventory, the registry, none, the hub, and its gate."""


@pytest.mark.parametrize(
    "case", [case if case in IN_EVERY_RUN else pytest.param(case, marks=pytest.mark.deep) for case in CASES]
)
def test_refused_before_anything_is_touched(lab: Lab, case: str) -> None:
    variables, fragments = CASES[case]
    lab.write_vars(**variables)
    before = node_state(lab)
    run = lab.play("site", "--skip-tags", "benchmark")
    assert run.rc != 0
    for fragment in fragments:
        assert fragment in run.out, run.out
    assert "Traceback" not in run.out
    assert "hf_wrong_but_long_enough" not in run.out
    assert run.changed() == []
    assert node_state(lab) == before


@pytest.mark.deep
def test_not_enough_disk_for_the_weights(fresh_lab: Lab) -> None:
    """A small disk where the weights go: the need, the place and the host are named; the other host is served."""
    host, place = fresh_lab.hosts[0], "/var/lib/instinct-fleet"
    fresh_lab.write_vars(vllm_deployments=[deployment()])
    fresh_lab.on(host, f"mkdir -p {place} && mount -t tmpfs -o size=1m tmpfs {place}")
    try:
        run = fresh_lab.play("site", "--skip-tags", "benchmark")
    finally:
        fresh_lab.on(host, f"umount --lazy {place}")
    assert run.rc != 0
    assert place in run.out
    assert host in run.out
    assert [change for change in run.changed() if change.startswith(f"{host}:")] == []
    assert completion(fresh_lab, fresh_lab.hosts[1], 8000)["usage"]["completion_tokens"] == 4
    assert fresh_lab.on(host, "docker images -q").strip() == ""
