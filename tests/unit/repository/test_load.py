# SPDX-License-Identifier: Apache-2.0
"""The load generator against a server that misbehaves: every request is counted once, under its own kind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import load as load_module
from tests.helpers.eventually import GENEROUS
from tests.load import Load, Target, main
from tests.worlds.bad_server import (
    DONE,
    ID,
    MODEL,
    SSE,
    TOKENS,
    USAGE,
    WHOLE,
    BadServer,
    Client,
    Way,
    delta,
    event,
    forever,
    serving,
    usage,
)
from tests.worlds.standin_server import Standin

REQUESTS = 4


def target(url: str, **options: Any) -> Target:
    return Target(url, MODEL, **{"tokens": TOKENS, "limit": GENEROUS, "stall": GENEROUS, **options})


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the machine was too slow is for the tests that are about it."""
    monkeypatch.setattr(load_module, "GAP_SECONDS", GENEROUS)


def pushed(aim: Target, requests: int = REQUESTS, rate: float = 100) -> Load:
    """A load of so many requests, however slow the machine is."""
    with Load(aim, rate, requests) as load:
        load.wait_for(requests)
    return load


def met(way: Way, **options: Any) -> tuple[Load, BadServer]:
    """A load on a server of this way. A limit is that of the time after an answer has begun, if one ever does."""
    with serving(way) as server, contextlib.ExitStack() as stack:
        if "limit" in options:
            stack.enter_context(
                limits_from(lambda status: server.requests == REQUESTS if way is never else status > 0)
            )
        load = pushed(target(server.url, **options))
    return load, server


@contextlib.contextmanager
def limits_from(begins: Callable[[int], bool]) -> Iterator[None]:
    """Let the limits of requests begin when this is so of their status; until then the machine may stall."""
    exchange = Load._exchange
    limits: dict[Any, asyncio.Timeout] = {}

    def timeout(_: float) -> asyncio.Timeout:
        return limits.setdefault(asyncio.current_task(), asyncio.timeout(None))

    async def patient(load: Load, session: Any, answer: Any) -> None:
        limit = limits[asyncio.current_task()]

        async def watch() -> None:
            while not begins(answer.status):
                await asyncio.sleep(0.005)
            limit.reschedule(asyncio.get_running_loop().time() + load.target.limit)

        watching = asyncio.create_task(watch())
        try:
            await exchange(load, session, answer)
        finally:
            watching.cancel()

    names = ("run", "sleep", "CancelledError", "TaskGroup")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Load, "_exchange", patient)
        patch.setattr(
            load_module,
            "asyncio",
            SimpleNamespace(timeout=timeout, **{it: getattr(asyncio, it) for it in names}),
        )
        yield


