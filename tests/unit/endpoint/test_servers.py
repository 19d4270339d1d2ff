# SPDX-License-Identifier: Apache-2.0
"""The servers of a load balancer before, during and after a run: where instances are reached, and for which names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import BackendInstance
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    ObservedBalancer,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.backends import group_servers
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.config import config_data
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import (
    BackendServer,
    HostBackends,
    changing_servers,
    present_servers,
    reached_at,
    routable_instances,
    seen_servers,
    wanted_servers,
)

from tests.worlds.balancer_world import host
from tests.worlds.defaults import balancer_settings

LB = host()
HOSTS = {"n1": "192.0.2.11", "n2": "192.0.2.12"}


def instance(name: str = "a-0", port: int = 8000, models: str = "x", **keys: Any) -> BackendInstance:
    given = {"listen": HOSTS["n1"], "limit": 7, "weight": 2, **keys}
    deployment = name.rpartition("-")[0]
    return BackendInstance(
        name, deployment, tuple(models.split()), given.pop("listen"), port, (port,), **given
    )


def on(*instances: BackendInstance, name: str = "n1", **keys: Any) -> HostBackends:
    return HostBackends(name, HOSTS.get(name, name), instances, **keys)


def server(name: str = "a-0", port: int = 8000, models: str = "x", **keys: Any) -> BackendServer:
    given = {"host": "n1", "limit": 7, "weight": 2, **keys}
    address = given.pop("address", HOSTS.get(given["host"], "198.51.100.1"))
    deployment = name.rpartition("-")[0]
    return BackendServer(
        given.pop("host"), name, deployment, address, port, given.pop("limit"), tuple(models.split()), **given
    )


def seen(*servers: BackendServer) -> Any:
    """A load balancer that has these servers."""
    config = config_data(balancer_settings(), group_servers(servers))
    return replace(LB, observed=ObservedBalancer(running=True, config=config))


# ---- a server ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "name", "target"),
    [
        (server(), "n1.a-0:8000", "192.0.2.11:8000"),
        (server(number=2), "n1.a-0:8000:2", "192.0.2.11:8000"),
        (server(address="2001:db8::1"), "n1.a-0:8000", "[2001:db8::1]:8000"),
    ],
)
def test_what_a_server_is_called_and_where_it_leads(made: BackendServer, name: str, target: str) -> None:
    assert (made.name, made.target) == (name, target)
    assert (made.of, made.place) == (("n1", "a-0"), ("a-0", made.address, 8000))


def test_the_agent_knows_a_server_by_its_address_and_first_name() -> None:
    probe = server().to_json()["probe"]
    assert len(probe) == 16
    for same in (
        server(number=2),
        server("b-0"),
        server(host="n2", address=HOSTS["n1"]),
        server(models="x y"),
    ):
        assert same.to_json()["probe"] == probe
    for other in (server(port=8001), server(address="192.0.2.99"), server(models="y x")):
        assert other.to_json()["probe"] != probe


@pytest.mark.parametrize("made", [server(), server(weight=5, number=3, coming=True), server(models="x y")])
def test_a_server_is_read_as_it_was_written(made: BackendServer) -> None:
    assert list(
        seen_servers({"backends": [{"name": "b", "models": [], "servers": [made.to_json()]}]}).items()
    ) == [(f"b/{made.name}", made)]


def test_a_server_of_an_older_release_has_what_its_backend_says() -> None:
    old = {
        "name": "n1.a-0:8000",
        "host": "n1",
        "instance": "a-0",
        "address": "192.0.2.11",
        "port": 8000,
        "limit": 7,
    }
    config = {"backends": [{"name": "a", "models": ["x", "y"], "servers": [old]}]}
    assert seen_servers(config) == {"a/n1.a-0:8000": server(models="x y", weight=1)}
    assert seen_servers({}) == seen_servers({"backends": None}) == {}


# ---- where an instance is reached --------------------------------------------------------------------

UNREACHED = "which load balancer lb cannot reach"
NOT_ITS = "which is not an address of n1"


@pytest.mark.parametrize(
    ("listen", "keys", "lb", "address", "problem"),
    [
        ("192.0.2.11", {}, LB, "192.0.2.11", ""),
        ("198.51.100.1", {}, LB, "198.51.100.1", ""),
        ("0.0.0.0", {}, LB, "192.0.2.11", ""),
        ("::", {}, LB, "192.0.2.11", ""),
        ("127.0.0.1", {}, LB, "127.0.0.1", UNREACHED),
        ("localhost", {}, LB, "localhost", UNREACHED),
        ("0.0.0.0", {}, host(name="n1"), "127.0.0.1", ""),
        ("localhost", {}, host(name="n1"), "127.0.0.1", ""),
        ("127.0.0.1", {}, host(name="n1"), "127.0.0.1", ""),
        ("::", {}, host(name="n1"), "::1", ""),
        ("::1", {}, host(name="n1"), "::1", ""),
        ("192.0.2.11", {}, host(name="n1"), "192.0.2.11", ""),
        # What a node has recorded.
        ("192.0.2.11", {"recorded": True}, LB, "192.0.2.11", ""),
        ("0.0.0.0", {"recorded": True}, LB, "192.0.2.11", ""),
        ("127.0.0.1", {"recorded": True}, LB, "127.0.0.1", UNREACHED),
        ("127.0.0.1", {"recorded": True}, host(name="n1"), "127.0.0.1", ""),
        ("198.51.100.1", {"recorded": True}, LB, "198.51.100.1", NOT_ITS),
        ("203.0.113.7", {"recorded": True}, LB, "203.0.113.7", ""),  # the inventory gives it to the host
        ("198.51.100.1", {"recorded": True}, seen(server(address="198.51.100.1")), "198.51.100.1", ""),
        ("198.51.100.1", {"recorded": True}, seen(server("b-0", address="198.51.100.1")), "198.51.100.1", NOT_ITS),
        ("198.51.100.1", {"recorded": True}, seen(server(host="n2", address="198.51.100.1")), "198.51.100.1", NOT_ITS),
    ],
)  # fmt: skip
def test_where_a_load_balancer_reaches_an_instance(
    listen: str, keys: dict[str, Any], lb: Any, address: str, problem: str
) -> None:
    item = instance(listen=listen, path=("vllm_deployments", 3), **keys)
    found, problems = reached_at(item, on(item, trusted=frozenset({"203.0.113.7"})), lb)
    assert found == address
    assert [problem in one.what for one in problems] == ([True] if problem else [])
    for one in problems:
        assert one.hosts == ("n1",)
        assert one.path == (() if problem == NOT_ITS else ("vllm_deployments", 3, "listen"))


# ---- after and before a run --------------------------------------------------------------------------


def test_what_serves_clients_is_wanted() -> None:
    others = instance("b-0", 8001, headless=True), instance("c-0", 8002, endpoint=False)
    gpu_host = on(instance(), *others)
    assert routable_instances(gpu_host) == (instance(),)
    assert wanted_servers(LB, [gpu_host], ["n1"]) == ((server(),), [], ())


def test_what_cannot_be_reached_is_a_problem_or_left_to_others() -> None:
    here = instance(listen="127.0.0.1"), instance("b-0", 8001)
    servers, problems, unreached = wanted_servers(LB, [on(*here)], ["n1"])
    assert ([one.name for one in servers], len(problems), unreached) == (
        ["n1.a-0:8000", "n1.b-0:8001"],
        1,
        (),
    )
    recorded = tuple(replace(one, recorded=True) for one in here)
    assert wanted_servers(LB, [on(*recorded)], ["n1"]) == ((server("b-0", 8001),), [], ("a",))


@pytest.mark.parametrize(
    ("planned", "fleet", "stay"),
    [
        ([], ["n1", "n2"], ["n1.a-0:8000", "n2.b-0:8000"]),
        ([], ["n2"], ["n2.b-0:8000"]),
        ([on()], ["n1", "n2"], ["n2.b-0:8000"]),
        ([on(complete=False)], ["n1", "n2"], ["n1.a-0:8000", "n2.b-0:8000"]),
        ([on(untouched=("a-0",))], ["n1", "n2"], ["n1.a-0:8000", "n2.b-0:8000"]),
        ([on(untouched=("b-0",))], ["n1", "n2"], ["n2.b-0:8000"]),
        # One that is there again is one server.
        ([on(instance(port=9000), untouched=("a-0",))], ["n1", "n2"], ["n1.a-0:9000", "n2.b-0:8000"]),
    ],
)
def test_which_servers_stay(planned: list[HostBackends], fleet: list[str], stay: list[str]) -> None:
    lb = seen(server(), server("b-0", host="n2"))
    servers, problems, unreached = wanted_servers(lb, planned, fleet)
    assert ([one.name for one in servers], problems, unreached) == (stay, [], ())


def test_before_a_run_a_load_balancer_has_its_configuration() -> None:
    running = on(
        present=(instance("b-0", 8001), instance("c-0", endpoint=False), instance("d-0", listen="::1"))
    )
    assert present_servers(seen(server()), [running]) == (server(),)
    # A new one has what runs, and what it reaches.
    for new in (LB, replace(LB, observed=ObservedBalancer())):
        assert present_servers(new, [running]) == (server("b-0", 8001),)


# ---- during a run ------------------------------------------------------------------------------------


def shown(servers: tuple[BackendServer, ...]) -> list[str]:
    return [" ".join([one.name, *one.models, *(["coming"] if one.coming else [])]) for one in servers]


MOVED = server(port=9000)


@pytest.mark.parametrize(
    ("after", "before", "during"),
    [
        ([], [], []),
        ([server()], [server()], ["n1.a-0:8000 x"]),
        ([server()], [], ["n1.a-0:8000 x coming"]),
        ([], [server()], ["n1.a-0:8000 x"]),
        ([MOVED], [server()], ["n1.a-0:8000 x", "n1.a-0:9000 x"]),
        ([server(address="192.0.2.99")], [server()], ["n1.a-0:8000 x", "n1.a-0:8000:2 x"]),
        ([server(models="y")], [server()], ["n1.a-0:8000 x", "n1.a-0:8000:2 y"]),
        ([server(models="x y")], [server()], ["n1.a-0:8000 x", "n1.a-0:8000:2 y"]),
        # What stays keeps the name of the server, whichever name comes first.
        ([server()], [server(models="y x")], ["n1.a-0:8000 x", "n1.a-0:8000:2 y"]),
        ([server(models="x z")], [server(models="w x y")],
         ["n1.a-0:8000 x", "n1.a-0:8000:2 w y", "n1.a-0:8000:3 z"]),
        # Another instance is to get the port: it may answer to some of the names only.
        ([server("b-0", models="x"), server(port=9000, models="x y")], [server(models="x y")],
         ["n1.a-0:8000 x", "n1.a-0:8000:2 y", "n1.b-0:8000 x coming", "n1.a-0:9000 x y"]),
        # A change that was cut off.
        ([server(models="x y")], [server(), server(models="y", number=2)], ["n1.a-0:8000 x", "n1.a-0:8000:2 y"]),
        ([MOVED], [server(), replace(MOVED, coming=True)], ["n1.a-0:8000 x", "n1.a-0:9000 x coming"]),
        # A server without a name, as of older releases.
        ([], [server(models="")], ["n1.a-0:8000"]),
        ([server(models="")], [], ["n1.a-0:8000 coming"]),
    ],
)  # fmt: skip
def test_servers_during_a_change(
    after: list[BackendServer], before: list[BackendServer], during: list[str]
) -> None:
    assert shown(changing_servers(after, before)) == during


@pytest.mark.parametrize(
    ("running", "expected"),
    [
        (server(), "n1.a-0:8000 x"),
        (server(models="x y"), "n1.a-0:8000 x"),
        (server(host="n2", address=HOSTS["n1"]), "n1.a-0:8000 x"),  # a host that has another name now
        (server(models="y"), "n1.a-0:8000 x coming"),
        (server(port=9000), "n1.a-0:8000 x coming"),
        (server("b-0"), "n1.a-0:8000 x coming"),
        (server(address="192.0.2.99"), "n1.a-0:8000 x coming"),
    ],
)
def test_what_runs_already_is_not_to_come(running: BackendServer, expected: str) -> None:
    assert shown(changing_servers([server()], [], [running])) == [expected]
    # Nor is what was to come in a run that died, and has started since.
    assert shown(changing_servers([server()], [server(coming=True)], [running])) == [expected]


def test_what_stays_has_the_limit_weight_and_host_that_it_will_have() -> None:
    """And a name that goes keeps the former ones as long as it is asked."""
    before = server(models="x y", limit=1, weight=1)
    after = server(host="n2", address=HOSTS["n1"], limit=9, weight=4)
    stays, goes = changing_servers([after], [before])
    assert (stays.host, stays.models, stays.limit, stays.weight, stays.coming) == ("n2", ("x",), 9, 4, False)
    assert (goes.host, goes.models, goes.limit, goes.weight) == ("n2", ("y",), 1, 1)
