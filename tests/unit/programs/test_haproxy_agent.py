# SPDX-License-Identifier: Apache-2.0
"""The agent's word on an instance: in by tokens, out when it is gone, and unchanged when nothing can be told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint import instance_client
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.instance_client import InstanceClient
from ansible_collections.instinct.fleet.plugins.module_utils.programs import haproxy_agent
from ansible_collections.instinct.fleet.plugins.module_utils.programs.haproxy_agent import (
    Agent,
    ProbedInstance,
)

from tests.helpers.eventually import GENEROUS
from tests.helpers.ports import free_port


class Engine:
    """A server that answers /health and completions as told."""

    def __init__(self) -> None:
        self.health, self.tokens, self.slow, self.slow_tokens = 200, 1, 0.0, 0.0
        self.hangs = asyncio.Event()  # set: it hangs no longer
        self.asked: list[str] = []
        self.sent = self.odd = ""
        self.server: asyncio.Server | None = None
        self.port = free_port()  # nobody else is there between a stop and a start

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.answer, "127.0.0.1", self.port)

    async def stop(self) -> None:
        assert self.server
        self.server.close()
        await self.server.wait_closed()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1]
        self.asked.append(path)
        self.sent = head.lower().partition("authorization: ")[2].partition("\r\n")[0]
        with contextlib.suppress(asyncio.TimeoutError):
            seconds = self.slow if path == "/health" else self.slow_tokens
            await asyncio.wait_for(self.hangs.wait(), seconds) if seconds else None
        status, body = self.health, b""
        if path != "/health":
            length = int(head.lower().partition("content-length: ")[2].split()[0])
            assert json.loads(await reader.readexactly(length))["model"] == "m"
            status, body = 200, json.dumps({"usage": {"completion_tokens": self.tokens}}).encode()
            body = self.odd.encode() or body
        with contextlib.suppress(ConnectionError):
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def engine() -> AsyncIterator[tuple[Engine, ProbedInstance]]:
    made = Engine()
    await made.start()
    try:
        yield made, ProbedInstance(InstanceClient("127.0.0.1", made.port, "m"))
    finally:
        await made.stop()


async def look(instance: ProbedInstance) -> None:
    """One check, and the proof that it asks for."""
    await instance.look()
    if instance.proof:
        await asyncio.wait([instance.proof])


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody here is slow but by the machine."""
    monkeypatch.setattr(instance_client, "CONNECT_SECONDS", GENEROUS)
    monkeypatch.setattr(haproxy_agent, "HEALTH_SECONDS", GENEROUS)


def test_tokens_once_and_again_after_it_was_gone() -> None:
    async def scenario() -> None:
        async with engine() as (server, instance):
            assert instance.proven is None
            await look(instance)
            await look(instance)
            assert instance.proven is True
            assert server.asked == ["/health", "/v1/completions", "/health"]
            await server.stop()
            await look(instance)
            assert instance.proven is False
            server.tokens = 0
            await server.start()
            await look(instance)
            assert instance.proven is False  # healthy, and mute
            server.tokens = 1
            await look(instance)
            assert instance.proven is True

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "odd",
    [
        '{"usage": {"completion_tokens": 1e999}}',
        "[" * 100_000,
        "null",
        # Longer than is read, though it is right.
        '{"usage": {"completion_tokens": 1}, "x": "' + "x" * 2_000_000 + '"}',
    ],
)
def test_no_answer_ends_the_watch(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy_agent, "POLL_SECONDS", 0.02)

    async def scenario() -> None:
        async with engine() as (server, instance):
            server.odd = odd
            watching = asyncio.create_task(instance.watch())
            async with asyncio.timeout(GENEROUS):
                while server.asked.count("/v1/completions") < 2:
                    await asyncio.sleep(0.02)
                assert not instance.proven
                server.odd = ""
                while not instance.proven:
                    await asyncio.sleep(0.02)
            watching.cancel()

    asyncio.run(scenario())