@contextlib.contextmanager
def one_after_another(after: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Let a request be sent when the one before has ended and this is so, however late a busy machine is."""
    exchange, turn = Load._exchange, asyncio.Lock()

    async def wait(*rest: Any) -> None:
        async with turn:
            while not after():
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.005)  # the loop sees what has come
            await exchange(*rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Load, "_exchange", wait)
        yield


# ---- whole answers ---------------------------------------------------------------------------------------------------


def stream(*texts: str) -> Way:
    async def way(client: Client) -> None:
        await client.stream(*texts)

    return way


async def by_length(client: Client) -> None:
    text = "".join(WHOLE)
    await client.head(content_type=SSE, content_length=str(len(text)))
    await client.raw(text)


async def until_closed(client: Client) -> None:
    await client.head(content_type=SSE, connection="close")
    await client.raw("".join(WHOLE))
    client.close()


async def after_an_early_hint(client: Client) -> None:
    await client.raw("HTTP/1.1 100 Continue\r\n\r\n")
    await client.stream(*WHOLE)


async def cut_up(client: Client) -> None:
    text = client.named("".join(WHOLE))
    await client.stream(*(text[place : place + 7] for place in range(0, len(text), 7)))


OF = f'"id": "{ID}", "model": "{MODEL}"'


COUNTED = {**USAGE, "completion_tokens": 1}
WELL: dict[str, Way] = {
    "a token per chunk": stream(*WHOLE),
    "all tokens in one event": stream(event("x y z", "length"), usage(), DONE),
    "two tokens in one event": stream(event("x y"), event("z", "length"), usage(), DONE),
    "first event empty": stream(event(""), *WHOLE),
    "no text at all": stream(event("", "length"), usage(), DONE),
    "usage in the last event": stream(event("x y"), event("z", "length", usage=USAGE), DONE),
    "usage so far in every event": stream(event(usage=COUNTED), event(reason="length", usage=USAGE), DONE),
    "usage null before the end": stream(event(usage=None), event(reason="length", usage=None), usage(), DONE),
    "events cut by chunks": cut_up,
    "all events in one chunk": stream("".join(WHOLE)),
    "CRLF": stream("".join(WHOLE).replace("\n", "\r\n")),
    "comments and fields": stream(": ping\n\n", f"id: 1\nretry: 5\nevent: x\n{WHOLE[0]}", *WHOLE[1:]),
    "an event over two lines": stream(f'data: {{{OF},\ndata: "choices": []}}\n\n', *WHOLE),
    "letters of several bytes": stream(event("für 学"), *WHOLE),
    "content-length": by_length,
    "until the connection is closed": until_closed,
    "100 before 200": after_an_early_hint,
}


@pytest.mark.parametrize("name", WELL)
def test_a_whole_answer_is_whole(name: str) -> None:
    load, server = met(WELL[name])
    found = load.assert_nothing_lost(at_least=REQUESTS)
    assert found.begun == found.ended == found.whole == server.requests
    assert {(item.status, item.tokens) for item in load.outcomes} == {(200, TOKENS)}


CHAT = [
    delta({"role": "assistant", "content": ""}), delta({"content": "x y"}), delta({}),
    delta({"content": "z"}, "length"), usage(), DONE,
]  # fmt: skip


def test_a_chat_begins_with_a_role() -> None:
    asked: list[dict[str, Any]] = []

    async def way(client: Client) -> None:
        asked.append(client.asked)
        await client.stream(*CHAT)

    load, _ = met(way, chat=True)
    load.assert_nothing_lost(at_least=REQUESTS)
    assert [message["role"] for message in asked[0]["messages"]] == ["user"]
    assert (asked[0]["max_tokens"], asked[0]["stream_options"]) == (TOKENS, {"include_usage": True})


def test_connections_are_kept() -> None:
    with serving(stream(*WHOLE)) as server, one_after_another():
        load = pushed(target(server.url), requests=20)
    load.assert_nothing_lost()
    assert server.connections < server.requests


# ---- answers that are not whole --------------------------------------------------------------------------------------


async def resets(client: Client) -> None:
    client.reset()


async def closes(client: Client) -> None:
    client.close()


async def closes_in_the_headers(client: Client) -> None:
    await client.raw("HTTP/1.1 200 OK\r\ncontent-type: text/ev")
    client.close()


async def resets_in_the_stream(client: Client) -> None:
    await client.stream(*WHOLE[:2], end=False)
    client.reset()


async def closes_in_the_stream(client: Client) -> None:
    await client.stream(*WHOLE[:2], end=False)
    client.close()


async def closes_after_done(client: Client) -> None:
    await client.stream(*WHOLE, end=False)
    client.close()


async def short_of_content_length(client: Client) -> None:
    text = "".join(WHOLE)
    await client.head(content_type=SSE, content_length=str(len(text) + 1))
    await client.raw(text)
    client.close()


def says(text: str) -> Way:
    async def way(client: Client) -> None:
        await client.raw(text)
        client.close()

    return way


def status(text: str, **headers: str) -> Way:
    async def way(client: Client) -> None:
        await client.head(text, content_length="0", **headers)

    return way


async def error_as_json(client: Client) -> None:
    await client.json("200 OK", {"error": {"message": "no", "code": 500}})


async def refusal_as_json(client: Client) -> None:
    await client.json("500 Internal Server Error", {"error": {"message": "EngineCore encountered an issue"}})


async def stream_of_another_status(client: Client) -> None:
    await client.head("202 Accepted", content_type=SSE, transfer_encoding="chunked")
    await client.chunks(*WHOLE)


async def refusal_that_is_cut(client: Client) -> None:
    await client.head("502 Bad Gateway", content_length="100")
    client.close()


async def refusal_that_never_ends(client: Client) -> None:
    await client.head("503 Service Unavailable", content_length="100")
    await forever().wait()


async def cut_in_an_event(client: Client) -> None:
    await client.head(content_type=SSE, connection="close")
    await client.raw("".join(WHOLE)[:-1])
    client.close()


async def reset_in_an_event(client: Client) -> None:
    await client.head(content_type=SSE, connection="close")
    await client.raw("".join(WHOLE)[:-1])
    client.reset()


async def never(client: Client) -> None:
    await forever().wait()


async def silent_in_the_stream(client: Client) -> None:
    await client.stream(*WHOLE[:1], end=False)
    await forever().wait()


async def silent_after_done(client: Client) -> None:
    await client.stream(*WHOLE, end=False)
    await forever().wait()


async def pauses(client: Client) -> None:
    await client.stream(*WHOLE[:1], end=False)
    await asyncio.sleep(0.3)
    await client.chunks(*WHOLE[1:])


async def thinks_first(client: Client) -> None:
    await client.stream(end=False)
    await asyncio.sleep(0.3)
    await client.chunks(*WHOLE)


async def pings_only(client: Client) -> None:
    await client.stream(*WHOLE[:1], end=False)
    for _ in range(30):
        await asyncio.sleep(0.01)
        await client.chunks(": ping\n\n", end=False)
    await client.chunks(*WHOLE[1:])


async def drips(client: Client) -> None:
    await client.stream(end=False)
    while True:
        await client.chunks(event(), end=False)
        await asyncio.sleep(0.01)


BIG = "x" * 300_000
CUT = "cut in the answer"
FORM = "event of another form"
MIXED = "events of another answer"
# Way, kind, and the load's options.
ILL: dict[str, tuple[Way, str, dict[str, Any]]] = {
    # Connections.
    "reset before an answer": (resets, "cut before an answer", {}),
    "closed before an answer": (closes, "cut before an answer", {}),
    "closed in the headers": (closes_in_the_headers, "cut before an answer", {}),
    "reset in the stream": (resets_in_the_stream, CUT, {}),
    "closed in the stream": (closes_in_the_stream, CUT, {}),
    "closed between [DONE] and the end of the body": (closes_after_done, CUT, {}),
    "content-length short": (short_of_content_length, CUT, {}),
    "cut in an event, body without a length": (cut_in_an_event, "no end", {}),
    "reset in an event, body without a length": (reset_in_an_event, "no end", {}),
    # HTTP.
    "status line empty": (says("\r\n\r\n"), "cut before an answer", {}),
    "status line of blanks": (says(" \r\n\r\n"), "no HTTP", {}),
    "status without a number": (says("HTTP/1.1 OK\r\n\r\n"), "no HTTP", {}),
    "garbage": (says("\x16\x03\x01 this is no HTTP\r\n\r\n"), "no HTTP", {}),
    "chunk without a size": (
        says(f"HTTP/1.1 200 OK\r\ncontent-type: {SSE}\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"), "no HTTP", {}
    ),
    "header line too long": (says(f"HTTP/1.1 200 OK\r\nx: {BIG}\r\n\r\n"), "headers too long", {}),
    "503": (status("503 Service Unavailable"), "HTTP 503", {}),
    "500 with JSON": (refusal_as_json, "HTTP 500", {}),
    "429": (status("429 Too Many Requests", retry_after="0"), "HTTP 429", {}),
    "a redirection": (status("307 Temporary Redirect", location="/v1/completions"), "HTTP 307", {}),
    "204": (status("204 No Content"), "HTTP 204", {}),
    "202 with a whole stream": (stream_of_another_status, "HTTP 202", {}),
    "502 that is cut": (refusal_that_is_cut, "HTTP 502", {}),
    "503 that never ends": (refusal_that_never_ends, "HTTP 503", {"limit": 0.3}),
    "200 with JSON": (error_as_json, "200 with application/json", {}),
    # Events.
    "an error": (stream(WHOLE[0], 'data: {"error": {"code": 500}}\n\n', DONE), "error in the stream", {}),
    "no JSON": (stream(WHOLE[0], "data: {truncated\n\n", *WHOLE[1:]), "event that is not JSON", {}),
    "a number over two lines": (
        stream('data: {"choices": [], "x": 1\ndata: 2}\n\n', *WHOLE), "event that is not JSON", {}
    ),
    "no choices": (stream(f"data: {{{OF}}}\n\n", *WHOLE), FORM, {}),
    "no model": (stream(event().replace('"model"', '"x"'), *WHOLE), FORM, {}),
    "no id": (stream(event().replace('"id"', '"x"'), *WHOLE), FORM, {}),
    "id null": (stream(event().replace(f'"{ID}"', "null"), *WHOLE), FORM, {}),
    "a list": (stream("data: [1]\n\n", *WHOLE), FORM, {}),
    "choices null": (stream(f'data: {{{OF}, "choices": null}}\n\n', *WHOLE), FORM, {}),
    "choice without an index": (stream(event().replace('"index"', '"x"'), *WHOLE), FORM, {}),
    "choice without text": (stream(f'data: {{{OF}, "choices": [{{"index": 0}}]}}\n\n', *WHOLE), FORM, {}),
    "text null": (stream(event().replace('"x"', "null"), *WHOLE), FORM, {}),
    "a chat's events": (stream(*CHAT), FORM, {}),
    "usage without a number": (stream(*WHOLE[:3], usage().replace("completion_tokens", "x"), DONE), FORM, {}),
    "usage is no number": (stream(*WHOLE[:3], usage().replace(": 3}", ': "3"}'), DONE), FORM, {}),
    "an error by name": (stream(WHOLE[0], f"event: error\n{WHOLE[1]}", *WHOLE[2:]), "error in the stream", {}),
    "another model": (stream(*(text.replace('"m"', '"n"') for text in WHOLE)), "answer of another model", {}),
    "two answers in one": (stream(WHOLE[0], *(text.replace(ID, "cmpl-1") for text in WHOLE[1:])), MIXED, {}),
    "usage of another answer": (stream(*WHOLE[:3], usage().replace(ID, "cmpl-1"), DONE), MIXED, {}),
    "two choices": (
        stream(WHOLE[0], event().replace('"index": 0', '"index": 1'), *WHOLE[1:]), "a choice that nobody asked for", {}
    ),
    "a line that is no event": (stream(WHOLE[0], "Traceback (most …)\n", *WHOLE[1:]), "line that is no event", {}),
    # The end of the stream.
    "nothing": (stream(), "no end", {}),
    "no [DONE]": (stream(*WHOLE[:-1]), "no end", {}),
    "[DONE] without its empty line": (stream(*WHOLE[:-1], "data: [DONE]\n"), "no end", {}),
    "only [DONE]": (stream(DONE), "no finish reason", {}),
    "no finish reason": (stream(event(), event(), event(), usage(), DONE), "no finish reason", {}),
    "aborted": (stream(event(), event(reason="abort"), usage(), DONE), "finish reason abort", {}),
    "stopped": (stream(event(), event(reason="stop"), usage(), DONE), "finish reason stop", {}),
    "more after the finish": (stream(*WHOLE[:3], event(), *WHOLE[3:]), "more after the finish reason", {}),
    "finished twice": (stream(*WHOLE[:3], *WHOLE[2:]), "more after the finish reason", {}),
    "no usage": (stream(*WHOLE[:3], DONE), "no usage", {}),
    "too few tokens": (stream(*WHOLE[:3], usage(TOKENS - 1), DONE), "wrong number of tokens", {}),
    "too many tokens": (stream(*WHOLE[:3], usage(TOKENS + 1), DONE), "wrong number of tokens", {}),
    "no tokens": (stream(*WHOLE[:3], usage(0), DONE), "wrong number of tokens", {}),
    "an event after [DONE]": (stream(*WHOLE, event()), "data after the end", {}),
    "[DONE] twice": (stream(*WHOLE, DONE), "data after the end", {}),
    "half an event after [DONE]": (stream(*WHOLE, "data: x"), "data after the end", {}),
    # Time.
    "never": (never, "no answer in time", {"limit": 0.3}),
    "silent in the stream": (silent_in_the_stream, "stalled", {"limit": 0.3, "stall": 0.1}),
    "silent after [DONE]": (silent_after_done, "stalled", {"limit": 0.3, "stall": 0.1}),
    "a pause in the stream": (pauses, "stalled", {"stall": 0.1}),
    "a pause before the first event": (thinks_first, "stalled", {"stall": 0.1}),
    "comments instead of events": (pings_only, "stalled", {"stall": 0.1}),
    "drop by drop": (drips, "too slow", {"limit": 0.3}),
}  # fmt: skip


@pytest.mark.parametrize("name", ILL)
def test_each_misbehaviour_is_counted_once_under_its_kind(name: str) -> None:
    way, kind, options = ILL[name]
    load, server = met(way, **options)
    assert load.problems() == {kind: load.begun}
    assert len(load.outcomes) == load.begun == server.requests  # nothing is retried
    with pytest.raises(AssertionError, match=f"^{load.begun} of {load.begun} requests are lost: "):
        load.assert_nothing_lost()
    assert load.assert_accounted(at_least=REQUESTS).whole == 0


def test_a_connection_that_is_refused_is_counted() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        load = pushed(target(f"http://127.0.0.1:{closed.getsockname()[1]}"))
    assert load.problems() == {"connection refused": load.begun}


def test_a_name_that_does_not_exist_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: Any, **__: Any) -> None:
        """What a resolver says, which may take its time to find out."""
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    load = pushed(target("http://no-such-host.invalid:1"))
    assert load.problems() == {"no connection": load.begun}


@pytest.mark.parametrize(("scheme", "kind"), [("http", "cut before an answer"), ("https", "no connection")])
def test_a_server_that_closes_connections_at_once_is_counted(scheme: str, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def refuse() -> None:
            while not ended.is_set():
                listener.accept()[0].close()

        thread = threading.Thread(target=refuse)
        thread.start()
        load = pushed(target(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"))
        ended.set()
        socket.create_connection(listener.getsockname()).close()
        thread.join()
    assert load.problems() == {kind: load.begun}


def test_a_chunk_without_a_size_in_mid_stream_is_counted() -> None:
    """The client may not see the end of such a body; the limit does."""

    async def way(client: Client) -> None:
        await client.stream(WHOLE[0], end=False)
        await asyncio.sleep(0.1)
        await client.raw("zz\r\nzz\r\n")
        client.close()

    load, server = met(way, limit=0.3, stall=0.1)
    assert set(load.problems()) <= {"no HTTP", CUT, "stalled"}
    assert sum(load.problems().values()) == load.begun == server.requests


def test_a_certificate_that_is_not_trusted_is_counted(tmp_path: Path) -> None:
    key, certificate = (tmp_path / name for name in ("key", "certificate"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=lb",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    with serving(stream(*WHOLE), context) as server:
        load = pushed(target(server.url, key="sk-secret"))
        assert load.problems() == {"no connection": load.begun}
        assert server.requests == 0
        trusted = pushed(target(server.url, ca=str(certificate)))
    trusted.assert_nothing_lost(at_least=REQUESTS)


def test_no_key_is_in_what_is_told() -> None:
    load, _ = met(says("garbage\r\n\r\n"), key="sk-secret")
    with pytest.raises(AssertionError) as caught:
        load.assert_nothing_lost()
    assert "ClientResponseError" in str(caught.value)
    assert "sk-secret" not in str(caught.value)


# ---- connections that were kept --------------------------------------------------------------------------------------


def test_a_connection_that_is_closed_while_idle_loses_nothing() -> None:
    """What HAProxy does with idle connections: no request is on its way, and the next one takes another connection."""

    closed = 0

    async def way(client: Client) -> None:
        nonlocal closed
        await client.stream(*WHOLE)
        client.close()  # without a word in the headers
        closed += 1

    with serving(way) as server, one_after_another(lambda: closed == server.requests):
        load = pushed(target(server.url))
    load.assert_nothing_lost(at_least=REQUESTS)
    assert server.requests == server.connections == load.begun


def test_a_request_that_is_cut_on_a_kept_connection_counts() -> None:
    """It reached a server: whether it was worked on nobody knows, so no client may send it again."""
    cut = 0

    async def way(client: Client) -> None:
        nonlocal cut
        if client.number == 1:
            await client.stream(*WHOLE)
            return
        cut += 1
        client.close()

    with serving(way) as server, one_after_another():
        load = pushed(target(server.url), requests=2 * REQUESTS)
    assert cut == REQUESTS
    assert load.problems() == {"kept connection cut before an answer": cut}
    assert load.assert_accounted().whole == server.connections
    assert len(load.outcomes) == server.requests


# ---- the account itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyError("x"), IndexError(), RuntimeError("no"), asyncio.CancelledError()])
def test_an_error_that_nobody_foresaw_is_an_outcome(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    async def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Load, "_exchange", fail)
    load = pushed(target("http://127.0.0.1:1"))
    kind = "cancelled" if isinstance(error, asyncio.CancelledError) else f"unforeseen {type(error).__name__}"
    assert load.problems() == {kind: load.begun}


def test_a_request_without_an_outcome_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(*_: Any) -> None: ...

    monkeypatch.setattr(Load, "_request", forget)
    load = pushed(target("http://127.0.0.1:1"))
    assert load.problems() == {}
    with pytest.raises(AssertionError, match="requests have no outcome"):
        load.assert_nothing_lost()


def test_a_generator_that_fails_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no certificate")

    monkeypatch.setattr(load_module.aiohttp, "TCPConnector", fail)
    with (
        Load(target("http://127.0.0.1:1"), 10) as load,
        pytest.raises(AssertionError, match="the load generator ended"),
    ):
        load.wait_for(1)
    with pytest.raises(AssertionError, match="generator itself failed") as caught:
        load.assert_nothing_lost()
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_machine_that_is_too_slow_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hog(load: Load, *_: Any) -> None:
        time.sleep(0.02)
        load.outcomes.append(load_module.Outcome(load.now, 0.02, 200, TOKENS, "", id=str(load.begun)))

    monkeypatch.setattr(Load, "_request", hog)
    with Load(target("http://127.0.0.1:1"), 1000) as load:
        while load.due(load_module.GRACE_SECONDS) < 500:
            time.sleep(0.005)
    with pytest.raises(AssertionError, match="requests were due; the machine is too slow"):
        load.assert_nothing_lost()
    found = load.summary()
    assert found.behind == load.due() - load.begun > 0
    assert found.gap > 0.02


def test_requests_that_begin_late_while_others_begin_are_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of a second passes whenever the clock is read: the last of a hundred begins 20 s late."""
    monkeypatch.setattr(load_module, "GAP_SECONDS", 1.0)
    clock = itertools.count(0.0, 0.1)
    monkeypatch.setattr(Load, "now", property(lambda _load: next(clock)))

    async def answered(load: Load, *_: Any) -> None:
        load.outcomes.append(load_module.Outcome(0.0, 0.1, 200, TOKENS, "", id=str(len(load.outcomes))))

    monkeypatch.setattr(Load, "_request", answered)
    load = pushed(target("http://127.0.0.1:1"), requests=100)
    assert load.assert_nothing_lost(at_least=100).gap < 1.0
    assert next(clock) > 20


def test_nor_is_a_time_in_the_end_in_which_nothing_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "GAP_SECONDS", 0.5)
    blocked = threading.Event()

    async def hog(load: Load, *_: Any) -> None:
        if load.begun == 10:
            blocked.set()
            time.sleep(0.8)
        load.outcomes.append(load_module.Outcome(load.now, 0.1, 200, TOKENS, "", id=str(len(load.outcomes))))

    monkeypatch.setattr(Load, "_request", hog)
    with Load(target("http://127.0.0.1:1"), 100) as load:
        blocked.wait()
    with pytest.raises(AssertionError, match=r"^no request began for \d+\.\d s; the machine is too slow"):
        load.assert_nothing_lost()


