# SPDX-License-Identifier: Apache-2.0
"""What a change of partition modes does to a real node: programs, units and containers, and how each of them fails."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.partition.backends import Command, SysfsWrite
from ansible_collections.instinct.fleet.plugins.module_utils.partition.gpus import PartitionError
from ansible_collections.instinct.fleet.plugins.module_utils.partition.holders import Service
from ansible_collections.instinct.fleet.plugins.module_utils.partition.journal import Journal
from ansible_collections.instinct.fleet.plugins.module_utils.partition.modes import CommandResult
from ansible_collections.instinct.fleet.plugins.module_utils.partition.monitors import MONITOR_UNITS
from ansible_collections.instinct.fleet.plugins.module_utils.partition.node import PartitionNode

from tests.helpers.eventually import GENEROUS, eventually
from tests.worlds.fake_docker import FakeContainer, FakeDocker
from tests.worlds.gpu_tree import BUSES, Tree
from tests.worlds.supervise_world import wait_for

LLAMA, EXPORTER = Service("instance", "instinct-llama-0", 5), Service("container", "exporter", 5)
AGENT, RDC = Service("unit", "gpuagent.service"), Service("unit", "rdc.service")
Programs = Callable[[str, str], None]


@pytest.fixture
def node(tmp_path: Path) -> PartitionNode:
    return PartitionNode(str(tmp_path), str(tmp_path / "docker.sock"))


@pytest.fixture
def program(tmp_path: Path) -> Programs:
    """Install a program of the node, a shell script; its calls are noted in `calls`."""

    def install(path: str, script: str) -> None:
        place = tmp_path / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >> {tmp_path}/calls\n{script}\n')
        place.chmod(0o755)

    return install


def calls(node: PartitionNode) -> list[str]:
    try:
        return Path(node.root, "calls").read_text().splitlines()
    except FileNotFoundError:
        return []


# ---- programs ---------------------------------------------------------------------------------------


def test_a_program_is_run(node: PartitionNode, program: Programs) -> None:
    program("/opt/rocm/bin/tool", "cat; echo \"$LC_ALL\"; printf 'bad \\377' >&2; exit 3")
    ran = node.run(Command(("/opt/rocm/bin/tool", "--set", "a b"), stdin="Y\n"), GENEROUS)
    assert ran == CommandResult(3, "Y\nC\n", "bad \ufffd")
    assert calls(node) == ["tool --set a b"]


@pytest.mark.parametrize("place", ["usr/sbin", "sbin", "usr/bin", "bin", "usr/local/bin"])
def test_programs_are_found_where_path_does_not_look(
    node: PartitionNode, program: Programs, place: str
) -> None:
    program(f"{place}/modprobe", "exit 7")
    assert node.run(Command(("modprobe", "amdgpu")), GENEROUS).code == 7


@pytest.mark.parametrize(
    ("name", "why"),
    [("/opt/rocm/bin/none", "No such file or directory"), ("none-of-that-name", "No such file or directory")],
)
def test_a_program_that_is_not_there(node: PartitionNode, name: str, why: str) -> None:
    with pytest.raises(PartitionError, match=f"^{name} does not start: {why}$"):
        node.run(Command((name,)), GENEROUS)


def test_a_program_that_does_not_end_is_killed_with_what_it_started(
    node: PartitionNode, program: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Path(node.root, "pid")
    program("/tool", f"sleep 600 &\necho $! > {noted}.part; mv {noted}.part {noted}; sleep 600")
    communicate = subprocess.Popen.communicate

    def later(process: Any, *rest: Any, **more: Any) -> Any:
        """Its time begins when it has started something, however late it gets its turn."""
        eventually("what it starts", noted.exists)
        return communicate(process, *rest, **more)

    monkeypatch.setattr(subprocess.Popen, "communicate", later)
    with pytest.raises(PartitionError, match=r"^/tool did not end within 1 s and was killed$"):
        node.run(Command(("/tool",)), 1.0)
    pid = int(noted.read_text())

    def gone() -> bool:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return True

    wait_for("the end of what it started", gone)


# ---- units ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "running"),
    [
        ("active", True), ("activating", True), ("reloading", True), ("inactive", False), ("failed", False),
        ("deactivating", False), ("unknown", False), ("", False),
    ],
)  # fmt: skip
def test_a_unit_that_runs(node: PartitionNode, program: Programs, states: str, running: bool) -> None:
    program("/usr/bin/systemctl", f"echo {states}; exit 3")
    assert node.alive(AGENT) is running
    assert calls(node) == ["systemctl is-active gpuagent.service"]


def test_the_monitors_that_run(node: PartitionNode, program: Programs) -> None:
    states = {"gpuagent.service": "active", "gdm.service": "active", "rdc.service": "failed"}
    lines = "\n".join(f"echo {states.get(name, 'inactive')}" for name in MONITOR_UNITS)
    program("/usr/bin/systemctl", f"{lines}\nexit 3")
    assert node.monitors() == [AGENT, Service("unit", "gdm.service")]
    assert calls(node) == [f"systemctl is-active {' '.join(MONITOR_UNITS)}"]


def test_without_systemd_no_unit_runs(node: PartitionNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", node.root)
    assert node.monitors() == []
    assert not node.alive(AGENT)
    assert node.stop([AGENT]) == ["systemctl does not start: No such file or directory"]
    with pytest.raises(PartitionError, match="systemctl does not start"):
        node.start(AGENT)


@pytest.mark.parametrize(
    ("script", "warnings"),
    [
        ("exit 0", []),
        ("echo careful >&2", []),
        ("echo ' Job failed. ' >&2; exit 1", ["systemctl stop gpuagent.service rdc.service: Job failed."]),
        ("exit 5", ["systemctl stop gpuagent.service rdc.service: 5"]),
    ],
)
def test_units_are_stopped_together(
    node: PartitionNode, program: Programs, script: str, warnings: list[str]
) -> None:
    program("/usr/bin/systemctl", script)
    assert node.stop([AGENT, RDC]) == warnings
    assert calls(node) == ["systemctl stop gpuagent.service rdc.service"]


def test_units_that_do_not_stop_have_their_time_each(
    node: PartitionNode, program: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def run(command: Command, timeout: float) -> CommandResult:
        given.append(timeout)
        raise PartitionError(f"{command.argv[0]} did not end")

    monkeypatch.setattr(node, "run", run)
    assert node.stop([AGENT, RDC, Service("unit", "x.service")]) == ["systemctl did not end"]
    assert given == [3 * 90.0]
    assert node.stop([]) == []


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("exit 0", None),
        ("echo ' Unit not found. ' >&2; exit 5", "Unit not found."),
        ("exit 1", "systemctl start exited with 1"),
    ],
)
def test_a_unit_is_started(node: PartitionNode, program: Programs, script: str, error: str | None) -> None:
    program("/usr/bin/systemctl", script)
    if error is None:
        node.start(AGENT)
    else:
        with pytest.raises(PartitionError) as failed:
            node.start(AGENT)
        assert str(failed.value) == error
    assert calls(node) == ["systemctl start gpuagent.service"]


# ---- containers -------------------------------------------------------------------------------------


@pytest.fixture
def docker(tmp_path: Path) -> FakeDocker:
    return FakeDocker(tmp_path)


@pytest.mark.parametrize(
    ("status", "running"),
    [("running", True), ("restarting", True), ("paused", True), ("exited", False), ("created", False)],
)
def test_a_container_that_runs(node: PartitionNode, docker: FakeDocker, status: str, running: bool) -> None:
    with docker:
        docker.add_container(EXPORTER.name, {}, "created").status = status
        assert node.alive(EXPORTER) is running
        assert not node.alive(LLAMA)  # there is none
    assert not PartitionNode(node.root, "/nowhere").alive(EXPORTER)


def test_containers_stop_side_by_side_and_before_the_units(
    node: PartitionNode, docker: FakeDocker, program: Programs
) -> None:
    asked = threading.Barrier(2)

    def ends_when_both_were_asked(container: FakeContainer) -> int:
        container.stopping.wait(GENEROUS)
        asked.wait(GENEROUS)
        with Path(node.root, "calls").open("a") as stream:
            stream.write("container\n")
        return 0

    program("/usr/bin/systemctl", "")
    with docker:
        docker.programs = {"": ends_when_both_were_asked}
        for service in (LLAMA, EXPORTER):
            docker.add_container(service.name, {})
        assert node.stop([AGENT, LLAMA, EXPORTER]) == []
        assert sorted(docker.changes()) == [
            "POST /containers/exporter/stop?t=5", "POST /containers/instinct-llama-0/stop?t=5",
        ]  # fmt: skip
    assert calls(node) == ["container", "container", "systemctl stop gpuagent.service"]


def test_a_container_that_had_to_be_killed_is_told(node: PartitionNode, docker: FakeDocker) -> None:
    def killed(container: FakeContainer) -> int:
        container.stopping.wait(GENEROUS)
        return 137

    with docker:
        docker.programs = {LLAMA.name: killed}
        docker.add_container(LLAMA.name, {})
        docker.add_container(EXPORTER.name, {})
        (warning,) = node.stop([LLAMA, EXPORTER])
    assert warning.startswith("instinct-llama-0 did not stop within 5 s and was killed")


def test_a_container_that_docker_does_not_stop_is_told_by_its_name(
    node: PartitionNode, docker: FakeDocker
) -> None:
    with docker:
        docker.add_container(LLAMA.name, {})
        docker.errors["POST /containers/instinct-llama-0/stop"] = (
            500,
            "cannot stop container: permission denied",
        )
        (warning,) = node.stop([LLAMA, EXPORTER])  # the other one is not there, and need not be stopped
        assert warning.startswith("instinct-llama-0: ")
        assert "cannot stop container: permission denied" in warning
    gone = PartitionNode(node.root, "/nowhere/docker.sock")
    first, second = gone.stop([LLAMA, EXPORTER])
    assert first.startswith("instinct-llama-0: Docker's socket /nowhere/docker.sock does not exist")
    assert second.startswith("exporter: Docker's socket")


def test_an_instance_that_is_stopped_for_a_change_stays_down_until_it_is_started(
    node: PartitionNode, docker: FakeDocker
) -> None:
    """Over a restart of Docker in the midst of the change too; a monitor's restart policy is its owner's."""
    always = {"HostConfig": {"RestartPolicy": {"Name": "always"}}}
    labels = {"instinct-fleet.instance": "llama-0", "instinct-fleet.restart": "always"}
    found = []
    with docker:
        for name, body in (("instinct-llama-0", {**always, "Labels": labels}), ("exporter", always)):
            docker.add_container(name, body)
        services = [Service("instance", "instinct-llama-0", 7), Service("container", "exporter", 7)]
        for act in (node.stop, lambda all_of_them: [node.start(item) for item in all_of_them]):
            act(services)
            found.append({
                name: (item.status, item.body["HostConfig"]["RestartPolicy"]["Name"])
                for name, item in docker.containers.items()
            })  # fmt: skip
    assert found == [
        {"instinct-llama-0": ("exited", "no"), "exporter": ("exited", "always")},
        {"instinct-llama-0": ("running", "always"), "exporter": ("running", "always")},
    ]


def test_a_container_is_started(node: PartitionNode, docker: FakeDocker) -> None:
    with docker:
        docker.add_container(EXPORTER.name, {}, "exited")
        node.start(EXPORTER)
        assert node.alive(EXPORTER)
        with pytest.raises(PartitionError, match=f"No such container: {LLAMA.name}"):
            node.start(LLAMA)
        docker.errors["POST /containers/exporter/start"] = (500, "device not found")
        with pytest.raises(PartitionError, match="device not found"):
            node.start(EXPORTER)
    with pytest.raises(PartitionError, match="does not exist"):
        PartitionNode(node.root, "/nowhere/docker.sock").start(EXPORTER)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path).build()


def test_holders_in_containers_are_named_as_far_as_docker_tells(
    node: PartitionNode, tree: Tree, docker: FakeDocker
) -> None:
    identity = f"{1:064x}"
    tree.hold(5, "python3", f"0::/docker/{identity}\n")
    (holder,) = PartitionNode(node.root, "/nowhere/docker.sock").holders()
    assert (holder.container, holder.service) == (identity[:12], None)  # no Docker
    with docker:
        (holder,) = node.holders()
        assert (holder.container, holder.service) == (identity[:12], None)  # Docker does not know it
        docker.add_container("exporter", {"Image": "rocm/device-metrics-exporter:v1.4"})
        (holder,) = node.holders()
        assert (holder.container, holder.service) == ("exporter", EXPORTER)
        docker.errors[f"GET /containers/{identity}"] = (200, "an answer without a name")
        (holder,) = node.holders()
        assert (holder.container, holder.service) == (identity[:12], None)


# ---- files ------------------------------------------------------------------------------------------


def test_what_is_read_of_the_driver(node: PartitionNode, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = node.gpus()
    assert [gpu.bdf for gpu in gpus] == [f"0000:{bus:02x}:00.0" for bus in BUSES]
    assert {(gpu.writable, gpu.memory_writable, gpu.unread) for gpu in gpus} == {(True, True, None)}
    (tree.device(2) / "current_compute_partition").chmod(0o444)
    (tree.device(3) / "current_memory_partition").unlink()
    assert [gpu.index for gpu in node.gpus() if not gpu.writable] == [2]
    assert [gpu.index for gpu in node.gpus() if not gpu.memory_writable] == [3]
    real, path = os.open, "renderD128/device/current_compute_partition"

    def refuse(name: str, *rest: int) -> int:
        if str(name).endswith(path):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return real(name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        text = "Operation not permitted: the GPU is being reset"
        for _ in range(2):  # problems of an earlier look are forgotten
            assert [gpu.unread for gpu in node.gpus()] == [text, *[None] * 7]
    assert {gpu.unread for gpu in node.gpus()} == {None}


def test_the_module_and_its_users(node: PartitionNode, tree: Tree) -> None:
    assert node.loaded("amdgpu")
    assert not node.loaded("ast")
    assert node.module_users() == 0
    (tree.root / "sys/module/amdgpu/refcnt").write_text("3\n")
    assert node.module_users() == 3
    assert node.tools() == ({"amd-smi": None, "rocm-smi": None}, "6.4.1")
    assert not node.virtual()
    (tree.root / "proc/cpuinfo").write_text("flags\t\t: fpu hypervisor sse\n")
    assert node.virtual()
    (tree.root / "proc/cpuinfo").unlink()
    assert not node.virtual()


def test_a_mode_is_written_and_the_drivers_refusal_is_an_errno(node: PartitionNode, tree: Tree) -> None:
    path = "/sys/class/drm/renderD128/device/current_compute_partition"
    node.write(SysfsWrite(path, "CPX", (0,)))
    assert (tree.device(0) / "current_compute_partition").read_text().startswith("CPX")
    with pytest.raises(FileNotFoundError):
        node.write(SysfsWrite("/sys/none", "CPX", (0,)))
    before = len(os.listdir("/proc/self/fd"))
    full = tree.root / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as refused:
        node.write(SysfsWrite("/full", "CPX", (0,)))
    assert refused.value.errno == errno.ENOSPC
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_clock_goes_forward_and_sleeps(node: PartitionNode, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    node.sleep(2.5)
    assert slept == [2.5]
    first, second, third = time.monotonic(), node.now(), time.monotonic()
    assert first <= second <= third
    assert node.euid() == os.geteuid()


def test_the_journal_is_kept_or_nothing_is_changed(node: PartitionNode, tmp_path: Path) -> None:
    journal = Journal("drain", "2026-01-01T00:00:00Z", "NPS1", {"b": "SPX"}, None, {"b": "CPX"}, (LLAMA,))
    assert node.load_journal() is None
    node.reserve_journal()
    assert node.load_journal() is None
    node.save_journal(journal)
    assert node.load_journal() == journal
    assert (tmp_path / "var/lib/instinct-fleet/partition.json").exists()
    node.drop_journal()
    assert node.load_journal() is None
    node.drop_journal()
    (tmp_path / "var/lib/instinct-fleet").rmdir()
    (tmp_path / "var/lib/instinct-fleet").write_text("")
    with pytest.raises(PartitionError, match=r"partition.json, the journal, has no disk space \(.*\)$"):
        node.reserve_journal()
    with pytest.raises(PartitionError, match=r"cannot be written \(.*\)$"):
        node.save_journal(journal)
    with pytest.raises(PartitionError, match=r"cannot be removed \(.*\)$"):
        node.drop_journal()


# ---- device lists -----------------------------------------------------------------------------------

FIRST, SECOND = "/etc/cdi/amd.json", "/var/run/cdi/amd.json"


@pytest.mark.parametrize(
    ("specs", "script", "commands", "warnings"),
    [
        ([], "exit 0", [], []),
        ([], None, [], []),
        ([FIRST], "exit 0", [FIRST], []),
        ([FIRST, SECOND], "exit 0", [FIRST, SECOND], []),
        ([FIRST, SECOND], None, [], ["/etc/cdi/amd.json, /var/run/cdi/amd.json lists the old devices"]),
        ([SECOND], "echo out; echo ' no GPU ' >&2; exit 1", [SECOND], [f"--output={SECOND}: no GPU"]),
        ([SECOND], "echo ' out '; exit 1", [SECOND], [f"--output={SECOND}: out"]),
        ([FIRST], "printf 'x%.0s' $(seq 300) >&2; exit 1", [FIRST], [f"--output={FIRST}: {'x' * 200}"]),
    ],
)
def test_lists_of_devices_are_written_anew(
    node: PartitionNode,
    program: Programs,
    specs: list[str],
    script: str | None,
    commands: list[str],
    warnings: list[str],
) -> None:
    for spec in specs:
        program(spec, "")
    if script is not None:
        program("/usr/bin/amd-ctk", script)
    wanted = [f"amd-ctk cdi generate --output={path}" for path in commands]
    would, lines = node.refresh_cdi(check=True)
    assert (would, bool(lines)) == (wanted, script is None and bool(specs))
    assert calls(node) == []
    ran, lines = node.refresh_cdi()
    assert ran == calls(node) == wanted
    assert len(lines) == len(warnings)
    assert all(part in text for part, text in zip(warnings, lines, strict=True))


def test_a_tool_that_cannot_be_run_is_a_warning(node: PartitionNode, program: Programs) -> None:
    program(FIRST, "")
    program("/usr/bin/amd-ctk", "")
    Path(node.root, "usr/bin/amd-ctk").write_text("#!/nowhere/sh\n")
    assert node.refresh_cdi()[1] == ["amd-ctk does not start: No such file or directory"]
