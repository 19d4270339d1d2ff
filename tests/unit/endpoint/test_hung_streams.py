# SPDX-License-Identifier: Apache-2.0
"""Streams of an instance that hangs are closed, others go on; with the real HAProxy and the agent as it is sent."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.helpers.eventually import eventually
from tests.worlds.hung_world import TOKENS_PER_SECOND, HungWorld, Request, hung_world

SLACK = 20.0
"""Seconds that a busy machine may add. Without the agent's work, a stream stays for an hour."""


def seconds(count: float) -> int:
    """Tokens that take so long."""
    return int(count * TOKENS_PER_SECOND)


def closed_in_time(world: HungWorld, request: Request, since: float) -> bool:
    request.result()
    return world.limit - 2 < request.ended - since < world.limit + SLACK


def test_its_streams_end_again_and_again_and_those_of_others_do_not(tmp_path: Path) -> None:
    with hung_world(tmp_path) as world:
        long = seconds(world.limit + 5)
        for _ in range(2):
            streams = [world.ask(0, long), world.ask(0, long, other=True)]
            plain = [world.ask(0, long, stream=False), world.ask(0, long, stream=False, other=True)]
            others = [world.ask(1, long), world.ask(1, long, stream=False), world.ask(1, long, other=True)]
            world.stop(0)
            begun = time.monotonic()
            for request in streams:
                assert closed_in_time(world, request, begun)
                assert (request.status, request.whole, "data:" in request.text) == (200, False, True)
            for request in plain:
                assert closed_in_time(world, request, begun)
                assert (request.status, request.retry_after) == (503, "5")
                assert json.loads(request.text)["error"]["type"] == "bad_gateway"
            assert [(request.result().status, request.whole) for request in others] == [(200, True)] * 3
            world.go_on(0)
            eventually("it serves again", lambda: world.up() == world.names)
        said = r"no answer for (\d+) s \(load_balancer_hang_timeout\); closed 4 streams to it"
        silent = re.findall(rf"^{re.escape(world.names[0])}: {said}$", world.agent_log(), re.MULTILINE)
        assert [int(one) >= world.limit for one in silent] == [True, True], world.agent_log()


def test_a_stall_below_the_limit_loses_nothing(tmp_path: Path) -> None:
    with hung_world(tmp_path, limit=12) as world:
        long = seconds(6)
        requests = [world.ask(0, long), world.ask(0, long, stream=False), world.ask(0, long, other=True)]
        world.stop(0)
        time.sleep(0.8 * world.limit)
        assert world.up() == [world.names[1]]  # it gets no new ones
        world.go_on(0)
        assert [(request.result().status, request.whole) for request in requests] == [(200, True)] * 3
        eventually("it serves again", lambda: world.up() == world.names)
        assert "closed" not in world.agent_log()
        assert "answers again after" in world.agent_log()


@pytest.mark.deep
def test_what_a_former_process_carries_is_closed_too(tmp_path: Path) -> None:
    with hung_world(tmp_path) as world:
        long = seconds(world.limit + 5)
        closed = [world.ask(0, long), world.ask(0, long, other=True), world.ask(0, long, stream=False)]
        kept = [world.ask(1, long), world.ask(1, long, stream=False)]
        world.reload()
        later = world.ask(0, long)
        world.stop(0)
        begun = time.monotonic()
        assert [closed_in_time(world, request, begun) for request in (*closed, later)] == [True] * 4
        assert [request.status for request in closed] == [200, 200, 503]
        assert [(request.result().status, request.whole) for request in kept] == [(200, True)] * 2
        assert "closed 4 streams to it" in world.agent_log()


def test_one_that_leaves_finishes_what_it_has(tmp_path: Path) -> None:
    """Drained, or stopped as its supervisor does it; for longer than the limit."""
    with hung_world(tmp_path) as world:
        long = seconds(world.limit + 5)
        requests = [world.ask(index, long, stream=stream) for index in (0, 1) for stream in (True, False)]
        world.haproxy.set_state(world.names[0], "drain")
        world.leave(1)
        eventually("it is out", lambda: world.up() == world.names[:1])
        assert not requests[2].whole
        assert [(request.result().status, request.whole) for request in requests] == [(200, True)] * 4
        assert "closed" not in world.agent_log()


@pytest.mark.deep
def test_what_an_operator_has_repeated_is_answered_by_another_instance(tmp_path: Path) -> None:
    """A request without a byte of an answer, if it fits the buffer and there is another instance."""
    with hung_world(tmp_path, repeat_unanswered=True) as world:
        long = seconds(6)
        small = world.ask(0, long, stream=False)
        large = world.ask(0, long, stream=False, prompt="x " * 20_000)
        begun_stream = world.ask(0, long)
        world.stop(0)
        begun = time.monotonic()
        assert (small.result().status, large.result().status, begun_stream.result().whole) == (
            200,
            503,
            False,
        )
        assert large.retry_after == "5"
        assert small.ended - begun > world.limit  # in the other one, from its beginning
        alone = world.ask(1, long, stream=False)
        world.stop(1)
        assert (alone.result().status, alone.retry_after) == (503, "5")
