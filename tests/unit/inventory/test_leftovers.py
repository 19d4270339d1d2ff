# SPDX-License-Identifier: Apache-2.0
"""Copies and backups in an inventory: those that Ansible reads, as Ansible itself says, are named; no others are."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePath

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.inventory_check import (
    file_problems,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.inventory.leftovers import (
    MAYBE,
    SURE,
    leftover_likelihood,
)

from tests.worlds.inventories import HOSTS, Inventory, write

READ_OF_VARS = {
    "deployments copy.yml", "deployments copy 2.yml", "deployments-copy.yaml", "deployments.bak.yml",
    "deployments_bak.yml", "deployments.orig.yml", "Copy of deployments.yml", "deployments (1).yml",
    "deployments_BACKUP_4711.yml", "deployments_REMOTE_4711.json", "#deployments#", "deployments.save.yml",
    "deployments_bak", "deployments_old.yml", "deployments.old.yml", "old/deployments.yml", "deployments-backup.yml",
    "deployments_disabled.yml",
}  # fmt: skip
"""Files of group_vars/instinct/ that look left behind and that Ansible reads."""
NOT_READ_OF_VARS = {
    "deployments.yml~", "deployments.yml.bak", "deployments.yml.orig", "deployments.yml.old", "deployments.yml.save",
    "deployments.yml.rej", ".deployments.yml.swp", ".#deployments.yml", "#deployments.yml#", "deployments.yml.swp",
    "deployments.yml.1", "old.d/deployments.yml", "deployments.swo",
}  # fmt: skip
MEANT = {
    "cold.yml",
    "deployments.yml",
    "copyright.yml",
    "local.yml",
    "remote.yml",
    "base.yml",
    "threshold.yml",
    "golden",
    "x2.yml",
}


def problems(inventory: Inventory) -> list[str]:
    groups = inventory.groups
    found = file_problems(inventory.loader, inventory.sources, groups, groups["all"])
    return [problem.text() for problem in found]


@pytest.mark.parametrize("name", sorted(READ_OF_VARS | NOT_READ_OF_VARS | MEANT))
def test_of_variables(name: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        {"mine/hosts.yml": HOSTS, f"mine/group_vars/instinct/{name}": "vllm_deployments: [7]\nown: 1\n"},
    )
    inventory = Inventory(tmp_path)
    found = problems(inventory)
    read = inventory.taken("n1").get("vllm_deployments") == [7]
    assert read is (name not in NOT_READ_OF_VARS)
    assert len(found) == (name in READ_OF_VARS)
    for text in found:
        assert f"{name}: looks left behind, but Ansible reads it. It sets " in text
        assert "vllm_deployments" in text


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("backup.yml", "backup_hours: [1]\n", ""),          # the operator's own subject
        ("nightly_backup.yml", "backup_hours: [1]\n", ""),
        ("nightly_backup.yml", "backup_hours: [1]\nstore_quota: 5\n", "It sets store_quota."),
        ("backup copy.yml", "backup_hours: [1]\n", "It sets backup_hours."),
        ("deployments copy.yml", "", ""),
        ("deployments copy.yml", "# vllm_deployments: []\n", ""),
        ("ansible_old.yml", "ansible_host: 192.0.2.1\n", "It sets ansible_host."),
    ],
)  # fmt: skip
def test_what_it_sets(name: str, text: str, said: str, tmp_path: Path) -> None:
    write(tmp_path, {"mine/hosts.yml": HOSTS, f"mine/group_vars/all/{name}": text})
    found = problems(Inventory(tmp_path))
    assert len(found) == bool(said)
    assert said in "".join(found)


def test_a_copy_is_not_also_a_second_place(tmp_path: Path) -> None:
    write(tmp_path, {
        "mine/hosts.yml": HOSTS,
        "mine/group_vars/instinct/deployments.yml": "vllm_deployments: []\n",
        "mine/group_vars/instinct/deployments_old.yml": "vllm_deployments: []\n",
        "mine/host_vars/n2/a copy.yml": "store_quota: 5\n",
    })  # fmt: skip
    found = problems(Inventory(tmp_path))
    assert [text.partition(": looks")[0].rpartition("/")[2] for text in found] == [
        "deployments_old.yml",
        "a copy.yml",
    ]


INI = "[instinct]\nn8 ansible_host=192.0.2.8\n"
SOURCES = {
    # name: what is in it, and whether Ansible reads it
    "hosts copy.yml": ("instinct:\n  hosts:\n    n8:\n", True),
    "hosts.yml.yaml": ("instinct:\n  hosts:\n    n8:\n", True),
    "hosts_old.yml": ("instinct:\n  hosts:\n    n8:\n", True),
    "hosts.yml.old": (INI, True),
    "hosts.save": (INI, True),
    "hosts.rej": (INI, True),
    "hosts.ini.1": (INI, True),
    "#hosts#": (INI, True),
    "old/hosts": (INI, True),
    "hosts.bak": (INI, False),
    "hosts.ini~": (INI, False),
    "hosts.orig": (INI, False),
    "hosts.swp": (INI, False),
    ".#hosts": (INI, False),
    "hosts.retry": (INI, False),
}


@pytest.mark.parametrize("name", SOURCES)
def test_of_an_inventory_directory(name: str, tmp_path: Path) -> None:
    text, read = SOURCES[name]
    write(tmp_path, {"mine/hosts.yml": HOSTS, f"mine/{name}": text})
    inventory = Inventory(tmp_path)
    assert ("n8" in inventory.groups["all"]) is read
    found = problems(inventory)
    assert len(found) == (read and name != "hosts.yml.yaml")
    for line in found:
        assert f"{name}: looks left behind, but Ansible reads it. It defines instinct, n8." in line


def test_another_subject_of_an_inventory_is_none_of_ours(tmp_path: Path) -> None:
    write(tmp_path, {"mine/hosts.yml": HOSTS, "mine/cluster_old.yml": {"storage": {"hosts": {"s1": None}}}})
    assert problems(Inventory(tmp_path)) == []
    shutil.move(tmp_path / "mine/cluster_old.yml", tmp_path / "mine/cluster copy.yml")
    assert len(problems(Inventory(tmp_path))) == 1


def test_a_file_that_is_named_behind_i_is_meant(tmp_path: Path) -> None:
    write(tmp_path, {"mine/hosts.yml": HOSTS, "hosts_old.yml": HOSTS})
    assert problems(Inventory(tmp_path, ("mine", "hosts_old.yml"))) == []


def test_names() -> None:
    assert {leftover_likelihood(PurePath(name)) for name in MEANT} == {""}
    assert leftover_likelihood(PurePath("hosts.yml.old")) == SURE
    assert (
        leftover_likelihood(PurePath("old/hosts.yml")) == leftover_likelihood(PurePath("x_old.yml")) == MAYBE
    )
