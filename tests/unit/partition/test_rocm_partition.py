# SPDX-License-Identifier: Apache-2.0
"""The module rocm_partition, run against a directory tree and tools that are programs; and its decisions."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.partition import backends, checks
from ansible_collections.instinct.fleet.plugins.module_utils.partition import gpus as partition_gpus
from ansible_collections.instinct.fleet.plugins.module_utils.partition.gpus import (
    PartitionedGpu,
    PartitionError,
    TargetModes,
)
from ansible_collections.instinct.fleet.plugins.module_utils.partition.smi_set_output import (
    BROKEN,
    BUSY,
    DONE,
    REFUSED,
    SetResult,
)

from tests.worlds.fake_docker import FakeDocker
from tests.worlds.gpu_tree import Tree, write

ROCM_SMI = "/opt/rocm/bin/rocm-smi"
AMD_SMI = "/opt/rocm/bin/amd-smi"
JOURNAL = "var/lib/instinct-fleet/partition.json"
SYSFS = "/sys/class/drm/renderD{}/device/current_compute_partition"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path).build()


@pytest.fixture
def module(tree: Tree, run_module: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the module on the tree. Its clock is advanced by sleeping; `module.slept` lists the pauses."""
    from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
    from ansible_collections.instinct.fleet.plugins.module_utils.partition import node
    from ansible_collections.instinct.fleet.plugins.modules import rocm_partition

    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tree.root / "run/instinct-fleet"))

    class Node(node.PartitionNode):
        clock = 0.0

        def __init__(self) -> None:
            super().__init__(str(tree.root), str(tree.root / "docker.sock"))

        def now(self) -> float:
            return self.clock

        def sleep(self, seconds: float) -> None:
            Node.clock += seconds
            slept.append(seconds)

        def write(self, step: backends.SysfsWrite) -> None:
            minor = int(step.path.split("/renderD")[1].split("/")[0])
            assert step.path == SYSFS.format(minor)
            tree.driver_write((minor - 128) // 8, step.value)

        def euid(self) -> int:
            return euid[0]

    slept: list[float] = []
    euid = [0]
    monkeypatch.setattr(rocm_partition, "PartitionNode", Node)

    def run(compute: str = "CPX", **args: Any) -> tuple[dict[str, Any], bool]:
        flags = {name: args.pop(name, False) for name in ("check", "diff")}
        result, failed = run_module(rocm_partition.main, {"compute": compute, **args}, **flags)
        result.setdefault("warnings", [])
        return result, failed

    run.slept, run.euid = slept, euid  # type: ignore[attr-defined]
    return run


def modes(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["compute_partition"] for entry in entries]


# --- what it does ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tools", "backend", "used", "actions"),
    [
        (["rocm-smi", "amd-smi"], "auto", "rocm-smi", [f"{ROCM_SMI} --setcomputepartition CPX"]),
        (["rocm-smi"], "rocm-smi", "rocm-smi", [f"{ROCM_SMI} --setcomputepartition CPX"]),
        (["amd-smi"], "auto", "amd-smi", [f"{AMD_SMI} set --gpu all --compute-partition CPX"]),
        (["rocm-smi", "amd-smi"], "amd-smi", "amd-smi", [f"{AMD_SMI} set --gpu all --compute-partition CPX"]),
        ([], "auto", "sysfs", [f"write CPX > {SYSFS.format(128 + 8 * gpu)}" for gpu in range(8)]),
        (["rocm-smi"], "sysfs", "sysfs", [f"write CPX > {SYSFS.format(128 + 8 * gpu)}" for gpu in range(8)]),
    ],
)
def test_backends(
    tree: Tree, module: Any, tools: list[str], backend: str, used: str, actions: list[str]
) -> None:
    tree.install(*tools)
    predicted, _ = module(backend=backend, check=True, diff=True)
    assert tree.modes() == ["SPX"] * 8
    assert {call.split()[1] for call in tree.calls()} <= {"--showcomputepartition", "list"}
    result, failed = module(backend=backend, diff=True)
    assert not failed, result
    assert result["changed"]
    assert result["backend"] == used
    assert result["actions"] == actions
    assert modes(result["before"]) == ["SPX"] * 8
    assert modes(result["after"]) == ["CPX"] * 8
    assert [entry["partitions"] for entry in result["after"]] == [8] * 8
    assert tree.modes() == ["CPX"] * 8
    assert "GPU 0 0000:05:00.0: SPX/NPS1 x 1\n" in result["diff"]["before"]
    assert "GPU 7 0000:e5:00.0: CPX/NPS1 x 8\n" in result["diff"]["after"]
    for key in ("changed", "backend", "actions", "before", "after", "diff"):
        assert predicted[key] == result[key], key

    calls = tree.calls()
    again, failed = module(backend=backend)
    assert not failed
    assert not again["changed"]
    assert again["actions"] == []
    assert tree.calls() == calls


