# SPDX-License-Identifier: Apache-2.0
"""What a simulated node shows of its host, what breaks there, and what a reboot changes."""

from __future__ import annotations

import errno
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.gpusim import runc
from lab.gpusim.driver import faults, kernel
from lab.gpusim.files.entries import Dir, File
from lab.gpusim.files.sysfs import View
from lab.gpusim.machine import settings
from lab.gpusim.machine.models import MODELS
from lab.gpusim.machine.paths import Paths
from lab.gpusim.machine.state import Holder, Node, StateError, from_json, make_node, to_json
from lab.gpusim.node import sync_tools
from lab.gpusim.serve import blacklist
from lab.gpusim.tools import kernel_log
from lab.gpusim.tools.smi import Terminal
from tests import ROOT
from tests.helpers.some import some

GPU = "devices/pci0000:00/0000:05:00.0"
THP = "kernel/mm/transparent_hugepage"
CPU = "devices/system/cpu/cpu0"


def node(*changes: str, count: int = 8) -> Node:
    """A node with settings (KEY=VALUE) and faults (fault:NAME=VALUE) made."""
    made = make_node(count)
    for change in changes:
        kind, _, fault = change.partition(":")
        made = faults.add(made, fault) if kind == "fault" else settings.apply(made, settings.split([change]))
    return made


def entry(made: Node, path: str) -> File:
    found = View(made, lambda: []).find(path)
    assert isinstance(found, File), path
    return found


def read(made: Node, path: str) -> str:
    return entry(made, path).data().decode().rstrip("\n")


def write(made: Node, path: str, text: str) -> tuple[Node, int]:
    writer = entry(made, path).write
    assert writer is not None, path
    return writer(made, text, ())


# ---------------------------------------------------------------- what a node shows, and how to break it


@pytest.mark.parametrize(
    ("path", "kept", "change", "broken"),
    [
        (f"{CPU}/cpufreq/scaling_governor", "performance", "governor=schedutil", "schedutil"),
        (f"{CPU}/cpuidle/state2/disable", "1", "c2=on", "0"),
        (f"{THP}/enabled", "[always] madvise never", "huge_pages=never", "always madvise [never]"),
        (f"{GPU}/current_link_speed", "32.0 GT/s PCIe", "fault:link-speed=16.0@0", "16.0 GT/s PCIe"),
        (f"{GPU}/current_link_width", "16", "fault:link-width=8@0", "8"),
        (f"{GPU}/max_link_width", "16", "fault:link-width=8@0", "16"),
        (f"{GPU}/vbios_version", "113-M3000100-103", "vbios=113-M3000100-102", "113-M3000100-102"),
        (f"{GPU}/ras/umc_err_count", "ue: 0\nce: 0", "fault:ecc=3@0", "ue: 3\nce: 0"),
        (f"{GPU}/fw_version/smc_fw_version", "0x00557b00", "fault:ecc=3@0", "0x00557b00"),
        ("module/amdgpu/version", "6.12.12", "driver_version=6.10.5", "6.10.5"),
        ("devices/pci0000:00/0000:69:00.0/infiniband/mlx5_3/ports/1/state", "4: ACTIVE", "fault:nic-down=3",
         "1: DOWN"),
    ],
)  # fmt: skip
def test_a_well_kept_server_and_how_to_break_it(path: str, kept: str, change: str, broken: str) -> None:
    assert (read(node(), path), read(node(change), path)) == (kept, broken)


def test_faults_of_single_gpus_leave_the_others() -> None:
    made = node("fault:link-width=8@5", "fault:ecc=2@5")
    assert [gpu.link_width for gpu in made.gpus] == [16] * 5 + [8] + [16] * 2
    assert [gpu.sensors.uncorrectable for gpu in made.gpus] == [0] * 5 + [2] + [0] * 2
    assert faults.clear(made) == node()
    assert faults.clear(node("fault:nic-down=1"), "nic-down") == node()


