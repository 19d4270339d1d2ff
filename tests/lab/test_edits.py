# SPDX-License-Identifier: Apache-2.0
"""Edits that once lost requests or did not succeed, in a row on one fleet: nothing is lost, nothing unforeseen.

Two instances on a host, and for W2 and W7 a canary that holds the first against one that is as it was: without it, the
faults of both stay out of sight. Four of the seven run at night: the simulation draws their kinds in every run.
"""

from __future__ import annotations

import pytest

from tests.worlds.edited_fleet import Inventory

from .conftest import Lab
from .edited import EditedLab, edited, machines
from .helpers import LEFT_OUT, SHORT_RUNS

CHAT = {"name": "ada", "gpus": [0, 1], "instances_per_host": 2, "port": 8000, "served_model_name": "chat"}
# Short runs, on cores that the load and other tests need, too: what is tested is what happens around them.
CANARY = {
    "canary_args": SHORT_RUNS,
    "canary_runs": 4,
    "canary_tolerance": 80,
    "canary_latency_tolerance": 300,
}


@pytest.fixture(scope="module")
def fleet(module_lab: Lab) -> EditedLab:
    """Two nodes that serve a model, without a load balancer."""
    there = machines(module_lab.hosts)
    hosts = {name: addresses[0] for name, addresses in there.items()}
    inventory = Inventory(hosts, {}, (CHAT,), machines=there)
    return EditedLab.deployed(module_lab, inventory, **CANARY)


@pytest.fixture
def canary(fleet: EditedLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release is compared with the one before."""
    monkeypatch.setattr(fleet, "canary", True)


def with_balancers(inventory: Inventory, count: int) -> Inventory:
    """The inventory with load balancers on its first hosts."""
    return edited(inventory, balancers=dict([*inventory.hosts.items()][:count]))


def test_a_first_load_balancer_with_another_flag(fleet: EditedLab) -> None:
    """L1. It is installed before the instances change, and their drain is asked of it."""
    after = edited(with_balancers(fleet.inventory, 1), {"engine_args": {"max_num_seqs": 32}})
    fleet.edit(after)


@pytest.mark.deep
@pytest.mark.usefixtures("canary")
def test_a_second_load_balancer_with_another_flag(fleet: EditedLab) -> None:
    """W7."""
    fleet.settle(with_balancers(fleet.inventory, 1))
    fleet.edit(edited(with_balancers(fleet.inventory, 2), {"engine_args": {"max_num_seqs": 48}}))


@pytest.mark.deep
def test_another_name_of_a_deployment(fleet: EditedLab) -> None:
    """W1. Both names of its servers are in the load balancers meanwhile."""
    step = fleet.edit(edited(fleet.inventory, {"name": "bob"}), "upgrade")
    assert "never fewer than 3 of 4" in step.run.out


@pytest.mark.deep
@pytest.mark.usefixtures("canary")
def test_another_port(fleet: EditedLab) -> None:
    """W2. An instance is asked at its address of the moment, and no release is held."""
    fleet.settle(with_balancers(fleet.inventory, 2))
    fleet.edit(edited(fleet.inventory, {"port": 8200}))


@pytest.mark.deep
def test_another_name_port_and_a_second_served_name(fleet: EditedLab) -> None:
    """W1 and W2 at once; clients of the former name are served meanwhile and afterwards."""
    fleet.settle(with_balancers(fleet.inventory, 2))
    change = {"name": "cyd", "port": 8100, "served_model_name": ["chat", "talk"]}
    fleet.edit(edited(fleet.inventory, change))


@pytest.mark.deep
def test_a_hold_ends_when_the_inventory_is_put_back(fleet: EditedLab) -> None:
    """W3. Also where that changes no instance; while it lasts, a run says so and has its own exit code."""
    good = fleet.inventory
    bad = edited(good, {"port": 8300, "env": {"STANDIN_FAIL": "oom"}})
    failed = fleet.carry_out(bad, "upgrade")
    assert failed.run.rc == 2, failed.run.out[-4000:]
    assert not failed.lost, failed.load
    fleet.lab.play("deploy")  # load balancers forget the port to which nothing came
    site = fleet.lab.play("deploy")
    assert (site.rc, site.changed()) == (LEFT_OUT, []), site.out[-4000:]
    fleet.edit(good)


@pytest.mark.deep
def test_the_load_balancers_are_taken_away(fleet: EditedLab) -> None:
    """W11. What still listens is named by every plan, and is taken down when asked."""
    fleet.settle(with_balancers(fleet.inventory, 2))
    step = fleet.edit(edited(fleet.inventory, balancers={}))
    assert "Not managed" in step.run.out
    assert "Not managed" in fleet.lab.play("plan").out
    done = fleet.lab.play("deploy", "-e", "remove_load_balancer=true")
    assert done.rc == 0, done.out[-4000:]
    for host in fleet.lab.hosts:
        assert not fleet.lab.on(host, "ss -Hltn sport = :8443")
    again = fleet.lab.play("deploy")
    assert (again.rc, again.changed()) == (0, []), again.out[-4000:]
    assert "Not managed" not in again.out
