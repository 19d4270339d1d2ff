# SPDX-License-Identifier: Apache-2.0
"""Hosts that leave the inventory: what load balancers drain, which runs are refused, and what the plan says of them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.minimum import Count
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.backends import names_of
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.balancer_plan import (
    instance_of,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.leaving import (
    leaving_problems,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.proof import (
    proof_and_refusals,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout_run.request import OPTIONS
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.rules import IN_USE
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.simulate import simulate
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds import mishaps
from tests.worlds.edited_fleet import Inventory, Planned, Site, address, carried_out, edited, planned, settled
from tests.worlds.plan_world import deployment

LB = {"lb": "192.0.2.1"}
MODEL = "lab/tiny-llama"


def hosts(*names: str) -> dict[str, str]:
    return {name: address(name) for name in names}


def llama(**keys: Any) -> dict[str, Any]:
    return deployment(**{"gpus": [0, 1], "instances_per_host": 2, **keys})


def fleet_of(*names: str) -> Inventory:
    return Inventory(hosts(*names), LB, (llama(),))


def after(base: Inventory, site: Site | None = None, **changes: Any) -> Planned:
    return planned(edited(base, **changes), site or settled(base))


def drained(site: Site, host: str, by: str) -> Site:
    """The servers of a host are drained in the load balancer."""
    seen = copy.deepcopy(site.seen)
    entry = {"state": "drain", "by": by, "since": "2026-01-01T00:00:00Z"}
    names = [
        f"{backend['name']}/{server['name']}"
        for backend in seen["lb"]["config"]["backends"]
        for server in backend["servers"]
        if server["host"] == host
    ]
    seen["lb"]["out"] = dict.fromkeys(names, entry)
    return Site(site.states, seen)


def test_its_servers_are_drained_before_the_last_configuration_forgets_them() -> None:
    done = after(fleet_of("n1", "n2"), hosts=hosts("n1"))
    (plan,) = done.plan.balancers
    assert list(plan.gone) == ["llama/n2.llama-0:8000", "llama/n2.llama-1:8001"]
    assert [(item.kind, item.target, item.after) for item in plan.actions] == [
        ("drain", "2 instances of n2", "drained"),
        ("balancer", plan.url, "2 instances"),
    ]
    steps: list[str] = []
    assert done.simulate().violations == ()
    for item in done.todo:
        assert item["plan"].get("balancer", {"first": True})["first"]  # it knows them until then
        assert "n2" not in item["name"]
        steps += item["plan"].get("balancer", {}).get("gone", [])
    assert steps == list(plan.gone)


def test_a_run_that_would_not_drain_them_breaks_a_rule() -> None:
    done = after(fleet_of("n1", "n2"), hosts=hosts("n1"))
    for item in done.todo:
        item["plan"].get("balancer", {})["gone"] = []
    (first, *_) = done.simulate().violations
    assert first.rule == IN_USE
    assert first.what == "load balancer lb forgets llama/n2.llama-0:8000 while it sends requests to it"


def test_what_replaces_them_serves_before() -> None:
    """In the same run, another host gets what the one that left had."""
    base = fleet_of("n1", "n2")
    done = after(base, hosts=hosts("n1", "n3"))
    seen: list[tuple[str, int]] = []
    simulate(
        done.plan,
        done.todo,
        "deploy",
        watch=lambda step, model: seen.append((step, model.counts.get(("lb", MODEL), 0))),
    )
    assert min(count for _unused, count in seen) == 4
    assert ("draining servers that load balancers forget", 4) in seen


@pytest.mark.parametrize(
    ("stays", "min_available", "word"),
    [
        (("n1", "n2", "n3"), None, ""),
        (("n1", "n2"), None, ""),
        (("n1",), None, "without n2, n3, n4, which left the inventory, 2 would be left, and 4 must stay in service"),
        (("n1",), 2, ""),
        (("n1",), "25%", ""),
        (("n1", "n2", "n3"), "100%", "without n4, which left the inventory, 6 would be left, and 8 must stay"),
        (("n5",), None, "2 would be left"),
        (("n5", "n6"), None, ""),
    ],
)  # fmt: skip
def test_too_few_would_be_left(stays: tuple[str, ...], min_available: Count | None, word: str) -> None:
    done = after(fleet_of("n1", "n2", "n3", "n4"), hosts=hosts(*stays))
    found = leaving_problems(done.plan, min_available)
    assert bool(found) == bool(word)
    for problem in found:
        assert problem.what.startswith(f"llama ({MODEL}): 8 of 8 serve; ")
        assert word in problem.what
        assert "-e at_once=true" in problem.fix
        assert "-e rollout_min_available=" in problem.fix


def test_the_last_host_of_a_model() -> None:
    """Its deployment is in the variables of a group, whose only host has left: no host has its definition."""
    base = edited(fleet_of("n1", "n2"), deployments=(llama(hosts=["n1"]), llama(name="chat", served_model_name="chat",
                  hosts=["n2"], port=8100, gpus=[2, 3])))  # fmt: skip
    done = after(base, hosts=hosts("n1"), deployments=base.deployments[:1])
    (problem,) = leaving_problems(done.plan, None)
    assert problem.what == (
        "chat (chat): 2 of 2 serve; without n2, which left the inventory, 0 would be left, and 1 must stay in "
        "service (rollout_min_available: 50%)."
    )
    assert leaving_problems(done.plan, 0) == ()


@pytest.mark.parametrize("by", ["operator", "run"])
def test_what_was_drained_already_is_no_loss(by: str) -> None:
    """forget.yml and drain.yml have counted it then."""
    base = fleet_of("n1", "n2", "n3")
    site = drained(settled(base), "n3", by)
    done = after(base, site, hosts=hosts("n1", "n2"))
    assert leaving_problems(done.plan, None) == leaving_problems(done.plan, 5) == ()
    assert done.simulate().violations == ()
    (warning,) = [text for text in done.plan.warnings if "left the inventory" in text]
    assert warning.startswith("n3 left the inventory: the instances there (llama-0, llama-1) are drained")


def test_what_is_lost_in_another_way_is_said_elsewhere() -> None:
    """Another edit leaves less; another host comes for the one that leaves; or no load balancer runs any longer."""
    base = fleet_of("n1", "n2", "n3")
    less = after(base, deployments=(llama(gpus=[0], instances_per_host=1),))
    assert leaving_problems(less.plan, "100%") == ()
    renamed = after(base, hosts=hosts("n1"), deployments=(llama(served_model_name="other"),))
    assert leaving_problems(renamed.plan, "100%") == ()
    site = drained(settled(base), "n1", "operator")
    assert leaving_problems(after(base, site, hosts=hosts("n1", "n2", "n4")).plan, "100%") == ()
    site.seen["lb"]["running"] = False
    assert leaving_problems(after(base, site, hosts=hosts("n1")).plan, "100%") == ()


def test_what_load_balancers_have_is_not_known_offline() -> None:
    plan = after(fleet_of("n1", "n2", "n3"), hosts=hosts("n1")).plan
    assert leaving_problems(plan, "100%")
    unseen = [replace(item, host=replace(item.host, observed=None)) for item in plan.balancers]
    assert leaving_problems(replace(plan, balancers=unseen), "100%") == ()


def test_what_an_interrupted_run_was_to_start_does_not_serve() -> None:
    """Its servers have been in the configuration since; the release on the new host is not started at present."""
    base = fleet_of("n1", "n2")
    wanted = edited(base, hosts=hosts("n1", "n3"))
    first = settled(base)
    begun = planned(wanted, first)
    moment = next(
        one for one in mishaps.moments(begun) if one.step.startswith("updating the load balancers before")
    )
    then = mishaps.died_at(moment, begun, wanted, first)
    done = planned(edited(wanted, hosts=hosts("n1")), then)
    (problem,) = leaving_problems(done.plan, "75%")
    assert problem.what.startswith(
        f"llama ({MODEL}): 4 of 4 serve; without n2, which left the inventory, 2 would be"
    )


def test_a_host_that_does_not_answer_is_not_counted_as_serving() -> None:
    base = fleet_of("n1", "n2", "n3", "n4")
    site = settled(base)
    done = after(base, Site({**site.states, "n3": None}, site.seen), hosts=hosts("n1", "n2", "n3"))
    (problem,) = leaving_problems(done.plan, "75%")
    assert problem.what.startswith(
        f"llama ({MODEL}): 6 of 8 serve; without n4, which left the inventory, 4 would be left, and 6 must stay"
    )


def test_who_is_renamed_neither_leaves_nor_is_drained() -> None:
    base = fleet_of("n1", "n2")
    renamed = {"n1": address("n1"), "other": address("n2")}
    site = settled(base)
    site = Site({**site.states, "other": site.states["n2"]}, site.seen)
    done = after(base, site, hosts=renamed)
    assert [plan.gone for plan in done.plan.balancers] == [()]
    assert not [text for text in done.plan.warnings if "left the inventory" in text]
    assert leaving_problems(done.plan, "100%") == ()
    assert done.simulate().violations == ()


def test_who_has_another_name_and_address_serves_there_before_it_leaves_here() -> None:
    """Its new servers were to come, so that nobody waited for their checks before the old ones were drained."""
    base = edited(fleet_of("n1", "n2"), deployments=(llama(listen="0.0.0.0"),))
    site = settled(base)
    site = Site({**site.states, "other": site.states["n2"]}, site.seen)
    (plan,) = after(base, site, hosts={"n1": address("n1"), "other": address("n3")}).plan.balancers
    assert {instance_of(name) for name in plan.gone} == {"n2.llama-0", "n2.llama-1"}
    assert not [server for server in names_of(plan.during).values() if server.coming]
    (plan,) = after(base, hosts={"n1": address("n1"), "other": address("n3")}).plan.balancers
    assert {server.host for server in names_of(plan.during).values() if server.coming} == {"other"}


def test_a_plan_says_what_stays_on_the_host() -> None:
    done = after(fleet_of("n1", "n2"), hosts=hosts("n1"))
    (warning,) = [text for text in done.plan.warnings if "left the inventory" in text]
    assert warning == (
        "n2 left the inventory: 2 containers (llama-0, llama-1) keep running there and using the GPUs. The instances' "
        "key, the host's settings (sysctl, limits, kernel command line), the partition unit, images, weights and "
        "content store stay there. To remove them, put the host back and run forget.yml "
        "(docs/runbooks/host.md#take-a-host-apart)"
    )


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"operation": "deploy"}, True),
        ({"operation": "deploy", "at_once": True}, False),
        ({"operation": "deploy", "min_available": 2}, False),
        ({"operation": "restart"}, True),
        ({"operation": None}, True),  # plan.yml, which prints it
        ({"operation": None, "apply": True}, True),  # partition.yml
        ({"operation": "stop"}, False),  # changes no configuration
        ({"operation": "deploy", "offline": True}, False),
    ],
)
def test_which_runs_are_refused(options: dict[str, Any], refused: bool) -> None:
    done = after(fleet_of("n1", "n2", "n3"), hosts=hosts("n1"))
    values = {name: option.get("default") for name, option in OPTIONS.items()}
    values |= {
        "apply": False,
        "offline": False,
        "at_once": False,
        "live": False,
        "drain_timeout": 300,
        **options,
    }
    _unused, wrong = proof_and_refusals(values, done.plan, done.todo, done.rollout, None)
    assert any("left the inventory" in problem.what for problem in wrong) == refused


@settings(max_examples=25)
@given(st.data())
def test_whoever_leaves_is_drained_or_the_run_is_refused(data: Any) -> None:
    """Of every fleet, any hosts leave and others come: no server in service is forgotten, and the minimum stays."""
    names = [f"n{number}" for number in range(1, data.draw(st.integers(2, 5)) + 1)]
    base = edited(fleet_of(*names), balancers=data.draw(st.sampled_from([LB, {"n1": address("n1")}])))
    stay = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    come = data.draw(st.lists(st.sampled_from(["n6", "n7"]), unique=True))
    stays = sorted({*stay, *base.balancers} - {"lb"}) + sorted(come)
    changed = edited(base, hosts=hosts(*stays))
    site = settled(base)
    done = planned(changed, site)
    found = done.simulate()
    assert found.violations == ()
    left = {instance_of(name).partition(".")[0] for plan in done.plan.balancers for name in plan.gone}
    assert left == set(names) - set(stays)
    engines, kept = 2 * len(stays), -(-2 * len(names) // 2)
    assert bool(leaving_problems(done.plan, None)) == (bool(left) and engines < kept)
    assert planned(changed, carried_out(done, changed, site)).plan.changes == 0
