# SPDX-License-Identifier: Apache-2.0
"""Judging a host: each item right, wrong in each way, and unknown; what prepare.yml is told to do."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.observe.audit_facts import (
    DOCKER,
    SYSCTLS,
    read_host,
)
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source
from ansible_collections.instinct.fleet.plugins.modules.node_state import RETURN
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.items import (
    ELSEWHERE,
    OK,
    SETTINGS,
    SKIPPED,
    UNKNOWN,
    WRONG,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.judge import (
    CHECKS,
    FAILS,
    FINE,
    IMPROVABLE,
    audit,
    differences,
    host_work,
    result,
)

from tests.helpers.some import some
from tests.worlds.host_world import facts, gpu, items, judged, state, view

SYSCTL_60 = "/etc/sysctl.d/60-instinct-fleet.conf"


def test_every_item_has_an_id_of_its_own() -> None:
    ids = [item.id for item in items()]
    assert len(ids) == len(set(ids))


def test_every_check_is_used_and_exists() -> None:
    assert {item.check["kind"] for item in items()} == set(CHECKS)


def test_the_node_reads_every_sysctl_of_the_catalogue() -> None:
    assert sorted(item.check["key"] for item in items() if item.check["kind"] == "sysctl") == sorted(SYSCTLS)


def test_a_well_kept_host_is_right_in_every_item_that_applies() -> None:
    found = judged(view())
    assert {name for name, finding in found.items() if finding.status not in (OK, ELSEWHERE)} == set()
    assert {name for name, finding in found.items() if finding.status == ELSEWHERE} == {
        "intel-iommu", "driver-for-image",
    }  # fmt: skip
    assert result(found.values()) == FINE
    assert not host_work(found.values()).anything
    assert not host_work(found.values()).reboot


NUMA = "sysctls/kernel.numa_balancing"


@pytest.mark.parametrize(
    ("item", "changes", "status", "found", "note"),
    [
        ("iommu-pt", {"cmdline/now": ["pci=realloc=off"]}, WRONG, "missing until a reboot", "grub.cfg has it"),
        ("iommu-pt", {"cmdline/now": ["quiet"], "cmdline/next": ["quiet"]}, WRONG, "missing", ""),
        ("iommu-pt", {"cmdline/now": ["quiet"], "cmdline/next": None}, WRONG, "missing", ""),
        ("iommu-pt", {"cmdline/next": ["quiet"]}, WRONG, "set until the next boot", "the next boot loses it"),
        ("iommu-pt", {"cmdline/next": None}, OK, "set", ""),
        ("iommu-pt", {"cmdline/now": ["iommu.passthrough=1"], "cmdline/next": None}, OK, "set", ""),
        ("iommu-pt", {"cmdline/now": ["iommu=off", "iommu=pt"]}, WRONG, "iommu=off is set", ""),
        ("iommu-pt", {"cmdline": None}, UNKNOWN, "/proc/cmdline was not read", ""),
        ("pci-realloc", {"cmdline/now": ["pci=realloc=on"]}, WRONG, "pci=realloc=on is set", ""),
        ("numa-balancing", {f"{NUMA}/now": "1"}, WRONG, "1, 0 after a boot", f"{SYSCTL_60}, line 2, sets 0 at boot: "
                                                                            "changed since"),
        ("numa-balancing", {f"{NUMA}/now": "1", "tuned": "balanced"}, WRONG, "1, 0 after a boot",
         "tuned applies its profile balanced"),
        ("numa-balancing", {f"{NUMA}/boot": "1", f"{NUMA}/file": "/etc/sysctl.d/99-x.conf"}, WRONG, "0, 1 after a boot",
         "/etc/sysctl.d/99-x.conf, line 2, sets 1 at every boot"),
        ("numa-balancing", {f"{NUMA}/boot": None}, WRONG, "0, not kept at boot", "no file sets it"),
        ("numa-balancing", {f"{NUMA}/boot": None, f"{NUMA}/now": "1"}, WRONG, "1", ""),
        ("numa-balancing", {f"{NUMA}/boot": None, "cmdline/next": ["numa_balancing=disable"]}, OK, "0", ""),
        ("numa-balancing", {f"{NUMA}/now": None}, OK, "this kernel has no such setting", ""),
        ("numa-balancing", {"sysctls": None}, UNKNOWN, "sysctl files were not read", ""),
        ("cpu-governor", {"cpu/governors": {"schedutil": 384}}, WRONG, "schedutil on 384 CPUs", ""),
        ("cpu-governor", {"cpu/governors": {"performance": 3, "powersave": 1}}, WRONG, "powersave on 1 of 4 CPUs", ""),
        ("cpu-governor", {"cpu/governors": {}}, ELSEWHERE, "", ""),
        ("cpu-governor", {"cpu/governors": {"schedutil": 2}, "tuned": "balanced", "boot_settings":
                          {"/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor": ["/etc/t.conf", "performance"]}},
         WRONG, "schedutil on 2 CPUs", "/etc/t.conf sets performance at boot: changed since; tuned applies its"),
        ("cpu-c2", {"cpu/idle": {"C2": {"state": "state2", "enabled": 384}}}, WRONG, "on for 384 CPUs", ""),
        ("cpu-c2", {"cpu/idle": {"POLL": {"state": "state0", "enabled": 384}}}, OK, "the CPUs have no C2", ""),
        ("cpu-c2", {"cpu": None}, ELSEWHERE, "", ""),
        ("huge-pages", {"huge_pages": "madvise"}, WRONG, "madvise", ""),
        ("huge-pages", {"huge_pages": "never", "cmdline/now": ["transparent_hugepage=never"]}, WRONG, "never",
         "transparent_hugepage=never is on the kernel command line"),
        ("limit-nofile", {"limits/nofile": ["/etc/limits.conf", "65536"]}, WRONG, "65536", "limits.conf sets it"),
        ("limit-nofile", {"limits": {}}, WRONG, "not set for all users", ""),
        ("limit-memlock", {"limits/memlock": ["f", "infinity"]}, OK, "infinity", ""),
        ("docker-stop", {"docker_stop": {"file": None, "value": None}}, WRONG, "systemd's default of 90 s", ""),
        ("docker-stop", {"docker_stop/value": "14min 59s"}, WRONG, "14min 59s", "x.conf sets it"),
        ("docker-stop", {"docker_stop/value": "15min"}, OK, "15min", ""),
        ("docker-stop", {"docker_stop/value": "1 h"}, OK, "1 h", ""),
        ("docker-stop", {"docker_stop/value": "900"}, OK, "900", ""),
        ("docker-stop", {"docker_stop/value": "0"}, OK, "0", ""),
        ("docker-stop", {"docker_stop/value": "a while"}, UNKNOWN, "a while is not understood", "x.conf"),
        ("docker-stop", {"docker_stop": None}, ELSEWHERE, "no unit docker.service", ""),
        ("gpu-count", {"pci_gpus": [gpu(n) for n in range(7)]}, WRONG, "7 of 8", ""),
        ("gpu-count", {"pci_gpus": []}, WRONG, "no AMD accelerator", ""),
        ("gpu-count", {"pci_gpus": None}, UNKNOWN, "", ""),
        ("gpu-driver", {"pci_gpus/3/driver": None}, WRONG, "not on 08:00.0", ""),
        ("gpu-driver", {"pci_gpus/3/driver": "vfio-pci"}, WRONG, "not on 08:00.0", ""),
        ("gpu-link", {"pci_gpus/0/link_speed": "16.0 GT/s PCIe"}, WRONG, "16 GT/s x16 on 05:00.0", ""),
        ("gpu-link", {"pci_gpus/0/link_width": 8}, WRONG, "32 GT/s x8 on 05:00.0", ""),
        ("gpu-link", {"pci_gpus/0/link_speed": "Unknown"}, WRONG, "Unknown GT/s x16 on 05:00.0", ""),
        ("gpu-link", {"pci_gpus/0/link_speed": None}, UNKNOWN, "0000:05:00.0 does not report its link", ""),
        ("gpu-firmware", {"pci_gpus/7/vbios": "113-M3000100-102"}, WRONG, "different on 0c:00.0", ""),
        ("kernel-log", {"kernel_log": {"count": 2, "last": ["amdgpu: GPU reset begin!"]}}, WRONG, "2 lines",
         "last: amdgpu: GPU reset begin!"),
        ("kernel-log", {"kernel_log": None}, UNKNOWN, "dmesg could not be read", ""),
        ("acs", {"acs": {"able": 40, "on": ["0000:00:01.1"]}}, WRONG, "on for 1 of 40 bridges", ""),
        ("acs", {"acs": None, "problems": [{"what": "acs", "error": "denied"}]}, UNKNOWN, "", "denied"),
        ("rdma-ports", {"nics/5/state": "DOWN"}, WRONG, "mlx5_5 down", ""),
        ("rdma-ports", {"nics": []}, ELSEWHERE, "no RDMA NIC", ""),
        ("rp-filter", {"nics": []}, ELSEWHERE, "", ""),
        ("clock", {"clock_synchronized": False}, WRONG, "no", "chronyd runs"),
        ("clock", {"clock_synchronized": False, "time_service": None}, WRONG, "no", "no time service runs"),
        ("clock", {"clock_synchronized": None}, UNKNOWN, "", ""),
        ("clock", {"clock_ahead": 5.0}, OK, "yes", ""),
        ("clock", {"clock_ahead": 5.5}, WRONG, "6 s ahead of the control node", ""),
        ("clock", {"clock_ahead": -480.0, "clock_synchronized": None}, WRONG, "480 s behind the control node", ""),
        ("shm", {"shm_bytes": 1 << 36}, WRONG, "64 GiB", ""),
        ("bios-iommu", {"iommus": 0}, WRONG, "the kernel found none", ""),
        ("bios-4g", {"pci_gpus/0/visible_vram": 268435456}, WRONG, "part of the memory of 05:00.0", ""),
        ("bios-smt", {"cpu/smt": "1"}, WRONG, "on", ""),
    ],
)  # fmt: skip
def test_facts(item: str, changes: dict[str, Any], status: str, found: str, note: str) -> None:
    finding = judged(view(changes))[item]
    assert finding.status == status
    assert found in finding.verdict.found
    assert note in finding.verdict.note


@pytest.mark.parametrize(
    ("item", "changes", "status", "found"),
    [
        ("memory", {"memory_bytes": 1_600_000_000_000}, WRONG, "1.6 TB of 2.0 TB"),
        ("memory", {"memory_bytes": None}, UNKNOWN, "/proc/meminfo"),
        ("gpu-driver", {"driver": {"loaded": False, "version": None}}, WRONG, "amdgpu is not loaded"),
        ("docker", {"docker/available": False, "docker/error": "refused"}, WRONG, "does not answer"),
        ("docker", {"docker/available": False, "docker/installed": False}, WRONG, "not installed"),
        ("docker", {"docker/version": "19.3.8"}, WRONG, "19.3.8"),
        ("disk", {"disk/0/free_bytes": 50_000_000_000}, WRONG, "50 GB in /var/lib/docker"),
        ("disk", {"disk": []}, UNKNOWN, ""),
        ("rocm-for-gpu", {"rocm/version": "5.7.1"}, WRONG, "ROCm 5.7.1"),
        ("rocm-for-gpu", {"rocm/version": None}, ELSEWHERE, "no ROCm"),
        (
            "bios-numa",
            {"numa_nodes": [{"id": n, "cpus": "0", "memory_bytes": 1} for n in range(8)]},
            WRONG,
            "8 on 2",
        ),
        ("bios-numa", {"numa_nodes": [{"id": 0, "cpus": "0", "memory_bytes": 1}]}, WRONG, "NPS0"),
        ("cpu-governor", {"virtual_machine": True}, ELSEWHERE, ""),
        ("acs", {"virtual_machine": True}, ELSEWHERE, ""),
        ("iommu-pt", {"virtual_machine": True}, ELSEWHERE, ""),
    ],
)
def test_state(item: str, changes: dict[str, Any], status: str, found: str) -> None:
    finding = judged(view({}, changes))[item]
    assert finding.status == status
    assert found in finding.verdict.found


def test_an_intel_host_needs_its_own_word_and_no_c2() -> None:
    found = judged(view({"cpu/vendor": "GenuineIntel"}))
    assert found["intel-iommu"].status == WRONG
    assert found["cpu-c2"].status == ELSEWHERE


@pytest.mark.parametrize(
    ("driver", "rocm", "status"),
    [("6.8.5", "7.2.0", WRONG), ("6.12.12", "7.2.0", OK), ("6.8.5", "9.9.0", OK), (None, "7.2.0", ELSEWHERE)],
)
def test_driver_for_the_image(driver: str | None, rocm: str, status: str) -> None:
    seen = view({}, {"driver/version": driver}, rocms={"rocm/vllm:x": rocm})
    assert judged(seen)["driver-for-image"].status == status


def test_declared_gpus_count_where_the_bus_shows_none() -> None:
    found = judged(view({"pci_gpus": []}, gpu_model="MI300X", gpu_count=4))["gpu-count"]
    assert (found.status, found.verdict.found) == (WRONG, "0 of 4")


def test_todo() -> None:
    seen = view({
        "cmdline/now": ["iommu=pt"], "cmdline/next": ["iommu=pt", "pci=bfsort"], f"{NUMA}/now": "1",
        "cpu/governors": {"ondemand": 2}, "cpu/idle": {"C2": {"state": "state3", "enabled": 2}}, "limits": {},
        "huge_pages": "never", "docker_stop/value": "90s",
    })  # fmt: skip
    found = audit(items(), seen)
    assert result(found) == FAILS
    work = host_work(found)
    assert work.cmdline == ("pci=realloc=off",)  # pci=bfsort waits for the boot only
    assert work.reboot
    assert work.settings == {
        "sysctl": {"kernel.numa_balancing": "0"},
        "sysfs": {
            "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor": "performance",
            "/sys/devices/system/cpu/cpu*/cpuidle/state3/disable": "1",
        },
        "limits": {"memlock": "unlimited", "nofile": "1048576"},
        "units": {"docker.service": {"TimeoutStopSec": "15min"}},
    }


def test_what_holds_until_the_next_boot_needs_no_reboot() -> None:
    work = host_work(judged(view({"cmdline/next": ["quiet"]})).values())
    assert work.cmdline == ("pci=realloc=off", "pci=bfsort", "iommu=pt")
    assert not work.reboot


def test_advisory_items_are_done_when_named() -> None:
    seen = view({"huge_pages": "never"})
    assert not host_work(judged(seen).values()).anything
    found = judged(seen, also=["huge-pages"])
    assert result(found.values()) == IMPROVABLE
    assert host_work(found.values()).settings == {
        "sysfs": {"/sys/kernel/mm/transparent_hugepage/enabled": "always"}
    }


def test_skipped_items_are_not_judged() -> None:
    found = judged(view({"iommus": 0}), skip=["bios-iommu"])
    assert found["bios-iommu"].status == SKIPPED
    assert result(found.values()) == FINE


def test_every_automatic_fix_mends_what_its_check_looks_at() -> None:
    """The fix of an item and its check agree on word, key, path and value."""
    for item in some(items()):
        how, what = next(iter(item.fix.items()))
        if how not in SETTINGS:
            continue
        values = [what] if how == "kernel_cmdline" else [*what, *what.values()]
        rule = [str(value) for value in item.check.values()]
        if item.check["kind"] == "idle_state":
            assert values[1] == "1"
        elif how == "sysfs":
            assert values[1] in rule
        elif how == "units":
            assert what == {DOCKER: {"TimeoutStopSec": item.check["value"]}}
        else:
            assert set(values) <= set(rule), item.id


def test_json_of_a_finding() -> None:
    data = judged(view({"cmdline/now": ["quiet"], "cmdline/next": ["quiet"]}))["iommu-pt"].to_json()
    assert data == json.loads(json.dumps(data))
    assert data["fix"] == {"kernel_cmdline": "iommu=pt"}
    assert data["reboot"]
    assert data["wanted"] == "iommu=pt"
    assert judged(view())["iommu-pt"].to_json()["fix"] is None


def test_differences_between_hosts() -> None:
    views = {f"n{n}": view({}, {"driver/version": "6.10.5"} if n == 3 else {}) for n in range(1, 5)}
    assert differences(views) == {"amdgpu driver": {"6.12.12": ["n1", "n2", "n4"], "6.10.5": ["n3"]}}
    other = view({"pci_gpus": [{**gpu(0), "device_id": 0x75A3}]}, {"driver/version": "6.16.6"})
    assert differences({"n1": view(), "n2": other}) == {}


def test_the_world_of_these_tests_is_that_of_the_node() -> None:
    returned = yaml.safe_load(RETURN)["node_state"]["contains"]
    assert set(state()) <= set(returned)
    assert set(facts()) == {*read_host(Source("/nonexistent"), lambda command: ""), "problems"}
