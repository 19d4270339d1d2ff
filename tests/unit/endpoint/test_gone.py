# SPDX-License-Identifier: Apache-2.0
"""Servers that a load balancer forgets while their instances go on, and what is said of hosts that left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import BackendInstance
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    ObservedBalancer,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.gone import (
    departures,
    gone_servers,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import (
    BackendServer,
    HostBackends,
)

from tests.worlds.balancer_world import host
from tests.worlds.simulated_fleet import server

HERE = server()
NAME = f"b/{HERE.name}"


def gpu_host(name: str = "n1", port: int = 8000, **keys: Any) -> HostBackends:
    """A host with an instance that answers at this port."""
    item = BackendInstance("llama-0", "llama", ("m",), "192.0.2.11", port, (port,), 4)
    return HostBackends(name, "192.0.2.11", (item,), **keys)


def drained(by: str, name: str = NAME) -> ObservedBalancer:
    return ObservedBalancer(drained={name: {"state": "drain", "by": by}})


@pytest.mark.parametrize(
    ("after", "hosts", "fleet", "observed", "gone"),
    [
        ([], [gpu_host()], {"n1"}, None, True),  # it answers there, and is asked no more
        ([], [], set(), None, True),  # its host left
        ([], [], {"n1"}, None, False),  # something else drains it
        ([HERE], [gpu_host()], {"n1"}, None, False),
        ([HERE], [], set(), None, False),
        ([server("renamed", address=HERE.address)], [], {"renamed"}, None, False),
        ([server(port=8001)], [gpu_host(port=8001)], {"n1"}, None, False),  # the change of its port drains it
        ([server(address="192.0.2.99")], [gpu_host()], {"n1"}, None, True),  # reached in another way
        ([], [gpu_host(stopping=("llama-0",))], {"n1"}, None, False),
        ([], [gpu_host(stopping=("llama-1",))], {"n1"}, None, True),
        ([], [gpu_host("n2")], {"n1", "n2"}, None, False),
        ([], [], set(), drained("operator"), False),
        ([], [], set(), drained("run"), True),
        ([], [], set(), drained("operator", "b/another"), True),
        ([], [], set(), ObservedBalancer(), True),
    ],
)
def test_which_servers_are_drained_before_they_are_forgotten(
    after: list[BackendServer],
    hosts: list[HostBackends],
    fleet: set[str],
    observed: ObservedBalancer | None,
    gone: bool,
) -> None:
    assert gone_servers({NAME: HERE}, after, hosts, fleet, observed) == ((NAME,) if gone else ())


# ---- what is said of hosts that left -----------------------------------------------------------------

TWO = (server("n9", "llama-10"), server("n9", "llama-2"))
RUN = "{count} keep{s} running there and using the GPUs."
DRAINED = "the instances there (llama-2, llama-10) are drained; unless they were stopped, they keep running."


def balancers(*drains: set[str], servers: tuple[BackendServer, ...] = TWO) -> list[Any]:
    """Load balancers that all have these servers, each with those that are drained in it."""
    config = {"backends": [{"name": "b", "models": ["m"], "servers": [one.to_json() for one in servers]}]}
    made = []
    for number, names in enumerate(drains):
        seen = ObservedBalancer(config=config, drained={f"b/{name}": {"by": "run"} for name in names})
        made.append((replace(host(name=f"lb{number}"), observed=seen), []))
    return made


ALL = {one.name for one in TWO}


@pytest.mark.parametrize(
    ("lbs", "said"),
    [
        (balancers(set()), RUN.format(count="2 containers (llama-2, llama-10)", s="")),
        (balancers(set(), servers=TWO[1:]), RUN.format(count="1 container (llama-2)", s="s")),
        (balancers({TWO[0].name}), RUN.format(count="2 containers (llama-2, llama-10)", s="")),
        (balancers(ALL), DRAINED),
        (balancers(ALL, set()), RUN.format(count="2 containers (llama-2, llama-10)", s="")),
        (balancers(set(), ALL), RUN.format(count="2 containers (llama-2, llama-10)", s="")),
        (balancers(ALL, ALL), DRAINED),
    ],
)
def test_what_stays_on_a_host_that_left(lbs: list[Any], said: str) -> None:
    (text,) = departures(lbs, {"n1"})
    assert text.startswith(f"n9 left the inventory: {said} The instances' key")
    assert departures(lbs, {"n1", "n9"}) == []
    assert departures([(there, TWO) for there, _after in lbs], {"n1"}) == []  # reached under another name


def test_a_load_balancer_that_was_not_seen_tells_nothing() -> None:
    assert departures([(host(absent="--limit leaves it out"), [])], {"n1"}) == []
