# SPDX-License-Identifier: Apache-2.0
"""Load balancers of hosts that left their group: every plan lists them, and one variable takes them down."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.former import (
    former_balancers,
    with_removal,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.explanation.explain import explain
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.request import check_request
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.rules import END
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.simulate import simulate
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds.balancer_world import NEVER, found
from tests.worlds.edited_fleet import Inventory, Planned, Site, address, carried_out, edited, planned, settled
from tests.worlds.plan_world import deployment

HOSTS = {"n1": address("n1"), "n2": address("n2")}
BASE = Inventory(HOSTS, {"n1": HOSTS["n1"]}, (deployment(gpus=[0, 1], instances_per_host=2),))
ELSEWHERE = {"lb": "192.0.2.1"}
REMOVE = {"remove_load_balancer": True}


def left(site: Site | None = None, **changes: Any) -> tuple[Planned, Inventory, Site]:
    """The load balancer's host has left the group."""
    there = site or settled(BASE)
    options = changes.pop("options", {})
    inventory = edited(BASE, **{"balancers": {}, **changes})
    return planned(inventory, there, **options), inventory, there


def after_the_edit(**changes: Any) -> tuple[Inventory, Site]:
    """What is there once site.yml has run after the edit, without removing anything."""
    done, inventory, site = left(**changes)
    return inventory, carried_out(done, inventory, site)


def test_the_only_one_is_listed_and_counts_as_nothing() -> None:
    inventory, site = after_the_edit()
    done = planned(inventory, site)
    assert done.plan.changes == 0
    assert done.todo == []
    text = explain(done.plan)
    assert "nothing to do" in text
    (item,) = done.plan.former
    assert item.text == (
        "n1 is not in the group load_balancer, but its load balancer listens at 0.0.0.0:8443 and sends requests to 4 "
        "instances (services instinct-balancer, instinct-balancer-agent; keys in /etc/instinct-fleet/balancer). It is "
        "the only one: without it, clients can reach instances only directly, on their hosts. To take it down: "
        "site.yml -e remove_load_balancer=true. To keep it: put the host back in the group."
    )
    assert item.text[:60] in text
    assert done.plan.to_json()["former_balancers"]["n1"]["actions"] == []


def test_it_is_taken_down_before_instances_change_and_once() -> None:
    done, inventory, site = left(options=REMOVE)
    there: dict[str, bool] = {}
    found = simulate(
        done.plan,
        done.todo,
        "deploy",
        watch=lambda step, model: there.setdefault(step, model.balancers["n1"].exists),
    )
    assert found.violations == ()
    assert not there["taking down the load balancer of n1"]
    assert [item.phase for item in done.plan.former] == ["before"]
    (todo,) = [item for item in done.todo if item["name"] == "n1"]
    assert "todo_former_balancer" in todo["groups"]
    assert todo["plan"]["former_balancer"] == "before"
    text = explain(done.plan)
    assert "1. take down the load balancer of n1: running → absent" in text
    assert "load balancer n1 is taken down" in text.splitlines()[0]
    after = carried_out(done, inventory, site)
    again = planned(inventory, after, **REMOVE)
    assert (again.plan.changes, again.plan.former) == (0, ())


def test_not_before_another_one_serves() -> None:
    done, _unused, _site = left(balancers=ELSEWHERE, options=REMOVE)
    assert [item.phase for item in done.plan.former] == ["after"]
    assert "clients should use https://192.0.2.1:8443." in done.plan.former[0].text
    assert done.simulate().violations == ()
    inventory, site = after_the_edit(balancers=ELSEWHERE)
    assert [item.phase for item in planned(inventory, site, **REMOVE).plan.former] == ["before"]


def test_a_run_that_forgets_to_take_it_down_breaks_a_rule() -> None:
    done, _unused, _site = left(options=REMOVE)
    for item in done.todo:
        item["groups"] = [name for name in item["groups"] if name != "todo_former_balancer"]
    assert [(item.rule, item.hosts) for item in done.simulate().violations] == [(END, ("n1",))]


@pytest.mark.parametrize(
    ("balancer", "said"),
    [
        (None, []),  # nothing was ever there
        ({**NEVER, "installed": True}, []),  # the distribution's HAProxy alone
        ({**NEVER, "files": {"haproxy.cfg": "0"}}, ["is not running"]),
        ({**NEVER, "files": {"keepalived.conf": "0"}, "running": True}, ["instinct-balancer-address"]),
        ({**NEVER, "files": {"x": "0"}, "running": True, "config": {"routers": {"m": 8410}}}, ["-router"]),
        ({**NEVER, "files": {"x": "0"}, "config": {"backends": [{}]}}, ["cannot be read"]),
    ],
)  # fmt: skip
def test_what_counts_as_a_load_balancer(balancer: dict[str, Any] | None, said: list[str]) -> None:
    states = {"n1": found(balancer), "n2": found(None), "n3": None, "lb": found({**NEVER, "running": True})}
    items = former_balancers(states, ["lb"])
    assert [item.host for item in items] == ["n1"] * len(said)
    for item, word in zip(items, said, strict=True):
        assert word in item.text


def test_what_cannot_be_read_is_there_all_the_same() -> None:
    state = {**found(None), "problems": [{"what": "balancer", "error": "OSError: no"}]}
    (item,) = with_removal(former_balancers({"n1": state}, []), (), remove=True)
    assert "has files of a load balancer in /etc/instinct-fleet/balancer that cannot be read" in item.text
    assert [action.before for action in item.actions] == ["not running"]


@pytest.mark.parametrize(("operation", "wrong"), [("deploy", False), ("upgrade", False), (None, False), ("stop", True),
                                                  ("benchmark", True)])  # fmt: skip
def test_playbooks_that_take_it_down(operation: str | None, wrong: bool) -> None:
    options = {"operation": operation, "serial": None, "min_available": None, "soak": None, **REMOVE}
    assert bool(check_request(options)) == wrong


@settings(max_examples=25)
@given(st.data())
def test_whoever_leaves_the_group_is_listed_until_it_is_taken_down(data: Any) -> None:
    names = [f"n{number}" for number in range(1, data.draw(st.integers(1, 4)) + 1)]
    hosts = {name: address(name) for name in names}
    first = data.draw(st.lists(st.sampled_from([*names, "lb"]), unique=True, min_size=1))
    then = data.draw(st.lists(st.sampled_from([*names, "lb"]), unique=True))
    places = {**hosts, **ELSEWHERE}
    base = edited(BASE, hosts=hosts, balancers={name: places[name] for name in first})
    changed = edited(base, balancers={name: places[name] for name in then})
    expected = sorted(set(first) - set(then) - {"lb"})  # whoever is in no group is asked nothing
    site = settled(base)
    done = planned(changed, site)
    assert [item.host for item in done.plan.former] == expected
    assert done.simulate().violations == ()
    site = carried_out(done, changed, site)
    assert planned(changed, site).plan.changes == 0
    removal = planned(changed, site, **REMOVE)
    assert removal.plan.changes == len(expected)
    assert removal.simulate().violations == ()
    site = carried_out(removal, changed, site)
    assert planned(changed, site).plan.former == ()
