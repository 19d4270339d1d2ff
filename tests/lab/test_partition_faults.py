# SPDX-License-Identifier: Apache-2.0
"""Partition changes on a lab node with instances: cut off at every step, failed, and a node that restarts meanwhile.

At the end the node is in the new modes, verified, with its monitors running again, or in the old modes with
everything running again; never in between. Faults of drivers and tools: tests/unit/partition/test_partition_faults.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests import ROOT

from .conftest import container, lab_command
from .helpers import STANDIN

HERE = "/opt/partition-test"
PLUGINS = "ansible_collections/instinct/fleet/plugins"
CPX4 = {"compute": "CPX", "memory": "NPS4"}
NEW4, OLD = "CPX/NPS4 64", "SPX/NPS1 8"
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
            ["docker", "exec", container(self.host), "bash", "-c", command], text=True, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.stdout

    def change(self, request: dict[str, Any], **order: Any) -> dict[str, Any]:
        """One change of modes; its result."""
        if self.driver is None:
            environment = ("-w", HERE, "-e", "PYTHONPATH=.")
            command = ["docker", "exec", "-i", *environment, container(self.host), "python3", "driver.py"]
            self.driver = subprocess.Popen(
                command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr
            )
        assert self.driver.stdin is not None
        assert self.driver.stdout is not None
        self.driver.stdin.write(json.dumps({"request": {"timeout": 300, **request}, **order}) + "\n")
        self.driver.stdin.flush()
        return dict(json.loads(self.driver.stdout.readline()))

    def reset(self) -> None:
        """Everything as it was: SPX/NPS1, no fault and no container; only the exporter runs."""
        self.sh(
            # What another file left may have the policy "always": stopped, it would start with the node again.
            "docker ps -aq | xargs -r docker rm -f;"
            "systemctl disable --now gpuagent; gpusim fault clear; rm -f /var/lib/instinct-fleet/partition.json;"
            "gpusim config model=MI300X release=7.0.0 driver=dkms ast=0 platform=baremetal busy=node;"
            "systemctl start gpuagent;"
            # It opens the device by itself, and is to hold it before anything is done.
            "timeout 120 sh -c 'until ls /sys/class/kfd/kfd/proc | grep -q .; do sleep 0.1; done'"
        )

    def state(self) -> list[str]:
        """Modes and number of logical GPUs, an open journal, the exporter, containers."""
        return self.sh(SHOW).split("\n")[:-1]

    def close(self) -> None:
        if self.driver is not None and self.driver.stdin is not None:
            self.driver.stdin.close()
            self.driver.wait(600)
            self.driver = None


@pytest.fixture(scope="module")
def node(lab_up: list[str]) -> Iterator[Bench]:
    """A node with nothing on it but an exporter that holds the GPUs."""
    bench = Bench(lab_up[0])
    bench.sh(f"rm -rf {HERE}; mkdir -p {HERE}/{PLUGINS}; {UNIT}")
    for source, target in (
        (ROOT / "plugins/module_utils", f"{HERE}/{PLUGINS}/module_utils"),
        (ROOT / "tests/oracles/partition_driver.py", f"{HERE}/driver.py"),
    ):
        command = ["docker", "cp", str(source), f"{container(bench.host)}:{target}"]
        subprocess.run(command, check=True, capture_output=True)
    yield bench
    bench.close()
    bench.reset()
    bench.sh("systemctl stop gpuagent; rm -f /etc/systemd/system/gpuagent.service")


@pytest.fixture
def bench(node: Bench) -> Bench:
    """The same node for every test, as after its start."""
    node.reset()
    return node


INSTANCE = (
    "docker rm -f instinct-llama-0 > /dev/null 2>&1; docker run -d --init --restart unless-stopped "
    "--name instinct-llama-0 --label instinct-fleet.instance=llama-0 --device /dev/kfd --device /dev/dri/renderD128 "
    f"--entrypoint sleep {STANDIN} 6000 > /dev/null"
)
SERVERS = [{"name": "llama-0", "stop_timeout": 10}]


STEPS = ("check", "drain", "wait", "set", "verify", "restore", "undo")
IN_EVERY_RUN = (("drain", "go on"), ("set", "take back"), ("undo", "go on"))
AT_NIGHT = [
    pytest.param(step, then, marks=pytest.mark.deep)
    for step in STEPS
    for then in ("go on", "take back")
    if (step, then) not in IN_EVERY_RUN
]


@pytest.mark.parametrize(("step", "then"), [*IN_EVERY_RUN, *AT_NIGHT])
def test_killed_at_each_step(bench: Bench, step: str, then: str) -> None:
    """The next run finishes what was cut off, or takes it back with everything that was stopped."""
    bench.sh(INSTANCE + ("; gpusim fault reload=refused" if step == "undo" else ""))
    request = {**CPX4, "retries": 1}
    assert bench.change(request, servers=SERVERS, kill_at=step).get("killed") == 9
    bench.sh("gpusim fault clear")
    assert ("journal" in bench.state()) == (step != "check")
    if then == "go on":
        result = bench.change(request, servers=SERVERS)
        assert result["error"] is None, result
        assert bench.state() == [NEW4, "active"]
    else:
        result = bench.change({})
        assert result["error"] is None, result
        assert bench.state() == [OLD, "active", "instinct-llama-0"]


def test_what_fails_gives_back_instances_too(bench: Bench) -> None:
    bench.sh(INSTANCE + "; gpusim fault nps-change-fails")
    result = bench.change(CPX4, servers=SERVERS)
    assert "Started again: gpuagent.service, instinct-llama-0." in result["error"]
    assert bench.state() == [OLD, "active", "instinct-llama-0"]


@pytest.mark.parametrize("then", ["go on", pytest.param("take back", marks=pytest.mark.deep)])
def test_the_node_restarts_in_the_middle(bench: Bench, then: str) -> None:
    bench.sh("systemctl enable gpuagent; " + INSTANCE)
    assert bench.change(CPX4, servers=SERVERS, kill_at="verify").get("killed") == 9
    bench.close()
    lab_command("reboot", bench.host)
    request = CPX4 if then == "go on" else {}
    result = bench.change(request, servers=SERVERS)
    assert result["error"] is None, result
    expected = [NEW4, "active"] if then == "go on" else [OLD, "active", "instinct-llama-0"]
    assert bench.state() == expected