@pytest.mark.parametrize("tools", [["rocm-smi"], ["amd-smi"], []])
def test_back_from_partitions(tree: Tree, module: Any, tools: list[str]) -> None:
    """In CPX the tools list 64 devices, of which 56 do not take a mode."""
    for index in range(8):
        tree.set(index, "CPX")
    tree.install(*tools)
    result, failed = module("SPX")
    assert not failed, result
    assert tree.modes() == ["SPX"] * 8
    missing = {"rocm-smi": [], "amd-smi": ["rocm-smi not installed; using amd-smi."]}
    neither = ["rocm-smi and amd-smi not installed; using sysfs."]
    assert result["warnings"] == (missing[tools[0]] if tools else neither)
    if tools == ["amd-smi"]:
        assert result["actions"][0].startswith(f"{AMD_SMI} set --gpu 0000:05:00.0 0000:26:00.0 ")


@pytest.mark.parametrize(
    ("start", "gpus", "tool", "action"),
    [
        # after GPU 0 in CPX the others come from the tools' index 8 on
        ("CPX SPX SPX SPX SPX SPX SPX SPX", ["1"], "rocm-smi", f"{ROCM_SMI} -d 8 --setcomputepartition DPX"),
        (
            "CPX DPX SPX SPX SPX SPX SPX SPX", ["0000:46:00.0", "0"], "rocm-smi",
            f"{ROCM_SMI} -d 0 10 --setcomputepartition DPX",
        ),
        (
            "CPX SPX SPX SPX SPX SPX SPX SPX", ["1"], "amd-smi",
            f"{AMD_SMI} set --gpu 0000:26:00.0 --compute-partition DPX",
        ),
        ("SPX SPX SPX SPX SPX SPX SPX SPX", ["7"], "", f"write DPX > {SYSFS.format(184)}"),
        # only what differs
        ("DPX DPX DPX DPX SPX DPX DPX DPX", ["all"], "rocm-smi",
         f"{ROCM_SMI} -d 8 --setcomputepartition DPX"),
    ],
)  # fmt: skip
def test_some_gpus(tree: Tree, module: Any, start: str, gpus: list[str], tool: str, action: str) -> None:
    for index, mode in enumerate(start.split()):
        tree.set(index, mode)
    tree.install(*([tool] if tool else []))
    result, failed = module("DPX", gpus=gpus)
    assert not failed, result
    assert result["actions"] == [action]
    chosen = range(8) if gpus == ["all"] else [entry["index"] for entry in result["after"] if
              str(entry["index"]) in gpus or entry["bdf"] in gpus]  # fmt: skip
    assert tree.modes() == ["DPX" if n in chosen else mode for n, mode in enumerate(start.split())]


# --- what it refuses, before touching anything -------------------------------------------------------------


def test_refuses_a_mode_that_is_not_offered(tree: Tree, module: Any) -> None:
    tree.install("rocm-smi")
    result, failed = module("TPX")
    assert failed
    assert (
        "mode TPX is not offered in memory partition mode NPS1. Offered: SPX, DPX, QPX, CPX." in result["msg"]
    )
    assert tree.calls() == []


