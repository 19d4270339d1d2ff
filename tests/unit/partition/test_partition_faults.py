# SPDX-License-Identifier: Apache-2.0
"""Partition changes on a simulated host: every release of the tools with every fault.

At the end the host is in the new modes, verified, with its monitors running again, or in the old modes with
everything running again; never in between. The message names the cause and what to do. What needs containers, and a
restart of the host, is in tests/lab/test_partition_faults.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lab.gpusim.machine.settings import SETTINGS
from tests.worlds.partition_host import Host, lacking

TOOLS = (
    ("rocm-smi", "6.0.0"), ("rocm-smi", "6.2.4"), ("rocm-smi", "6.4.1"), ("rocm-smi", "7.0.0"),
    ("amd-smi", "6.2.4"), ("amd-smi", "6.3.2"), ("amd-smi", "6.4.0"), ("amd-smi", "7.2.0"), ("amd-smi", "10.0.0"),
)  # fmt: skip
EVERY_RUN = (("rocm-smi", "6.0.0"), ("amd-smi", "10.0.0"))
"""The oldest and the newest, in turns: each fault is tried with one of them in every run, with all at night."""
WAYS = (*TOOLS, ("rocm-smi", "6.3.0"), ("rocm-smi", "7.2.0"), ("amd-smi", "6.3.0"), ("amd-smi", "7.0.2"),
        ("sysfs", "7.0.0"))  # fmt: skip
OTHER_WAYS = {*TOOLS[1:4], *TOOLS[5:8], ("rocm-smi", "6.3.0"), ("amd-smi", "6.3.0"), ("amd-smi", "7.0.2")}
"""Between the oldest and the newest of each tool."""
CPX4 = {"compute": "CPX", "memory": "NPS4"}
CPX = {"compute": "CPX"}
NEW4, NEW, OLD = "CPX/NPS4 64", "CPX/NPS1 64", "SPX/NPS1 8"


class Bench:
    """A host whose GPUs are partitioned; the same for all tests of a process, so each begins with a reset."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def reset(self, *words: str, exporter: bool = True) -> None:
        """Everything as after a first boot: SPX/NPS1, no fault, the exporter runs; then these settings and faults."""
        settings = [word for word in words if word.partition("=")[0] in SETTINGS]
        faults = [word for word in words if word not in settings]
        self.host.ask("reset", settings=settings, faults=faults, exporter=exporter)

    def change(self, request: dict[str, Any], **order: Any) -> dict[str, Any]:
        """One change of modes; its result. It may take minutes, also with a clock that is ten times as fast."""
        return self.host.ask("change", request={"timeout": 3000, **request}, **order)

    def state(self) -> list[str]:
        """Modes and number of logical GPUs, an open journal, the exporter."""
        return list(self.host.ask("state")["state"])

    def sh(self, command: str) -> str:
        """What a shell command prints on the host."""
        return str(self.host.ask("shell", command=command)["out"])


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A host of this process's own."""
    if lacking():
        pytest.fail(lacking())
    running = Host()
    yield running
    running.close()


@pytest.fixture
def bench(host: Host) -> Bench:
    """The host, as some other test left it."""
    return Bench(host)


@dataclass(frozen=True)
class Case:
    """Faults, what is asked for, and how it must end.

    `again`: by more than one try, unless it took as many seconds, after which nothing is in the way any more.
    `hangs`: a program does, and is to be killed; the clock is slower then, as all programs have its time, and those
    that do not hang are to get seconds on a machine that is busy, too.
    """

    faults: tuple[str, ...]
    request: dict[str, Any]
    end: str
    says: str = ""
    warns: str = ""
    again: float = 0
    hangs: bool = False


CASES = {
    "nothing wrong": Case((), CPX4, NEW4),
    "busy for a while": Case(("busy-transient=3",), CPX, NEW, again=math.inf),
    "busy after an exit": Case(("busy-after-exit=1",), CPX, NEW, again=0.8),
    "all GPUs failed with exit 0": Case(("compute-errno=EINVAL",), CPX, OLD, "No GPU was changed"),
    "GPU 5 of 8 failed": Case(("compute-errno=EINVAL@5",), CPX, OLD, "Set back to the earlier mode: GPUs 0-4"),
    "busy for good": Case(("compute-errno=EBUSY@5",), {**CPX, "retries": 1}, OLD, "The GPUs are busy after 2"),
    "success reported, nothing done": Case(("set-ignored",), CPX, OLD, "still shows the earlier mode"),
    "memory mode busy": Case(("memory-errno=EBUSY",), {**CPX4, "retries": 1}, OLD, "The GPUs are busy after 2"),
    "reload refused": Case(("reload=refused",), {**CPX4, "retries": 1}, OLD, "in use"),
    "reload hangs": Case(("reload=hang",), {**CPX4, "timeout": 30}, OLD, "did not end within", hangs=True),
    "reload fails once": Case(("reload=fail-once",), CPX4, NEW4),
    "reload is slow": Case(("slow-reload=0.5",), CPX4, NEW4),
    "memory mode not taken on": Case(("nps-change-fails",), CPX4, OLD, "look at dmesg | grep 'NPS mode'"),
    "tool hangs": Case(("tool-hang=all",), {**CPX4, "timeout": 40}, NEW4, warns="was killed. Using sysfs", hangs=True),
    "tool missing": Case(("tool-missing=all",), CPX4, NEW4, warns="not installed; using sysfs"),
    "warning before the output": Case(("warning-first",), CPX4, NEW4),
    # It holds because modes are read from sysfs, and from no tool's JSON.
    "several JSON documents": Case(("split-json",), CPX4, NEW4),
}  # fmt: skip


