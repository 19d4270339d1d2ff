# SPDX-License-Identifier: Apache-2.0
"""What the simulated tools do beyond the recordings: exit codes, formats, who may do what, and quirks."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lab.gpusim.machine import topology
from lab.gpusim.machine.models import MIB
from lab.gpusim.machine.state import Holder
from tests.worlds.gpusim_tools import Run, cpx, node

VLLM = Holder(4242, "vllm", (128,), vram=1 << 30)


# ---------------------------------------------------------------- rocm-smi


@pytest.mark.parametrize(
    ("command", "change", "code"),
    [
        ("--setcomputepartition CPX", "fault:holder=7:rdc", 0),  # every GPU failed
        ("--setcomputepartition CPX --loglevel warning", "fault:holder=7:rdc", 0),
        ("--setcomputepartition CPX --loglevel debug", "fault:holder=7:rdc", 16),
        ("--setcomputepartition CPX --loglevel error", "release=7.0.0", 0),
        ("--setcomputepartition TPX --loglevel error", "release=7.0.0", 18),
        ("--setcomputepartition CPX --loglevel error", "driver=old", 2),
        ("--setmemorypartition NPS4 --autorespond y --loglevel error", "fault:reload=fail", 19),
        ("--setmemorypartition NPS4 --autorespond n", "release=7.0.0", 1),
        ("--showcomputepartition", "driver=none", 0),
        ("--showcomputepartition --bogus", "release=7.0.0", 2),
        ("--json", "release=7.0.0", 1),  # the concise view has no JSON
        ("--showhw --json", "release=7.0.0", 1),
        ("--setfan 10", "release=7.0.0", 64),
    ],
)
def test_rocm_smi_exit_codes(command: str, change: str, code: int) -> None:
    assert Run(node(change), f"rocm-smi {command}").code == code


def test_rocm_smi_sets_one_gpu_of_a_partitioned_node() -> None:
    """In CPX it iterates 16 devices; the partitions other than the first print a line that is no failure."""
    done = Run(cpx(node()), "rocm-smi --setcomputepartition SPX")
    assert done.out.count("Successfully set compute partition to SPX") == 2
    assert done.out.count("Not supported on the given system") == 14
    assert {g.compute for g in done.node.gpus} == {"SPX"}


def test_rocm_smi_failure_on_some_gpus() -> None:
    done = Run(node("fault:compute-errno=EBUSY@1", count=4), "rocm-smi --setcomputepartition CPX")
    assert done.code == 0
    assert "GPU[1]\t\t: Device is currently busy, try again later\n" in done.out
    assert [g.compute for g in done.node.gpus] == ["CPX", "SPX", "CPX", "CPX"]


def test_rocm_smi_lies_about_an_ignored_set() -> None:
    done = Run(node("fault:set-ignored"), "rocm-smi --setcomputepartition CPX")
    assert "Successfully set compute partition to CPX" in done.out
    assert {g.compute for g in done.node.gpus} == {"SPX"}


def test_rocm_smi_json_and_csv() -> None:
    made = node(holders=(VLLM,))
    used = 283 * MIB + (1 << 30)
    assert Run(made, "rocm-smi --showmeminfo vram --json").json["card0"] == {
        "VRAM Total Memory (B)": "206141652992",
        "VRAM Total Used Memory (B)": str(used),
    }
    csv = Run(made, "rocm-smi --showmeminfo vram --csv").out
    assert csv.splitlines()[1] == f"card0,206141652992,{used}"
    assert Run(made, "rocm-smi --showdriverversion --json").json == {"system": {"Driver version": "6.12.12"}}
    assert Run(cpx(node()), "rocm-smi --showcomputepartition --json").json == {
        "card0": {"Compute Partition": "CPX"},
        "card8": {"Compute Partition": "CPX"},
    }


def test_rocm_smi_processes() -> None:
    out = Run(node(holders=(VLLM,)), "rocm-smi --showpids").out
    assert "4242\tvllm        \t1     \t1073741824\t0        \tUNKNOWN     \t\n" in out
    assert "No KFD PIDs currently running" in Run(node(), "rocm-smi --showpids").out


def test_rocm_smi_relaunches_itself_with_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, list[str]]] = []

    def execvp(name: str, argv: list[str]) -> None:
        called.append((name, argv))
        raise SystemExit

    monkeypatch.setattr("os.execvp", execvp)
    with pytest.raises(SystemExit):
        Run(node(), "rocm-smi -d 0 --setcomputepartition CPX", euid=1000)
    assert called == [("sudo", ["sudo", "/opt/rocm/bin/rocm-smi", "-d", "0", "--setcomputepartition", "CPX"])]
    assert Run(node(), "rocm-smi --showcomputepartition", euid=1000).code == 0


# ---------------------------------------------------------------- amd-smi 7.0


@pytest.mark.parametrize(
    ("command", "says", "code"),
    [
        ("set -C XPX", "Value 'XPX' is not of valid type or format. Run '--help' for more info.", -5),
        ("set", "Command 'set' requires a target argument. Run '--help' for more info.", -9),
        ("list --bogus", "Parameter '--bogus' is invalid. Run '--help' for more info.", -2),
        ("list -g 9", "Can not find a device: GPU '9'", -3),
        ("list -g x", "Value 'x' is not of valid type or format. Run '--help' for more info.", -5),
        ("bogus", "Command 'bogus' is invalid. Run '--help' for more info.", -1),
    ],
)
def test_amd_smi_usage_errors(command: str, says: str, code: int) -> None:
    done = Run(node(), f"amd-smi {command}")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(f"{says} Error code: {code}\n")
    last = Run(node(), f"amd-smi {command} --json").out.splitlines()[-1]
    assert json.loads(last) == {"error": says, "code": code}


@pytest.mark.parametrize(("chosen", "profile"), [("CPX", 3), ("dpx", 1), ("2", 2), ("0", 0)])
def test_amd_smi_takes_modes_and_profile_numbers(chosen: str, profile: int) -> None:
    mode = ("SPX", "DPX", "QPX", "CPX")[profile]
    done = Run(node(), f"amd-smi set -C {chosen}")
    line = f"    ACCELERATOR_PARTITION: Successfully set accelerator partition to {mode} (profile #{profile})"
    assert done.out == f"GPU: 0\n{line}\n\nGPU: 1\n{line}\n\n\n"
    assert {g.compute for g in done.node.gpus} == {mode}


def test_amd_smi_set_prints_one_json_document_per_gpu() -> None:
    out = Run(node(), "amd-smi set -C CPX --json").out
    first, end = json.JSONDecoder().raw_decode(out)
    second, _ = json.JSONDecoder().raw_decode(out[end:].lstrip())
    assert [first[0]["gpu"], second[0]["gpu"]] == [0, 1]


def test_amd_smi_stops_at_the_first_gpu_that_fails() -> None:
    done = Run(node("fault:compute-errno=EBUSY@1", count=4), "amd-smi set -C CPX")
    assert done.code == 1
    assert done.err.endswith(
        "ValueError: Unable to set accelerator partition to CPX on GPU ID: 1 BDF:0000:26:00.0\n"
    )
    assert [g.compute for g in done.node.gpus] == ["CPX", "SPX", "SPX", "SPX"]


def test_amd_smi_mode_that_needs_another_memory_mode() -> None:
    done = Run(replace(cpx(node()), memory="NPS4"), "amd-smi set -C SPX -g 0")
    assert done.code == 1
    assert "[AMDSMI_STATUS_SETTING_UNAVAILABLE] Please check amd-smi partition --memory" in done.out
    assert "\t55 | AMDSMI_STATUS_SETTING_UNAVAILABLE - Setting is not available\n" in done.err


@pytest.mark.parametrize(
    ("change", "euid"), [("driver=inbox", 0), ("release=7.0.0", 1000), ("driver=old", 0)]
)
def test_amd_smi_offers_no_modes(change: str, euid: int) -> None:
    """Without root, or a driver with profiles, the option takes nothing at all; exit 0."""
    done = Run(node(change), "amd-smi set -C CPX", euid=euid)
    says = "Command '--compute-partition' is not supported on the system. Run '--help' for more info."
    assert (done.out, done.code) == (f"{says} Error code: -7\n", 0)


def test_amd_smi_has_no_partition_options_in_a_virtual_machine() -> None:
    done = Run(node("platform=guest"), "amd-smi set -C CPX")
    assert done.out == "Parameter '-C cpx' is invalid. Run '--help' for more info. Error code: -2\n"


def test_amd_smi_memory_mode_and_reload() -> None:
    asked = Run(node(), "amd-smi set -M NPS4", stdin="y\n")
    assert asked.code == 0
    assert (asked.node.memory, asked.node.memory_requested) == ("NPS1", "NPS4")
    done = Run(asked.node, "amd-smi reset -r", stdin="Y\n")
    assert done.code == 0
    assert done.out.count("RELOAD_DRIVER: Successfully reloaded driver") == 2
    assert (done.node.memory, done.node.gpus[0].compute) == ("NPS4", "CPX")


@pytest.mark.parametrize(
    ("command", "stdin", "says", "error"),
    [
        ("set -M NPS4", "n\n", "Confirmation not given. Exiting without setting value\n", ""),
        ("set -M NPS4", "", "[Y/N] ", "EOFError: EOF when reading a line\n"),
        ("reset -r", "no\n", "Confirmation not given. Exiting without setting value\n", ""),
    ],
)
def test_amd_smi_prompts(command: str, stdin: str, says: str, error: str) -> None:
    done = Run(node(), f"amd-smi {command}", stdin=stdin)
    assert (done.code, done.err) == (1, error)
    assert done.out.endswith(says)
    assert done.node == node()


def test_amd_smi_reload_while_in_use() -> None:
    done = Run(node(holders=(VLLM,)), "amd-smi reset -r", stdin="y\n")
    assert done.code == 0
    text = "RELOAD_DRIVER: [AMDSMI_STATUS_AMDGPU_RESTART_ERR] Unable to successfully restart driver"
    assert done.out.count(text) == 2
    assert done.node.driver.loaded


def test_amd_smi_invalid_memory_mode_is_reported_per_gpu() -> None:
    done = Run(node(), "amd-smi set -M NPS2", stdin="y\n")
    assert done.code == 0
    assert done.out.count("Valid Memory partition Modes: NPS1,NPS4\n") == 2
    assert done.out.count("[AMDSMI_STATUS_INVAL] Unable to set memory partition to NPS2") == 2


def test_amd_smi_selects_by_index_address_and_uuid() -> None:
    both = Run(node(), "amd-smi list --json").json
    for name in ("1", both[1]["bdf"], both[1]["uuid"], both[1]["uuid"].upper()):
        assert Run(node(), f"amd-smi list -g {name} --json").json == [both[1]]


def test_amd_smi_partitions_have_their_own_uuid_from_7_0_on() -> None:
    rows = Run(cpx(node(count=1)), "amd-smi list --json").json
    assert len({row["uuid"] for row in rows}) == 8
    assert [row["bdf"][-1] for row in rows] == list("01234567")
    older = Run(cpx(node("release=6.3.0", count=1)), "amd-smi list --json").json
    assert len({row["uuid"] for row in older}) == 1


def test_amd_smi_shapes_of_json() -> None:
    made = node(holders=(VLLM,))
    static = Run(made, "amd-smi static --partition --json").json
    assert static["gpu_data"][1] == {
        "gpu": 1,
        "partition": {"accelerator_partition": "SPX", "memory_partition": "NPS1", "partition_id": 0},
    }
    assert set(Run(made, "amd-smi partition --json").json) == {
        "current_partition", "memory_partition", "partition_profiles", "partition_resources",
    }  # fmt: skip
    first, second = Run(made, "amd-smi process --json").json
    assert first["process_list"][0]["process_info"]["memory_usage"]["vram_mem"] == {
        "value": 1 << 30,
        "unit": "B",
    }
    assert second["process_list"] == [{"process_info": "No running processes detected"}]
    metric = Run(made, "amd-smi metric -m -g 0 --json").json["gpu_data"][0]["mem_usage"]
    assert metric["used_vram"] == {"value": 283 + 1024, "unit": "MB"}
    assert Run(made, "amd-smi default --json").json["processes"][0]["pid"] == 4242


def test_amd_smi_secondaries_have_no_metrics() -> None:
    out = Run(cpx(node(count=1)), "amd-smi").out
    assert "| 0000:05:00.1    AMD Instinct MI300X | N/A        N/A   0                 N/A |" in out
    assert "|   1       1     N/A             N/A | N/A        N/A            123/24574 MB |" in out
    rows = Run(cpx(node(count=1)), "amd-smi monitor --json").json
    assert [row["power_usage"] for row in rows[:2]] == [{"value": 142, "unit": "W"}, "N/A"]


def test_amd_smi_inbox_driver_version() -> None:
    made = node("driver=inbox")
    assert "| amdgpu version: Linuxversion6.8.0-79-generic(buildd" in Run(made, "amd-smi version").out
    assert "amdgpu version: Linuxver ROCm version: 7.0.0    |" in Run(made, "amd-smi").out


def test_amd_smi_quirks_on_demand() -> None:
    warned = Run(node("fault:warning-first"), "amd-smi list --json").out
    assert warned.startswith("WARNING: User is missing the following required groups")
    out = Run(node("fault:split-json"), "amd-smi partition -c -m --json").out
    documents = []
    while out.strip():
        document, end = json.JSONDecoder().raw_decode(out.lstrip())
        documents.append(document)
        out = out.lstrip()[end:]
    assert [len(d) for d in documents] == [2, 2]


def test_amd_smi_without_the_driver() -> None:
    done = Run(node("driver=none"), "amd-smi list --json")
    assert (done.code, done.out) == (255, "")


def test_profiles_need_root() -> None:
    done = Run(node(count=1), "amd-smi partition -a", euid=1000)
    assert "requires sudo/root permissions" in done.out
    assert Run(node(count=1), "amd-smi partition -a").out.count("*") == 2  # the mode's, the legend's


# ---------------------------------------------------------------- modprobe


@pytest.mark.parametrize(
    ("command", "change", "euid", "code", "err", "loaded"),
    [
        ("-r amdgpu", "release=7.0.0", 0, 0, "", False),
        ("-r amdgpu", "fault:holder=7:rdc", 0, 1, "modprobe: FATAL: Module amdgpu is in use.\n", True),
        ("-r amdgpu", "fault:reload=refused", 0, 1, "modprobe: FATAL: Module amdgpu is in use.\n", True),
        ("-r amdgpu", "driver=none", 0, 0, "", False),
        ("amdgpu", "driver=none", 0, 0, "", True),
        ("amdgpu", "release=7.0.0", 0, 0, "", True),
        ("-r amdgpu", "release=7.0.0", 1000, 1,
         "modprobe: ERROR: could not remove 'amdgpu': Operation not permitted\n", True),
    ],
)  # fmt: skip
def test_modprobe(command: str, change: str, euid: int, code: int, err: str, loaded: bool) -> None:
    done = Run(node(change), f"modprobe {command}", euid=euid)
    assert (done.code, done.err, done.node.driver.loaded) == (code, err, loaded)


def test_modprobe_tells_what_it_does() -> None:
    assert Run(node(), "modprobe -r -v amdgpu").out == "rmmod amdgpu\n"
    assert Run(node("driver=none"), "modprobe -v amdgpu").out.startswith("insmod /lib/modules/")


def test_removing_ast_brings_the_last_partition_back() -> None:
    """Once amdgpu is loaded again: until then it has the minors that it got."""
    made = cpx(node("ast=1", count=8))
    assert len(topology.partitions(made)) == 63
    made = Run(made, "modprobe -r ast").node
    assert (made.ast, len(topology.partitions(made))) == (False, 63)
    made = cpx(Run(Run(made, "modprobe -r amdgpu").node, "modprobe amdgpu").node)
    assert len(topology.partitions(made)) == 64
    assert len(topology.partitions(Run(made, "modprobe ast").node)) == 64
