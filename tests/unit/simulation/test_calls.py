# SPDX-License-Identifier: Apache-2.0
"""What each call of a run does to a fleet, and which rules it breaks: on fleets of an instance or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import BackendServer
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.before import Templates
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.calls import (
    SimulatedRun,
    perform,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.model import (
    Running,
    SimulatedBalancer,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.rules import (
    IN_USE,
    NEEDS,
    TAKEN,
    Violation,
)

from tests.worlds.simulated_fleet import balancer, fleet, running, server

LLAMA = ("n1", "llama-0")
NAME, SECOND = "b/n1.llama-0:8000", "b/n1.llama-1:8001"


def run_on(
    *instances: Running,
    lbs: Sequence[SimulatedBalancer] = (),
    wanted: Sequence[Running] = (),
    **terms: Any,
) -> SimulatedRun:
    """A run on a fleet of these instances. wanted: those that it can start, by their names and spec hashes."""
    model = fleet(*instances, lbs=tuple(lbs))
    engines = {name: dict(parts) for name, parts in model.engines.items()}
    for item in wanted:
        engines.setdefault(item.engine, {})[item.of] = item.spec
    model.engines = engines
    known = Templates({}, {(*item.of, item.spec): item for item in wanted}, engines)
    given = {"awaited_images": {}, "images": {}, "partitions": set(), "at_once": False, "found": [], **terms}
    return SimulatedRun(model, known, step="now", changing=(LLAMA,), **given)


def out(*servers: BackendServer) -> SimulatedBalancer:
    """A load balancer in which these servers are drained."""
    made = balancer(*servers)
    made.drained = set(made.servers)
    return made


def call(run: SimulatedRun, action: str, args: Mapping[str, Any], host: str = "n1") -> list[Violation]:
    """Make a call, and return what it breaks."""
    perform(run, [(host, action, args)], lambda: None)
    return run.found


def broken(rule: str, what: str, *hosts: str) -> list[Violation]:
    return [Violation(rule, "now", what, hosts, (LLAMA,))]


# ---- load balancers ----------------------------------------------------------------------------------


def asks(state: str, *names: str, lb: str = "lb", **more: Any) -> dict[str, Any]:
    return {"servers": [{"balancer": lb, "servers": list(names)}], "state": state, **more}


def test_a_server_is_drained_and_returns() -> None:
    run = run_on(running(), lbs=[balancer(server())])
    assert call(run, "balancer_server", asks("drain", NAME)) == []
    assert (run.model.balancers["lb"].drained, run.model.counts["lb", "m"]) == ({NAME}, 0)
    assert call(run, "balancer_server", asks("ready", NAME)) == []
    # It has been waited for, so it has been checked.
    assert run.model.counts["lb", "m"] == 1
    assert run.model.balancers["lb"].unproven == set()


def test_who_does_not_wait_does_not_know_whether_it_serves() -> None:
    run = run_on(running(), lbs=[out(server())])
    assert call(run, "balancer_server", asks("ready", NAME, wait=0)) == []
    assert run.model.balancers["lb"].unproven == {NAME}
    assert run.model.counts.get(("lb", "m"), 0) == 0


def test_who_drains_waits_for_what_has_started() -> None:
    there = balancer(server(), server("n2"))
    there.unproven = {"b/n2.llama-0:8000"}
    run = run_on(running(), running("n2"), lbs=[there])
    assert run.model.counts["lb", "m"] == 1
    assert call(run, "balancer_server", asks("drain", NAME)) == []
    assert (run.model.counts["lb", "m"], there.awaited) == (1, {"b/n2.llama-0:8000"})


def test_what_the_operator_drained_stays_so() -> None:
    there = out(server(), server(name="llama-1", port=8001))
    there.by_operator = frozenset({LLAMA})
    run = run_on(running(), running(name="llama-1", port=8001), lbs=[there])
    assert call(run, "balancer_server", asks("ready", NAME, SECOND)) == []
    assert there.drained == {NAME}


@pytest.mark.parametrize("state", ["drain", "ready"])
@pytest.mark.parametrize("there", [True, False])
def test_a_load_balancer_is_configured_before_it_is_asked(state: str, there: bool) -> None:
    lbs = [balancer(server())] if there else []
    for one in lbs:
        one.exists = False
    run = run_on(running(), lbs=lbs)
    found = call(run, "balancer_server", asks(state, NAME))
    assert found == broken(NEEDS, "load balancer lb is asked before it is configured")
    assert not any(one.drained for one in lbs)


def test_a_server_has_to_be_there() -> None:
    run = run_on(running(), lbs=[balancer(server())])
    found = call(run, "balancer_server", asks("drain", "b/gone", NAME))
    assert found == broken(NEEDS, "load balancer lb has no server b/gone")
    assert run.model.balancers["lb"].drained == {NAME}


@pytest.mark.parametrize(("more", "waited_for"), [({}, True), ({"wait": 300}, True), ({"wait": 0}, False)])
def test_who_returns_is_waited_for(more: dict[str, int], waited_for: bool) -> None:
    run = run_on(running(ready=False), lbs=[out(server())])
    found = call(run, "balancer_server", asks("ready", NAME, **more))
    what = f"load balancer lb waits for {NAME}, whose instance does not answer there"
    assert found == (broken(NEEDS, what) if waited_for else [])


def test_who_leaves_is_not_waited_for() -> None:
    run = run_on(running(ready=False), lbs=[balancer(server())])
    assert call(run, "balancer_server", asks("drain", NAME)) == []


# ---- instances ---------------------------------------------------------------------------------------


def serve(*specs: str, **more: Any) -> dict[str, Any]:
    """Arguments for instances of these spec hashes, from the first on."""
    return {"servers": [{"name": f"llama-{at}", "spec_hash": spec} for at, spec in enumerate(specs)], **more}


@pytest.mark.parametrize(
    ("args", "stops"),
    [
        (serve("old"), False),
        (serve("new"), True),
        (serve("new", state="started"), False),
        (serve("old", state="started"), False),
        (serve("old", state="stopped"), True),
        (serve("new", state="stopped"), True),
        (serve(remove=["llama-0"]), True),
        (serve(remove=["llama-1"]), False),
        (serve(remove=None), False),
        ({"servers": [{"name": "llama-0"}]}, True),  # files without a hash are other files
        ({"servers": [{"name": "llama-1", "spec_hash": "new"}]}, False),
    ],
)
def test_what_a_call_stops(args: dict[str, Any], stops: bool) -> None:
    """Which no load balancer may be sending requests to."""
    new = [
        running(name=name, spec=spec, engine=f"{name} after")
        for name in ("llama-0", "llama-1")
        for spec in ("new", "old", "")
    ]
    run = run_on(running(spec="old"), lbs=[balancer(server())], wanted=new)
    found = call(run, "vllm_server", {**args, "wait": False})
    what = f"llama-0 stops while requests are sent to it by lb as {NAME}"
    assert [item for item in found if item.rule == IN_USE] == (broken(IN_USE, what, "n1") if stops else [])


def test_what_stops_is_gone() -> None:
    for at_once in (False, True):
        run = run_on(running(spec="old"), lbs=[balancer(server())], at_once=at_once)
        found = call(run, "vllm_server", serve("old", state="stopped"))
        assert run.model.instances == {}
        assert len(found) == (0 if at_once else 1)
    drained = run_on(running(spec="old"), lbs=[out(server())])
    assert call(drained, "vllm_server", serve("old", state="stopped")) == []


def test_all_load_balancers_that_ask_are_named() -> None:
    run = run_on(running(spec="old"), lbs=[balancer(server()), balancer(server(), name="second")])
    found = call(run, "vllm_server", serve("old", state="stopped"))
    what = f"llama-0 stops while requests are sent to it by lb as {NAME}, second as {NAME}"
    assert found == broken(IN_USE, what, "n1")


@pytest.mark.parametrize(("more", "ready"), [({}, True), ({"wait": True}, True), ({"wait": False}, False)])
def test_what_starts_is_waited_for(more: dict[str, Any], ready: bool) -> None:
    run = run_on(wanted=[running(spec="new", ready=False)])
    assert call(run, "vllm_server", serve("new", **more)) == []
    assert run.model.instances[LLAMA].ready is ready


def test_what_has_its_files_goes_on() -> None:
    """And what it works with from now on are the others of its new engine."""
    old = running(spec="same", engine="before")
    run = run_on(old, wanted=[running(spec="same", engine="before")])
    assert call(run, "vllm_server", serve("same", wait=False)) == []
    assert run.model.instances[LLAMA] is old
    moved = run_on(old, wanted=[replace(old, engine="after", ready=False)])
    assert call(moved, "vllm_server", serve("same", wait=False)) == []
    assert moved.model.instances[LLAMA].engine == "after"


def test_an_image_comes_first() -> None:
    terms = {"awaited_images": {"n1": {"image"}}, "images": {(*LLAMA, "new"): "image"}}
    run = run_on(wanted=[running(spec="new")], **terms)
    found = call(run, "vllm_server", serve("new"))
    assert found == broken(NEEDS, "llama-0 starts before its image image is there", "n1")
    for other in ({"n1": {"another"}}, {"n2": {"image"}}, {}):
        run = run_on(wanted=[running(spec="new")], **{**terms, "awaited_images": other})
        assert call(run, "vllm_server", serve("new")) == []


@pytest.mark.parametrize(("hosts", "allowed"), [({"n1"}, False), ({"n2"}, True), (set(), True)])
def test_partition_modes_come_first(hosts: set[str], allowed: bool) -> None:
    run = run_on(wanted=[running(spec="new")], partitions=hosts)
    what = "llama-0 starts before the GPUs have their partition modes"
    assert call(run, "vllm_server", serve("new")) == ([] if allowed else broken(NEEDS, what, "n1"))


def test_ports_and_gpus_are_free() -> None:
    there = running(name="llama-1", gpus=frozenset({"renderD128"}))
    run = run_on(there, wanted=[running(spec="new", gpus=frozenset({"renderD128"}))])
    found = call(run, "vllm_server", serve("new"))
    assert found == [
        *broken(TAKEN, "llama-0 starts with port 8000, on which llama-1 listens", "n1"),
        *broken(TAKEN, "llama-0 starts with GPU renderD128, which llama-1 uses", "n1"),
    ]


def test_the_servers_of_an_engine_are_waited_for_when_all_of_them_have_started() -> None:
    parts = [running(host, spec="new", engine="both", ready=False) for host in ("n1", "n2")]
    run = run_on(wanted=parts)
    found = call(run, "vllm_server", serve("new"))
    assert found == broken(NEEDS, "llama-0 waits for llama-0 on n2, which nobody has started", "n1")
    run = run_on(wanted=parts)
    perform(run, [(host, "vllm_server", serve("new", wait=False)) for host in ("n1", "n2")], lambda: None)
    perform(run, [(host, "vllm_server", serve("new")) for host in ("n1", "n2")], lambda: None)
    assert run.found == []
    assert run.model.works(LLAMA)


def test_all_hosts_take_away_before_one_of_them_gives() -> None:
    """What is counted in between is the least that is in service."""
    seen: list[dict[tuple[str, str], Running]] = []
    items = [running("n1", spec="old"), running("n2", spec="old")]
    run = run_on(*items, wanted=[replace(item, spec="new") for item in items])
    calls = [(host, "vllm_server", serve("new")) for host in ("n1", "n2")]
    perform(run, calls, lambda: seen.append(dict(run.model.instances)))
    assert seen == [{}]
    assert {item.spec for item in run.model.instances.values()} == {"new"}


# ---- measurements ------------------------------------------------------------------------------------

ITEM, BESIDE = {"name": "llama-0"}, {"name": "llama-1"}


@pytest.mark.parametrize(
    ("args", "measured"),
    [
        ({"phase": "before", "old": ITEM, "new": BESIDE}, True),
        ({"phase": "before", "old": BESIDE, "new": ITEM}, False),
        ({"phase": "after", "old": ITEM, "new": BESIDE}, False),
        ({"phase": "after", "new": ITEM}, True),
        ({"phase": "failed", "new": ITEM}, False),
        ({"phase": "before", "reference": ITEM}, True),
        ({"reference": ITEM}, True),
        ({"instances": [BESIDE, ITEM]}, True),
        ({"instances": [BESIDE]}, False),
        ({"new": {"name": ""}}, False),
        ({"reference": {"run": "before"}, "instances": [ITEM]}, True),
        ({"new": None, "instances": None}, False),
    ],
)
@pytest.mark.parametrize("action", ["canary", "measurement"])
def test_nothing_in_service_is_measured(action: str, args: dict[str, Any], measured: bool) -> None:
    run = run_on(running(), running(name="llama-1", port=8001), lbs=[balancer(server())])
    found = call(run, action, args)
    assert found == (broken(IN_USE, "llama-0 is measured while it is in service", "n1") if measured else [])
    allowed = run_on(running(), lbs=[balancer(server())], at_once=True)
    assert call(allowed, action, args) == []


@pytest.mark.parametrize("action", ["", "vllm_watch", "instance_cache", "serving_generation"])
def test_what_changes_nothing(action: str) -> None:
    run = run_on(running(), lbs=[balancer(server())])
    assert call(run, action, {"servers": [ITEM], "state": "stopped"}) == []
    assert run.model.serves("lb", NAME)
