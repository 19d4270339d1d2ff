# SPDX-License-Identifier: Apache-2.0
"""Status, watching and the agent when what they ask does not answer: Docker, instances, files that are damaged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.docker import client
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint import instance_client
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.instance_client import (
    BUSY,
    LOST,
    UNREACHABLE,
    InstanceClient,
)
from ansible_collections.instinct.fleet.plugins.module_utils.host import status as status_node
from ansible_collections.instinct.fleet.plugins.module_utils.host.status import read_json, read_node
from ansible_collections.instinct.fleet.plugins.module_utils.programs import haproxy_agent
from ansible_collections.instinct.fleet.plugins.module_utils.programs.haproxy_agent import ProbedInstance
from ansible_collections.instinct.fleet.plugins.module_utils.serving import soak
from ansible_collections.instinct.fleet.plugins.modules import instance_status, vllm_watch

from tests.helpers.eventually import GENEROUS
from tests.worlds.fake_docker import CUT, STALLED, FakeDocker
from tests.worlds.status_host import BOTH, Host, host

__all__ = ["host"]  # a fixture


# ---- Docker ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (CUT, "closed the connection in the middle of an answer"),
        (STALLED, "stopped in the middle of an answer"),
    ],
)
def test_a_docker_that_breaks_off_is_told(
    host: Host, monkeypatch: pytest.MonkeyPatch, fault: str, text: str
) -> None:
    if fault == STALLED:
        hasty = host.docker.hasty()
        monkeypatch.setattr(client, "socket", SimpleNamespace(**{**vars(socket), "socket": hasty}))
    host.add("llama-0")
    host.docker.faults["GET /containers/json"] = fault
    found = read_node(host.node)
    assert (found["instances"], found["problems"]) == ([], [f"The Docker engine {text}."])


def test_a_docker_that_breaks_off_between_two_containers(host: Host) -> None:
    """What was read until then is told, too."""
    host.add("llama-0", "exited")
    second = host.add("llama-1", "exited")
    host.docker.faults[f"GET /containers/{second.id}/json"] = CUT
    found = read_node(host.node)
    assert [item["name"] for item in found["instances"]] == ["llama-0"]
    assert found["problems"] == ["The Docker engine closed the connection in the middle of an answer."]


def test_a_log_that_breaks_off(host: Host) -> None:
    """Its exit code still tells something; the other instances are read."""
    failed = host.add("llama-0", "exited")
    failed.exit_code, failed.log = 1, "torch.OutOfMemoryError: HIP out of memory.\n"
    host.add("llama-1", "exited").exit_code = 0
    host.docker.faults["GET /containers/instinct-llama-0/logs"] = CUT
    first, second = read_node(host.node)["instances"]
    assert first["failure"]["kind"] != "out_of_memory"
    assert first["failure"]["next_step"]
    assert (second["name"], second["failure"]) == ("llama-1", None)


# ---- instances ---------------------------------------------------------------------------------------


class Page(BaseHTTPRequestHandler):
    """/health and /metrics as they are told; metrics: one answer per look, the last one stays; None: hangs up."""

    metrics: list[tuple[int, str] | None]
    health: tuple[int, str] | None

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        answer = self.health
        if self.path == "/metrics":
            answer = self.metrics.pop(0) if len(self.metrics) > 1 else self.metrics[0]
        if answer is None:
            return
        self.send_response(answer[0])
        self.end_headers()
        self.wfile.write(answer[1].encode())


@contextlib.contextmanager
def page(health: Any, *metrics: Any) -> Iterator[int]:
    handler = type("Told", (Page,), {"health": health, "metrics": list(metrics) or [(404, "")]})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def load(tokens: int, running: int = 2) -> tuple[int, str]:
    text = BOTH.replace("} 2.0", f"}} {running}.0")
    return 200, f'{text}vllm:generation_tokens_total{{engine="0"}} {tokens}.0\n'


@pytest.mark.parametrize(
    ("health", "metrics", "expected"),
    [
        ((200, ""), [load(5)], (200, 2, 5)),
        ((503, "dead"), [load(5)], (503, 2, 5)),
        (None, [load(5)], (0, None, None)),
        ((200, ""), [(404, "Not Found")], (200, None, None)),
        ((200, ""), [(200, "<html>")], (200, None, None)),
        ((200, ""), [None], (200, None, None)),
        ((200, ""), [load(5, 3), None], (200, 3, 5)),
        ((200, ""), [load(5), (200, "")], (200, 2, 5)),
        ((200, ""), [load(5), load(7, 9)], (200, 9, 7)),
    ],
)  # fmt: skip
def test_what_an_instance_answers(host: Host, health: Any, metrics: Any, expected: Any) -> None:
    with page(health, *metrics) as port:
        host.add("llama-0", port=port)
        (found,) = read_node(host.node)["instances"]
    numbers = found["metrics"] or {}
    assert (found["health"], numbers.get("running"), numbers.get("generated")) == expected


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"no HTTP at all\r\n\r\n"]
)
def test_an_instance_that_says_nothing_to_the_end(
    host: Host, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """It accepts connections, and hangs."""
    monkeypatch.setattr(status_node, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        links = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    links.append(listener.accept()[0])
                    links[-1].sendall(said)

        threading.Thread(target=accept, daemon=True).start()
        host.add("llama-0", port=port)
        (found,) = read_node(host.node)["instances"]
    assert (found["health"], found["metrics"]) == (0, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"vllm": "0.11.2"}', {"vllm": "0.11.2"}),
        ("[1]", None),
        ("{ not whole", None),
        ("", None),
        (None, None),
    ],
)
def test_a_file_that_is_damaged(tmp_path: Path, text: str | None, expected: Any) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    assert read_json(str(path)) == expected
    assert read_json(str(tmp_path)) is None  # a directory in its place


def test_the_release_in_an_image(host: Host) -> None:
    container = host.add("llama-0", "exited")
    image = container.inspect()["Image"].rpartition(":")[2]
    assert read_node(host.node)["instances"][0]["vllm"] is None
    place = host.tmp / "var/images"
    place.mkdir(parents=True)
    (place / f"{image}.json").write_text('{"vllm": "0.11.2"}')
    assert read_node(host.node)["instances"][0]["vllm"] == "0.11.2"
    (place / f"{image}.json").write_text("{ not whole")
    assert read_node(host.node)["instances"][0]["vllm"] is None


@pytest.mark.parametrize(
    ("status", "code", "judged"),
    [("exited", 0, False), ("exited", 143, False), ("exited", 1, True), ("dead", 137, True), ("restarting", 0, True),
     ("created", 1, False), ("running", 0, False)],
)  # fmt: skip
def test_which_ends_are_failures(host: Host, status: str, code: int, judged: bool) -> None:
    host.add("llama-0", "exited").exit_code = code
    host.docker.containers["instinct-llama-0"].status = status
    (found,) = read_node(host.node)["instances"]
    assert (found["failure"] is not None) == judged


# ---- the modules -------------------------------------------------------------------------------------


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    monkeypatch.setattr(paths, "DATA_DIR", str(tmp_path / "data"))
    with FakeDocker(tmp_path) as fake:
        yield fake


def test_the_status_module(docker: FakeDocker, run_module: Any) -> None:
    labels = {"instinct-fleet.instance": "llama-0", "instinct-fleet.deployment": "llama"}
    docker.add_container("instinct-llama-0", {"Image": "r@x", "Labels": labels}, "exited")
    docker.add_container("other", {"Image": "r@x"}, "exited")
    for check in (False, True):
        result, failed = run_module(instance_status.main, {"docker_socket": docker.path}, check=check)
        found = result["instance_status"]
        assert (failed, result["changed"], found["schema"]) == (False, False, 1)
        assert [(item["name"], item["deployment"]) for item in found["instances"]] == [("llama-0", "llama")]
    assert docker.changes() == []


@pytest.mark.parametrize(
    ("status", "seconds", "check", "msg"),
    [
        ("running", 0, False, ""),
        ("running", 600, True, ""),
        ("exited", 0, False, "llama-0 no longer runs: its container is exited with code 0"),
        ("exited", 600, True, "llama-0 no longer runs: its container is exited with code 0"),
        ("", 0, False, "llama-0 no longer runs: its container is absent"),
    ],
)
def test_the_watching_module(
    docker: FakeDocker, run_module: Any, status: str, seconds: int, check: bool, msg: str
) -> None:
    """Check mode looks once, however long the run would watch."""
    if status:
        docker.add_container("instinct-llama-0", {"Image": "r@x"}, status)
    given = {"servers": ["llama-0"], "seconds": seconds, "docker_socket": docker.path}
    result, failed = run_module(vllm_watch.main, given, check=check)
    assert (failed, result.get("msg", "")) == (bool(msg), msg)
    if not msg:
        assert (result["changed"], result["servers"], result["seconds"]) == (False, ["llama-0"], 0)


def test_one_that_ends_while_it_is_watched(
    docker: FakeDocker, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "POLL_SECONDS", 0.02)
    container = docker.add_container("instinct-llama-0", {"Image": "r@x"}, "running")
    threading.Timer(0.1, container.stopping.set).start()
    given = {"servers": ["llama-0"], "seconds": 60, "docker_socket": docker.path}
    result, failed = run_module(vllm_watch.main, given)
    assert failed
    assert result["msg"] == "llama-0 no longer runs: its container is exited with code 143"


@pytest.mark.parametrize(("check", "failed"), [(True, True), (False, True)])
def test_watching_without_docker(run_module: Any, tmp_path: Path, check: bool, failed: bool) -> None:
    given = {"servers": ["llama-0"], "docker_socket": str(tmp_path / "none.sock")}
    result, said = run_module(vllm_watch.main, given, check=check)
    assert said == failed
    assert ("is absent" if check else "no Docker engine is installed") in result["msg"]


# ---- the agent ---------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


@contextlib.asynccontextmanager
async def saying(said: bytes | None) -> Any:
    """An instance that answers everything with this; None: it says nothing, and stays."""
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if said is None:
            await over.wait()
        writer.write(said or b"")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield ProbedInstance(InstanceClient("127.0.0.1", int(server.sockets[0].getsockname()[1]), "m"))
    finally:
        over.set()
        server.close()


@pytest.mark.parametrize(
    ("said", "health", "generates"),
    [
        (HEAD + b'{"usage": {"completion_tokens": 1}}', "ok", True),
        (HEAD + b'{"usage": {"completion_tokens": 0}}', "ok", False),
        (HEAD + b'{"usage": {"completion_tokens": "two"}}', "ok", False),
        (HEAD + b'{"usage": {"completion_tokens": null}}', "ok", False),
        (HEAD + b'{"usage": null}', "ok", False),
        (HEAD + b"{}", "ok", False),
        (HEAD + b"[1]", "ok", False),
        (HEAD + b"<html>", "ok", False),
        (HEAD, "ok", False),
        (b'HTTP/1.1 500 X\r\n\r\n{"usage": {"completion_tokens": 1}}', UNREACHABLE, False),
        (b"HTTP/1.1 two hundred\r\n\r\n", UNREACHABLE, False),
        (b"HTTP/1.1\r\n\r\n", UNREACHABLE, False),
        (b"", UNREACHABLE, False),
        (None, BUSY, False),
    ],
)
def test_what_the_agent_makes_of_an_answer(
    monkeypatch: pytest.MonkeyPatch, said: bytes | None, health: str, generates: bool
) -> None:
    monkeypatch.setattr(instance_client, "CONNECT_SECONDS", GENEROUS)
    patience = 0.2 if said is None else GENEROUS
    monkeypatch.setattr(haproxy_agent, "HEALTH_SECONDS", patience)
    if said is None:
        monkeypatch.setattr(instance_client, "TOKEN_SECONDS", 0.2)

    async def scenario() -> None:
        async with saying(said) as instance:
            assert await instance.client.health(patience) == health
            assert await instance.client.generates() is generates
            await instance.look()
            if instance.proof:
                await asyncio.wait([instance.proof])
            # Busy: nothing is known, and nothing is changed.
            assert instance.proven is (None if health == BUSY else generates)

    asyncio.run(scenario())


def test_a_host_that_drops_connections_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a firewall does, or a kernel whose queue is full: nobody refuses, and nobody accepts."""
    monkeypatch.setattr(instance_client, "CONNECT_SECONDS", 0.3)
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):  # the queue has room for one or two
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        instance = ProbedInstance(InstanceClient("127.0.0.1", listener.getsockname()[1], "m"))
        instance.proven = True

        async def scenario() -> None:
            assert await instance.client.health(GENEROUS) == LOST
            assert await instance.client.generates() is False
            await instance.look()

        asyncio.run(scenario())
    assert instance.proven is False