def test_it_sends_the_key_that_haproxy_sends(tmp_path: Path) -> None:
    (tmp_path / "instance.map").write_text("key Bearer abc\n")

    async def scenario() -> None:
        async with engine() as (server, instance):
            key_file = Agent(str(tmp_path / "balancer.json"), str(tmp_path)).key_file
            client = replace(instance.client, key_file=key_file)
            assert await client.generates()
            assert server.sent == "bearer abc"
            assert await client.health(GENEROUS) == "ok"
            assert server.sent == ""  # where it is not needed

    asyncio.run(scenario())


def test_an_engine_that_says_it_is_dead() -> None:
    async def scenario() -> None:
        async with engine() as (server, instance):
            await look(instance)
            server.health = 503
            await look(instance)
            assert instance.proven is False

    asyncio.run(scenario())


def test_a_busy_engine_keeps_its_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with engine() as (server, instance):
            await look(instance)
            assert instance.proven is True
            monkeypatch.setattr(haproxy_agent, "HEALTH_SECONDS", 0.1)
            server.slow = 0.3
            await look(instance)
            assert instance.proven is True

    asyncio.run(scenario())


# ---- instances that hang ------------------------------------------------------------------------------


class Closer:
    """Closes nothing, and counts how often it is asked to. answer: what it returns, or raises."""

    def __init__(self, answer: int | Exception | None = 4) -> None:
        self.answer, self.calls = answer, 0

    def __call__(self) -> int | None:
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@contextlib.asynccontextmanager
async def hanging(closer: Closer) -> AsyncIterator[tuple[Engine, ProbedInstance]]:
    """An instance that has generated tokens, and answers nothing any more."""
    async with engine() as (server, instance):
        await look(instance)
        instance.name, instance.limit, instance.close = "m/n1.m-0:8000", 0.3, closer
        server.slow = GENEROUS
        yield server, instance
        server.hangs.set()


async def looks_until(instance: ProbedInstance, closer: Closer, calls: int) -> int:
    """Look until the closer has been called so often; return the number of looks."""
    for count in range(1, 1000):
        await look(instance)
        if closer.calls >= calls:
            return count
    raise AssertionError("its streams were not closed")


NO_ANSWER = r"m/n1.m-0:8000: no answer for \d+ s"
CLOSED = rf"{NO_ANSWER} \(load_balancer_hang_timeout\); closed 4 streams to it\n"


