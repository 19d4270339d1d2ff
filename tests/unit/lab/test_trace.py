# SPDX-License-Identifier: Apache-2.0
"""What is seen of a fleet fits a simulation, or is named: the proof of the lab tests can fail."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.simulation.model import Running

from tests.helpers.trace import DOWN, IN, OUT, UP, Look, State, not_contained
from tests.lab.callback.simulated import serves
from tests.lab.watch import servers
from tests.worlds.simulated_fleet import balancer, fleet, running, server

OLD, NEW = ("10.0.0.1", 8000), ("10.0.0.1", 8200)
SERVER = "chat/n1.chat-0:8000"
HEADER = "# pxname,svname,status,type,tracked"


def state(step: str, ports: dict[int, bool], balancer: dict[str, tuple[bool, bool]] | None = None) -> State:
    """A fleet of one host. ports: whether the instance there is ready; balancer: (drained, serves) of its servers."""
    found: dict[str, Any] = {
        "step": step,
        "hosts": ["n1"],
        "instances": [
            {
                "host": "n1",
                "name": f"chat-{port}",
                "listen": "10.0.0.1",
                "port": port,
                "ports": [port, port + 100],
                "ready": ready,
            }
            for port, ready in ports.items()
        ],
        "balancers": {}
        if balancer is None
        else {"n1": [[name, *values] for name, values in balancer.items()]},
    }
    return State.of(found)


def seen(at: float, *listening: tuple[str, int], servers: dict[str, tuple[str, str]] | None = None) -> Look:
    return Look(at, "n1", frozenset(listening), servers)


MOVE = [
    state("begin", {8000: True}),
    state("stop", {}),
    state("start", {8200: False}),
    state("ready", {8200: True}),
]


@pytest.mark.parametrize(
    ("looks", "why"),
    [
        ([seen(1, OLD), seen(2), seen(3, NEW)], ""),
        ([seen(1, OLD), seen(2, NEW)], ""),  # no look falls between the two
        ([seen(1, OLD), seen(2, ("10.0.0.1", 8100)), seen(3, NEW)], ""),  # an engine's own port
        ([seen(1, OLD), seen(2), seen(3, OLD), seen(4, NEW)], ""),  # stopping it takes a while
        ([seen(1, OLD), seen(2, OLD, NEW), seen(3, NEW)], "listens at 10.0.0.1:8200"),
        ([seen(1, NEW), seen(2, OLD)], "listens at 10.0.0.1:8000"),  # not in this order
        ([seen(1, OLD), seen(2, ("10.0.0.1", 9000)), seen(3, NEW)], "listens at 10.0.0.1:9000"),
        ([seen(1, OLD), seen(2)], "the last looks are not the end"),
        ([seen(1, OLD), seen(2, ("0.0.0.0", 8200))], "listens at 0.0.0.0:8200"),
    ],
)  # fmt: skip
def test_who_listens(looks: list[Look], why: str) -> None:
    found = not_contained(looks, MOVE)
    assert why in found
    assert bool(found) == bool(why)


DRAIN = [
    state("begin", {8000: True}, {SERVER: (False, True)}),
    state("drain", {8000: True}, {SERVER: (True, False)}),
    state("stop", {}, {SERVER: (True, False)}),
    state("start", {8000: True}, {SERVER: (True, False)}),
    state("return", {8000: True}, {SERVER: (False, True)}),
]


def look(at: float, drained: str, up: str, *listening: tuple[str, int]) -> Look:
    return seen(at, *listening, servers={SERVER: (drained, up)})


@pytest.mark.parametrize(
    ("looks", "why"),
    [
        ([look(1, IN, UP, OLD), look(2, OUT, UP, OLD), look(3, OUT, DOWN), look(4, IN, UP, OLD)], ""),
        ([look(1, IN, UP, OLD), look(2, OUT, UP, OLD), look(3, OUT, UP), look(4, IN, UP, OLD)], ""),
        ([look(1, IN, UP, OLD), look(2, IN, UP), look(3, IN, UP, OLD)], "does not listen at 10.0.0.1:8000"),
        ([look(1, IN, UP, OLD), look(2, OUT, UP, OLD)], "the last looks are not the end"),
        ([look(1, IN, UP, OLD), seen(2, OLD), look(3, IN, UP, OLD)], "load balancer n1 does not answer"),
        ([seen(1, OLD, servers={"chat/n1.chat-1:8001": (IN, UP)})], "has the servers chat/n1.chat-1:8001"),
    ],
)  # fmt: skip
def test_what_a_load_balancer_shows(looks: list[Look], why: str) -> None:
    found = not_contained(looks, DRAIN)
    assert why in found
    assert bool(found) == bool(why)


def test_a_server_that_is_up_where_nothing_answers() -> None:
    states = [
        state("begin", {8000: True}, {SERVER: (False, True)}),
        state("configure", {8000: True}, {SERVER: (False, True), "chat/n1.chat-0:8200": (False, False)}),
    ]
    both = {SERVER: (IN, UP), "chat/n1.chat-0:8200": (IN, DOWN)}
    assert not not_contained([seen(1, OLD, servers=both)], states)
    both["chat/n1.chat-0:8200"] = (IN, UP)
    assert "up, and nothing answers there" in not_contained([seen(1, OLD, servers=both)], states)


def test_what_haproxy_says() -> None:
    """A server in maintenance is drained, and one that tracks another is none of its own."""
    states = "\n".join(
        (
            "1",
            "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state",
            f"3 chat 1 a 10.0.0.1 2 0 {'- ' * 14}",
            f"3 chat 2 b 10.0.0.1 2 8 {'- ' * 14}",
            f"3 chat 3 c 10.0.0.1 0 1 {'- ' * 14}",
        )
    )
    rows = "chat,a,UP,2,\nchat,b,DRAIN,2,\nchat,c,MAINT,2,\nother,a,UP,2,chat/a\nchat,BACKEND,UP,1,"
    found = servers(f"{HEADER}\n{rows}\n\n{states}\n")
    assert found == {"chat/a": (IN, UP), "chat/b": (OUT, DOWN), "chat/c": (OUT, DOWN)}
    assert servers("") is None


@pytest.mark.parametrize(
    ("item", "address", "known"),
    [
        (running(), "192.0.2.11", True),
        (running(ready=False), "192.0.2.11", False),
        (running(port=8001), "192.0.2.11", False),
        (running(listen="0.0.0.0"), "192.0.2.11", True),
        (running(listen="0.0.0.0"), "198.51.100.1", None),  # another address, which the host may have kept
        (running(listen="0.0.0.0", port=8001), "198.51.100.1", False),
        (running(), "198.51.100.1", False),
    ],
)
def test_what_the_simulation_knows_of_a_server(item: Running, address: str, known: bool | None) -> None:
    there = balancer(asked := server(address=address))
    assert serves(fleet(item, lbs=(there,)), there, f"b/{asked.name}") is known
