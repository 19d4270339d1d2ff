# SPDX-License-Identifier: Apache-2.0
"""The model of a fleet before a run, and what its instances will be like: from what was planned and observed."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.instance_key import NO_KEY
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.before import (
    Templates,
    first_model,
    templates,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.model import (
    FORMER,
    PRESENT,
    FleetModel,
)

from tests.worlds.edited_fleet import Inventory, Site, edited, planned, settled
from tests.worlds.plan_world import deployment

MODEL = "lab/tiny-llama"
HOSTS = {"n1": "192.0.2.11", "n2": "192.0.2.12"}
LLAMA: dict[str, Any] = deployment(gpus=[0, 1], instances_per_host=2)
PRIVATE = {**LLAMA, "name": "private", "gpus": [2], "instances_per_host": 1, "port": 8100, "endpoint": False}
WIDE = {**LLAMA, "name": "wide", "gpus": [4], "instances_per_host": 1, "port": 8200, "nodes": 2,
        "served_model_name": "wide", "tensor_parallel_size": 2}  # fmt: skip
BASE = Inventory(HOSTS, {"n1": "192.0.2.11"}, (LLAMA, PRIVATE))
FLAG = {"deployments": ({**LLAMA, "engine_args": {"max_num_seqs": 64}}, PRIVATE)}
NAMES = ["llama-0", "llama-1", "private-0"]


@cache
def plan_of(base: Inventory = BASE, **changes: Any) -> FleetPlan:
    return planned(edited(base, **changes), settled(base)).plan


def edited_plan() -> FleetPlan:
    """The plan of a fleet with another flag."""
    site = settled(BASE)
    return planned(edited(BASE, **FLAG), site).plan


def model_of(plan: FleetPlan) -> FleetModel:
    return first_model(plan, templates(plan))


def specs(plan: FleetPlan, host: str = "n1") -> dict[str, tuple[str, str]]:
    """The hashes of an instance's files, of now and of the inventory."""
    (found,) = [item for item in plan.hosts if item.host.name == host]
    assert found.host.state
    now = {item.name: item.spec_hash or "" for item in found.host.state.instances}
    return {item.name: (now[item.name], item.spec_hash) for item in found.instances}


# ---- what instances are like -------------------------------------------------------------------------


def test_an_instance_before_and_after() -> None:
    plan = edited_plan()
    known, (old, new) = templates(plan), specs(plan, "n2")["llama-0"]
    assert old != new
    before, after = known.present("n2", "llama-0", old), known.started("n2", "llama-0", new)
    assert before == replace(after, spec=old, key=FORMER, engine="n2/llama-0 before")
    assert (after.spec, after.key, after.engine) == (new, PRESENT, "n2/llama-0 after")
    assert (after.deployment, after.models, after.listen, after.port) == (
        "llama", (MODEL,), "192.0.2.12", 8000,
    )  # fmt: skip
    assert after.port in after.ports
    assert len(after.gpus) == 1
    assert (after.share, after.ready) == (1.0, False)
    assert known.engines["n2/llama-0 before"] == {("n2", "llama-0"): old}
    assert known.engines["n2/llama-0 after"] == {("n2", "llama-0"): new}


def test_what_is_started_with_the_files_of_today_has_the_present_key() -> None:
    """And an instance that runs is as it was recorded."""
    plan = edited_plan()
    known, (same, also) = templates(plan), specs(plan)["private-0"]
    assert same == also
    assert known.present("n1", "private-0", same).engine == "n1/private-0 before"
    assert known.started("n1", "private-0", same).engine == "n1/private-0 after"


def test_only_what_load_balancers_ask_has_their_key() -> None:
    plan = edited_plan()
    known = templates(plan)
    assert known.started("n1", "private-0", specs(plan)["private-0"][1]).key == ""
    alone = planned(edited(BASE, balancers={}), settled(edited(BASE, balancers={}))).plan
    assert {
        item.key for item in (*templates(alone).wanted.values(), *templates(alone).recorded.values())
    } == {""}


def test_what_no_record_describes_listens_nowhere() -> None:
    known = Templates({}, {}, {})
    found = known.present("n1", "llama-70b-3", "spec")
    assert (found.of, found.deployment, found.engine) == (
        ("n1", "llama-70b-3"),
        "llama-70b",
        "n1/llama-70b-3",
    )
    assert (found.models, found.listen, found.port, found.spec, found.ready) == ((), "", None, "spec", False)
    assert known.started("n1", "llama-70b-3", "spec") == found


def test_what_runs_with_the_files_of_the_inventory_need_not_be_recorded() -> None:
    item = templates(edited_plan()).wanted["n2", "llama-0", specs(edited_plan(), "n2")["llama-0"][1]]
    assert Templates({}, {(*item.of, item.spec): item}, {}).present(*item.of, item.spec) == item


