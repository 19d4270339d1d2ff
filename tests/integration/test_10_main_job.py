# SPDX-License-Identifier: Apache-2.0
"""The main job with the real vLLM, as `make demo` runs it, and the run after it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from lab.config import REGISTRY, VLLM_REPOSITORY, VLLM_TAG, VLLM_VERSION

from .conftest import Lab, container
from .helpers import assert_agrees, completion

EPYC = {"model": "AMD EPYC 9654 96-Core Processor"}
CONTROLLER_ONLY = {"fleet_plan", "bench_report", "ansible.builtin.add_host"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


def test_bare_nodes_serve_and_are_measured(fresh_lab: Lab, results: Path) -> None:
    run = fresh_lab.play("site", "-e", f"benchmark_results_dir={results}", timeout=1500)
    assert run.rc == 0, run.out

    latest = results / "latest"
    summary = json.loads((latest / "summary.json").read_text())
    assert sorted(b["host"] for b in summary["benchmarks"]) == fresh_lab.hosts == sorted(summary["hosts"])
    for bench in summary["benchmarks"]:
        assert bench["completed"] > 0
        assert bench["failed"] == 0
        assert bench["output_throughput"] > 0
        assert bench["median_ttft_ms"] > 0
        assert bench["median_tpot_ms"] > 0
    assert (latest / "report.html").stat().st_size > 10_000
    assert len(list((latest / "raw").iterdir())) == len(fresh_lab.hosts)
    with (latest / "benchmarks.csv").open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == len(fresh_lab.hosts)

    for host in fresh_lab.hosts:
        assert summary["hosts"][host]["cpu"] == {**EPYC, "sockets": 2, "threads": 192}
        assert completion(fresh_lab, host, 8000)["usage"]["completion_tokens"] == 4
        found = json.loads(
            fresh_lab.on(host, "docker inspect $(docker ps -q --filter label=instinct-fleet.instance)")
        )[0]
        host_config = found["HostConfig"]
        # Of the GPU's NUMA node, which the machine below need not have: the real engine ran on it all the same.
        assert host_config["CpusetCpus"] == "0-95"
        assert host_config["Privileged"] is False
        assert host_config["Init"] is True
        assert host_config["CapAdd"] == ["CAP_SYS_PTRACE"] or host_config["CapAdd"] == ["SYS_PTRACE"]
        assert [d["PathOnHost"] for d in host_config["Devices"]] == ["/dev/kfd", "/dev/dri/renderD128"]
        assert all(group.isdigit() for group in host_config["GroupAdd"])
        assert fresh_lab.on(host, "cat /proc/sys/kernel/numa_balancing").strip() == "0"


def test_second_run_makes_one_call_per_host_and_changes_nothing(lab: Lab) -> None:
    run = lab.play("site", "--skip-tags", "benchmark")
    assert run.rc == 0, run.out
    assert run.changed() == []
    for host in lab.hosts:
        assert [m for m in run.modules(host) if m not in CONTROLLER_ONLY] == ["node_state"], run.out


def test_its_parser_refuses_nothing_that_is_rendered(lab: Lab) -> None:
    assert_agrees(container(lab.hosts[0]), VLLM_VERSION, f"{REGISTRY}/{VLLM_REPOSITORY}:{VLLM_TAG}")


def test_numa_balancing_stays_off_after_a_reboot(lab: Lab) -> None:
    host = lab.hosts[-1]
    lab.reboot(host)
    assert lab.on(host, "cat /proc/sys/kernel/numa_balancing").strip() == "0"
