# SPDX-License-Identifier: Apache-2.0
"""A node's processors, memory, NUMA nodes, IOMMUs and board: what is simulated, and that nothing else shows."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.observe.host import read_cpu, read_numa_nodes
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source, pairs
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.gpus import parse_gpus
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.items import (
    ELSEWHERE,
    OK,
    WRONG,
    HostView,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.judge import audit

from lab.gpusim import runc
from lab.gpusim.files import sysfs
from lab.gpusim.files.entries import Dir, File
from lab.gpusim.files.mirror import Mirror
from lab.gpusim.machine import settings
from lab.gpusim.machine.models import MODELS
from lab.gpusim.machine.processors import EPYC, PROCESSORS, XEON, Layout, cpu_list, cpu_mask
from lab.gpusim.machine.state import Node, StateError, from_json, make_node, to_json
from lab.gpusim.node import shown_files
from tests import ROOT
from tests.worlds.host_world import catalogue, items

MACHINE = ROOT / "tests/worlds/gpusim_machine.py"
AMD, INTEL = "AMD EPYC 9654 96-Core Processor", "INTEL(R) XEON(R) PLATINUM 8592+"


def node(*changes: str) -> Node:
    return settings.apply(make_node(), settings.split(changes))


def file(made: Node, path: str) -> File:
    found = sysfs.View(made, lambda: []).find(path)
    assert isinstance(found, File), path
    return found


def text(made: Node, path: str) -> str:
    return file(made, path).data().decode().rstrip("\n")


def names(made: Node, path: str) -> list[str]:
    found = sysfs.View(made, lambda: []).find(path)
    assert isinstance(found, Dir), path
    return list(found.entries)


def mirrored(made: Node, tmp_path: Path) -> Source:
    """The node's files that only change with the state, where the toolkit's readers find them."""
    (tmp_path / "sys").mkdir()
    Mirror(tmp_path / "sys", tmp_path / "live").apply(sysfs.View(made, lambda: []))
    (tmp_path / "proc").mkdir()
    for name in ("cpuinfo", "meminfo"):
        (tmp_path / "proc" / name).write_text(shown_files(made)[name])
    return Source(str(tmp_path))


# ---------------------------------------------------------------- nothing of the machine below


@cache
def on(machine: str, *changes: str, cmdline: str = "", later: str = "") -> dict[str, Any]:
    """What there is to see on a node whose machine is of this kind; `later`: a setting made while it runs."""
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", sys.executable, str(MACHINE), machine, *changes],
        env={**os.environ, "MORE_CMDLINE": cmdline, "LATER": later}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("changes", "vendor", "model", "threads"),
    [((), "AuthenticAMD", AMD, 192), (("cpu=xeon",), "GenuineIntel", INTEL, 128)],
)
def test_two_machines_that_differ_in_everything_show_the_same_node(
    changes: tuple[str, ...], vendor: str, model: str, threads: int
) -> None:
    server, guest = on("server", *changes), on("guest", *changes)
    assert server["seen"] == guest["seen"]
    state, facts = server["seen"]["state"], server["seen"]["facts"]
    assert state["cpu"] == {"model": model, "sockets": 2, "threads": threads}
    assert [entry["cpus"] for entry in state["numa_nodes"]] == [
        f"0-{threads // 2 - 1}", f"{threads // 2}-{threads - 1}",
    ]  # fmt: skip
    assert (
        state["memory_bytes"] == sum(entry["memory_bytes"] for entry in state["numa_nodes"]) == 2164663517184
    )
    assert state["virtual_machine"] is False
    assert (facts["cpu"]["vendor"], facts["cpu"]["smt"]) == (vendor, "0")
    assert facts["cpu"]["governors"] == {"performance": threads}
    assert facts["iommus"] == (8 if vendor == "AuthenticAMD" else 0)  # Intel's are off without intel_iommu=on
    assert facts["huge_pages"] == "always"
    assert [nic["name"] for nic in facts["nics"]] == [f"mlx5_{number}" for number in range(8)]
    assert len(facts["pci_gpus"]) == 8
    assert facts["acs"] == {"able": 0, "on": []}
    assert server["seen"]["ast"] is False
    assert server["seen"]["problems"] == state["problems"] == []
    assert "net" in server["seen"]["names"]["class"]


def test_other_processors_are_seen_at_once_everywhere() -> None:
    assert on("server", later="cpu=xeon") == on("server", "cpu=xeon")


@pytest.mark.parametrize("machine", ["server", "guest"])
def test_an_engine_gives_away_the_nodes_cpus(machine: str) -> None:
    found = on(machine)["other"]
    assert (found["cpus"], found["mems"], found["tables"]) == ("0-191\n", "0-1\n", [])
    # runc copies into this what is above it, so that it must have the machine's before.
    assert found.get("parent", "0-63\n") == "0-63\n"


@pytest.mark.parametrize(("machine", "cpus"), [("server", 64), ("guest", 4)])
def test_the_machine_is_back_when_the_simulation_ends(machine: str, cpus: int) -> None:
    found = on(machine)
    assert (found["mounts left"], found["afterwards"]) == ([], cpus)


HARDWARE = ("intel-iommu", "bios-iommu", "cpu-governor", "cpu-c2", "bios-smt", "bios-numa", "memory", "acs")


def verdicts(seen: dict[str, Any]) -> dict[str, str]:
    """What the audit says of the hardware."""
    view = HostView(
        seen["facts"], {**seen["state"], "disk": []}, parse_gpus(catalogue("gpus")), catalogue("images")
    )
    found = {finding.item.id: finding.status for finding in audit(items(), view)}
    return {name: found[name] for name in HARDWARE}


@pytest.mark.parametrize(
    ("changes", "cmdline", "differing"),
    [
        ((), "", {"intel-iommu": ELSEWHERE}),
        ((), "amd_iommu=off", {"intel-iommu": ELSEWHERE, "bios-iommu": WRONG}),
        (("smt=on",), "", {"intel-iommu": ELSEWHERE, "bios-smt": WRONG}),
        (("c2=on", "governor=powersave"), "", {"intel-iommu": ELSEWHERE, "cpu-c2": WRONG, "cpu-governor": WRONG}),
        (("cpu=xeon",), "", {"cpu-c2": ELSEWHERE, "intel-iommu": WRONG, "bios-iommu": WRONG}),
        (("cpu=xeon",), "intel_iommu=on", {"cpu-c2": ELSEWHERE}),
        (("cpu=xeon", "governor=powersave"), "intel_iommu=on", {"cpu-c2": ELSEWHERE, "cpu-governor": WRONG}),
        (("platform=guest",), "", {
            name: ELSEWHERE for name in HARDWARE if name not in ("bios-numa", "memory")
        }),
    ],
)  # fmt: skip
def test_the_audit_judges_the_simulated_hardware(
    changes: tuple[str, ...], cmdline: str, differing: dict[str, str]
) -> None:
    assert (
        verdicts(on("server", *changes, cmdline=cmdline)["seen"]) == dict.fromkeys(HARDWARE, OK) | differing
    )


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("changes", "cpu", "nodes"),
    [
        ((), (AMD, 2, 192), ["0-95", "96-191"]),
        (("smt=on",), (AMD, 2, 384), ["0-95,192-287", "96-191,288-383"]),
        (("cpu=xeon", "smt=on"), (INTEL, 2, 256), ["0-63,128-191", "64-127,192-255"]),
        (("model=MI300A",), ("AMD Instinct MI300A Accelerator", 4, 96), ["0-23", "24-47", "48-71", "72-95"]),
        (("model=MI300A", "gpus=2"), ("AMD Instinct MI300A Accelerator", 2, 48), ["0-23", "24-47"]),
    ],
)
def test_the_toolkit_reads_processors_and_numa_nodes(
    tmp_path: Path, changes: tuple[str, ...], cpu: tuple[str, int, int], nodes: list[str]
) -> None:
    made = node(*changes)
    source = mirrored(made, tmp_path)
    first = pairs((source.text("/proc/cpuinfo", 8192) or "").split("\n\n")[0], ":")
    assert {"flags", "model name", "vendor_id", "cpu cores", "siblings"} <= set(first)
    model, sockets, threads = cpu
    assert read_cpu(source, first) == {"model": model, "sockets": sockets, "threads": threads}
    assert [entry["cpus"] for entry in read_numa_nodes(source)] == nodes
    assert (
        (source.text("/proc/cpuinfo", 1 << 21) or "").count("processor\t:") == threads == len(made.host.cpus)
    )
    total = int(pairs(source.text("/proc/meminfo"), ":")["MemTotal"].split()[0]) * 1024
    assert total == sum(entry["memory_bytes"] for entry in read_numa_nodes(source))
    gpus = [text(made, f"devices/pci0000:00/{gpu.bdf}/local_cpulist") for gpu in made.gpus]
    assert sorted(set(gpus), key=nodes.index) == nodes


def test_memory_is_enough_for_the_gpus() -> None:
    """As the audit wants it; of MI300A, the GPUs' memory is all there is."""
    wanted = next(item for item in items() if item.id == "memory").check["tb"]
    for model in MODELS:
        memory = shown_files(node(f"model={model}"))["meminfo"]
        values = {line.split(":")[0]: int(line.split()[1]) for line in memory.splitlines()}
        assert values["MemTotal"] * 1024 >= wanted.get(model, 0.5) * 1e12, model
        assert values["MemFree"] < values["MemAvailable"] < values["MemTotal"]