def every_tool(*names: str) -> pytest.MarkDecorator:
    """Each case with each release of each tool; in every run, only with one of EVERY_RUN."""
    return pytest.mark.parametrize(
        ("tool", "release", "name"),
        [
            pytest.param(*way, name, marks=() if way == EVERY_RUN[number % 2] else pytest.mark.deep)
            for way in TOOLS
            for number, name in enumerate(names)
        ],
    )


def host_with(tool: str, release: str) -> list[str]:
    """Settings and faults of a host with this release, on which the tool is the first that would be taken."""
    return [
        f"release={release}",
        *(["tool-missing=rocm-smi"] if tool == "amd-smi" and release != "10.0.0" else []),
    ]


@every_tool(*CASES)
def test_release_and_fault(bench: Bench, tool: str, release: str, name: str) -> None:
    case = CASES[name]
    bench.reset(*host_with(tool, release), *case.faults)
    result = bench.change(case.request, speed=5.0 if case.hangs else 10.0, hangs=case.hangs)
    assert bench.state() == [case.end, "active"], result
    if case.end == OLD:
        assert result["error"], result
        assert case.says in result["error"]
    else:
        assert result["error"] is None, result
        assert result["changed"]
        if "sysfs" not in case.warns:
            assert result["backend"] == tool
    assert case.warns in "; ".join(result["warnings"])
    tries = [action for action in result["actions"] if not action.startswith(("stop ", "start "))]
    assert len(tries) > 1 or result["seconds"] >= case.again, result


@pytest.mark.parametrize(
    ("backend", "release"),
    [pytest.param(*way, marks=pytest.mark.deep if way in OTHER_WAYS else ()) for way in WAYS],
)
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
    "foreign holder": Case(("holder=4242:train",), CPX, OLD, "instinct-fleet does not stop them: pid 4242"),
    "zombie": Case(("zombie=vllm",), {**CPX, "retries": 1}, OLD, "a zombie: its parent has to be stopped"),
    "virtual machine": Case(("platform=guest",), CPX4, OLD, "inside this virtual machine"),
    "a driver before partitioning": Case(("driver=old",), CPX, OLD, "offers no compute partition modes"),
    "wrong mode": Case((), {"compute": "TPX"}, OLD, "mode TPX is not offered"),
    "mode that does not go": Case((), {"compute": "DPX", "memory": "NPS4"}, OLD, "DPX cannot be combined with NPS4"),
    "memory mode that is not offered": Case(("memory_modes=NPS1",), CPX4, OLD, "Offered: NPS1"),
    "GPU in reset": Case(("gpu-reset=3",), CPX, OLD, "wait for a reset to end"),
}  # fmt: skip


@every_tool(*REFUSED)
def test_refused_before_anything_is_touched(bench: Bench, tool: str, release: str, name: str) -> None:
    case = REFUSED[name]
    bench.reset(*host_with(tool, release), *case.faults)
    before = bench.sh("gpusim show; systemctl show -p MainPID --value gpuagent")
    assert '"gpus": [' in before
    result = bench.change(case.request)
    assert result["error"], result
    assert case.says in result["error"]
    assert result["actions"] == []
    assert bench.sh("gpusim show; systemctl show -p MainPID --value gpuagent") == before
    assert bench.sh("test -e /var/lib/instinct-fleet/partition.json && echo journal") == ""


@every_tool("not root")
def test_not_root(bench: Bench, tool: str, release: str, name: str) -> None:
    bench.reset(*host_with(tool, release), exporter=False)
    assert "needs root: use become" in bench.change(CPX, user=65534)["error"]


def test_a_foreign_process_is_named(bench: Bench) -> None:
    bench.reset()
    bench.sh(
        "setsid bash -c 'exec -a trainer sleep 600 < /dev/kfd' > /dev/null 2>&1 & "
        "until grep -qs ^trainer /proc/[0-9]*/cmdline; do sleep 0.01; done"
    )
    result = bench.change(CPX)
    assert "trainer 600" in result["error"]
    assert "Stop them and run again" in result["error"]
    assert bench.state() == [OLD, "active"]


def test_63_of_64_partitions(bench: Bench) -> None:
    bench.reset("ast=1", exporter=False)
    bench.sh("modprobe -r amdgpu; modprobe amdgpu; systemctl start gpuagent")
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
    bench.reset(f"model={model}", f"driver={driver}", "release=7.2.0")
    result = bench.change(modes)
    assert result["error"] is None, result
    assert bench.state() == [end, "active"]


def test_stranded_vram_is_freed_with_permission(bench: Bench) -> None:
    bench.reset("stranded=46111", exporter=False)
    assert not bench.change({"clean": False})["changed"]
    result = bench.change({"clean": True})
    assert result["error"] is None, result
    assert result["actions"] == ["modprobe -r amdgpu", "modprobe amdgpu"]
    used = [int(text) for text in bench.sh("cat /sys/class/drm/card*/device/mem_info_vram_used").split()]
    assert max(used) < 1 << 30