def test_the_servers_of_an_engine_over_two_hosts() -> None:
    base = edited(BASE, deployments=(LLAMA, WIDE))
    plan = planned(base, settled(base)).plan
    known = templates(plan)
    parts = {host: known.started(host, "wide-0", specs(plan, host)["wide-0"][1]) for host in HOSTS}
    assert {item.engine for item in parts.values()} == {"wide n1,n2 wide-0 after"}
    assert [item.port for item in parts.values()] == [8200, None]
    assert known.engines["wide n1,n2 wide-0 after"] == {item.of: item.spec for item in parts.values()}


def test_generations_that_are_kept_are_known_for_a_way_back() -> None:
    """The files of an instance that runs no more."""
    first = edited(BASE, deployments=(LLAMA,))
    plan = planned(first, settled(BASE)).plan
    (old, _now) = specs(plan_of())["private-0"]
    key = "n1", "private-0", old
    assert key in templates(plan).recorded
    (host,) = [item for item in plan.hosts if item.host.name == "n1"]
    assert host.host.state
    gone = replace(
        host,
        host=replace(
            host.host,
            state=replace(
                host.host.state,
                instances=tuple(one for one in host.host.state.instances if one.name != "private-0"),
            ),
        ),
    )
    plan = replace(plan, hosts=(gone, *plan.hosts[1:]))
    assert key not in templates(plan).recorded
    assert key in templates(plan, way_back=True).recorded


# ---- what runs ---------------------------------------------------------------------------------------


def test_what_was_observed_runs_and_serves() -> None:
    model = model_of(edited_plan())
    assert sorted(model.instances) == [(host, name) for host in HOSTS for name in NAMES]
    assert {item.ready for item in model.instances.values()} == {True}
    assert {item.key for item in model.instances.values()} == {FORMER, ""}
    assert model.counts == {("n1", MODEL): 4}
    assert model.addresses == HOSTS


def changed(name: str, **change: Any) -> FleetModel:
    """The model of the fleet where an instance of the first host was observed otherwise."""
    plan = edited_plan()
    first = plan.hosts[0]
    state = first.host.state
    assert state
    seen = tuple(replace(one, **change) if one.name == name else one for one in state.instances)
    host = replace(first, host=replace(first.host, state=replace(state, instances=seen)))
    return model_of(replace(plan, hosts=(host, *plan.hosts[1:])))


@pytest.mark.parametrize(
    ("change", "there", "ready"),
    [
        ({"ready": False}, True, False),
        ({"state": "exited"}, False, False),
        ({"state": "paused"}, True, False),
        ({"state": "restarting"}, True, False),
    ],
)
def test_what_does_not_serve(change: dict[str, Any], there: bool, ready: bool) -> None:
    model = changed("llama-0", **change)
    found = model.instances.get(("n1", "llama-0"))
    assert (found is not None) is there
    assert bool(found and found.ready) is ready
    assert model.counts["n1", MODEL] == 3


def test_files_that_nobody_knows_answer_nothing() -> None:
    model = changed("llama-0", spec_hash=None)
    found = model.instances["n1", "llama-0"]
    assert (found.models, found.port, found.deployment) == ((), None, "llama")
    assert changed("llama-0", deployment="", spec_hash="").instances["n1", "llama-0"].deployment == "llama"


def test_an_instance_was_started_without_a_key_where_its_host_has_none() -> None:
    plan = edited_plan()
    first = plan.hosts[0]
    assert first.host.state
    host = replace(first, host=replace(first.host, state=replace(first.host.state, instance_key="")))
    model = model_of(replace(plan, hosts=(host, *plan.hosts[1:])))
    assert model.instances["n1", "llama-0"].key == ""
    assert model.instances["n2", "llama-0"].key == FORMER


def test_hosts_that_have_the_present_key() -> None:
    assert model_of(edited_plan()).keys == dict.fromkeys(HOSTS, PRESENT)
    assert model_of(planned(edited(BASE, key="second"), settled(BASE)).plan).keys == {}


def test_where_no_key_is_sent_no_host_has_it() -> None:
    plan = edited_plan()
    hosts = tuple(
        replace(item, host=replace(item.host, state=replace(item.host.state, instance_key="")))
        for item in plan.hosts
        if item.host.state
    )
    lbs = tuple(replace(item, instance_key=NO_KEY) for item in plan.balancers)
    assert model_of(replace(plan, hosts=hosts, balancers=lbs)).keys == {}


def test_a_host_without_an_address_is_reached_by_its_name() -> None:
    plan = edited_plan()
    first = replace(plan.hosts[0], host=replace(plan.hosts[0].host, address=""))
    assert model_of(replace(plan, hosts=(first, *plan.hosts[1:]))).addresses == {**HOSTS, "n1": "n1"}


# ---- hosts outside of the run ------------------------------------------------------------------------


def test_a_host_that_is_not_planned_is_known_by_what_load_balancers_have() -> None:
    plan = edited_plan()
    part = replace(plan, hosts=plan.hosts[:1])
    model = model_of(part)
    found = model.instances["n2", "llama-1"]
    assert (found.deployment, found.engine, found.models) == ("llama", "n2/llama-1", (MODEL,))
    assert (found.listen, found.port, found.ready, found.key) == ("192.0.2.12", 8001, True, "")
    assert model.counts == {("n1", MODEL): 4}
    assert ("n2", "private-0") not in model.instances