def test_refuses_without_gpus(tree: Tree, module: Any) -> None:
    for link in (tree.root / "sys/class/drm").glob("renderD*/device"):
        link.unlink()
    result, failed = module()
    assert failed
    assert "the amdgpu driver shows no GPU" in result["msg"]
    (tree.root / "sys/module/amdgpu/version").unlink()
    (tree.root / "sys/module/amdgpu").rmdir()
    result, failed = module()
    assert "is not loaded (modprobe amdgpu)" in result["msg"]


def test_refuses_without_root_but_only_to_change(tree: Tree, module: Any) -> None:
    module.euid[0] = 1000
    result, failed = module()
    assert failed
    assert "needs root" in result["msg"]
    assert not module("SPX")[1]


@pytest.mark.parametrize("flags", ["fpu sse hypervisor", "fpu sse"])
def test_refuses_where_the_driver_is_read_only(tree: Tree, module: Any, flags: str) -> None:
    (tree.root / "proc/cpuinfo").write_text(f"model name: x\nflags: {flags}\n")
    for index in range(8):
        (tree.device(index) / "current_compute_partition").chmod(0o444)
    result, failed = module()
    assert failed
    assert "read-only" in result["msg"]
    assert ("inside this virtual machine" in result["msg"]) == ("hypervisor" in flags)


def test_refuses_a_driver_without_modes(tree: Tree, module: Any) -> None:
    for index in range(8):
        (tree.device(index) / "available_compute_partition").unlink()
        (tree.device(index) / "current_compute_partition").unlink()
    result, failed = module()
    assert failed
    assert "offers no compute partition modes" in result["msg"]


def test_refuses_a_gpu_in_reset(tree: Tree, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:

    real_open = os.open

    def open_(path: str, *rest: Any) -> int:
        if path.endswith("renderD152/device/current_compute_partition"):
            raise PermissionError(1, "Operation not permitted")
        return real_open(path, *rest)

    monkeypatch.setattr(os, "open", open_)
    result, failed = module()
    assert failed
    assert "GPU 3 (0000:65:00.0): the current mode cannot be read: Operation not permitted" in result["msg"]
    assert tree.modes()[:3] == ["SPX"] * 3


def test_refuses_a_mode_that_is_not_one(tree: Tree, module: Any) -> None:
    (tree.device(3) / "current_compute_partition").write_text("UNKNOWN\n")
    result, failed = module()
    assert failed
    assert "GPU 3 (0000:65:00.0): the amdgpu driver offers no compute partition modes" in result["msg"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"gpus": ["9"]}, "gpus: 9: no such GPU. This node has 0 (0000:05:00.0), 1 (0000:26:00.0)"),
        ({"gpus": []}, "gpus: the list is empty"),
        ({"gpus": ["all", "1"]}, "gpus: all: no such GPU"),
        ({"backend": "amd-smi"}, "backend: amd-smi is not installed"),
        ({"timeout": 0}, "timeout must be at least 1, not 0."),
        ({"retries": -1}, "retries must be at least 0, not -1."),
        ({"compute": "cpx"}, "value of compute must be one of: SPX, DPX, TPX, QPX, CPX, got: cpx"),
        ({"mode": "CPX"}, "Unsupported parameters"),
    ],
)
def test_refuses_bad_arguments(tree: Tree, module: Any, args: dict[str, Any], says: str) -> None:
    result, failed = module(**args)
    assert failed
    assert says in result["msg"]
    assert tree.modes() == ["SPX"] * 8


# --- what it falls back to ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        ({"rocm_smi": "garbage"}, "rocm-smi does not work: rocm-smi printed"),
        ({"rocm_smi": "noop"}, "reported success for GPUs 0-7, but the driver"),
    ],
)
def test_falls_back_to_the_next_tool(tree: Tree, module: Any, behaviour: dict[str, Any], says: str) -> None:
    tree.install("rocm-smi", "amd-smi")
    tree.behave(**behaviour)
    result, failed = module()
    assert not failed, result
    assert result["backend"] == "amd-smi"
    assert [action.split()[0] for action in result["actions"]] == [ROCM_SMI, AMD_SMI]
    assert says in result["warnings"][0]
    assert "Using amd-smi." in result["warnings"][0]