def test_streams_of_one_that_answers_nothing_are_closed(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        closer = Closer()
        async with hanging(closer) as (_, instance):
            instance.limit = 1.5
            # After that time, and not at the first look. On a busy machine a look takes longer, so that fewer fit in.
            assert await looks_until(instance, closer, 1) > 1
            assert instance.proven is True  # HAProxy's own check has taken it out
            assert re.fullmatch(CLOSED, capsys.readouterr().err)
            closer.answer = 0
            await looks_until(instance, closer, 3)
            assert capsys.readouterr().err == ""  # nothing new

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (0, rf"{NO_ANSWER} \(load_balancer_hang_timeout\); closed 0 streams to it\n"),
        (None, ""),  # HAProxy's own checks are answered
        (NodeError("HAProxy is away."), rf"{NO_ANSWER}; its streams could not be closed: HAProxy is away.\n"),
        (KeyError("scur"), rf"{NO_ANSWER}; its streams could not be closed: 'scur'\n"),
    ],
)  # fmt: skip
def test_what_cannot_be_closed(
    answer: int | Exception | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        closer = Closer(answer)
        async with hanging(closer) as (_, instance):
            await looks_until(instance, closer, 1)
            assert re.fullmatch(said, capsys.readouterr().err)
            assert instance.proven is True

    asyncio.run(scenario())


def test_one_that_answers_again_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        closer = Closer()
        async with hanging(closer) as (server, instance):
            instance.limit = 3 * GENEROUS
            before = haproxy_agent.HEALTH_SECONDS
            haproxy_agent.HEALTH_SECONDS = 0.1
            await look(instance)
            haproxy_agent.HEALTH_SECONDS = before
            server.slow = 0.0
            await look(instance)
            assert re.fullmatch(r"m/n1.m-0:8000: answers again after \d+ s\n", capsys.readouterr().err)
            await look(instance)
            assert (capsys.readouterr().err, closer.calls) == ("", 0)

    asyncio.run(scenario())


def test_one_that_refuses_connections_is_not_silent() -> None:
    """As one that stops gracefully does, while it finishes its streams."""

    async def scenario() -> None:
        closer = Closer()
        async with hanging(closer) as (server, instance):
            server.hangs.set()
            await server.stop()
            end = asyncio.get_running_loop().time() + 1.0
            while asyncio.get_running_loop().time() < end:
                await look(instance)
            assert (closer.calls, instance.proven) == (0, False)
            await server.start()

    asyncio.run(scenario())


def test_one_that_hangs_while_it_owes_its_first_token() -> None:
    """The agent waits for the token up to a quarter of an hour, and checks the instance meanwhile."""

    async def scenario() -> None:
        closer = Closer()
        async with engine() as (server, instance):
            server.slow_tokens = GENEROUS
            instance.limit, instance.close = GENEROUS, closer
            await instance.look()
            server.slow, instance.limit = GENEROUS, 0.3
            while not closer.calls:
                await instance.look()
            assert instance.proof is not None
            assert not instance.proof.done()
            server.hangs.set()

    asyncio.run(scenario())


def config(*ports: int) -> dict[str, Any]:
    servers = [
        {
            "name": f"n1.m-{port}:{port}",
            "address": "127.0.0.1",
            "port": port,
            "models": ["m"],
            "probe": f"p{port}",
        }
        for port in ports
    ]
    return {
        "agent_port": 0,
        "hang_timeout": 3600,
        "backends": [{"name": "m", "models": ["m"], "servers": servers}],
    }


async def ask(agent: Agent, name: str) -> str:
    server = await asyncio.start_server(agent.answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    writer.write(f"{name}\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    server.close()
    return answer


def test_answers_by_mark_and_a_configuration_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(haproxy_agent, "POLL_SECONDS", 0.02)
    path = tmp_path / "balancer.json"

    async def until(agent: Agent, name: str, answer: str) -> None:
        async with asyncio.timeout(GENEROUS):
            while await ask(agent, name) != answer:
                await asyncio.sleep(0.02)

    async def scenario() -> None:
        async with engine() as (one, _), engine() as (two, _):
            path.write_text(json.dumps(config(one.port)))
            agent = Agent(str(path), str(tmp_path))
            assert await ask(agent, f"p{one.port}") == "\n"  # nothing is known yet
            following = asyncio.create_task(agent.follow())
            await until(agent, f"p{one.port}", "up\n")
            known = agent.instances[f"p{one.port}"]
            path.with_name("new").write_text(json.dumps(config(one.port, two.port)))
            path.with_name("new").replace(path)
            await until(agent, f"p{two.port}", "up\n")
            assert agent.instances[f"p{one.port}"] is known
            await two.stop()
            await until(agent, f"p{two.port}", "down\n")
            await two.start()
            path.with_name("new").write_text(json.dumps(config(two.port)))
            path.with_name("new").replace(path)
            await until(agent, f"p{one.port}", "down\n")  # HAProxy knows it and this program does not yet
            assert await ask(agent, "m/n1.m-1:1") == "\n"  # by the words of an earlier release
            following.cancel()
            for task in agent.tasks.values():
                task.cancel()

    asyncio.run(scenario())


def test_a_name_less_changes_nothing_where_the_name_was_asked_for(tmp_path: Path) -> None:
    """Who was asked for two names, and is asked for the second alone from now on, serves all the time."""
    path = tmp_path / "balancer.json"

    def write(names: list[str], mark: str) -> None:
        found = config(one_port)
        found["backends"][0]["servers"][0].update(models=names, probe=mark)
        path.with_name("new").write_text(json.dumps(found))
        path.with_name("new").replace(path)

    async def scenario() -> None:
        nonlocal one_port
        async with engine() as (one, _):
            one_port = one.port
            write(["m", "n"], "both")
            agent = Agent(str(path), str(tmp_path))
            agent.read()
            async with asyncio.timeout(GENEROUS):
                while not agent.proven("both"):
                    await asyncio.sleep(0.02)
            # HAProxy asks before this program would look again.
            write(["n"], "second")
            assert await ask(agent, "second") == "up\n"
            write(["x"], "other")
            assert await ask(agent, "other") == "down\n"
            for task in agent.tasks.values():
                task.cancel()

    one_port = 0
    asyncio.run(scenario())
