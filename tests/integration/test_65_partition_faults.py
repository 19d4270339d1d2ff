# SPDX-License-Identifier: Apache-2.0
"""Partition changes on a lab node: every release of the tools with every fault, cut off at every step.

At the end the node is in the new modes, verified, with its monitors running again, or in the old modes with
everything running again; never in between. The message names the cause and what to do.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT, lab_command
from .helpers import STANDIN

TOOLS = (
    ("rocm-smi", "6.0.0"), ("rocm-smi", "6.2.4"), ("rocm-smi", "6.4.1"), ("rocm-smi", "7.0.0"),
    ("amd-smi", "6.2.4"), ("amd-smi", "6.3.2"), ("amd-smi", "6.4.0"), ("amd-smi", "7.2.0"), ("amd-smi", "10.0.0"),
)  # fmt: skip
WAYS = (*TOOLS, ("rocm-smi", "6.3.0"), ("rocm-smi", "7.2.0"), ("amd-smi", "6.3.0"), ("amd-smi", "7.0.2"),
        ("sysfs", "7.0.0"))  # fmt: skip
HERE = "/opt/partition-test"
CPX4 = {"compute": "CPX", "memory": "NPS4"}
CPX = {"compute": "CPX"}
NEW4, NEW, OLD = "CPX/NPS4 64", "CPX/NPS1 64", "SPX/NPS1 8"
SHOW = r"""
cd /sys/class/drm; echo $(cat card*/device/current_compute_partition 2>/dev/null | sort -u)/$(
cat card*/device/current_memory_partition 2>/dev/null | sort -u) $(
grep -lx 'cpu_cores_count 0' /sys/class/kfd/kfd/topology/nodes/*/properties | wc -l)
test -e /var/lib/instinct-fleet/partition.json && echo journal
systemctl is-active gpuagent
docker ps --format '{{.Names}}' | sort"""
# A unit that holds the GPUs as AMD's exporter does, and is stopped and started for every case.
UNIT = r"""printf '[Service]\nExecStart=/bin/sh -c "exec sleep infinity < /dev/kfd"\n' \
  > /etc/systemd/system/gpuagent.service"""


@dataclass
class Bench:
    """A node, the program on it, and what it did last."""

    host: str
    driver: subprocess.Popen[str] | None = None

    def sh(self, command: str) -> str:
        done = subprocess.run(
            ["docker", "exec", self.host, "bash", "-c", command], text=True, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.stdout

    def change(self, request: dict[str, Any], **order: Any) -> dict[str, Any]:
        """One change of modes; its result."""
        if self.driver is None:
            command = [
                "docker",
                "exec",
                "-i",
                "-w",
                HERE,
                "-e",
                "PYTHONPATH=.",
                self.host,
                "python3",
                "driver.py",
            ]
            self.driver = subprocess.Popen(
                command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr
            )
        assert self.driver.stdin is not None
        assert self.driver.stdout is not None
        self.driver.stdin.write(json.dumps({"request": {"timeout": 300, **request}, **order}) + "\n")
        self.driver.stdin.flush()
        return dict(json.loads(self.driver.stdout.readline()))

    def reset(self, *settings: str) -> None:
        """Everything as it was: SPX/NPS1, no fault, the exporter runs; then these settings and faults."""
        configs = [word for word in settings if word.split("=")[0] in CONFIG]
        faults = [word for word in settings if word not in configs]
        config = " ".join(map(shlex.quote, ["model=MI300X", "release=7.0.0", "driver=dkms", "ast=0",
                                            "platform=baremetal", "busy=node", *configs]))  # fmt: skip
        fault = f"gpusim fault {' '.join(map(shlex.quote, faults))};" if faults else ""
        self.sh(
            f"systemctl stop gpuagent; gpusim fault clear; rm -f /var/lib/instinct-fleet/partition.json;"
            f"gpusim config {config}; systemctl start gpuagent; {fault}"
        )

    def state(self) -> list[str]:
        """Modes and number of logical GPUs, an open journal, the exporter, containers."""
        return self.sh(SHOW).split("\n")[:-1]

    def close(self) -> None:
        if self.driver is not None and self.driver.stdin is not None:
            self.driver.stdin.close()
            self.driver.wait(30)
            self.driver = None


CONFIG = {"release", "driver", "ast", "platform", "busy", "model", "memory_modes"}


@pytest.fixture(scope="module")
def benches(lab_up: list[str]) -> Iterator[list[Bench]]:
    """The nodes, with nothing on them but an exporter that holds the GPUs."""
    found = [Bench(host) for host in lab_up]
    for bench in found:
        bench.sh(f"docker ps -q | xargs -r docker stop -t 5; rm -rf {HERE}; mkdir -p {HERE}; {UNIT}")
        for source, target in (
            (ROOT / "module_utils/instinct", f"{HERE}/instinct"),
            (ROOT / "tests/partition_driver.py", f"{HERE}/driver.py"),
        ):
            command = ["docker", "cp", str(source), f"{bench.host}:{target}"]
            subprocess.run(command, check=True, capture_output=True)
    yield found
    for bench in found:
        bench.close()
        bench.reset()
        bench.sh(
            "systemctl stop gpuagent; rm -f /etc/systemd/system/gpuagent.service; docker rm -f instinct-llama-0"
        )


@pytest.fixture(scope="module")
def bench(benches: list[Bench]) -> Bench:
    """One of them."""
    return benches[0]


Row = tuple[str, str, str]


@pytest.fixture(scope="module")
def table(
    benches: list[Bench], request: pytest.FixtureRequest
) -> dict[Row, tuple[dict[str, Any], list[str]]]:
    """Result and end state of every row of the table that is asked for: all nodes work on it at once."""
    chosen = (
        item
        for item in request.session.items
        if getattr(item, "originalname", "") == "test_release_and_fault"
    )
    params = [item.callspec.params for item in chosen if isinstance(item, pytest.Function)]
    rows = [(str(row["name"]), str(row["tool"]), str(row["release"])) for row in params]
    done: dict[Row, tuple[dict[str, Any], list[str]]] = {}

    def work(bench: Bench) -> None:
        with contextlib.suppress(IndexError):
            while True:
                row = rows.pop()
                done[row] = run_row(bench, *row)

    with ThreadPoolExecutor(len(benches)) as pool:
        list(pool.map(work, benches))
    return done


def run_row(bench: Bench, name: str, tool: str, release: str) -> tuple[dict[str, Any], list[str]]:
    """One row: the fault with a release's tool."""
    first = ["tool-missing=rocm-smi"] if tool == "amd-smi" and release != "10.0.0" else []
    bench.reset(f"release={release}", *first, *CASES[name].faults)
    return bench.change(CASES[name].request), bench.state()


@dataclass(frozen=True)
class Case:
    """Faults, what is asked for, and how it must end."""

    faults: tuple[str, ...]
    request: dict[str, Any]
    end: str
    says: str = ""
    warns: str = ""


CASES = {
    "nothing wrong": Case((), CPX4, NEW4),
    "busy for a while": Case(("busy-transient=3",), CPX, NEW),
    "busy after an exit": Case(("busy-after-exit=1",), CPX, NEW),
    "all GPUs failed with exit 0": Case(("compute-errno=EINVAL",), CPX, OLD, "No GPU was changed"),
    "GPU 5 of 8 failed": Case(("compute-errno=EINVAL@5",), CPX, OLD, "Set back to the earlier mode: GPUs 0-4"),
    "busy for good": Case(("compute-errno=EBUSY@5",), {**CPX, "retries": 1}, OLD, "The GPUs are busy after 2"),
    "success reported, nothing done": Case(("set-ignored",), CPX, OLD, "still shows the earlier mode"),
    "reload refused": Case(("reload=refused",), {**CPX4, "retries": 1}, OLD, "in use"),
    "reload hangs": Case(("reload=hang",), {**CPX4, "timeout": 30}, OLD, "did not end within"),
    "reload fails once": Case(("reload=fail-once",), CPX4, NEW4),
    "reload is slow": Case(("slow-reload=0.5",), CPX4, NEW4),
    "memory mode not taken on": Case(("nps-change-fails",), CPX4, OLD, "look at dmesg | grep 'NPS mode'"),
    "tool hangs": Case(("tool-hang=all",), {**CPX4, "timeout": 40}, NEW4, warns="was killed. Using sysfs"),
    "tool missing": Case(("tool-missing=all",), CPX4, NEW4, warns="not installed; using sysfs"),
    "warning before the output": Case(("warning-first",), CPX4, NEW4),
}  # fmt: skip


# All tools in make deep; in every run three of them, and the rest where nothing is wrong.
ALWAYS = (("rocm-smi", "7.0.0"), ("amd-smi", "6.4.0"), ("amd-smi", "10.0.0"))
ROWS = [
    pytest.param(name, *tool, marks=[] if tool in ALWAYS or name == "nothing wrong" else [pytest.mark.deep])
    for name in CASES
    for tool in TOOLS
]


@pytest.mark.parametrize(("name", "tool", "release"), ROWS)
def test_release_and_fault(table: Any, tool: str, release: str, name: str) -> None:
    case = CASES[name]
    result, state = table[name, tool, release]
    assert state == [case.end, "active"], result
    if case.end == OLD:
        assert result["error"], result
        assert case.says in result["error"]
    else:
        assert result["error"] is None, result
        assert result["changed"]
        if "sysfs" not in case.warns:
            assert result["backend"] == tool
    assert case.warns in "; ".join(result["warnings"])


@pytest.mark.parametrize(("backend", "release"), WAYS)
def test_every_way_there_and_back(bench: Bench, release: str, backend: str) -> None:
    bench.reset(f"release={release}")
    there = bench.change({**CPX4, "backend": backend})
    assert there["error"] is None, there
    assert there["backend"] == backend
    assert bench.state() == [NEW4, "active"]
    assert not bench.change({**CPX4, "backend": backend})["changed"]
    back = bench.change({"compute": "SPX", "memory": "NPS1", "backend": backend})
    assert back["error"] is None, back
    assert bench.state() == [OLD, "active"]


REFUSED = {
    "foreign holder": Case(("holder=4242:train",), CPX, OLD, "held by what this toolkit does not stop: pid 4242"),
    "zombie": Case(("zombie=vllm",), {**CPX, "retries": 1}, OLD, "a zombie: its parent has to be stopped"),
    "virtual machine": Case(("platform=guest",), CPX4, OLD, "inside this virtual machine"),
    "a driver before partitioning": Case(("driver=old",), CPX, OLD, "offers no compute partition modes"),
    "wrong mode": Case((), {"compute": "TPX"}, OLD, "mode TPX is not offered"),
    "mode that does not go": Case((), {"compute": "DPX", "memory": "NPS4"}, OLD, "DPX does not go with NPS4"),
    "memory mode that is not offered": Case(("memory_modes=NPS1",), CPX4, OLD, "Offered: NPS1"),
    "GPU in reset": Case(("gpu-reset=3",), CPX, OLD, "wait for a reset to end"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_touched(bench: Bench, name: str) -> None:
    case = REFUSED[name]
    bench.reset(*case.faults)
    before = bench.sh("gpusim show; systemctl show -p MainPID --value gpuagent")
    result = bench.change(case.request)
    assert result["error"], result
    assert case.says in result["error"]
    assert result["actions"] == []
    assert bench.sh("gpusim show; systemctl show -p MainPID --value gpuagent") == before
    assert bench.sh("test -e /var/lib/instinct-fleet/partition.json && echo journal") == ""


def test_not_root(bench: Bench) -> None:
    bench.reset()
    bench.sh("systemctl stop gpuagent")
    assert "needs root: use become" in bench.change(CPX, user=65534)["error"]


def test_a_foreign_process_is_named(bench: Bench) -> None:
    bench.reset()
    bench.sh("setsid bash -c 'exec -a trainer sleep 600 < /dev/kfd' > /dev/null 2>&1 & sleep 0.3")
    try:
        result = bench.change(CPX)
        assert "trainer 600" in result["error"]
        assert "Stop it and run again" in result["error"]
        assert bench.state() == [OLD, "active"]
    finally:
        bench.sh("kill $(pgrep -f '^trainer')")


def test_63_of_64_partitions(bench: Bench) -> None:
    bench.reset("ast=1")
    bench.sh("systemctl stop gpuagent; modprobe -r amdgpu; modprobe amdgpu; systemctl start gpuagent")
    result = bench.change(CPX)
    assert "63 of 64 partitions are visible" in result["error"]
    assert "modprobe -r ast" in result["error"]
    assert bench.state() == [OLD, "active"]
    bench.sh("systemctl stop gpuagent; modprobe -r ast; modprobe -r amdgpu; modprobe amdgpu")
    assert bench.change(CPX)["error"] is None


@pytest.mark.parametrize("driver", ["inbox", "dkms"])
@pytest.mark.parametrize(("model", "modes", "end"), [
    ("MI325X", CPX4, NEW4),
    ("MI355X", {"compute": "DPX", "memory": "NPS2"}, "DPX/NPS2 16"),
])  # fmt: skip
def test_other_gpus_and_drivers(
    bench: Bench, driver: str, model: str, modes: dict[str, str], end: str
) -> None:
    bench.reset()
    bench.sh("systemctl stop gpuagent")
    bench.reset(f"model={model}", f"driver={driver}", "release=7.2.0")
    result = bench.change(modes)
    assert result["error"] is None, result
    assert bench.state() == [end, "active"]
    bench.sh("systemctl stop gpuagent")
    bench.reset()


def test_stranded_vram_is_freed_with_permission(bench: Bench) -> None:
    bench.reset()
    bench.sh("systemctl stop gpuagent; gpusim fault stranded=46111")
    assert not bench.change({"clean": False})["changed"]
    result = bench.change({"clean": True})
    assert result["error"] is None, result
    assert result["actions"] == ["modprobe -r amdgpu", "modprobe amdgpu"]
    used = [int(text) for text in bench.sh("cat /sys/class/drm/card*/device/mem_info_vram_used").split()]
    assert max(used) < 1 << 30


# --- cut off ---------------------------------------------------------------------------------------------------


INSTANCE = (
    "docker rm -f instinct-llama-0 > /dev/null 2>&1; docker run -d --init --restart unless-stopped "
    "--name instinct-llama-0 --label instinct-fleet.instance=llama-0 --device /dev/kfd --device /dev/dri/renderD128 "
    f"--entrypoint sleep {STANDIN} 6000 > /dev/null"
)
SERVERS = [{"name": "llama-0", "stop_timeout": 10}]


@pytest.mark.parametrize("step", ["check", "drain", "wait", "set", "verify", "restore", "undo"])
@pytest.mark.parametrize("then", ["go on", "take back"])
def test_killed_at_each_step(bench: Bench, step: str, then: str) -> None:
    """The next run finishes what was cut off, or takes it back with everything that was stopped."""
    bench.reset(*(["reload=refused"] if step == "undo" else []))
    bench.sh(INSTANCE)
    request = {**CPX4, "retries": 1}
    assert bench.change(request, servers=SERVERS, kill_at=step).get("killed") == 9
    bench.sh("gpusim fault clear")
    assert ("journal" in bench.state()) == (step != "check")
    if then == "go on":
        result = bench.change(request, servers=SERVERS)
        assert result["error"] is None, result
        assert bench.state() == [NEW4, "active"]
        bench.sh("docker rm -f instinct-llama-0")
    else:
        result = bench.change({})
        assert result["error"] is None, result
        assert bench.state() == [OLD, "active", "instinct-llama-0"]
        bench.sh("docker rm -f instinct-llama-0")


def test_what_fails_gives_back_instances_too(bench: Bench) -> None:
    bench.reset("nps-change-fails")
    bench.sh(INSTANCE)
    result = bench.change(CPX4, servers=SERVERS)
    assert "Started again: gpuagent.service, instinct-llama-0." in result["error"]
    assert bench.state() == [OLD, "active", "instinct-llama-0"]
    bench.sh("docker rm -f instinct-llama-0")


@pytest.mark.parametrize("then", ["go on", "take back"])
def test_the_node_restarts_in_the_middle(bench: Bench, then: str) -> None:
    bench.reset()
    bench.sh("systemctl enable gpuagent; " + INSTANCE)
    assert bench.change(CPX4, servers=SERVERS, kill_at="verify").get("killed") == 9
    bench.close()
    lab_command("reboot", bench.host)
    request = CPX4 if then == "go on" else {}
    result = bench.change(request, servers=SERVERS)
    assert result["error"] is None, result
    expected = [NEW4, "active"] if then == "go on" else [OLD, "active", "instinct-llama-0"]
    assert bench.state() == expected
    bench.sh("docker rm -f instinct-llama-0; systemctl disable gpuagent")