def test_falls_back_to_sysfs_when_amd_smi_rejects_every_mode(tree: Tree, module: Any) -> None:
    """ROCm/amdsmi#132."""
    tree.install("amd-smi")
    tree.behave(amd_smi="rejects")
    result, failed = module()
    assert not failed, result
    assert result["backend"] == "sysfs"
    assert "rocm-smi not installed; using amd-smi." in result["warnings"]
    assert any("invalid choice" in warning for warning in result["warnings"])


def test_a_tool_that_hangs_is_not_used(tree: Tree, module: Any) -> None:
    tree.install("rocm-smi")
    tree.behave(rocm_smi="hang")
    result, failed = module(timeout=4)
    assert not failed, result
    assert result["backend"] == "sysfs"
    (warning,) = result["warnings"]
    assert warning.startswith("rocm-smi does not answer: /opt/rocm/bin/rocm-smi did not end within 1 s")
    assert warning.endswith("and was killed. Using sysfs.")
    assert tree.calls() == ["rocm-smi --showcomputepartition"]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("tool", ["rocm-smi", "amd-smi"])
def test_without_a_tool_that_answers_nothing_is_stopped(
    tree: Tree, module: Any, tool: str, check: bool
) -> None:
    """In check mode too, as before the hosts are drained."""
    with FakeDocker(tree.root) as docker:
        instance = docker.add_container(
            "instinct-llama-0", {"Labels": {"instinct-fleet.instance": "llama-0"}}
        )
        tree.hold(5, "python3", f"12:devices:/system.slice/docker-{instance.id}.scope\n")
        tree.install("rocm-smi", "amd-smi")
        tree.behave(**{tool.replace("-", "_"): "hang"})
        result, failed = module(backend=tool, timeout=4, servers=[{"name": "llama-0"}], check=check)
        assert docker.changes() == []
    assert failed
    assert result["msg"].startswith(f"{tool} does not answer: /opt/rocm/bin/{tool} did not end within 1 s")
    assert "Nothing was stopped or changed. See dmesg | grep amdgpu" in result["msg"]
    assert tree.modes() == ["SPX"] * 8
    assert not (tree.root / JOURNAL).exists()