def test_the_link_is_in_configuration_space_too() -> None:
    space = entry(node("fault:link-speed=16.0", "fault:link-width=8"), f"{GPU}/config").data()
    able, status = struct.unpack_from("<I", space, 0x70)[0], struct.unpack_from("<H", space, 0x76)[0]
    assert (able & 0xF, able >> 4 & 0x3F, status & 0xF, status >> 4 & 0x3F) == (5, 16, 4, 8)


@pytest.mark.parametrize("count", [0, 1, 8])
def test_nics(count: int) -> None:
    view = View(node(f"nics={count}"), lambda: [])
    listed = view.find("class/infiniband")
    assert isinstance(listed, Dir)
    assert list(listed.entries) == [f"mlx5_{i}" for i in range(count)]


@pytest.mark.parametrize(
    ("path", "text", "number", "shown"),
    [
        (f"{CPU}/cpufreq/scaling_governor", "powersave", 0, "powersave"),
        (f"{CPU}/cpufreq/scaling_governor", "fast", errno.EINVAL, "performance"),
        (f"{CPU}/cpuidle/state2/disable", "0", 0, "0"),
        (f"{CPU}/cpuidle/state2/disable", "yes", errno.EINVAL, "1"),
        (f"{THP}/enabled", "madvise", 0, "always [madvise] never"),
        (f"{THP}/enabled", "sometimes", errno.EINVAL, "[always] madvise never"),
        (f"{THP}/defrag", "defer", 0, "always [defer] defer+madvise madvise never"),
    ],
)
def test_writes_are_answered_as_the_kernel_does(path: str, text: str, number: int, shown: str) -> None:
    after, got = write(node(), path, text)
    assert (got, read(after, path)) == (number, shown)


def test_memory_allocation_mode_of_partitions() -> None:
    name = f"{GPU}/compute_partition_mem_alloc_mode"
    assert View(node(), lambda: []).find(name) is None  # an older driver
    made = node("driver_version=6.18.4", count=1)
    made, number = write(made, name, "ALL")
    assert (number, read(made, name)) == (0, "ALL")
    assert write(made, name, "SOME")[1] == errno.EINVAL


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("model", MODELS)
def test_a_node_can_have_other_gpus(model: str) -> None:
    made = kernel.set_memory(node("memory_modes=NPS1,NPS2"), 0, "NPS2").node
    made = settings.apply(settings.apply(made, {"model": "MI300A"}), {"model": model, "gpus": "4"})
    assert (len(made.gpus), made.offered_memory) == (4, MODELS[model].memory_modes)
    assert {gpu.compute for gpu in made.gpus} == {"SPX"}
    assert made.memory_requested is None


def test_models_are_those_of_the_catalogue() -> None:
    """The memory modes that go with a compute mode, PCI ids, dies: one truth for toolkit and simulation."""
    known = yaml.safe_load((ROOT / "catalog/gpus.yml").read_text())["models"]
    for name, model in some(MODELS.items()):
        entry = known[name]
        modes = {mode: tuple(e["memory"]) for mode, e in entry["compute_partitions"].items()}
        assert dict(model.pairs) == modes, name
        assert {mode: e["count"] for mode, e in entry["compute_partitions"].items()} == {
            mode: model.parts(mode) for mode in model.compute_modes
        }
        assert entry["pci_ids"] == [f"1002:{model.device_id:04x}"]
        assert (entry["gfx"], entry["xcds"], entry["cus_per_xcd"]) == (model.gfx, model.xcc, model.cu_per_xcc)
        assert entry.get("vram_mib", model.vram_mib) == model.vram_mib


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("model=MI100", "MI300X"),
        ("gpus=9", "gpus=9"),
        ("governor=fast", "performance"),
        ("c2=maybe", "on, off"),
        ("nics=12", "nics=12"),
        ("memory_at_boot=NPS3", "keep"),
        ("fault:link-speed=40@1", "32.0"),
        ("fault:link-width=3", "16"),
        ("fault:nic-down=9", "no NIC 9"),
        ("fault:zombie=vllm", "PID:KEEPER:NAME"),
    ],
)
def test_what_cannot_be_is_refused(word: str, says: str) -> None:
    with pytest.raises(StateError, match=says):
        node(word)


