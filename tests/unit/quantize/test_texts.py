# SPDX-License-Identifier: Apache-2.0
"""The role lets only root read calibration data on a host, and removes them whatever becomes of the job."""

from __future__ import annotations

from typing import Any

import yaml

from tests import ROOT

TASKS = ROOT / "roles/quantize/tasks"
PLACE = "/var/lib/instinct-fleet/quantize/calibration"


def tasks(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((TASKS / name).read_text(encoding="utf-8")))


def test_only_root_reads_them() -> None:
    directories, *copies = tasks("copy.yml")
    assert {item["name"]: item["mode"] for item in directories["loop"]}["calibration"] == "0700"
    (copy,) = [task["ansible.builtin.copy"] for task in copies if "calibration" in task["name"]]
    assert copy["dest"].startswith(f"{PLACE}/")
    assert copy["mode"] == "0600"


def test_they_are_removed_whatever_becomes_of_the_job() -> None:
    (whole,) = [task for task in tasks("main.yml") if "block" in task]
    names = [task.get("ansible.builtin.include_tasks", "") for task in whole["block"]]
    assert "copy.yml" in names
    assert any("instinct.fleet.model_quantize" in task for task in whole["block"])
    (removal,) = [task["ansible.builtin.file"] for task in whole["always"]]
    (copy,) = [
        task["ansible.builtin.copy"] for task in tasks("copy.yml") if "calibration data" in task["name"]
    ]
    assert removal == {"path": copy["dest"], "state": "absent"}