@pytest.mark.parametrize("at", range(5))
def test_a_full_disk_stops_nothing_and_one_that_fills_up_leaves_nothing_stopped(
    tree: Tree, module: Any, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    from ansible_collections.instinct.fleet.plugins.module_utils.partition import journal

    real, left = journal._write, [at]

    def full(*args: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*args)

    monkeypatch.setattr(journal, "_write", full)
    with FakeDocker(tree.root) as docker:
        docker.add_container("instinct-llama-0", {"Labels": {"instinct-fleet.instance": "llama-0"}})
        result, failed = module(backend="sysfs", servers=[{"name": "llama-0"}])
        assert docker.containers["instinct-llama-0"].status == "running"
        assert bool(docker.changes()) == (at > 3)
    assert failed
    assert "partition.json, the journal, " in result["msg"]
    assert "(No space left on device): without it no mode is changed. Make room on that disk" in result["msg"]
    assert tree.modes() == ["SPX"] * 8
    assert not (tree.root / JOURNAL).exists()


def test_a_tool_that_does_not_start(tree: Tree, module: Any) -> None:
    tree.install("rocm-smi")
    (tree.root / "opt/rocm/bin/rocm-smi").chmod(0o644)
    result, failed = module()
    assert not failed, result
    assert "does not start" in result["warnings"][0]


def test_a_backend_asked_for_has_no_fallback(tree: Tree, module: Any) -> None:
    tree.install("rocm-smi", "amd-smi")
    tree.behave(rocm_smi="garbage")
    result, failed = module(backend="rocm-smi")
    assert failed
    assert "Segmentation fault" in result["msg"]
    assert "No GPU was changed." in result["msg"]
    assert {call.split()[0] for call in tree.calls()} == {"rocm-smi"}


# --- busy --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["rocm-smi", "amd-smi", ""])
def test_a_driver_that_is_busy_for_a_moment(tree: Tree, module: Any, tool: str) -> None:
    tree.install(*([tool] if tool else []))
    who = tool or "sysfs"
    # each attempt counts GPU 0 once, and amd-smi stops there
    tree.behave(**{who: {"busy": 2, "gpus": [0]}})
    result, failed = module()
    assert not failed, result
    assert module.slept == [1.0, 2.0]
    assert tree.modes() == ["CPX"] * 8


@pytest.mark.parametrize("tool", ["rocm-smi", "amd-smi", ""])
def test_busy_for_good(tree: Tree, module: Any, tool: str) -> None:
    tree.install(*([tool] if tool else []))
    tree.behave(**{tool or "sysfs": "busy"})
    result, failed = module(retries=2)
    assert failed
    assert "The GPUs are busy after 3 attempts" in result["msg"]
    assert "No GPU was changed." in result["msg"]
    assert not result["changed"]
    assert module.slept == [1.0, 2.0]
    assert tree.modes() == ["SPX"] * 8
    assert not (tree.root / JOURNAL).exists()


def test_foreign_holders_are_named_before_anything_is_touched(tree: Tree, module: Any) -> None:
    tree.install("rocm-smi")
    container = "ab" * 32
    tree.hold(4242, "/usr/bin/python3 /usr/bin/vllm serve --api-key s3cret", f"0::/docker/{container}\n")
    tree.hold(77, "/usr/bin/train token=s3cret")
    result, failed = module()
    assert failed
    assert "use the GPUs, and instinct-fleet does not stop them: pid 77 /usr/bin/train;" in result["msg"]
    assert f"pid 4242 /usr/bin/python3 /usr/bin/vllm serve in container {container[:12]}" in result["msg"]
    assert "s3cret" not in json.dumps(result)
    assert tree.calls() == []
    assert not (tree.root / JOURNAL).exists()


def test_busy_without_holder_says_so(tree: Tree, module: Any) -> None:
    tree.behave(sysfs="busy")
    result, failed = module(retries=0)
    assert failed
    assert "no process holds /dev/kfd" in result["msg"]
    assert module.slept == []


def test_timeout_ends_the_retries(tree: Tree, module: Any) -> None:
    tree.behave(sysfs="busy")
    assert module(retries=100, timeout=20)[1]
    assert sum(module.slept) < 20


def test_names_the_container_of_a_holder(tree: Tree, module: Any) -> None:
    with FakeDocker(tree.root) as docker:
        container = docker.add_container("instinct-llama-0", {})
        tree.hold(5, "python3", f"12:devices:/system.slice/docker-{container.id}.scope\n")
        tree.behave(sysfs="busy")
        result, _ = module(retries=0)
    assert "pid 5 python3 in container instinct-llama-0" in result["msg"]
    assert not (tree.root / JOURNAL).exists()


@pytest.mark.parametrize("code", [0, 1, None])
def test_a_cdi_spec_is_written_anew(tree: Tree, module: Any, code: int | None) -> None:
    """It lists devices, and is out of date after a change; code None: its tool is not there."""
    spec = "/etc/cdi/amd.json"
    write(tree.root / spec[1:], "old")
    program = tree.root / "usr/bin/amd-ctk"
    if code is not None:
        write(program, f"#!/bin/sh\necho $@ >> {tree.root}/calls\necho no >&2\nexit {code}\n")
        program.chmod(0o755)
    predicted, _ = module(check=True)
    result, failed = module()
    assert not failed, result
    assert predicted["actions"] == result["actions"]
    assert tree.modes() == ["CPX"] * 8
    if code is None:
        assert any("amd-ctk is not installed" in warning for warning in result["warnings"])
        return
    assert result["actions"][-1] == f"amd-ctk cdi generate --output={spec}"
    assert tree.calls() == [f"cdi generate --output={spec}"]
    assert any("amd-ctk" in warning and "no" in warning for warning in result["warnings"]) == bool(code)


# --- failures of some GPUs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "trouble", "cause"),
    [
        ("rocm-smi", "einval", "Invalid arguments provided"),
        ("sysfs", "einval", "Invalid argument: the driver does not accept this mode"),
        ("sysfs", "eperm", "the GPU is being reset"),
        ("sysfs", "eio", "KFD did not start in the new mode"),
        ("sysfs", "busy", "The GPUs are busy"),
        ("sysfs", "noop", "the driver still shows the earlier mode"),
    ],
)
def test_a_failing_gpu_puts_the_others_back(
    tree: Tree, module: Any, tool: str, trouble: str, cause: str
) -> None:
    tree.set(2, "DPX")
    before = tree.modes()
    tree.install(*([tool] if tool != "sysfs" else []))
    tree.behave(**{tool: {"trouble": trouble, "gpus": [5]}})
    result, failed = module(retries=1)
    assert failed
    assert cause in result["msg"]
    assert "GPU 5 (0000:a6:00.0)" in result["msg"]
    assert "Set back to the earlier mode: GPUs 0-4" in result["msg"]
    assert tree.modes() == before
    assert not result["changed"]
    assert modes(result["after"]) == before
    assert f"write DPX > {SYSFS.format(144)}" in result["actions"]