def test_state_survives_its_json() -> None:
    made = node(
        "fault:link-width=8@5", "governor=powersave", "nics=2", "fault:nic-down=1", "fault:zombie=7:6:vllm"
    )
    assert from_json(to_json(made)) == made


# ---------------------------------------------------------------- reboot


def test_a_reboot_keeps_the_memory_mode_and_brings_the_compute_mode_that_goes_with_it() -> None:
    made = kernel.load(kernel.unload(kernel.set_memory(node(), 0, "NPS4").node, ()).node).node
    made = kernel.set_compute(made, 0, "QPX", ()).node
    after = kernel.reboot(made)
    assert (after.memory, {gpu.compute for gpu in after.gpus}) == ("NPS4", {"CPX"})
    back = kernel.reboot(settings.apply(made, {"memory_at_boot": "NPS1"}))
    assert (back.memory, {gpu.compute for gpu in back.gpus}) == ("NPS1", {"SPX"})


def test_a_memory_mode_that_was_only_requested_is_lost_by_a_reboot() -> None:
    after = kernel.reboot(kernel.set_memory(node(), 0, "NPS4").node)
    assert (after.memory, after.memory_requested) == ("NPS1", None)


def test_a_reboot_ends_what_lives_in_memory_and_keeps_what_is_built_in() -> None:
    made = node(
        "governor=powersave", "release=6.4.0", "fault:stranded=100", "fault:gpu-reset=3", "fault:holder=7:rdc",
        "fault:zombie=9:8:vllm", "fault:link-width=8@5", "fault:compute-errno=EBUSY@5", "fault:kernel-error=2",
    )  # fmt: skip
    made = write(made, f"{CPU}/cpufreq/scaling_governor", "performance")[0]
    made = write(made, f"{THP}/enabled", "never")[0]
    after = kernel.reboot(replace(made, log=("old",), driver=replace(made.driver, loaded=False)))
    assert set(after.faults) == {"link-width", "compute-errno"}
    assert (after.holders, after.log, after.driver.loaded, after.release) == ((), (), True, "6.4.0")
    assert {(gpu.stranded, gpu.reset) for gpu in after.gpus} == {(0, False)}
    assert after.gpus[5].link_width == 8
    assert read(after, f"{CPU}/cpufreq/scaling_governor") == "powersave"
    assert read(after, f"{THP}/enabled") == "[always] madvise never"


def test_a_bmc_takes_its_minor_in_each_boot_unless_its_driver_is_on_the_blacklist() -> None:
    made = replace(node("ast=1"), ast=False)
    assert (kernel.reboot(made).ast, kernel.reboot(made).first_minor) == (True, 1)
    assert (kernel.reboot(made, {"ast"}).ast, kernel.reboot(made, {"ast"}).first_minor) == (False, 0)
    assert not kernel.reboot(made, {"amdgpu"}).driver.loaded


def test_the_blacklist_is_read_where_a_boot_reads_it(tmp_path: Path) -> None:
    (tmp_path / "etc/modprobe.d").mkdir(parents=True)
    (tmp_path / "etc/modprobe.d/bmc.conf").write_text("# VGA of the BMC\nblacklist ast\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cmdline").write_text("ro modprobe.blacklist=amdgpu,nouveau quiet\n")
    assert blacklist(Paths(tmp_path)) == {"ast", "amdgpu", "nouveau"}


def test_a_driver_that_cannot_be_loaded_is_not_loaded_after_a_reboot() -> None:
    assert not kernel.reboot(node("fault:reload=fail")).driver.loaded


# ---------------------------------------------------------------- holders, kernel log, tools, containers


