# SPDX-License-Identifier: Apache-2.0
"""What differs between the releases of rocm-smi and amd-smi: options, reloads, questions, exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lab.gpusim.machine import settings
from lab.gpusim.machine.state import Holder, Node
from lab.gpusim.tools import amd_smi, rocm_smi
from tests.worlds.gpusim_tools import Run, cpx, node

RELEASES = settings.RELEASES
ROCM_SMI = [r for r in RELEASES if r != "10.0.0"]
BUSY = "fault:compute-errno=EBUSY@1"


def on(release: str, *changes: str, **fields: Any) -> Node:
    return node(f"release={release}", *changes, **fields)


def documents(text: str) -> list[Any]:
    """JSON documents in a row."""
    found, rest = [], text.lstrip()
    while rest:
        document, end = json.JSONDecoder().raw_decode(rest)
        found.append(document)
        rest = rest[end:].lstrip()
    return found


@pytest.mark.parametrize(
    ("release", "rocm", "amd"),
    [
        ("6.0.0", "RocmSmi60", "AmdSmi62"),
        ("6.2.4", "RocmSmi62", "AmdSmi62"),
        ("6.3.0", "RocmSmi63", "AmdSmi63Dev"),
        ("6.3.2", "RocmSmi63", "AmdSmi63"),
        ("6.4.1", "RocmSmi64", "AmdSmi64"),
        ("7.0.2", "RocmSmi70", "AmdSmi70"),
        ("7.2.0", "RocmSmi70", "AmdSmi72"),
        ("10.0.0", "RocmSmi70", "AmdSmi100"),
    ],
)
def test_each_release_has_its_tools(release: str, rocm: str, amd: str) -> None:
    made = on(release)
    assert (rocm_smi.tool_for(made).__name__, amd_smi.tool_for(made).__name__) == (rocm, amd)
    assert rocm_smi.installed(made) == (release != "10.0.0")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("fault", [None, "fault:holder=7:rdc", BUSY, "platform=guest", "driver=old"])
def test_a_compute_mode_is_set_or_refused_in_every_release(release: str, fault: str | None) -> None:
    """Whatever the release prints: the state tells what happened, and only a success is called one."""
    made = on(release, *([fault] if fault else []))
    for command in ("rocm-smi --setcomputepartition CPX", "amd-smi set --gpu all --compute-partition CPX"):
        if command.startswith("rocm") and not rocm_smi.installed(made):
            continue
        done = Run(made, command)
        modes = [gpu.compute for gpu in done.node.gpus]
        assert modes == ["CPX" if fault in (None, BUSY) else "SPX", "CPX" if fault is None else "SPX"]
        assert ("Successfully" in done.out) == (modes != ["SPX", "SPX"]) or done.code == 1


@pytest.mark.parametrize(
    ("release", "tool", "reloads"),
    [
        *((release, "rocm-smi --setmemorypartition NPS4 --autorespond y", True) for release in ROCM_SMI),
        *((r, "amd-smi set --gpu all --memory-partition NPS4", True) for r in ("6.2.2", "6.3.0", "6.3.2", "6.4.0")),
        *((r, "amd-smi set --gpu all --memory-partition NPS4", False) for r in ("7.0.0", "7.2.0", "10.0.0")),
    ],
)  # fmt: skip
def test_which_release_reloads_by_itself(release: str, tool: str, reloads: bool) -> None:
    done = Run(on(release), tool, stdin="Y\n")
    assert (done.node.memory, done.node.memory_requested) == (("NPS4", None) if reloads else ("NPS1", "NPS4"))
    assert {gpu.compute for gpu in done.node.gpus} == {"CPX" if reloads else "SPX"}
    assert done.out.count("Successfully set memory partition to NPS4") == 2


@pytest.mark.parametrize(
    ("release", "asks"),
    [("6.2.2", False), ("6.3.0", False), ("6.3.2", True), ("6.4.0", True), ("7.0.0", True), ("10.0.0", True)],
)
def test_which_release_asks_before_a_memory_mode(release: str, asks: bool) -> None:
    done = Run(on(release), "amd-smi set --gpu all --memory-partition NPS4", stdin="")
    assert ("EOFError" in done.err) == asks
    assert (done.node == on(release)) == asks
    declined = Run(on(release), "amd-smi set --gpu all --memory-partition NPS4", stdin="n\n")
    assert declined.code == (207 if release == "10.0.0" else 1 if asks else 0)


@pytest.mark.parametrize(("release", "asks"), [("6.0.0", 0), ("6.3.0", 0), ("6.4.0", 1), ("7.0.0", 1)])
def test_which_rocm_smi_asks_before_a_memory_mode(release: str, asks: int) -> None:
    assert Run(on(release), "rocm-smi --setmemorypartition NPS4").code == asks


@pytest.mark.parametrize(
    ("release", "command", "code", "says"),
    [
        ("6.2.2", "rocm-smi --resetcomputepartition", 0, "Successfully reset compute partition (CPX)"),
        ("6.3.2", "rocm-smi --resetcomputepartition", 2, ""),
        ("6.2.2", "amd-smi reset -g all -C", 0, "RESET_COMPUTE_PARTITION: Successfully reset compute partition"),
        ("6.3.2", "amd-smi reset -g all -C", 0, "Parameter '-C' is invalid"),
        ("6.4.0", "amd-smi reset -r", 0, "Parameter '-r' is invalid"),
        ("7.2.0", "amd-smi reset -r", 0, "Successfully reloaded driver"),
        ("10.0.0", "amd-smi reset -r", 195, "Error code: 195 [INVALID_PARAMETER]"),
        ("6.2.2", "amd-smi partition", 0, "Command 'partition' is invalid"),
        ("6.2.2", "amd-smi set -C SPX", 2, ""),  # GPUs must be named
        ("6.3.2", "amd-smi set -C SPX", 0, "COMPUTEPARTITION: Successfully set compute partition to SPX"),
        ("6.4.0", "amd-smi set -C 0", 0, "Successfully set accelerator partition to SPX (profile #0)"),
        ("7.2.0", "amd-smi set -C 0", 0, "Successfully set accelerator partition to SPX (profile #0)"),
        ("10.0.0", "amd-smi set --accelerator-partition SPX -g 0", 0, "Successfully set accelerator partition to SPX"),
        ("7.2.0", "amd-smi static --ifwi", 0, "    IFWI:\n"),
        ("7.0.0", "amd-smi static --vbios", 0, "    VBIOS:\n"),
        ("10.0.0", "amd-smi frobnicate", 194, "Error code: 194 [INVALID_COMMAND]"),
        ("10.0.0", "amd-smi list -g 99", 196, "Error code: 196 [DEVICE_NOT_FOUND]"),
        ("10.0.0", "amd-smi set", 202, "Error code: 202 [REQUIRED_COMMAND]"),
    ],
)  # fmt: skip
def test_commands_come_and_go(release: str, command: str, code: int, says: str) -> None:
    done = Run(cpx(on(release)), command, stdin="y\n")
    assert done.code == code
    assert says in done.out


@pytest.mark.parametrize(
    ("release", "loaded_code"), [("6.2.2", 255), ("6.4.0", 255), ("7.2.0", 255), ("10.0.0", 206)]
)
def test_exit_code_without_the_driver(release: str, loaded_code: int) -> None:
    assert Run(on(release, "driver=none"), "amd-smi list").code == loaded_code


@pytest.mark.parametrize(
    ("changes", "command", "code", "says"),
    [
        ((BUSY,), "set -C CPX", 30, "[AMDSMI_STATUS_BUSY] Unable to set accelerator partition to CPX (profile #3)"),
        (("driver=old",), "set -C CPX", 2, "[AMDSMI_STATUS_NOT_SUPPORTED] Unable to set accelerator partition"),
        ((), "set -C XPX", 198, "Invalid accelerator configuration XPX"),
        ((), "set -C TPX", 198, "Invalid accelerator configuration TPX"),
        ((), "set -M NPS2", 1, "Valid Memory partition Modes: NPS1,NPS4"),
        (("fault:memory-errno=EBUSY@1",), "set -M NPS4", 30, "[AMDSMI_STATUS_BUSY] Unable to set memory"),
        (("fault:compute-errno=EBUSY@1",), "set -C CPX -g 0", 0, "Successfully"),
    ],
)  # fmt: skip
def test_amd_smi_10_goes_on_and_tells_at_the_end(
    changes: tuple[str, ...], command: str, code: int, says: str
) -> None:
    done = Run(on("10.0.0", *changes), f"amd-smi {command}", stdin="y\n")
    assert done.code == code
    assert says in done.out
    assert done.err == ""


def test_amd_smi_10_mixed_failures() -> None:
    made = on("10.0.0", "fault:compute-errno=EBUSY@1").gpu_set(0, reset=True)
    done = Run(made, "amd-smi set -C CPX")
    assert (done.code, done.out.count("Unable to set")) == (204, 2)


def test_amd_smi_10_wants_root() -> None:
    done = Run(on("10.0.0"), "amd-smi set -C CPX", euid=1000)
    says = "AMD-SMI Command 'set' requires elevation (sudo privileges required)"
    assert (done.code, done.out) == (10, f"{says} Error code: 10 [AMDSMI_STATUS_NO_PERM]\n")


def test_amd_smi_10_mode_that_needs_another_memory_mode() -> None:
    done = Run(replace(cpx(on("10.0.0")), memory="NPS4"), "amd-smi set -C SPX -g 0")
    assert done.code == 55
    assert "Please check `sudo amd-smi partition -am` for available profiles.\n" in done.out


def test_amd_smi_10_version_and_ids() -> None:
    made = on("10.0.0", "driver_version=6.18.4", count=1)
    text = Run(made, "amd-smi version").out
    assert text.startswith(
        "AMDSMI Tool: 27.0.0+unknown | AMDSMI Library version: 27.0.0 | ROCm version: 10.0.0 |"
    )
    assert "| Driver version: 6.18.4 | Build version: 2120656" in text
    (row,) = Run(made, "amd-smi version --json").json
    assert row["driver_full_version"] == "6.18.4-2120656"
    (listed,) = Run(made, "amd-smi list --enumeration --json").json
    assert (listed["uuid"], listed["oam_id"]) == (listed["hip_uuid"], 7)


def test_amd_smi_10_memory_of_partitions() -> None:
    """ALL lets each partition have the whole of its memory partition."""
    made = cpx(on("10.0.0", "driver_version=6.18.4", count=1))
    shown = Run(made, "amd-smi static --partition --json").json["gpu_data"][0]["partition"]
    assert shown["compute_partition_mem_alloc_mode"] == "CAPPING"
    done = Run(made, "amd-smi set --compute-partition-mem-alloc-mode ALL -g 0")
    assert done.code == 0
    assert Run(done.node, "amd-smi metric -m -g 1 --json").json["gpu_data"][0]["mem_usage"]["total_vram"] == {
        "value": 196592,
        "unit": "MB",
    }
    assert Run(cpx(on("10.0.0")), "amd-smi set --compute-partition-mem-alloc-mode ALL -g 0").code == 2


def test_bars_of_a_reload_that_takes_time() -> None:
    made = on("7.0.0", "fault:slow-reload=2.5", count=1)
    out = Run(made, "rocm-smi --setmemorypartition NPS4 --autorespond y").out
    assert "] 1/140 secs remain\r" in out
    assert "] 2/140 secs remain\nGPU[0]\t\t: Successfully" in out
    out = Run(on("6.3.2", "fault:slow-reload=2", count=1), "amd-smi set -M NPS4", stdin="y\n").out
    assert "Updating memory partition for gpu 0: [" in out
    assert "] 2/140 secs remain\n\nGPU: 0\n    MEMORY_PARTITION: Successfully" in out


@pytest.mark.parametrize(
    ("fault", "tries", "text"),
    [
        ("fault:reload=fail-once", 2, "Successfully set memory partition to NPS4"),
        ("fault:reload=fail", 2, "[AMDSMI_STATUS_AMDGPU_RESTART_ERR] Could not successfully restart driver after"),
        ("fault:holder=7:rdc", 2, "[AMDSMI_STATUS_AMDGPU_RESTART_ERR] Could not successfully restart driver after"),
        ("driver=old", 0, "[AMDSMI_STATUS_NOT_SUPPORTED] Device does not support setting memory partition to NPS4"),
    ],
)  # fmt: skip
def test_amd_smi_6_4_tries_a_reload_twice(fault: str, tries: int, text: str) -> None:
    done = Run(on("6.4.0", fault, count=1), "amd-smi set -M NPS4", stdin="y\n")
    assert (done.code, done.out.count("Updating memory partition for gpu 0")) == (0, tries)
    assert text in " ".join(done.out.split())


def test_a_failed_reload_as_it_was_reported() -> None:
    """ROCm/legacy-rocm-build issue 4439: from CPX, 6.3.2; long values go on in the next line."""
    made = replace(cpx(on("6.3.2", "fault:reload=fail", count=1)), release="6.3.2")
    out = Run(made, "amd-smi set --memory-partition NPS4", stdin="Y\n").out
    assert (
        out.split("secs remain")[-1]
        .lstrip()
        .startswith(
            "GPU: 0\n"
            "    MEMORY_PARTITION: [AMDSMI_STATUS_AMDGPU_RESTART_ERR] Could not successfully restart\n"
            "        driver after applying NPS4 on GPU ID: 0 BDF:0000:05:00.0\n\n"
            "GPU: 1\n"
            "    MEMORY_PARTITION: [AMDSMI_STATUS_NOT_SUPPORTED] Device does not support setting\n"
            "        memory partition to NPS4 on GPU ID: 1 BDF:0000:05:00.1\n"
        )
    )


def test_before_6_4_1_partitions_show_their_gpu() -> None:
    older, newer = (cpx(on(release, count=1)) for release in ("6.4.0", "6.4.1"))
    command = "rocm-smi --showcomputepartition --json"
    assert (len(Run(older, command).json), len(Run(newer, command).json)) == (8, 1)
    assert "NPS1, CPX, 7" in Run(older, "rocm-smi").out
    assert "N/A, N/A, 7" in Run(newer, "rocm-smi").out
    back = Run(older, "rocm-smi --setcomputepartition SPX")
    assert back.out.count("Successfully set compute partition to SPX") == 8
    back = Run(newer, "rocm-smi --setcomputepartition SPX")
    assert back.out.count("Not supported on the given system") == 7
    assert back.node.gpus[0].compute == "SPX"


@pytest.mark.parametrize(("release", "count"), [("6.3.0", 3), ("6.4.0", 4), ("7.0.0", 1), ("10.0.0", 1)])
def test_how_many_documents_partition_prints(release: str, count: int) -> None:
    made = replace(on(release, count=1), holders=(Holder(7, "rdc"),))
    assert len(documents(Run(made, "amd-smi partition --json").out)) == count


@pytest.mark.parametrize(("release", "wrapped"), [("6.2.2", False), ("6.4.0", False), ("7.0.0", True)])
def test_shape_of_static(release: str, wrapped: bool) -> None:
    shown = Run(on(release), "amd-smi static --partition --json").json
    assert isinstance(shown, dict) == wrapped
    row = (shown["gpu_data"] if wrapped else shown)[0]["partition"]
    assert ("partition_id" in row) == (release != "6.2.2")


def test_amd_smi_6_2_lists_no_kfd_ids() -> None:
    assert set(Run(on("6.2.2"), "amd-smi list --json").json[0]) == {"gpu", "bdf", "uuid"}


def test_amd_smi_10_counts_partitions_that_cannot_be_set() -> None:
    """Back from CPX: the first partition of each GPU does it, the others are failures in the exit code."""
    done = Run(cpx(on("10.0.0")), "amd-smi set -C SPX")
    assert [gpu.compute for gpu in done.node.gpus] == ["SPX", "SPX"]
    assert (done.code, done.out.count("[AMDSMI_STATUS_NOT_SUPPORTED]")) == (2, 14)