def test_a_time_in_which_nothing_began_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that were due begin later, at once: while something happened, nobody asked."""
    monkeypatch.setattr(load_module, "GAP_SECONDS", 0.5)
    hung = threading.Event()

    async def hang(client: Client) -> None:
        await client.stream(*WHOLE)
        hung.set()

    exchange = Load._exchange

    async def hog(load: Load, *rest: Any) -> None:
        if load.begun == 10:
            time.sleep(0.8)
        await exchange(load, *rest)

    monkeypatch.setattr(Load, "_exchange", hog)
    with serving(hang) as server:
        load = pushed(target(server.url), requests=100)
    assert load.problems() == {}
    assert load.summary().begun == 100
    with pytest.raises(AssertionError, match=r"^no request began for \d+\.\d s; the machine is too slow"):
        load.assert_nothing_lost()


def test_an_answer_that_two_requests_have_is_noticed() -> None:
    """On a kept connection the second one may take it for its own, and its server has not even read it."""

    async def way(client: Client) -> None:
        client.id = "cmpl-11111111"
        await client.stream(*WHOLE)

    load, _ = met(way)
    assert load.problems() == {}
    with pytest.raises(AssertionError, match=f"^{load.begun} requests have 1 answers: "):
        load.assert_nothing_lost()


def test_fewer_than_are_needed_are_no_proof() -> None:
    load, _ = met(stream(*WHOLE))
    with pytest.raises(AssertionError, match=f"^{load.begun + 1} requests are needed: "):
        load.assert_nothing_lost(at_least=load.begun + 1)


def test_a_load_that_still_runs_is_no_proof() -> None:
    with (
        serving(stream(*WHOLE)) as server,
        Load(target(server.url), 50) as load,
        pytest.raises(AssertionError, match="has not been stopped"),
    ):
        load.assert_nothing_lost()


def test_requests_begin_at_their_rate_whatever_becomes_of_the_others() -> None:
    enough = threading.Event()

    async def waits(client: Client) -> None:
        while not enough.is_set():
            await asyncio.sleep(0.01)
        await client.stream(*WHOLE)

    with serving(waits) as server, Load(target(server.url), 50, 30) as load:
        load.wait_for(30)
        enough.set()
    begun = [item.begun for item in sorted(load.outcomes, key=lambda item: item.begun)]
    assert len(begun) == load.begun == 30
    assert all(when >= number / load.rate for number, when in enumerate(begun))
    assert begun[-1] < min(item.begun + item.seconds for item in load.outcomes)  # while the first one waits


def test_what_waits_at_the_end_is_waited_for() -> None:
    with serving(pauses) as server:
        load = pushed(target(server.url), rate=1000)
        assert len(load.outcomes) == load.begun == server.requests
    assert all(item.seconds >= 0.3 for item in load.outcomes)
    assert all(0 < item.stall < item.seconds for item in load.outcomes)  # not from the beginning to the end
    found = load.assert_nothing_lost()
    assert (found.stall, found.longest) == (
        max(item.stall for item in load.outcomes), max(item.seconds for item in load.outcomes),
    )  # fmt: skip


def test_one_loss_among_many_is_enough() -> None:
    async def way(client: Client) -> None:
        await client.stream(*WHOLE[: -1 if server.requests == 3 else None])

    with serving(way) as server:
        load = pushed(target(server.url), requests=6)
    assert load.problems() == {"no end": 1}
    with pytest.raises(AssertionError, match=f"^1 of {load.begun} requests are lost: .*1 no end") as caught:
        load.assert_nothing_lost()
    assert "after 4 events" in str(caught.value)


# ---- the stand-in, and the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize("chat", [False, True])
def test_the_stand_in_answers_whole(tmp_path: Path, chat: bool) -> None:
    standin = Standin(tmp_path / "log", "m")
    try:
        standin.wait()
        load = pushed(target(f"http://127.0.0.1:{standin.port}", chat=chat, tokens=20))
    finally:
        standin.process.terminate()
        standin.finish()
    load.assert_nothing_lost(at_least=REQUESTS)


def test_a_stand_in_that_cuts_its_streams_is_found_out(tmp_path: Path) -> None:
    standin = Standin(tmp_path / "log", "m", env={"STANDIN_TRUNCATE_AFTER": "5"})
    try:
        standin.wait()
        load = pushed(target(f"http://127.0.0.1:{standin.port}", tokens=20))
    finally:
        standin.process.terminate()
        standin.finish()
    assert load.problems() == {CUT: load.begun}


@pytest.mark.parametrize(
    ("way", "code", "text"), [(stream(*WHOLE), 0, "none"), (resets, 1, "cut before an answer")]
)
def test_the_command_says_how_it_went(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    way: Way,
    code: int,
    text: str,
) -> None:
    keys = tmp_path / "api-keys.yml"
    keys.write_text("# Keys\nmine: sk-1\n")
    with serving(way) as server:
        args = [
            "load",
            server.url,
            "m",
            "--key-file",
            str(keys),
            "--rate",
            "50",
            "--seconds",
            "0.1",
            "--tokens",
            "3",
        ]
        monkeypatch.setattr(sys, "argv", args)
        # Enough requests begin on a busy machine too, and how busy it is, is not the subject.
        monkeypatch.setattr(load_module, "GRACE_SECONDS", GENEROUS)

        def leave(load: Load, *_: object) -> None:
            load.wait_for(REQUESTS)
            load.stop()

        monkeypatch.setattr(Load, "__exit__", leave)
        assert main() == code
    said = capsys.readouterr().out
    assert f"{server.requests} requests begun, {server.requests} ended" in said
    assert text in said


def test_an_outcome_tells_the_account_of_its_request() -> None:
    load, _ = met(stream(*WHOLE[:3], usage(1), DONE))
    (found, *_) = load.outcomes
    assert found.id.startswith("cmpl-")
    assert dataclasses.asdict(found) | {"begun": 0, "seconds": 0, "stall": 0, "id": ""} == {
        "begun": 0, "seconds": 0, "status": 200, "tokens": 1, "problem": "wrong number of tokens",
        "detail": f"1 of {TOKENS}", "stall": 0, "id": "",
    }  # fmt: skip
