# SPDX-License-Identifier: Apache-2.0
"""The main job with the real vLLM, as `make demo` runs it, and the run after it."""

from __future__ import annotations

import csv
import json
import subprocess
from dataclasses import dataclass

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.programs.guard import OPEN
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.compose import GUARD

from lab.config import REGISTRY, VLLM_REPOSITORY, VLLM_TAG, VLLM_VERSION
from lab.summary import closing_summary
from tests import ROOT
from tests.oracles.real_routes_runner import MARKER

from .conftest import Lab, Run, container, copy_inventory, reset_lab
from .helpers import assert_agrees, completion

RUNNER = ROOT / "tests/oracles/real_routes_runner.py"
EPYC = {"model": "AMD EPYC 9654 96-Core Processor"}
CAPABILITIES = {"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "SYS_PTRACE"}
CONTROLLER_ONLY = {"fleet_plan", "bench_report", "ansible.builtin.add_host"}


@dataclass(frozen=True)
class Served:
    """The lab after the main job."""

    lab: Lab
    run: Run


@pytest.fixture(scope="module")
def served(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> Served:
    reset_lab()
    lab = copy_inventory(lab_up, tmp_path_factory.mktemp("main"))
    return Served(lab, lab.play("site"))


@pytest.fixture
def serving(served: Served) -> Lab:
    """The lab, which serves."""
    assert served.run.rc == 0, served.run.out[-3000:]
    return served.lab


def test_bare_nodes_serve_and_are_measured(served: Served) -> None:
    lab, run = served.lab, served.run
    assert run.rc == 0, run.out

    latest = lab.tmp / "results/latest"
    summary = json.loads((latest / "summary.json").read_text())
    assert sorted(b["host"] for b in summary["benchmarks"]) == lab.hosts == sorted(summary["hosts"])
    for bench in summary["benchmarks"]:
        assert bench["completed"] > 0
        assert bench["failed"] == 0
        assert bench["output_throughput"] > 0
        assert bench["median_ttft_ms"] > 0
        assert bench["median_tpot_ms"] > 0
    assert (latest / "report.html").stat().st_size > 10_000
    assert len(list((latest / "raw").glob("*.json"))) == len(lab.hosts)
    assert len(list((latest / "raw").glob("*.json.gz"))) == len(lab.hosts)
    assert len((latest / "runs.jsonl").read_text().splitlines()) == len(lab.hosts)
    with (latest / "benchmarks.csv").open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == len(lab.hosts)

    for host in lab.hosts:
        assert summary["hosts"][host]["cpu"] == {**EPYC, "sockets": 2, "threads": 192}
        assert completion(lab, host, 8000)["usage"]["completion_tokens"] == 4
        found = json.loads(
            lab.on(host, "docker inspect $(docker ps -q --filter label=instinct-fleet.instance)")
        )[0]
        host_config = found["HostConfig"]
        # Of the GPU's NUMA node, which the machine below need not have: the real engine ran on it all the same.
        assert host_config["CpusetCpus"] == "0-95"
        assert host_config["Privileged"] is False
        assert host_config["Init"] is True
        # Docker's default capabilities less those that nothing needs, as the kernel has them of the engine.
        pids = lab.on(host, f"docker top {found['Id']} -o pid | tail -n +2").split()
        masks = {lab.on(host, f"grep ^CapBnd /proc/{pid}/status").split()[1] for pid in pids}
        assert [capability_names(int(mask, 16)) for mask in masks] == [CAPABILITIES]
        assert [d["PathOnHost"] for d in host_config["Devices"]] == ["/dev/kfd", "/dev/dri/renderD128"]
        assert all(group.isdigit() for group in host_config["GroupAdd"])
        assert lab.on(host, "cat /proc/sys/kernel/numa_balancing").strip() == "0"


def capability_names(mask: int) -> set[str]:
    """Names of the bits, linux/capability.h."""
    bits = {
        0: "CHOWN", 1: "DAC_OVERRIDE", 3: "FOWNER", 4: "FSETID", 5: "KILL", 6: "SETGID", 7: "SETUID", 8: "SETPCAP",
        10: "NET_BIND_SERVICE", 13: "NET_RAW", 18: "SYS_CHROOT", 19: "SYS_PTRACE", 27: "MKNOD", 29: "AUDIT_WRITE",
        31: "SETFCAP",
    }  # fmt: skip
    return {bits.get(bit, str(bit)) for bit in range(64) if mask >> bit & 1}


def test_the_demos_question_is_answered(serving: Lab) -> None:
    lines = closing_summary(serving.tmp).splitlines()
    question = next(number for number, line in enumerate(lines) if line.startswith("Ask it something"))
    asked = subprocess.run(
        ["bash", "-c", lines[question + 1]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith("Once upon a time")
    assert len(asked.stdout.strip()) > len("Once upon a time")


def test_second_run_makes_one_call_per_host_and_changes_nothing(serving: Lab) -> None:
    run = serving.play("site")  # what serves is not measured again
    assert run.rc == 0, run.out
    assert run.changed() == []
    for host in serving.hosts:
        assert [m for m in run.modules(host) if m not in CONTROLLER_ONLY] == ["node_state"], run.out


@pytest.mark.deep  # make parsers asks this release, too
def test_its_parser_refuses_nothing_that_is_rendered(serving: Lab) -> None:
    assert_agrees(container(serving.hosts[0]), VLLM_VERSION, f"{REGISTRY}/{VLLM_REPOSITORY}:{VLLM_TAG}")


def test_every_route_of_its_application_needs_the_key(serving: Lab) -> None:
    """All that vLLM registers for any kind of model and for developers, each by every method; but for two."""
    image = f"{REGISTRY}/{VLLM_REPOSITORY}:{VLLM_TAG}"
    inside = ["docker", "run", "--rm", "--interactive", "--network", "none", image, "python3"]
    source = (ROOT / "plugins/module_utils/programs/guard.py").read_text(encoding="utf-8")
    done = subprocess.run(
        ["docker", "exec", "--interactive", container(serving.hosts[0]), *inside, "-c", RUNNER.read_text()],
        input=json.dumps({"guard": source, "name": GUARD}), capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(MARKER)]
    found = json.loads(line.removeprefix(MARKER))
    assert {path for _, _, path, _ in found["open"]} == set(OPEN)
    closed = {path for _, _, path, _ in found["closed"]}
    assert closed >= {
        "/invocations",
        "/tokenize",
        "/v1/realtime",
        "/v1/completions",
        "/ping",
        "/version",
        "//health",
    }
    assert len(closed) > 100
    assert found["right"] == 200
    assert found["unguarded"] not in (401, 404)  # without the guard, vLLM lets everybody in here


def test_numa_balancing_stays_off_after_a_reboot(serving: Lab) -> None:
    host = serving.hosts[-1]
    serving.reboot(host)
    assert serving.on(host, "cat /proc/sys/kernel/numa_balancing").strip() == "0"