def test_says_what_could_not_be_put_back(tree: Tree, module: Any) -> None:
    tree.install("rocm-smi")
    tree.behave(rocm_smi={"trouble": "einval", "gpus": [5]}, sysfs={"trouble": "busy", "gpus": [1]})
    result, failed = module()
    assert failed
    assert "Could not set back: The GPUs are busy after 6 attempts" in result["msg"]
    assert "GPU 1 (0000:26:00.0) is CPX, was SPX. Fix the cause and run again" in result["msg"]
    assert result["changed"]
    assert json.loads((tree.root / JOURNAL).read_text())["step"] == "undo"
    assert tree.modes() == ["SPX", "CPX", *["SPX"] * 6]


def test_a_tool_that_numbers_otherwise_is_noticed_and_undone(tree: Tree, module: Any) -> None:
    tree.install("rocm-smi", "amd-smi")
    tree.behave(rocm_smi="next")
    result, failed = module("DPX", gpus=["3", "4"])
    assert failed
    assert "rocm-smi changed GPU 5 (0000:a6:00.0), which was not requested." in result["msg"]
    assert tree.modes() == ["SPX"] * 8
    assert not result["changed"]


def test_a_gpu_that_falls_off_the_bus(tree: Tree, module: Any) -> None:
    tree.install("rocm-smi")
    tree.behave(rocm_smi="lose")
    result, failed = module()
    assert failed
    assert "The list of GPUs changed in the meantime: GPU 0 (0000:05:00.0) is gone." in result["msg"]
    assert "Could not set back" in result["msg"]


