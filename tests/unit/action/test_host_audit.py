# SPDX-License-Identifier: Apache-2.0
"""The action plugin host_audit: what reboots touch, and a whole audit of recorded hosts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.audit.reboot import (
    spanning_instances,
    stopped_servers,
)

from tests.helpers.playbooks import Playbooks
from tests.worlds.host_world import facts, spoiled, state

RUNNING = {
    "n1": {"wide-0": "wide", "own-0": "own"},
    "n2": {"wide-0": "wide"},
    "n3": {"wide-1": "wide", "own-0": "own"},
}
OWNS = {"n1": {"vllm_deployments": [{"name": "wide", "nodes": 2}, {"name": "own"}]}, "n2": {}, "n3": {}}


@pytest.mark.parametrize(
    ("reboot", "expected"),
    [
        (["n2"], {"n1": ["wide-0"], "n2": ["wide-0"], "n3": ["wide-1"]}),
        ([], {"n1": [], "n2": [], "n3": []}),
    ],
)
def test_instances_over_several_hosts_stop_as_a_whole(
    reboot: list[str], expected: dict[str, list[str]]
) -> None:
    assert spanning_instances(RUNNING, OWNS, reboot) == expected
    assert stopped_servers(["wide-0"])[0]["container_name"] == "instinct-wide-0"


def test_instances_of_one_host_do_not_stop_elsewhere() -> None:
    assert spanning_instances({"n1": {"own-0": "own"}, "n2": {"own-0": "own"}}, OWNS, ["n1"]) == {
        "n1": [],
        "n2": [],
    }


def play(
    playbooks: Playbooks, tmp_path: Path, variables: dict[str, Any], changes: dict[str, Any], **groups: Any
) -> tuple[subprocess.CompletedProcess[str], Any]:
    """host_audit in a real ansible-playbook, of hosts whose facts were registered before."""
    seen = {"host_facts": spoiled(facts(), changes), "node_state": {**state(), "instances": []}}
    inventory = {"instinct": {
        "hosts": {
            "n1": {"host_facts_result": seen},
            "n2": {"host_facts_result": {"unreachable": True, "msg": "Connection refused\nmore"}},
        },
        "vars": variables,
    }, **groups}  # fmt: skip
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    task = {
        "name": "Judge",
        "instinct.fleet.host_audit": {"audit_file": str(tmp_path / "audit.json")},
        "run_once": True,
    }
    plays = [{"name": "Audit", "hosts": "instinct", "gather_facts": False, "tasks": [task]}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(plays))
    done = playbooks.run("-i", str(tmp_path / "hosts.yml"), str(tmp_path / "play.yml"))
    file = tmp_path / "audit.json"
    return done, json.loads(file.read_text()) if file.exists() else None


def test_variables_and_images_are_taken_into_account(tmp_path: Path, playbooks: Playbooks) -> None:
    variables = {
        "host_prep_numa_balancing": True,
        "host_prep_skip": ["acs"],
        "host_prep_also": "{{ ['huge-pages'] }}",
        "instinct_gpus": {"model": "MI300X", "count": 16},
        "vllm_deployments": [{"name": "a", "image": "rocm/vllm:rocm7.0.0_vllm_0.11.1_20251024"}],
    }
    changes = {"huge_pages": "never", "sysctls/kernel.numa_balancing/now": "1"}
    done, audit = play(playbooks, tmp_path, variables, changes)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {finding["id"]: finding for finding in audit["hosts"]["n1"]["findings"]}
    assert found["numa-balancing"]["status"] == found["acs"]["status"] == "skipped"
    assert (found["huge-pages"]["level"], found["huge-pages"]["status"]) == ("recommended", "wrong")
    assert found["gpu-count"]["found"] == "8 of 16"
    assert found["driver-for-image"]["status"] == "ok"
    assert audit["hosts"]["n2"] | {"findings": []} == {
        "result": "not reached", "is": "", "why": "Connection refused", "findings": [],
        "todo": {"cmdline": [], "settings": {}, "waiting": []},
    }  # fmt: skip


def test_an_unknown_id_is_an_error(tmp_path: Path, playbooks: Playbooks) -> None:
    done, audit = play(playbooks, tmp_path, {"host_prep_skip": ["smt"]}, {})
    assert done.returncode == 2
    assert "host_prep_skip (host n1): there is no item smt." in done.stdout + done.stderr
    assert audit is None


@pytest.mark.deep  # as of a plan, in action/test_mistakes
def test_groups_that_contradict_each_other_are_an_error(tmp_path: Path, playbooks: Playbooks) -> None:
    rack = {"hosts": {"n1": None}, "vars": {"host_prep_skip": ["iommu"]}}
    done, audit = play(playbooks, tmp_path, {"host_prep_skip": ["acs"]}, {}, rack=rack)
    assert done.returncode == 2
    assert "host_prep_skip (host n1): the groups rack (" in done.stdout + done.stderr
    assert audit is None


@pytest.mark.deep  # inventory/test_text_forms has all of them
def test_texts_of_the_command_line_count_as_what_they_say(tmp_path: Path, playbooks: Playbooks) -> None:
    variables = {"host_prep_skip": "acs,docker-stop", "host_prep_numa_balancing": "false"}
    _done, audit = play(playbooks, tmp_path, variables, {})
    found = {finding["id"]: finding["status"] for finding in audit["hosts"]["n1"]["findings"]}
    assert found["acs"] == "skipped"
    assert found["numa-balancing"] != "skipped"