def test_busy_after_the_last_exit() -> None:
    """The watcher says when the driver lingers; then a change is refused without any holder."""
    made = kernel.linger(node("fault:busy-after-exit=2"), True).node
    assert kernel.set_compute(made, 0, "CPX", ()).errno == errno.EBUSY
    assert kernel.set_compute(made, 0, "SPX", ()).errno == 0
    assert kernel.set_compute(kernel.linger(made, False).node, 0, "CPX", ()).errno == 0
    assert kernel.set_compute(faults.clear(made), 0, "CPX", ()).errno == 0


def test_nothing_lingers_that_was_seen_before_the_fault_was_cleared() -> None:
    cleared = faults.clear(node("fault:busy-after-exit=2"), "busy-after-exit")
    assert not kernel.linger(cleared, True).node.driver.lingers


def test_a_zombie_holds_the_gpus_until_it_is_reaped() -> None:
    made = node("fault:holder=5:rdc", "fault:zombie=9:8:vllm")
    assert [holder.pid for holder in made.holders] == [5, 9]
    assert [holder.pid for holder in faults.clear(made, "holder").holders] == [9]
    assert faults.clear(made, "zombie").holders == (Holder(5, "rdc"),)


def shown(made: Node, *argv: str, euid: int = 0) -> tuple[int, str]:
    terminal = Terminal.buffers()
    code = kernel_log.dmesg(argv, made, euid, terminal)
    return code, terminal.out.getvalue()  # type: ignore[attr-defined]


def test_a_healthy_kernel_log_has_no_errors_of_amdgpu() -> None:
    """AMD's acceptance check looks for lines with amdgpu and error."""
    assert "error" not in shown(node())[1].lower()
    assert shown(node(), "-l", "err,crit") == (0, "")
    assert shown(node(), euid=1000)[0] == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            "fault:kernel-error=5",
            "amdgpu 0000:a6:00.0: amdgpu: [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring",
        ),
        (
            "fault:ecc=2@1",
            "amdgpu 0000:26:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
        ),
    ],
)
def test_errors_in_the_kernel_log(change: str, says: str) -> None:
    code, out = shown(node(change), "--level=err", "-T")
    assert code == 0
    assert says in out
    assert out.startswith("[")


def test_kernel_log_as_json() -> None:
    rows: list[dict[str, Any]] = json.loads(shown(node("fault:kernel-error=0"), "-J")[1])["dmesg"]
    assert {row["pri"] for row in rows} == {3, 6}


def test_tools_that_are_not_installed_are_not_there(tmp_path: Path) -> None:
    binaries = tmp_path / "opt/rocm/bin"
    binaries.mkdir(parents=True)
    for name in ("rocm-smi", "amd-smi"):
        (binaries / name).write_text("tool")

    def present(made: Node) -> set[str]:
        sync_tools(Paths(tmp_path), made)
        return {path.name for path in binaries.iterdir() if not path.name.startswith(".")}

    assert present(node()) == {"rocm-smi", "amd-smi"}
    assert present(node("release=10.0.0")) == {"amd-smi"}
    assert present(node("fault:tool-missing=all")) == set()
    assert present(node()) == {"rocm-smi", "amd-smi"}


def test_runc_hands_on_the_devices_that_a_container_was_given(tmp_path: Path) -> None:
    config = tmp_path / "config.json"

    def given(*paths: str) -> list[str]:
        config.write_text(json.dumps({"linux": {"devices": [{"path": path} for path in paths]}}))
        return runc.devices(str(config))

    assert given("/dev/dri/renderD136", "/dev/kfd", "/dev/dri/renderD128", "/dev/fuse") == [
        "/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD136",
    ]  # fmt: skip
    assert given("/dev/fuse") == []
    assert given() == []
    argv = [
        "--root",
        "/run/docker",
        "--log-format",
        "json",
        "create",
        "--bundle",
        "/b",
        "--pid-file",
        "p",
        "id",
    ]
    assert runc.bundle(argv) == "/b"
    assert runc.arguments(argv, 2) == [*argv[:5], "--preserve-fds=2", *argv[5:]]
    assert (runc.bundle(["create", "--bundle=/c", "id"]), runc.bundle(["create", "id"])) == ("/c", ".")
