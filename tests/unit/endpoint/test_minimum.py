# SPDX-License-Identifier: Apache-2.0
"""No drain takes a deployment below its minimum in service: real HAProxies, and the playbooks that operators run."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint import drain as drain_module
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.drain import (
    ServerStateRequest,
    find_servers,
    set_state,
)
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.installed import Balancer
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.modules import balancer_server

from tests.helpers.eventually import GENEROUS, eventually
from tests.worlds.balancer_node import BalancerNode, Site

HOSTS = ("n1", "n2")
ALL = ["n1.llama-0", "n1.llama-1", "n2.llama-0", "n2.llama-1"]
N1, N2 = ALL[:2], ALL[2:]
WORD = "-e", "at_once=true"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path, as those of sockets have to be."""
    with tempfile.TemporaryDirectory() as found:
        yield Path(found)


@pytest.fixture
def node(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BalancerNode]:
    """A load balancer of two hosts with two instances each."""
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(place / "lb-01/run"))
    made = BalancerNode(place / "lb-01", hosts=HOSTS, count=4)
    yield made
    made.world.close()


def drain(node: BalancerNode, by: str = "operator", min_available: Any = None, **wanted: Any) -> None:
    names = find_servers(node.balancer, **wanted)
    set_state(node.balancer, ServerStateRequest(names, "drain", by, 0, False, min_available), False)


def down(node: BalancerNode, host: str) -> None:
    """The instances of a host die."""
    world = node.world
    before = world.up()
    for server in world.data["backends"][0]["servers"]:
        if server["host"] == host:
            world.engines.pop(server["port"]).stop()
    eventually("HAProxy to see it", lambda: world.up() < before and world.up() == len(world.engines))


def test_half_may_go_and_no_more(node: BalancerNode) -> None:
    with pytest.raises(NodeError) as caught:
        drain(node)
    assert str(caught.value) == (
        "Nothing was drained. llama: 4 of 4 serve; this would leave 0, and 2 must stay in service "
        "(rollout_min_available: 50%). Take fewer at a time: --limit n1. To do it anyway, with 503 for clients: "
        "-e at_once=true."
    )
    assert (node.drained(), node.balancer.drain_record.read()) == ([], {})
    drain(node, hosts=["n1"])
    assert node.drained() == N1
    with pytest.raises(NodeError, match="2 of 4 serve; this would leave 1"):
        drain(node, hosts=["n2"], instance="llama-0")
    drain(node, hosts=["n1"])  # once more
    assert node.drained() == N1


def test_what_a_run_drained_is_no_capacity(node: BalancerNode) -> None:
    drain(node, by="run", hosts=["n2"])
    with pytest.raises(NodeError, match="this would leave 0"):
        drain(node, hosts=["n1"])
    drain(node, hosts=["n2"])  # the operator's, from now on


def test_what_is_down_is_no_capacity_and_can_be_drained(node: BalancerNode) -> None:
    down(node, "n1")
    with pytest.raises(
        NodeError, match=r"2 of 4 serve; this would leave 0, .* First return others to service"
    ):
        drain(node, hosts=["n2"])
    drain(node, hosts=["n1"])
    assert node.drained() == N1


