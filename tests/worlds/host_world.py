# SPDX-License-Identifier: Apache-2.0
"""A well-kept host as the audit sees it, and ways to spoil it."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import yaml
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.gpus import parse_gpus
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.items import (
    AuditFinding,
    HostItem,
    HostView,
    parse_items,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.judge import audit
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.serving_checks import RECORDS

from tests.worlds.catalogue import CATALOG

WORDS = ["root=/dev/sda1", "pci=realloc=off", "pci=bfsort", "iommu=pt"]


@cache
def catalogue(name: str) -> dict[str, Any]:
    return yaml.safe_load((CATALOG / f"{name}.yml").read_text())


def items() -> tuple[HostItem, ...]:
    return (*parse_items(catalogue("host_items")), *RECORDS)


def gpu(index: int) -> dict[str, Any]:
    return {
        "bdf": f"0000:{index + 5:02x}:00.0", "device_id": 0x74A1, "driver": "amdgpu", "link_speed": "32.0 GT/s PCIe",
        "link_width": 16, "vbios": "113-M3000100-103", "vram": 206141652992, "visible_vram": 206141652992,
    }  # fmt: skip


def facts() -> dict[str, Any]:
    """host_facts of a host on which every item is right."""
    sysctls = {
        "kernel.numa_balancing": "0",
        "net.ipv4.conf.all.rp_filter": "2",
        "net.ipv4.conf.all.arp_ignore": "2",
        "net.ipv4.conf.all.arp_announce": "1",
    }
    advisory = [
        "pcie_aspm=off", "nokaslr", "norandmaps", "mitigations=off", "tsc=nowatchdog", "nmi_watchdog=0",
        "modprobe.blacklist=amdgpu",
    ]  # fmt: skip
    line = [*WORDS, *advisory]
    return {
        "cmdline": {"now": line, "next": list(line), "file": "/boot/grub/grub.cfg"},
        "sysctls": {
            key: {"now": value, "boot": value, "file": "/etc/sysctl.d/60-instinct-fleet.conf", "line": 2}
            for key, value in sysctls.items()
        },
        "cpu": {
            "vendor": "AuthenticAMD", "governors": {"performance": 384}, "smt": "0",
            "idle": {"POLL": {"state": "state0", "enabled": 384}, "C2": {"state": "state2", "enabled": 0}},
        },
        "huge_pages": "always",
        "boot_settings": {},
        "tuned": None,
        "limits": {"memlock": ["/etc/security/limits.d/a.conf", "unlimited"],
                   "nofile": ["/etc/security/limits.d/a.conf", "1048576"]},
        "docker_stop": {"file": "/etc/systemd/system/docker.service.d/x.conf", "value": "infinity"},
        "shm_bytes": 1 << 40,
        "pci_gpus": [gpu(index) for index in range(8)],
        "acs": {"able": 40, "on": []},
        "iommus": 8,
        "nics": [{"name": f"mlx5_{n}", "state": "ACTIVE", "layer": "Ethernet", "rate": "400 Gb/sec", "firmware": "28"}
                 for n in range(8)],
        "clock_synchronized": True,
        "time_service": "chronyd",
        "time": 1795478400.0,
        "kernel_log": {"count": 0, "last": []},
        "problems": [],
    }  # fmt: skip


def state() -> dict[str, Any]:
    """The part of node_state that the audit reads."""
    return {
        "os": {"id": "ubuntu", "version_id": "24.04", "pretty_name": "Ubuntu 24.04.2 LTS"},
        "kernel": "6.8.0-79-generic",
        "virtual_machine": False,
        "driver": {"loaded": True, "version": "6.12.12"},
        "rocm": {"version": "7.0.0", "tools": {}},
        "memory_bytes": 2_300_000_000_000,
        "cpu": {"model": "AMD EPYC 9654", "sockets": 2, "threads": 384},
        "numa_nodes": [{"id": 0, "cpus": "0-95", "memory_bytes": 1}, {"id": 1, "cpus": "96-191", "memory_bytes": 1}],
        "docker": {"installed": True, "available": True, "version": "27.1.1", "root_dir": "/var/lib/docker",
                   "error": None},
        "disk": [{"path": "/var/lib/docker", "free_bytes": 2_000_000_000_000, "device": 1}],
        "images": [],
        "euid": 0, "numa_balancing": {}, "gpus": [], "kfd_processes": [], "device_gids": {}, "models": [],
        "instances": [], "generations": [],
    }  # fmt: skip


def spoiled(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with values replaced; a key is a path of keys and indexes: "nics/5/state"."""
    found = copy.deepcopy(base)
    for path, value in changes.items():
        target: Any = found
        *parents, last = path.split("/")
        for part in parents:
            target = target[int(part) if part.isdigit() else part]
        if last.isdigit():
            target[int(last)] = value
        else:
            target[last] = value
    return found


def view(
    changes: dict[str, Any] | None = None, state_changes: dict[str, Any] | None = None, **more: Any
) -> HostView:
    return HostView(
        facts=spoiled(facts(), changes or {}),
        state=spoiled(state(), state_changes or {}),
        catalog=parse_gpus(catalogue("gpus")),
        images=catalogue("images"),
        per_node={"MI300X": 8, "MI355X": 8},
        **more,
    )


def judged(seen: HostView, **options: Any) -> dict[str, AuditFinding]:
    return {finding.item.id: finding for finding in audit(items(), seen, **options)}
