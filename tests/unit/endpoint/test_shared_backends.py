# SPDX-License-Identifier: Apache-2.0
"""Names that deployments share, in the real HAProxy: who is asked, and what a reload keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import (
    BackendServer,
    changing_servers,
)

from tests.helpers.ports import free_port
from tests.worlds.reloaded_haproxy import ReloadedHaproxy, reloaded_haproxy


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReloadedHaproxy]:
    with reloaded_haproxy(tmp_path, monkeypatch) as made:
        yield made


def server(name: str, port: int, models: str, weight: int = 1) -> BackendServer:
    """The server of a deployment's only instance, which is asked for these names."""
    return BackendServer("n1", f"{name}-0", name, "127.0.0.1", port, 50, tuple(models.split()), weight)


def test_a_name_is_asked_of_the_instances_that_have_it(world: ReloadedHaproxy) -> None:
    """And a name of some follows what is checked and drained in the backend of all."""
    blue, green = world.engine(), world.engine()
    world.configure(server("blue", blue, "chat"), server("green", green, "chat next"))
    mine, other = f"blue:green/n1.green-0:{green}", f"blue:green/n1.blue-0:{blue}"
    for name in (mine, other, f"blue:green.names1/n1.green-0:{green}"):
        world.becomes(name, "up")
    assert {world.ask("chat") for _ in range(8)} == {blue, green}
    assert {world.ask("next") for _ in range(4)} == {green}
    assert world.ask("else") == 404

    world.drain(mine)
    assert {world.ask("chat") for _ in range(4)} == {blue}
    assert world.ask("next") == 503
    world.balancer.haproxy.set_state(mine, "ready")
    assert world.ask("next") == green

    world.stop(green)
    world.becomes(mine, "down")
    assert {world.ask("chat") for _ in range(4)} == {blue}
    assert world.ask("next") == 503
    world.listen(green)
    world.becomes(mine, "up")
    assert world.ask("next") == green


@pytest.mark.parametrize(("weights", "shares"), [((1, 1), (6, 6)), ((3, 1), (9, 3)), ((1, 11), (1, 11))])
def test_requests_in_work_are_shared_by_weight(
    world: ReloadedHaproxy, weights: tuple[int, int], shares: tuple[int, int]
) -> None:
    names = ("blue", "green")
    ports = {name: world.engine() for name in names}
    world.configure(*(server(names[at], ports[names[at]], "chat", weights[at]) for at in (0, 1)))
    servers = [f"blue:green/n1.{name}-0:{ports[name]}" for name in names]
    for name in servers:
        world.becomes(name, "up")
    world.hold("chat", sum(shares), servers)
    assert tuple(map(world.running, servers)) == shares


# ---- a reload ----------------------------------------------------------------------------------------


def test_a_server_that_nothing_has_checked_gets_no_requests(world: ReloadedHaproxy) -> None:
    """Nor does one of a subset; both do when their instance listens."""
    blue, green = world.engine(), free_port()
    first = server("blue", blue, "chat")
    world.configure(first)
    world.becomes(f"blue/n1.blue-0:{blue}", "up")
    world.configure(first, server("green", green, "chat next"))
    name = f"blue:green/n1.green-0:{green}"
    assert (world.state(name), world.state(f"blue:green/n1.blue-0:{blue}")) == ("down", "up")
    assert {world.ask("chat") for _ in range(4)} == {blue}
    assert world.ask("next") == 503
    world.listen(green)
    world.becomes(name, "up")
    assert {world.ask("chat") for _ in range(8)} == {blue, green}
    assert world.ask("next") == green


def test_a_server_stays_drained_when_its_backend_gets_another_name(world: ReloadedHaproxy) -> None:
    """As when a deployment begins to share a name, and when it ends; for its name in a subset, too."""
    blue, green = world.engine(), world.engine()
    alone = server("blue", blue, "chat old")
    world.configure(alone)
    world.becomes(f"blue/n1.blue-0:{blue}", "up")
    world.drain(f"blue/n1.blue-0:{blue}")
    world.configure(alone, server("green", green, "chat"))
    world.becomes(f"blue:green/n1.green-0:{green}", "up")
    assert world.state(f"blue:green/n1.blue-0:{blue}") == "drain"
    assert {world.ask("chat") for _ in range(4)} == {green}
    assert world.ask("old") == 503
    world.configure(alone)
    assert world.state(f"blue/n1.blue-0:{blue}") == "drain"
    assert list(world.balancer.drain_record.read()) == [f"blue/n1.blue-0:{blue}"]
    assert world.ask("chat") == 503


@pytest.mark.parametrize("host", ["n1", "second"])
def test_an_instance_that_moves_to_another_port_keeps_its_drain(world: ReloadedHaproxy, host: str) -> None:
    """The operator drained the instance, wherever it listens; its old server is drained as long as it is there.

    Also where its host gets another name.
    """
    old, new, beside = world.engine(), world.engine(), world.engine()
    before = (server("blue", old, "chat"), server("green", beside, "chat"))
    after = (replace(before[0], host=host, port=new), replace(before[1], host=host))
    world.configure(*before)
    world.becomes(f"blue:green/n1.green-0:{beside}", "up")
    world.drain(f"blue:green/n1.blue-0:{old}")
    world.configure(*changing_servers(after, [replace(server, host=host) for server in before]))
    states = {port: world.state(f"blue:green/{host}.blue-0:{port}") for port in (old, new)}
    assert states == {old: "drain", new: "drain"}
    world.configure(*after)
    assert world.state(f"blue:green/{host}.blue-0:{new}") == "drain"
    assert {world.ask("chat") for _ in range(4)} == {beside}


def test_an_instance_is_asked_where_it_listens_while_it_moves(world: ReloadedHaproxy) -> None:
    """First at its old port, then nowhere, then at its new one; no request goes where nothing listens."""
    old, new, beside = world.engine(), free_port(), world.engine()
    before = (server("blue", old, "chat"), server("green", beside, "chat"))
    after = (replace(before[0], port=new), before[1])
    world.configure(*before)
    for port, name in ((old, "blue"), (beside, "green")):
        world.becomes(f"blue:green/n1.{name}-0:{port}", "up")
    world.configure(*changing_servers(after, before))
    assert {world.ask("chat") for _ in range(8)} == {old, beside}
    world.stop(old)
    world.becomes(f"blue:green/n1.blue-0:{old}", "down")
    assert {world.ask("chat") for _ in range(4)} == {beside}
    world.listen(new)
    world.becomes(f"blue:green/n1.blue-0:{new}", "up")
    assert {world.ask("chat") for _ in range(8)} == {new, beside}
    world.configure(*after)
    assert {world.ask("chat") for _ in range(8)} == {new, beside}
