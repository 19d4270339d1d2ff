# SPDX-License-Identifier: Apache-2.0
"""The simulated host of the partition tests: on its own, and gone when its test is, however that ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.worlds.partition_host import Host, lacking

PROGRAM = """
import time
from tests.worlds.partition_host import Host
print(Host().cgroup, flush=True)
time.sleep(600)
"""


def _processes(cgroup: Path) -> list[str]:
    """Processes of a host, by the cgroup that all of them are in; none when another host has removed it."""
    found = []
    for path in (cgroup, *cgroup.glob("**/")):
        with contextlib.suppress(OSError):
            found += (path / "cgroup.procs").read_text().split()
    return found


def _shown() -> tuple[bool, list[str]]:
    """What this machine shows of GPUs."""
    return os.path.exists("/dev/kfd"), sorted(os.listdir("/sys/class"))


@pytest.fixture(autouse=True)
def _possible() -> None:
    if lacking():
        pytest.fail(lacking())


def test_a_host_has_its_own_devices_and_processes() -> None:
    before = _shown()
    host = Host()
    try:
        host.ask("reset", settings=[], faults=[], exporter=True)
        assert host.ask("state")["state"] == ["SPX/NPS1 8", "active"]
        shown = host.ask("shell", command="ls /dev/kfd /dev/dri; cat /proc/1/cmdline | tr '\\0' ' '")["out"]
        assert "/dev/kfd" in shown
        assert "renderD184" in shown
        assert "tests.worlds.partition_host" in shown
        assert len(_processes(host.cgroup)) >= 3  # process 1, the simulation, the exporter
        assert _shown() == before
    finally:
        host.close()
    assert not host.cgroup.exists()


def test_a_host_ends_with_a_test_that_is_killed() -> None:
    test = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'module_utils'}"},
    )  # fmt: skip
    assert test.stdout is not None
    cgroup = Path(test.stdout.readline().strip())
    assert _processes(cgroup)
    test.kill()
    test.wait()
    test.stdout.close()
    end = time.monotonic() + 60
    while _processes(cgroup):
        assert time.monotonic() < end, "the host goes on"
        time.sleep(0.05)
    Host().close()  # removes what is left of others
    assert not cgroup.exists()
