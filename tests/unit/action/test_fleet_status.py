# SPDX-License-Identifier: Apache-2.0
"""The action plugin fleet_status in a real ansible-playbook, of hosts whose results were registered before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.action import fleet_status

from tests.helpers.playbooks import Playbooks
from tests.worlds.status_world import host, instance, server


def test_a_table_and_a_file_whatever_hosts_returned(tmp_path: Path, playbooks: Playbooks) -> None:
    seen = host(instance(), servers=[server("n1"), server("n2", up=False)], held_bytes=95 << 30)
    inventory = {"instinct": {"hosts": {
        "n1": {"store_quota": "{{ 100 * 2**30 }}",
               "instance_status_result": {"changed": False, "instance_status": seen}},
        "n2": {"instance_status_result": {"unreachable": True, "msg": "Connection refused\nmore"}},
        "n3": {"instance_status_result": {"msg": "Internal error, please report it", "failed": False}},
        "n4": {},
    }}}  # fmt: skip
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    task = {
        "name": "Print the status",
        "instinct.fleet.fleet_status": {"status_file": str(tmp_path / "status.json")},
        "run_once": True,
    }
    plays = [{"name": "Status", "hosts": "instinct", "gather_facts": False, "tasks": [task]}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(plays))
    done = playbooks.run("-i", str(tmp_path / "hosts.yml"), str(tmp_path / "play.yml"), "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "n2: not reached: Connection refused\n" in done.stdout
    assert "llama: 1 of 2 serve, 1 of 2 in the balancer" in done.stdout
    data = json.loads((tmp_path / "status.json").read_text())
    assert [text.partition(" (")[0] for text in data["disks"]["n1"]] == [
        "images, weights and the content store take 95.0 GiB, 95 % of store_quota"
    ]
    assert data["not_reached"] == {
        "n2": "Connection refused",
        "n3": "Internal error, please report it",
        "n4": "it could not be reached",
    }
    assert [row["state"] for row in data["instances"]] == ["not reached", "serving"]


@pytest.mark.parametrize(("value", "expected"), [(5, 5), (None, 0), (True, 0), ("5 TB", 0)])
def test_a_quota_that_a_plan_refuses_is_none(value: Any, expected: int) -> None:
    class Reader:
        def values(self, _host: str, names: tuple[str, ...], *, lenient: bool) -> dict[str, Any]:
            assert lenient
            return dict.fromkeys(names, value)

    assert fleet_status._quota(Reader(), "n1") == expected  # type: ignore[arg-type]