def test_a_bug_does_not_leave_gpus_in_between(
    tree: Tree, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansible_collections.instinct.fleet.plugins.module_utils.partition import checks as loaded

    tree.install("rocm-smi")
    monkeypatch.setattr(loaded, "verify", lambda *_: 1 // 0)
    result, failed = module()
    assert failed
    assert "Internal error, please report it: ZeroDivisionError" in result["msg"]
    assert "Set back to the earlier mode: GPUs 0-7." in result["msg"]
    assert tree.modes() == ["SPX"] * 8


@pytest.mark.parametrize("ast", [True, False])
def test_a_missing_partition_is_an_error_and_undone(tree: Tree, module: Any, ast: bool) -> None:
    (tree.root / "missing").write_text("1")
    if ast:
        (tree.root / "sys/module/ast").mkdir()
    # the lost node belongs to the last GPU in CPX; one in SPX must keep its own
    tree.set(7, "CPX")
    (tree.root / "missing").write_text("1")
    tree.topology()
    result, failed = module()
    assert failed
    assert "63 of 64 partitions are visible: GPU 7 (0000:e5:00.0) shows 7 of 8 partitions" in result["msg"]
    assert ("ast, the BMC's graphics, is loaded here" in result["msg"]) == ast
    assert tree.modes() == ["SPX"] * 7 + ["CPX"]


def test_a_missing_partition_is_found_without_a_change_too(tree: Tree, module: Any) -> None:
    for index in range(8):
        tree.set(index, "CPX")
    (tree.root / "missing").write_text("1")
    tree.topology()
    result, failed = module()
    assert failed
    assert "63 of 64" in result["msg"]
    assert result["actions"] == []


def test_a_missing_render_node_is_an_error(tree: Tree, module: Any) -> None:
    (tree.root / "dev/dri/renderD131").unlink()
    result, failed = module()
    assert failed
    assert "GPU 0 (0000:05:00.0) is missing /dev/dri/renderD131" in result["msg"]
    assert tree.modes() == ["SPX"] * 8


# --- decisions ---------------------------------------------------------------------------------------------


def gpu(index: int = 0, **changes: Any) -> PartitionedGpu:
    start = PartitionedGpu(
        index, f"0000:{index:02x}:00.0", "/x", 0x74A1, "SPX", "NPS1", ("SPX", "CPX"), True, 1, 8
    )
    return replace(start, **changes)


@pytest.mark.parametrize(
    ("mode", "xcc", "expected"),
    [
        ("SPX", 8, 1), ("DPX", 8, 2), ("TPX", 6, 3), ("QPX", 8, 4), ("CPX", 8, 8), ("CPX", 6, 6),
        ("CPX", None, None),
    ],
)  # fmt: skip
def test_expected_partitions(mode: str, xcc: int | None, expected: int | None) -> None:
    assert partition_gpus.expected_partitions(mode, xcc) == expected


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ([SetResult({0: (BUSY, "b"), 1: (REFUSED, "r")})], REFUSED),
        ([SetResult({0: (BUSY, "b"), 1: (BROKEN, "x")})], BUSY),
        ([SetResult({0: (DONE, "d"), 1: (DONE, "d")})], BROKEN),
        ([SetResult({}, (BUSY, "b"))], BUSY),
        ([SetResult({2: (REFUSED, "a partition that is not the GPU's first")})], BROKEN),
        ([], BROKEN),
    ],
)
def test_judge(results: list[SetResult], verdict: str) -> None:
    assert backends.judge_attempt(results, {0: 0, 1: 1}, [gpu(0), gpu(1)]).verdict == verdict


def test_dies_of_an_unknown_gpu_come_from_its_neighbours() -> None:
    def entry(index: int, counts: list[int]) -> dict[str, Any]:
        parts = [{"num_xcc": count, "render_node": "renderD128"} for count in counts]
        return {
            "index": index, "bdf": "b", "sysfs_path": "/x", "device_id": 1, "compute_partition": "CPX",
            "memory_partition": "NPS1", "available_compute_partitions": ["CPX"], "partitions": parts,
        }  # fmt: skip

    gpus = partition_gpus.gpus_of(
        [entry(0, [1] * 4), entry(1, [1] * 3)], frozenset(), frozenset({"renderD128"}), {}
    )
    assert [found.xcc for found in gpus] == [4, 4]
    assert "7 of 8 partitions" in str(checks.verify(gpus, TargetModes(None, {0: "CPX", 1: "CPX"}), False))


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([2], "GPU 2 (0000:02:00.0)"),
        ([0, 1], "GPU 0 (0000:00:00.0), GPU 1 (0000:01:00.0)"),
        ([0, 1, 2, 3], "GPUs 0-3"),
        ([7, 0, 1, 3, 5, 6], "GPUs 0-1, 3, 5-7"),
    ],
)
def test_named(indices: list[int], text: str) -> None:
    assert partition_gpus.gpu_names([gpu(index) for index in indices]) == text


def test_select_takes_addresses_in_any_case() -> None:
    gpus = (gpu(0, bdf="0000:a6:00.0"), gpu(1, bdf="0000:c6:00.0"))
    assert partition_gpus.select(gpus, ["0000:C6:00.0", "1"]) == (1,)
    with pytest.raises(PartitionError, match="no such GPU"):
        partition_gpus.select(gpus, ["-1"])