@pytest.mark.parametrize(
    ("platform", "hypervisor", "product", "iommus"),
    [("baremetal", 0, "AS -8125GS-TNMR2", 8), ("guest", 192, "Standard PC (Q35 + ICH9, 2009)", 0),
     ("passthrough", 192, "Standard PC (Q35 + ICH9, 2009)", 0)],
)  # fmt: skip
def test_a_virtual_machine_says_so(platform: str, hypervisor: int, product: str, iommus: int) -> None:
    made = node(f"platform={platform}")
    assert shown_files(made)["cpuinfo"].count(" hypervisor") == hypervisor
    assert text(made, "devices/virtual/dmi/id/product_name") == product
    assert len(names(made, "class/iommu")) == iommus


def test_topology_files_of_one_cpu() -> None:
    made, top = node("smt=on"), "devices/system/cpu/cpu300"
    assert [text(made, f"{top}/topology/{name}") for name in ("physical_package_id", "core_id")] == [
        "1",
        "12",
    ]
    assert text(made, f"{top}/topology/thread_siblings_list") == "108,300"
    assert text(made, f"{top}/topology/package_cpus_list") == "96-191,288-383"
    assert names(made, top)[-1] == "node1"
    assert text(made, "devices/system/node/node1/distance") == "32 10"
    assert text(made, "devices/system/cpu/smt/active") == "1"


