# SPDX-License-Identifier: Apache-2.0
"""A host that never answers, as with a GPU in reset or a dead network file system, stops itself only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import ROOT
from tests.playbook_variables import load, tasks

SECONDS = 120
OBSERVING = {f"instinct.fleet.{name}" for name in ("node_state", "instance_status", "host_facts")}


@pytest.mark.parametrize(
    ("playbook", "code", "said"),
    [
        ("plan.yml", 2, "Plan: 1 host"),
        pytest.param("status.yml", 2, "on 1 host: 0 serve, 1 host not reached.", marks=pytest.mark.deep),
        pytest.param(
            "audit.yml",
            2,
            "Audit: 2 hosts: 1 with required items wrong, 1 not reached.",
            marks=pytest.mark.deep,
        ),
    ],
)
def test_the_others_are_served(tmp_path: Path, playbook: str, code: int, said: str) -> None:
    """The playbooks themselves, with a shorter time."""
    for part in ("playbooks", "roles"):
        shutil.copytree(ROOT / part, tmp_path / part)
    for path in (*tmp_path.glob("playbooks/*.yml"), *tmp_path.glob("roles/*/tasks/*.yml")):
        text = path.read_text(encoding="utf-8").replace(f"timeout: {SECONDS}\n", "timeout: 8\n")
        text = text.replace(f"timeout: {SECONDS} ", "timeout: 8 ").replace(
            "instinct.fleet.host_prep", "host_prep"
        )
        path.write_text(text, encoding="utf-8")
    hang = tmp_path / "hang"
    hang.write_text("#!/bin/sh\nexec sleep 120\n", encoding="utf-8")
    hang.chmod(0o755)
    hosts = {
        "n1": {"ansible_python_interpreter": sys.executable},
        "n2": {"ansible_python_interpreter": str(hang)},
    }
    given = {
        "ansible_connection": "local",
        "ansible_become": False,
        "instinct_gpus": {"model": "MI300X", "count": 8},
    }
    (tmp_path / "hosts.yml").write_text(
        yaml.safe_dump({"instinct": {"hosts": hosts, "vars": given}}), encoding="utf-8"
    )
    run = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "hosts.yml", f"playbooks/{playbook}"],
        cwd=tmp_path,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_ROLES_PATH": str(tmp_path / "roles"),
        },
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert run.returncode == code, run.stdout + run.stderr
    assert said in run.stdout
    assert "n2: " in run.stdout
    assert "it did not answer within 8 s" in run.stdout


def test_every_observing_task_has_a_time_limit() -> None:
    found = {}
    for path in (*(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").glob("*/tasks/*.yml")):
        for task in tasks(load(path)):
            if OBSERVING & set(task):
                found[path.relative_to(ROOT).as_posix(), task["name"]] = task.get("timeout")
    assert len(found) == 7
    assert set(found.values()) == {SECONDS}
