# SPDX-License-Identifier: Apache-2.0
"""The inventory of a lab test: its variables replace the lab's own, in one place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.inventory_check import (
    file_problems,
)

from tests import ROOT
from tests.lab.conftest import Lab
from tests.worlds.inventories import HOSTS, Inventory, write

OWN = ("vllm_deployments", "benchmark_repeat", "hf_model_endpoint")


def written(place: Path, *calls: dict[str, Any]) -> dict[str, Any]:
    """What a host has after these calls, which has to be written in one place."""
    shutil.copytree(ROOT / "inventory/lab", place / "mine", ignore=shutil.ignore_patterns("hosts.yml"))
    write(place, {"mine/hosts.yml": HOSTS})
    for variables in calls:
        Lab(place / "mine", place, ["n1", "n2"]).write_vars(**variables)
    inventory = Inventory(place)
    assert file_problems(inventory.loader, inventory.sources, inventory.groups, ["n1", "n2"]) == []
    return inventory.taken("n1")


@pytest.mark.parametrize("variables", [{"vllm_deployments": [], "benchmark_repeat": 3}, {"store_quota": 5}])
def test_the_variables_of_a_test_replace_those_of_the_lab(variables: dict[str, Any], tmp_path: Path) -> None:
    for name in ("own", "first", "later"):
        (tmp_path / name).mkdir()
    own = written(tmp_path / "own")
    # What an earlier call replaced is the lab's own again.
    first = written(tmp_path / "first", variables)
    later = written(tmp_path / "later", {"vllm_deployments": [7]}, variables)
    for taken in (first, later):
        assert {name: taken[name] for name in variables} == variables
        assert all(taken[name] == own[name] for name in OWN if name not in variables)