@pytest.mark.parametrize("which", ["unreachable", "excluded"])
def test_a_host_that_does_not_answer_serves_nothing(which: str) -> None:
    plan = edited_plan()
    model = model_of(replace(plan, hosts=plan.hosts[:1], **{which: (("n2", "no route"),)}))
    assert sorted(model.instances) == [("n1", name) for name in NAMES]
    assert model.counts == {("n1", MODEL): 2}


# ---- load balancers ----------------------------------------------------------------------------------

SERVERS = {f"llama/{host}.llama-{at}:800{at}" for host in HOSTS for at in (0, 1)}
DRAINED = "llama/n1.llama-0:8000"


def drained_by(who: str) -> Site:
    site = copy.deepcopy(settled(BASE))
    site.seen["n1"]["out"] = {DRAINED: {"by": who, "since": "2026-11-01T00:00:00Z"}}
    return site


@pytest.mark.parametrize("who", ["operator", "run"])
def test_a_load_balancer_is_as_it_was_observed(who: str) -> None:
    (found,) = model_of(planned(edited(BASE, **FLAG), drained_by(who)).plan).balancers.values()
    assert (found.name, found.exists, found.absent, found.key) == ("n1", True, False, PRESENT)
    assert (set(found.servers), found.unproven, found.drained) == (SERVERS, set(), {DRAINED})
    assert found.by_operator == (frozenset({("n1", "llama-0")}) if who == "operator" else frozenset())


def test_a_load_balancer_that_does_not_run() -> None:
    site = copy.deepcopy(settled(BASE))
    site.seen["n1"]["running"] = False
    (found,) = model_of(planned(BASE, site).plan).balancers.values()
    assert (found.exists, set(found.servers)) == (False, SERVERS)


def test_a_load_balancer_that_has_yet_to_be_made() -> None:
    site = settled(edited(BASE, balancers={}))
    (found,) = model_of(planned(BASE, site).plan).balancers.values()
    assert (found.exists, found.servers, found.key) == (False, {}, "")


def test_a_load_balancer_of_another_tool_that_runs_is_none_of_ours() -> None:
    plan = planned(BASE, settled(BASE)).plan
    (own,) = plan.balancers
    assert own.host.observed
    foreign = replace(own.host, observed=replace(own.host.observed, config={}))
    (found,) = model_of(replace(plan, balancers=(replace(own, host=foreign),))).balancers.values()
    assert (found.exists, found.servers) == (False, {})


def test_a_load_balancer_with_another_key_sends_the_former_one() -> None:
    (found,) = model_of(planned(edited(BASE, key="second"), settled(BASE)).plan).balancers.values()
    assert found.key == FORMER


BOTH = edited(BASE, balancers={"n1": "192.0.2.11", "n2": "192.0.2.12"})


@pytest.mark.parametrize("key", ["first", "second"])
def test_a_load_balancer_outside_the_group_is_as_it_was_observed(key: str) -> None:
    """It sends the key that those of the group send, or another one; nobody asks it."""
    site = copy.deepcopy(settled(BOTH))
    site.seen["n2"]["out"] = {DRAINED: {"by": "run"}, "llama/gone": {"by": "run"}}
    found = model_of(planned(edited(BASE, key=key), site).plan).balancers["n2"]
    assert (found.exists, found.absent, found.unproven) == (True, True, set())
    assert (set(found.servers), found.drained) == (SERVERS, {DRAINED})
    assert found.key == (PRESENT if key == "first" else FORMER)


def test_a_load_balancer_outside_the_group_that_stopped_or_sends_no_key() -> None:
    site = copy.deepcopy(settled(BOTH))
    site.seen["n2"]["running"] = False
    del site.seen["n2"]["files"]["instance.map"]
    found = model_of(planned(BASE, site).plan).balancers["n2"]
    assert (found.exists, found.key) == (False, "")


def test_a_load_balancer_outside_the_group_that_cannot_be_read() -> None:
    plan = planned(BASE, settled(BOTH)).plan
    unread = tuple(replace(item, observed=None) for item in plan.former)
    found = model_of(replace(plan, former=unread)).balancers["n2"]
    assert (found.exists, found.absent, found.servers, found.key) == (True, True, {}, "")


def test_what_only_a_load_balancer_outside_the_group_has_is_not_known() -> None:
    plan = planned(BASE, settled(BOTH)).plan
    alone = replace(plan, hosts=plan.hosts[:1], balancers=())
    assert sorted(model_of(alone).instances) == [("n1", name) for name in NAMES]


def test_nothing_is_known_to_run_on_a_host_that_was_not_read() -> None:
    plan = edited_plan()
    unread = replace(plan.hosts[1], host=replace(plan.hosts[1].host, state=None))
    found = model_of(replace(plan, hosts=(plan.hosts[0], unread)))
    assert sorted(found.instances) == [("n1", name) for name in NAMES]
    assert found.keys.get("n2") is None
