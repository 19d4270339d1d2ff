# SPDX-License-Identifier: Apache-2.0
"""Edits that once lost requests or did not succeed, in a row on one fleet: nothing is lost, nothing unforeseen."""

from __future__ import annotations

import pytest

from tests.worlds.edited_fleet import Inventory

from .conftest import Lab
from .edited import EditedLab, edited, machines

CHAT = {"name": "ada", "gpus": [0], "instances_per_host": 1, "port": 8000, "served_model_name": "chat"}


@pytest.fixture(scope="module")
def fleet(module_lab: Lab) -> EditedLab:
    """Two nodes that serve a model, without a load balancer."""
    there = machines(module_lab.hosts)
    hosts = {name: addresses[0] for name, addresses in there.items()}
    return EditedLab.deployed(module_lab, Inventory(hosts, {}, (CHAT,), machines=there))


def test_a_first_load_balancer_with_another_flag(fleet: EditedLab) -> None:
    """L1. It is installed before the instances change, and their drain is asked of it."""
    host, address = next(iter(fleet.inventory.hosts.items()))
    after = edited(fleet.inventory, {"engine_args": {"max_num_seqs": 32}}, balancers={host: address})
    fleet.edit(after)


def test_a_second_load_balancer_with_another_flag(fleet: EditedLab) -> None:
    """W7."""
    after = edited(
        fleet.inventory, {"engine_args": {"max_num_seqs": 48}}, balancers=dict(fleet.inventory.hosts)
    )
    fleet.edit(after)


def test_another_name_of_a_deployment(fleet: EditedLab) -> None:
    """W1. The upgrade, as site.yml refuses nothing that it can do without a gap either."""
    step = fleet.edit(edited(fleet.inventory, {"name": "bob"}), "upgrade")
    assert "never fewer than 1 of 2" in step.run.out


def test_another_port(fleet: EditedLab) -> None:
    """W2. An instance is asked at its address of the moment, and no release is held."""
    fleet.edit(edited(fleet.inventory, {"port": 8200}))


def test_another_name_port_and_a_second_served_name(fleet: EditedLab) -> None:
    """W1 and W2 at once; clients of the former name are served meanwhile and afterwards."""
    change = {"name": "cyd", "port": 8100, "served_model_name": ["chat", "talk"]}
    fleet.edit(edited(fleet.inventory, change))
