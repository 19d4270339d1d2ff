# SPDX-License-Identifier: Apache-2.0
"""Compute partitions change under running instances, which serve again afterwards."""

from __future__ import annotations

import pytest

from .conftest import Lab
from .helpers import completion, deployment


@pytest.mark.parametrize(
    ("mode", "nodes", "devices"),
    [("CPX", 64, ["renderD128", "renderD129"]), ("SPX", 8, ["renderD128", "renderD136"])],
)
@pytest.mark.parametrize("backend", ["rocm-smi", "amd-smi", "sysfs"])
def test_partition_and_serve_again(lab: Lab, backend: str, mode: str, nodes: int, devices: list[str]) -> None:
    lab.write_vars(
        vllm_deployments=[deployment(instances_per_host=2)],
        gpu_partition_compute=mode,
        gpu_partition_backend=backend,
    )
    run = lab.play("site", "--skip-tags", "benchmark")
    assert run.rc == 0, run.out
    for host in lab.hosts:
        count = lab.on(
            host, "grep -lx 'cpu_cores_count 0' /sys/class/kfd/kfd/topology/nodes/*/properties | wc -l"
        )
        assert int(count) == nodes
        for port in (8000, 8001):
            assert completion(lab, host, port)["usage"]["completion_tokens"] == 4
        shown = lab.on(
            host, "docker inspect -f '{{json .HostConfig.Devices}}' instinct-llama-0 instinct-llama-1"
        )
        assert all(f"/dev/dri/{device}" in shown for device in devices)
    again = lab.play("site", "--skip-tags", "benchmark")
    assert again.changed() == []