@pytest.mark.parametrize("name", ["cpu192", "cpu01", "cpu-1", "cpu", "cpux"])
def test_a_cpu_that_is_not_there_is_not_found(name: str) -> None:
    assert sysfs.View(node(), lambda: []).find(f"devices/system/cpu/{name}") is None


def test_lists_and_masks_of_cpus() -> None:
    assert cpu_list([3, 0, 1, 2, 8, 10, 11]) == "0-3,8,10-11"
    assert (cpu_mask([0, 33], 64), cpu_mask(range(4), 4)) == ("00000002,00000001", "0000000f")
    layout = Layout(sockets=2, cores=4, nodes=4, threads=2)
    assert [layout.of_node(number) for number in range(4)] == [
        [0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15],
    ]  # fmt: skip
    assert (layout.of_socket(1), layout.siblings(13)) == ([4, 5, 6, 7, 12, 13, 14, 15], (5, 13))


# ---------------------------------------------------------------- settings


def test_intel_has_other_governors_and_idle_states() -> None:
    made = node("cpu=xeon")
    governor = file(made, "devices/system/cpu/cpu127/cpufreq/scaling_governor")
    assert governor.write is not None
    assert governor.write(made, "schedutil", ())[1] == errno.EINVAL
    after, number = governor.write(made, "powersave", ())
    assert (number, after.host.cpus[127].governor, after.host.cpus[126].governor) == (
        0,
        "powersave",
        "performance",
    )
    states = [f"devices/system/cpu/cpu0/cpuidle/state{number}" for number in range(4)]
    assert [text(made, f"{state}/name") for state in states] == ["POLL", "C1", "C1E", "C6"]
    assert [text(made, f"{state}/disable") for state in states] == ["0"] * 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["cpu=arm"], "epyc, xeon"),
        (["smt=2"], "on, off"),
        (["cpu=xeon", "c2=on"], "POLL, C1, C1E, C6"),
        (["cpu=xeon", "governor=schedutil"], "performance, powersave"),
        (["model=MI300A", "cpu=xeon"], "its own processor"),
    ],
)
def test_hardware_that_cannot_be_is_refused(changes: list[str], says: str) -> None:
    made = make_node()
    for change in changes[:-1]:
        made = settings.apply(made, settings.split([change]))
    with pytest.raises(StateError, match=says):
        settings.apply(made, settings.split(changes[-1:]))


