# SPDX-License-Identifier: Apache-2.0
"""The audit as people read it."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.judge import audit, differences
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.text import (
    WIDTH,
    HostReport,
    Report,
    text,
)

from tests.worlds.host_world import catalogue, items, view

LOST = {"cmdline/now": ["iommu=pt"], "cmdline/next": ["iommu=pt"]}


def host(name: str, changes: dict[str, Any] | None = None, **options: Any) -> HostReport:
    return HostReport(name, "8 MI300X, Ubuntu 24.04.2 LTS", audit(items(), view(changes), **options))


def report(*hosts: HostReport) -> Report:
    return Report(hosts, {}, catalogue("host_items")["bios"])


def test_hosts_in_equal_state_are_told_together_and_the_worst_first() -> None:
    message = text(report(host("n1"), host("n10", LOST), host("n2", LOST), host("n3", {"acs": {"able": 1,
     "on": ["a"]}}),
                       HostReport("n4", why="Connection refused")))  # fmt: skip
    heads = [line for line in message.splitlines() if line.startswith("n")]
    assert [head.partition(":")[0] for head in heads] == ["n2, n10", "n3", "n1", "n4"]
    assert message.startswith(
        "Audit: 5 hosts: 2 with required items wrong, 1 with recommended items wrong, 1 fine, 1 not reached."
    )
    assert "n4: Connection refused" in message
    assert "Next: prepare.yml --limit 'n2,n10'" in message
    assert "reboots, a few at a time: n2, n10" in message


def test_rows() -> None:
    message = text(
        report(host("n1", {**LOST, "cmdline/next": ["iommu=pt", "pci=bfsort"], "clock_synchronized": False}))
    )
    rows = [" ".join(line.split()) for line in message.splitlines()]
    assert "required pci=realloc=off missing prepare.yml, reboot" in rows
    assert "required pci=bfsort missing until a reboot reboot" in rows
    assert "/boot/grub/grub.cfg has it" in rows
    assert "recommended clock synchronised no by hand" in rows
    assert "→ start chrony or systemd-timesyncd, and let it reach its servers" in rows


def test_lines_fit_the_width_whatever_is_said() -> None:
    found = {
        "kernel_log": {"count": 100, "last": ["amdgpu 0000:05:00.0: " + "word " * 60]},
        "nics/0/state": "DOWN",
    }
    hosts = [host(f"mi300x-rack12-node{n:03d}", {**LOST, **found}) for n in range(50)]
    message = text(report(*hosts), full=True)
    assert max(map(len, message.splitlines())) <= WIDTH
    assert "(50 hosts)" in message
    assert "cTDP" in message


def test_a_fine_fleet_is_told_in_a_few_lines() -> None:
    message = text(report(*(host(f"n{n}") for n in range(50))))
    assert len(message.splitlines()) <= 8
    assert "Next:" not in message


def test_skipped_and_advisory_items_are_named_once() -> None:
    message = text(report(*(host(f"n{n}", {"huge_pages": "never"}, skip=["memory"]) for n in range(3))))
    assert "to set them, name them in host_prep_also: huge-pages." in message
    assert "because host_prep_skip names them: memory." in message


def test_differences_are_told() -> None:
    views = {f"n{n}": view({}, {"driver/version": "6.10.5"} if n == 3 else {}) for n in range(1, 4)}
    message = text(Report(tuple(host(name) for name in views), differences(views)))
    assert "amdgpu driver: 6.12.12 (n1, n2); 6.10.5 (n3)" in message


def test_json() -> None:
    data = report(host("n1", LOST), HostReport("n2", why="dark")).to_json()
    assert data == json.loads(json.dumps(data))
    assert data["results"] == {"fails": ["n1"], "could be better": [], "fine": [], "not reached": ["n2"]}
    assert data["hosts"]["n1"]["todo"] == {
        "cmdline": ["pci=realloc=off", "pci=bfsort"],
        "settings": {},
        "waiting": ["pci-realloc", "pci-bfsort"],
    }
    assert {finding["id"] for finding in data["hosts"]["n1"]["findings"]} == {item.id for item in items()}