@pytest.mark.parametrize("text", ["key Bearer abc\n", None])
def test_an_instance_without_a_key_file(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "instance.map"
    if text:
        path.write_text(text)
    header = InstanceClient("127.0.0.1", 1, "m", str(path)).authorization()
    assert header == ("Authorization: Bearer abc\r\n" if text else "")


def test_the_agent_survives_a_file_that_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with what it knew until the file is whole again."""
    monkeypatch.setattr(haproxy_agent, "POLL_SECONDS", 0.02)
    path, read = tmp_path / "balancer.json", list[object]()
    load = haproxy_agent.json.load
    monkeypatch.setattr(haproxy_agent.json, "load", lambda file: read.append(file) or load(file))

    def write(text: str) -> None:
        path.with_name("new").write_text(text)
        path.with_name("new").replace(path)

    def config(name: str) -> str:
        servers = [{"name": name, "address": "127.0.0.1", "port": 9, "models": ["m"], "probe": name}]
        return json.dumps(
            {"hang_timeout": 3600, "backends": [{"name": "m", "models": ["m"], "servers": servers}]}
        )

    async def until(true: Callable[[], bool]) -> None:
        async with asyncio.timeout(GENEROUS):
            while not true():
                await asyncio.sleep(0.02)

    async def scenario() -> None:
        agent = haproxy_agent.Agent(str(path), str(tmp_path))
        following = asyncio.create_task(agent.follow())
        write(config("one"))
        await until(lambda: list(agent.instances) == ["one"])
        for damaged in ("{ not whole", "{}", '{"backends": [{}]}'):
            before = len(read)
            write(damaged)
            await until(lambda before=before: len(read) > before + 1)  # type: ignore[misc]
            assert list(agent.instances) == ["one"]
        path.unlink()
        write(config("two"))
        await until(lambda: list(agent.instances) == ["two"])
        assert not following.done()
        following.cancel()
        for task in agent.tasks.values():
            task.cancel()

    asyncio.run(scenario())