def test_other_processors_come_as_they_are_built_and_back() -> None:
    made = node("governor=powersave", "c2=on", "huge_pages=never")
    there = settings.apply(made, {"cpu": "xeon"})
    assert {(cpu.governor, cpu.disabled) for cpu in there.host.cpus} == {("performance", ())}
    back = settings.apply(there, {"cpu": "epyc"})
    assert (len(back.host.cpus), set(back.host.cpus)) == (192, set(make_node().host.cpus))
    assert there.host.huge_pages["enabled"] == back.boot_host.huge_pages["enabled"] == "never"
    assert settings.apply(made, {"cpu": "epyc"}) == made


def test_the_state_stays_small_and_whole() -> None:
    made = node("cpu=xeon", "smt=on")
    write = file(made, "devices/system/cpu/cpu7/cpuidle/state3/disable").write
    assert write is not None
    made = write(made, "1", ())[0]
    assert from_json(to_json(made)) == made
    assert len(to_json(made)) < 8192


# ---------------------------------------------------------------- the mirror, containers


def test_a_change_of_the_gpus_does_not_touch_the_files_of_the_cpus(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, Path("/live"))
    mirror.apply(sysfs.View(node(), lambda: []))
    top = tmp_path / "devices/system/cpu"
    before = {path: path.lstat().st_ino for path in top.rglob("*")}
    calls: list[int] = []

    class Counting(sysfs.View):
        def __init__(self, made: Node) -> None:
            super().__init__(made, lambda: [])
            cpus = self.find("devices/system/cpu")
            assert isinstance(cpus, Dir)
            cpus._build = lambda: calls.append(1) or {}  # type: ignore[func-returns-value]

    mirror.apply(Counting(node("vbios=113-M3000100-999")))
    assert calls == []
    assert (tmp_path / "devices/pci0000:00/0000:05:00.0/vbios_version").read_text() == "113-M3000100-999\n"
    assert {path: path.lstat().st_ino for path in top.rglob("*")} == before


def test_other_hardware_takes_the_place_of_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the directories contain is what was made for the present hardware alone; they themselves stay, as bound."""
    for processor in (EPYC, XEON):  # thousands of files less
        monkeypatch.setitem(PROCESSORS, processor.name, replace(processor, cores=3 + processor.amd))

    def tree(root: Path) -> dict[str, str | bytes]:
        return {
            str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_bytes()
            for path in (root / "devices").rglob("*") if path.is_symlink() or path.is_file()
        }  # fmt: skip

    changed, fresh = tmp_path / "changed", tmp_path / "fresh"
    changed.mkdir()
    fresh.mkdir()
    mirror = Mirror(changed, Path("/live"))
    mirror.apply(sysfs.View(node("smt=on"), lambda: []))
    bound = (changed / "devices/system/cpu").stat().st_ino
    mirror.apply(sysfs.View(node("cpu=xeon"), lambda: []))
    Mirror(fresh, Path("/live")).apply(sysfs.View(node("cpu=xeon"), lambda: []))
    assert tree(changed) == tree(fresh)
    assert (changed / "devices/system/cpu").stat().st_ino == bound
    assert os.readlink(changed / "devices/system/cpu/cpu5/cpufreq/scaling_governor").startswith(
        "/live/devices/"
    )


@pytest.mark.parametrize(
    ("cpus", "real", "laid"),
    [
        ("96-191", [0, 1], "0,1"),
        ("3", [0, 1], "1"),
        ("0-1,96", [4, 5, 6, 7], "4,5"),
        ("2,130", [0, 2, 9], "2,9"),
    ],
)
def test_containers_run_on_the_machines_cpus(tmp_path: Path, cpus: str, real: list[int], laid: str) -> None:
    config = tmp_path / "config.json"
    given = {
        "linux": {"resources": {"cpu": {"cpus": cpus, "mems": "1", "shares": 512}, "pids": {"limit": 7}}}
    }
    config.write_text(json.dumps(given))
    runc.pin(str(config), real)
    assert json.loads(config.read_text()) == {
        "linux": {"resources": {"cpu": {"cpus": laid, "shares": 512}, "pids": {"limit": 7}}}
    }


@pytest.mark.parametrize("given", [{}, {"linux": {"resources": {"cpu": {"shares": 2}}}}])
def test_a_container_without_a_wish_is_left_alone(tmp_path: Path, given: dict[str, Any]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(given))
    runc.pin(str(config), [0, 1])
    assert json.loads(config.read_text()) == given