@pytest.fixture
def coming(node: BalancerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The instances of the first host came in this run."""
    servers = {name: {**one, "coming": one["host"] == "n1"} for name, one in node.balancer.servers().items()}
    monkeypatch.setattr(Balancer, "servers", lambda _balancer: servers)


@pytest.mark.usefixtures("coming")
def test_what_started_just_now_is_waited_for(node: BalancerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of this run's new instances are up as soon as they were checked."""
    monkeypatch.setattr(drain_module, "CHECK_SECONDS", GENEROUS)
    for name in find_servers(node.balancer, hosts=["n1"]):
        node.balancer.haproxy.ask(f"set server {name} health down")
    drain(node, hosts=["n2"])
    assert node.drained() == N2


def test_a_run_waits_for_what_it_has_started_where_others_had_been(
    node: BalancerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers that are configured as before, of instances that this run started again; an operator need not wait."""
    monkeypatch.setattr(drain_module, "CHECK_SECONDS", GENEROUS)
    servers = find_servers(node.balancer, hosts=["n1"])

    def is_down() -> None:
        for name in servers:
            node.balancer.haproxy.ask(f"set server {name} health down")

    def refused_or_drained(by: str) -> str:
        is_down()
        try:
            drain(node, by, hosts=["n2"])
        except NodeError as error:
            return str(error)
        return ""

    assert refused_or_drained("operator").startswith("Nothing was drained. llama: 2 of 4 serve")
    assert refused_or_drained("run") == ""
    assert node.drained() == N2


def test_batches_that_were_proved_wait_too_and_are_not_refused(
    node: BalancerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their plan counts on what the run has started before."""
    monkeypatch.setattr(drain_module, "CHECK_SECONDS", GENEROUS)
    servers, theirs = find_servers(node.balancer, hosts=["n1"]), find_servers(node.balancer, hosts=["n2"])
    for name in servers:
        node.balancer.haproxy.ask(f"set server {name} health down")
    set_state(node.balancer, ServerStateRequest(theirs, "drain", "run", 0), False)
    now = node.balancer.haproxy.servers()
    assert (node.drained(), any(now[name].up for name in servers)) == (N2, True)
    monkeypatch.setattr(drain_module, "CHECK_SECONDS", 0.5)
    set_state(node.balancer, ServerStateRequest(servers, "drain", "run", 0), False)
    assert node.drained() == [*N1, *N2]


@pytest.mark.usefixtures("coming")
def test_what_does_not_come_is_not_waited_for_forever(
    node: BalancerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "CHECK_SECONDS", 0.5)
    down(node, "n1")
    with pytest.raises(NodeError, match="Nothing was drained"):
        drain(node, hosts=["n2"])


def test_a_plan_that_names_servers_takes_whole_hosts(
    node: BalancerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """partition.yml has no -e instance=…: what it could not do is not advised."""
    monkeypatch.setattr(balancer_server, "Balancer", lambda: node.balancer)
    drain(node, by="run", hosts=["n1"], instance="llama-0")
    options = {"state": "drain", "by": "run", "at_once": False, "min_available": None, "wait": 0}
    n2 = list(find_servers(node.balancer, hosts=["n2"]))
    with pytest.raises(NodeError, match=r"First return others to service: llama-0 on n1 \("):
        balancer_server.work({**options, "servers": n2}, False)
    chosen = {"hosts": ["n2"], "deployment": None, "instance": None, "instances": None, "optional": False}
    with pytest.raises(NodeError, match="--limit n2 -e instance=llama-0"):
        balancer_server.work({**options, **chosen, "servers": None}, False)


def test_a_refusal_says_what_its_caller_advises(node: BalancerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts of these servers left the inventory: no --limit can name them."""
    monkeypatch.setattr(balancer_server, "Balancer", lambda: node.balancer)
    options = {"state": "drain", "by": "run", "at_once": False, "min_available": 1, "wait": 0}
    everything = list(find_servers(node.balancer))
    with pytest.raises(NodeError) as caught:
        balancer_server.work({**options, "servers": everything, "advice": "Repair the others."}, False)
    assert str(caught.value).endswith(
        "this would leave 0, and the last one must stay in service. Repair the others."
    )
    n1 = list(find_servers(node.balancer, hosts=["n1"]))
    balancer_server.work({**options, "servers": n1, "advice": "Repair the others."}, False)
    assert node.drained() == N1


@pytest.mark.parametrize(
    ("min_available", "said"),
    [
        ("75%", "3 must stay"), (0, ""), ("1", ""),
        ("most", "rollout_min_available: 'most' is not a number of engines"),
        (1.5, "rollout_min_available: 1.5 is not a number"),
    ],
)  # fmt: skip
def test_the_operators_minimum(node: BalancerNode, min_available: Any, said: str) -> None:
    if said:
        with pytest.raises(NodeError, match=said):
            drain(node, hosts=["n1"], min_available=min_available)
    else:
        drain(node, hosts=["n1"], min_available=min_available)
        with pytest.raises(NodeError, match="the last one must stay in service"):
            drain(node, hosts=["n2"], min_available=min_available)
    assert node.drained() == ([] if said else N1)


def test_of_two_drains_at_once_the_second_sees_the_first(
    node: BalancerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have begun before one of them decides."""
    waiting, failed = set(), []
    begun, holder = threading.Event(), run_lock._try_lock

    def try_lock(descriptor: int) -> bool:
        waiting.add(threading.get_ident())
        begun.wait(60)
        return holder(descriptor)

    monkeypatch.setattr(run_lock, "_try_lock", try_lock)

    def one(host: str) -> None:
        try:
            drain(node, hosts=[host])
        except NodeError as error:
            failed.append(str(error))

    threads = [threading.Thread(target=one, args=(host,)) for host in HOSTS]
    for thread in threads:
        thread.start()
    eventually("both", lambda: len(waiting) == 2)
    time.sleep(0.2)
    begun.set()
    for thread in threads:
        thread.join(60)
    (text,) = failed
    assert "2 of 4 serve; this would leave 0" in text
    assert node.drained() in (N1, N2)


# ---- as operators do it ------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("args", [(), ("-e", "deployment=llama"), ("--check",)])
def test_drain_yml_takes_no_more_than_may_go(node: BalancerNode, place: Path, args: Sequence[str]) -> None:
    rc, out = Site(place, [node], HOSTS).play("drain", *args)
    assert rc == 2, out
    assert (
        "llama: 4 of 4 serve; this would leave 0, and 2 must stay in service (rollout_min_available: 50%)."
        in out
    )
    assert "Take fewer at a time: --limit n1. To do it anyway" in out
    assert node.drained() == []


@pytest.mark.deep
def test_drain_yml(node: BalancerNode, place: Path) -> None:
    site = Site(place, [node], HOSTS)
    rc, out = site.play("drain", "--limit", "n1")
    assert (rc, node.drained()) == (0, N1), out
    rc, out = site.play("drain", "--limit", "n2")
    assert (rc, node.drained()) == (2, N1), out
    rc, out = site.play("drain", "--limit", "n2", *WORD)
    assert (rc, node.drained()) == (0, ALL), out


@pytest.mark.deep
def test_two_drains_with_two_load_balancers(node: BalancerNode, place: Path) -> None:
    """One of them is done, at both load balancers, and the other at none."""
    other = BalancerNode(place / "lb-02", hosts=HOSTS, count=4)
    site = Site(place, [node, other], HOSTS)
    try:
        both = [site.start("drain", "--limit", host) for host in HOSTS]
        ended = [wait() for wait in both]
        assert sorted(rc for rc, _out in ended) == [0, 2], ended
        assert node.drained() == other.drained() == (N1 if ended[0][0] == 0 else N2)
        # What the second one sees only: the first one is not drained either.
        rc, out = site.play("undrain")
        assert (rc, node.drained(), other.drained()) == (0, [], []), out
        down(other, "n1")
        rc, out = site.play("drain", "--limit", "n2")
        assert (rc, node.drained(), other.drained()) == (2, [], []), out
        assert "2 of 4 serve; this would leave 0" in out
    finally:
        other.world.close()


NOTED = """#!/usr/bin/python
# WANT_JSON
import json, os, sys
with open(sys.argv[1]) as file:
    given = json.load(file)
with open(os.environ["FAKE_ROOT"] + "/noted", "a") as log:
    log.write("".join(server["name"] + chr(10) for server in given["servers"]))
print(json.dumps({"changed": True}))
"""
"""In place of a module that changes instances: notes their names."""
STEP = {
    "stop": {
        "action": "vllm_server",
        "args": {"servers": [{"name": "llama-0"}, {"name": "llama-1"}], "state": "stopped"},
    }
}
BATCH = {"number": 1, "phases": ["stop"], "awaits": [], "all_hosts": [], "hosts": [], "units": [], "text": "all",
         "deployment": "llama", "operation": "stop", "canary": "", "held": None, "lost": [],
         "way_back": []}  # fmt: skip


@pytest.mark.deep
def test_stop_yml_stops_nothing_that_it_may_not_drain(node: BalancerNode, place: Path) -> None:
    """Also where the plan did not know better: another one drained meanwhile, as here n1."""
    part = {
        "rollout": {
            "operation": "stop",
            "batches": [BATCH],
            "steps": {"1": STEP},
            "soak": 0,
            "finish": None,
            "ignored": [],
        }
    }
    site = Site(place, [node], HOSTS, {"vllm_server": NOTED}, todo_rollout={"n2": {"fleet_host_plan": part}})
    noted = place / "noted"
    drain(node, hosts=["n1"])
    rc, out = site.play("stop.yml: Stop")
    assert (rc, node.drained(), noted.exists()) == (2, N1, False), out
    assert "llama: 2 of 4 serve; this would leave 0, and 2 must stay in service" in out
    rc, out = site.play("stop.yml: Stop", *WORD)
    assert (rc, node.drained()) == (0, ALL), out
    assert noted.read_text().split() == ["llama-0", "llama-1"]


@pytest.mark.deep
def test_hosts_reboot_only_if_all_of_them_can_be_drained(node: BalancerNode, place: Path) -> None:
    """No host of a batch is touched otherwise. Where they can, the play ends here at what stops instances."""
    fails = NOTED.replace('{"changed": True}', '{"failed": True, "msg": "far enough"}')
    todo = {"host_todo": {"instances": [{"name": "llama-0"}, {"name": "llama-1"}]}}
    site = Site(place, [node], HOSTS, {"vllm_server": fails}, todo_reboot=dict.fromkeys(HOSTS, todo))
    play, noted = "prepare.yml: Reboot, a few hosts at a time", place / "noted"
    rc, out = site.play(play, "-e", "reboot=true", "-e", "host_prep_serial=2")
    assert (rc, node.drained(), noted.exists()) == (2, [], False), out
    assert "llama: 4 of 4 serve; this would leave 0, and 2 must stay in service" in out
    rc, out = site.play(play, "-e", "reboot=true")
    assert (rc, node.drained()) == (2, N1), out
    assert noted.read_text().split() == ["llama-0", "llama-1"]


@pytest.mark.deep
def test_a_benchmark_loads_nothing_that_it_may_not_drain(node: BalancerNode, place: Path) -> None:
    """And returns what it drained. n2's second instance was drained meanwhile, so that n1's may not leave."""
    notes = NOTED.replace('server["name"]', 'given["state"] + server["name"]')
    notes = notes.replace(
        'for server in given["servers"]', 'for server in given.get("servers", given.get("targets"))'
    )
    benches = notes.replace('given["state"]', 'given["kind"]')
    quiet = "#!/usr/bin/python\n# WANT_JSON\nprint('{}')\n"
    fakes = {
        "vllm_server": notes,
        "vllm_bench": benches,
        **dict.fromkeys(("bench_report", "node_state"), quiet),
    }
    todo = {host: {"fleet_host_plan": {"rollout": _measurement(node, host)}} for host in HOSTS}
    site = Site(place, [node], HOSTS, fakes, todo_rollout=todo)
    play, noted = "parts/measure.yml: Measure, a few instances at a time", place / "noted"
    kinds = ("-e", '{"benchmark_kinds": ["latency"]}')
    rc, out = site.play(play, *kinds)
    assert (rc, node.drained()) == (0, []), out
    one = [f"{word}llama-0" for word in ("stopped", "latency", "started", "started")]
    assert noted.read_text().split() == one * 2
    noted.unlink()
    drain(node, hosts=["n2"], instance="llama-1")
    drain(node, hosts=["n2"], instance="llama-0")
    rc, out = site.play(play, *kinds)
    # n1 may not leave, and n2 is measured and stays drained, as that was the operator.
    assert (rc, node.drained()) == (2, N2), out
    assert "Failed: batch 1 of 2: n1 llama-0: n1: Nothing was drained. llama: 2 of 4 serve" in out
    assert noted.read_text().split() == ["startedllama-0", *one]


def _measurement(node: BalancerNode, host: str) -> dict[str, Any]:
    """The plan's part of a host, whose first instance is measured in a batch of its own."""
    number = HOSTS.index(host) + 1
    server = {"name": "llama-0"}
    names = find_servers(node.balancer, hosts=[host], instance="llama-0")
    mine = [{"balancer": node.name, "servers": list(names)}]
    ready = {"servers": mine, "state": "ready"}
    steps = {
        "drain": {"servers": mine, "state": "drain", "at_once": False},
        "measure": {"role": "benchmark", "instances": [{**server, "server": server}]},
        "serve": {"servers": [server], "state": "started"},
        "undrain": ready,
        "return": {**ready, "wait": 0},
    }
    actions = {"measure": "measurement", "serve": "vllm_server"}
    found = {
        phase: {"action": actions.get(phase, "balancer_server"), "args": args}
        for phase, args in steps.items()
    }
    batches = [
        {**BATCH, "number": index, "operation": "benchmark", "hosts": [name], "all_hosts": list(HOSTS),
         "phases": ["drain", "measure", "serve", "undrain"], "way_back": ["return", "serve"],
         "text": f"batch {index} of 2: {name} llama-0"}
        for index, name in enumerate(HOSTS, 1)
    ]  # fmt: skip
    return {
        "operation": "benchmark", "batches": batches, "steps": {str(number): found}, "soak": 0, "finish": None,
        "ignored": [], "measured_hosts": list(HOSTS), "returned": mine,
    }  # fmt: skip


def test_check_mode_of_a_run_knows_that_it_configures_before_it_drains(
    node: BalancerNode, tmp_path: Path
) -> None:
    """What the run would have added, or started, is not there; only the run's plan knows about it."""
    new = "llama/n3.llama-0:8000"
    names = (*find_servers(node.balancer, hosts=["n2"]), new)
    found = set_state(node.balancer, ServerStateRequest(names, "drain", "run", 0, False), True)
    assert found["actions"] == [f"set server {name} state drain" for name in names]
    none = Balancer(str(tmp_path / "etc"), str(tmp_path / "var"))
    found = set_state(none, ServerStateRequest((new,), "drain", "run", 0, False), True)
    assert found["actions"] == [f"set server {new} state drain"]
    for balancer in (node.balancer, none):
        with pytest.raises(NodeError, match=r"has no server|There is no load balancer"):
            set_state(balancer, ServerStateRequest((new,), "drain", "operator", 0, False), True)
