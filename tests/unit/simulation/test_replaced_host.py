# SPDX-License-Identifier: Apache-2.0
"""A server is replaced by a new one of the same name: empty disks, while load balancers still have its servers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.backends import names_of
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.text import problems

from tests.worlds.edited_fleet import Inventory, Site, carried_out, edited, planned, settled
from tests.worlds.plan_world import state

from .test_named_edits import BASE, SEQS, llama

ALONE = edited(BASE, hosts={"n1": "192.0.2.11"})
TWO_BALANCERS = edited(BASE, balancers={"n1": "192.0.2.11", "n2": "192.0.2.12"})


def replaced(inventory: Inventory, name: str, by: str = "") -> Site:
    """What hosts have once a new server has a host's name; by: who drained the old one's instances, if anybody did."""
    site = copy.deepcopy(settled(inventory))
    site.states[name] = state(hostname=name)
    site.seen.pop(name, None)  # its own load balancer went with it
    for seen in site.seen.values():
        servers = [
            f"{backend}/{server['name']}"
            for backend, found in _backends(seen["config"])
            for server in found
            if server["host"] == name
        ]
        seen["out"] = {one: {"state": "drain", "by": by, "since": ""} for one in servers if by} or None
    return site


def _backends(config: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(item["name"], item["servers"]) for item in config["backends"]]


@pytest.mark.parametrize(
    ("inventory", "name"),
    [(BASE, "n2"), (BASE, "n1"), (ALONE, "n1"), (TWO_BALANCERS, "n1"), (TWO_BALANCERS, "n2")],
)
@pytest.mark.parametrize("by", ["", "operator", "run"])
def test_one_run_makes_it_what_the_old_one_was(inventory: Inventory, name: str, by: str) -> None:
    site = replaced(inventory, name, by)
    done = planned(inventory, site)
    assert problems(done.simulate(), done.plan) == ()
    (here,) = [host for host in done.plan.hosts if host.host.name == name]
    assert sorted(here.start) == ["llama-0", "llama-1"]
    others = [host for host in done.plan.hosts if host.host.name != name]
    assert not any(host.start or host.remove for host in others)
    for balancer in done.plan.balancers:
        assert {server.host for server in names_of(balancer.backends).values()} == set(inventory.hosts)
    after = carried_out(done, inventory, site)
    assert planned(inventory, after).plan.changes == 0


def test_its_generation_has_the_number_that_the_others_have() -> None:
    changed = edited(BASE, deployments=(llama(**SEQS),))
    site = settled(BASE)
    site = carried_out(planned(changed, site, "upgrade"), changed, site)
    site.states["n2"] = state(hostname="n2")
    done = planned(changed, site)
    (revision,) = done.plan.revisions
    assert (revision.generation, revision.hosts["n2"].wanted, revision.new) == (2, 2, False)


def test_what_the_operator_drained_stays_drained_and_the_plan_says_so() -> None:
    done = planned(BASE, replaced(BASE, "n2", "operator"))
    assert "undrain.yml" in explain(done.plan)
