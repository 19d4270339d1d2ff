# SPDX-License-Identifier: Apache-2.0
"""The guard in front of vLLM's API, on a small application."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.programs import guard
from ansible_collections.instinct.fleet.plugins.module_utils.programs.guard import Guard

KEY = "k" * 30
RIGHT = (b"authorization", b"Bearer " + KEY.encode())
Header = tuple[bytes, bytes]


class App:
    """What the guard guards; `during` runs within each request."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.during: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append(scope.get("path", scope["type"]))
        if self.during:
            await self.during()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def guarded(app: App, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Guard:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    (tmp_path / "switch").write_bytes(b"0")
    monkeypatch.setenv("INSTINCT_GUARD", str(tmp_path / "switch"))
    return Guard(app)


async def ask(
    guarded: Guard, path: str, headers: Sequence[Header] = (), kind: str = "http", **more: Any
) -> tuple[int, dict[bytes, bytes]]:
    """Status and headers of the answer; of a websocket the code with which it is closed."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    await guarded({"type": kind, "path": path, "headers": list(headers), **more}, receive, send)
    if sent[0]["type"] == "websocket.close":
        return sent[0]["code"], {}
    return sent[0]["status"], dict(sent[0]["headers"])


def status(guarded: Guard, path: str, *headers: Header, **more: Any) -> int:
    return asyncio.run(ask(guarded, path, headers, **more))[0]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions", "/invocations", "/tokenize", "/pooling", "/ping", "/version", "/docs", "/", "", "/metrics/",
        "/health/", "//health", "/health/../invocations", "/HEALTH", "/metricsx", "/v1/../health",
    ],
)  # fmt: skip
def test_all_but_the_open_routes_need_the_key(guarded: Guard, app: App, path: str) -> None:
    for wrong in [(), ((b"authorization", b"Bearer " + b"x" * 30),), ((b"authorization", KEY.encode()),),
                  ((b"authorization", b"Basic " + KEY.encode()),), ((b"authorization", b"Bearer \xff"),)]:  # fmt: skip
        assert status(guarded, path, *wrong) == 401
        assert status(guarded, path, *wrong, kind="websocket") == 1008
    assert app.reached == []
    assert status(guarded, path, RIGHT) == 200
    assert status(guarded, path, (b"authorization", b"bearer " + KEY.encode())) == 200
    assert app.reached == [path, path]


def test_a_key_is_replaced_while_it_runs(app: App, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[list[Header]] = []

    async def vllm(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["headers"])
        await app(scope, receive, send)

    file = tmp_path / "instances"
    monkeypatch.setattr(guard, "KEY_FILE", str(file))
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    guarded, other = Guard(vllm), (b"accept", b"*/*")

    def key(letter: str) -> Header:
        return b"authorization", b"Bearer " + letter.encode() * 30

    assert [status(guarded, "/v1/models", item) for item in (RIGHT, key("n"), key(""))] == [200, 401, 401]
    for number, letter in enumerate("nm", 1):
        file.write_text(f"VLLM_API_KEY={letter * 30}\n")
        os.utime(file, ns=(number, number))
        assert status(guarded, "/v1/models", RIGHT) == 200
        assert status(guarded, "/v1/models", other, key(letter)) == 200
        assert sorted(seen[-1]) == [other, RIGHT]  # all that vLLM itself knows
        assert status(guarded, "/v1/models", (b"authorization", b"Basic " + letter.encode() * 30)) == 401
    # Load balancers may still send the one between its own and the present one: this is the second replacement.
    assert status(guarded, "/v1/models", key("n")) == 200
    file.write_text(f"VLLM_API_KEY={'l' * 30}\n")
    os.utime(file, ns=(3, 3))
    assert [status(guarded, "/v1/models", key(letter)) for letter in "lmn"] == [200, 200, 401]
    for text in ("", "\n", "VLLM_API_KEY=\n", "nonsense\n"):
        file.write_text(text)
        os.utime(file)
        assert status(guarded, "/v1/models", (b"authorization", b"Bearer ")) == 401
        assert status(guarded, "/v1/models", RIGHT) == 200
    file.unlink()
    assert status(guarded, "/v1/models", RIGHT) == 200


@pytest.mark.parametrize("path", guard.OPEN)
def test_open_routes_need_none(guarded: Guard, path: str) -> None:
    assert status(guarded, path) == 200
    assert status(guarded, "/api" + path, root_path="/api") == 200
    assert status(guarded, "/api" + path) == 401
    assert status(guarded, path, kind="websocket") == 1008


def test_without_a_key_everything_passes(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.delenv("INSTINCT_GUARD", raising=False)
    assert status(Guard(app), "/invocations") == 200


def test_the_start_of_the_application_passes(guarded: Guard, app: App) -> None:
    assert status(guarded, "", kind="lifespan") == 200
    assert app.reached == [""]


def test_an_instance_that_leaves_is_not_healthy_and_goes_on_answering(guarded: Guard, tmp_path: Path) -> None:
    assert status(guarded, "/health") == 200
    (tmp_path / "switch").write_bytes(b"1")
    assert (status(guarded, "/health"), status(guarded, "/metrics")) == (503, 200)
    assert status(guarded, "/v1/completions", RIGHT) == 200


def test_it_counts_requests(guarded: Guard, app: App) -> None:
    async def during() -> None:
        app.during = None
        _status, headers = await ask(guarded, "/metrics")
        assert headers[guard.REQUESTS_HEADER] == b"1"

    app.during = during
    assert status(guarded, "/v1/completions", RIGHT) == 200
    assert asyncio.run(ask(guarded, "/metrics"))[1][guard.REQUESTS_HEADER] == b"0"


@pytest.mark.parametrize(
    ("checks", "count"),
    [
        ([], b"0"),
        (["UP 2/3; name=llama/n1; node=lb-01; weight=1/2"], b"1"),
        (["UP; name=llama/n1; node=lb-01; scur=1", "UP; name=llama/n1; node=lb-01; scur=9"], b"1"),
        (["UP; name=llama/n1; node=lb-01", "UP; name=llama/n1; node=lb-02"], b"2"),
        (["UP; name=llama/n1; node=lb-01", "NOLB 2/3; name=llama/n1; node=lb-01"], b"0"),
        (["UP; name=llama/n1; node=lb-01", "DOWN; name=llama/n1; node=lb-01"], b"0"),
        (["nonsense", "\xff;;;"], b"0"),
    ],
)
def test_it_knows_which_balancers_count_on_it(guarded: Guard, checks: list[str], count: bytes) -> None:
    for text in checks:
        status(guarded, "/health", (b"x-haproxy-server-state", text.encode("latin-1")))
    assert asyncio.run(ask(guarded, "/metrics"))[1][guard.BALANCERS_HEADER] == count


BODY = [b"x" * 60, b"x" * 40, b"x" * 50, b""]


@pytest.mark.parametrize(
    ("limit", "status", "seen"),
    [
        (b"150", 200, 150), (b"149", 413, 100), (b"99", 413, 60), (b"0", 413, 0), (b"", 200, 150),
        (b"-1", 200, 150), (b"many", 200, 150),
    ],
)  # fmt: skip
def test_a_body_is_counted_as_it_is_read(limit: bytes, status: int, seen: int) -> None:
    parts, found, sent = iter(BODY), [], []

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            found.append(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def receive() -> dict[str, Any]:
        part = next(parts, b"")
        return {"type": "http.request", "body": part, "more_body": bool(part)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/v1/completions", "headers": [(guard.LIMIT_HEADER, limit)]}
    asyncio.run(Guard(app)(scope, receive, send))
    assert sum(map(len, found)) == seen
    start, *rest = sent
    text = b"".join(message["body"] for message in rest)
    assert start["status"] == status
    assert not rest[-1].get("more_body")
    if status == 413:
        headers = dict(start["headers"])
        assert (int(headers[b"content-length"]), headers[b"connection"]) == (len(text), b"close")
        assert json.loads(text)["error"]["code"] == 413
        assert next(parts, None) is None  # all of it was read, so that the answer arrives


def test_a_body_that_grows_too_large_after_the_answer_began_is_broken_off() -> None:
    parts, sent = iter(BODY), []

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] == "http.request":
            pass
        await send({"type": "http.response.body", "body": b"ok"})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": next(parts), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message.get("status") or message["body"])

    scope = {"type": "http", "path": "/v1/completions", "headers": [(guard.LIMIT_HEADER, b"99")]}
    asyncio.run(Guard(app)(scope, receive, send))
    assert sent == [200, b"ok"]


def test_a_balancer_that_is_gone_does_not_count(guarded: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    status(guarded, "/health", (b"x-haproxy-server-state", b"UP; name=a; node=lb"))
    now = guard.time.monotonic()
    monkeypatch.setattr(guard.time, "monotonic", lambda: now + 6)
    assert asyncio.run(ask(guarded, "/metrics"))[1][guard.BALANCERS_HEADER] == b"0"
