# SPDX-License-Identifier: Apache-2.0
"""A streaming load on an endpoint: so many requests per second, every one accounted for.

    python -m tests.load https://lb:8443 MODEL --key-file .secrets/api-keys.yml --ca ca.crt --rate 50 --seconds 30

Open loop: requests begin at their time whatever the earlier ones do. Connections are kept and used again, as the
clients of OpenAI's API do it. Nothing is retried: what fails is counted. That goes for a request on a kept connection
too which the server closes before it answers: nobody can know whether the server has worked on it. A connection that
was closed while it was idle is not used, so nothing is lost with it.

Every request that began has one Outcome, with the kind of its problem if it has one: tests/stream.py says what a whole
answer is. Too late is a problem as well: an answer over its limit, or a silence over the stall limit. And an answer
that two requests have is none of the second's: a server may send one twice on a connection that is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import errno
import json
import math
import ssl
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp

from tests.stream import NotWhole, Stream

KEEP_SECONDS = 60  # an idle connection; HAProxy keeps it for 120
# Of what was due until a second before the end so much has begun, or the machine was too slow for a proof.
BEGUN_SHARE, GRACE_SECONDS = 0.9, 1.0


@dataclass(frozen=True)
class Outcome:
    """What became of one request; problem "": its answer came whole, and in time.

    begun: seconds since the load began. stall: the longest time without an event, also before the first one. id: the
    answer's own.
    """

    begun: float
    seconds: float
    status: int
    tokens: int
    problem: str
    detail: str = ""
    stall: float = 0.0
    id: str = ""


@dataclass(frozen=True)
class Target:
    """What is asked, with so many tokens per answer, and how long that may take.

    ca: file with the certificate that the endpoint must have; key "": none. limit: seconds for a whole answer.
    stall: seconds without an event, the first one included.
    """

    url: str
    model: str
    key: str = ""
    ca: str = ""
    tokens: int = 20
    prompt: str = "Tell me about load"
    chat: bool = False
    limit: float = 30.0
    stall: float = 10.0

    @property
    def place(self) -> str:
        return self.url.rstrip("/") + ("/v1/chat/completions" if self.chat else "/v1/completions")

    @property
    def body(self) -> bytes:
        """The request."""
        asked = (
            {"messages": [{"role": "user", "content": self.prompt}]} if self.chat else {"prompt": self.prompt}
        )
        return json.dumps({
            "model": self.model, **asked, "max_tokens": self.tokens, "ignore_eos": True, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True},
        }).encode()  # fmt: skip

    @property
    def headers(self) -> dict[str, str]:
        key = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return {"Content-Type": "application/json", **key}


# Nor is it a proof of a time in which no request began, although they were all begun at once later: for longer than an
# answer may be silent. Requests that begin late while others begin are a load all the same.
GAP_SECONDS = Target.stall


@dataclass(frozen=True)
class Summary:
    """What became of a load. behind: requests that were due and never began; gap: the longest time that none began."""

    begun: int
    ended: int
    whole: int
    behind: int
    problems: dict[str, int]
    median: float
    longest: float
    stall: float
    gap: float

    def __str__(self) -> str:
        failed = ", ".join(f"{count} {kind}" for kind, count in sorted(self.problems.items()))
        return (
            f"{self.begun} requests begun, {self.ended} ended, {self.whole} whole, problems: {failed or 'none'}; "
            f"median {self.median:.2f} s, longest {self.longest:.2f} s, longest stall {self.stall:.2f} s; "
            f"{self.behind} behind, none began for {self.gap:.2f} s"
        )


class Load:
    """Requests at a rate, in a thread of its own, until stop() or until `count` of them have begun."""

    def __init__(self, target: Target, rate: float, count: int = sys.maxsize) -> None:
        self.target, self.rate, self.count = target, rate, count
        self.begun = 0
        self.outcomes: list[Outcome] = []
        self._ready, self._stopping = threading.Event(), threading.Event()
        self._tls = (
            ssl.create_default_context(cafile=target.ca or None) if target.url.startswith("https") else False
        )
        self._entered = self._left = 0.0
        self._gap = 0.0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Load:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> list[Outcome]:
        """Begin no more requests, wait for those that run, and return what became of all."""
        if not self._stopping.is_set():
            self._left = time.monotonic()
            self._stopping.set()
        self._thread.join()
        return self.outcomes

    def wait_for(self, requests: int) -> None:
        """Until so many have begun; AssertionError when the generator ends before."""
        while self.begun < requests:
            assert self._thread.is_alive(), f"the load generator ended: {self.summary()}"
            time.sleep(0.005)

    @property
    def now(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._entered

    def due(self, grace: float = 0.0) -> int:
        """How many requests had their time until `grace` seconds before stop(), by the clock of who called it."""
        seconds = (self._left or time.monotonic()) - self._entered - grace
        return min(self.count, math.ceil(self.rate * max(0.0, seconds)))

    def problems(self) -> dict[str, int]:
        """How many requests failed, by how."""
        return dict(collections.Counter(item.problem for item in self.outcomes if item.problem))

    def summary(self) -> Summary:
        """The figures so far."""
        ended = list(self.outcomes)
        seconds = [item.seconds for item in ended]
        return Summary(
            begun=self.begun,
            ended=len(ended),
            whole=sum(not item.problem for item in ended),
            behind=max(0, self.due() - self.begun),
            problems=self.problems(),
            median=statistics.median(seconds) if seconds else 0.0,
            longest=max(seconds, default=0.0),
            stall=max((item.stall for item in ended), default=0.0),
            gap=self._gap,
        )

    def assert_accounted(self, at_least: int = 0) -> Summary:
        """AssertionError unless requests began at their rate, as many as are needed, and every one has ended."""
        assert not self._thread.is_alive(), "the load has not been stopped"
        found = self.summary()
        if self._failure:
            raise AssertionError(f"the load generator itself failed: {found}") from self._failure
        assert found.ended == found.begun, f"{found.begun - found.ended} requests have no outcome: {found}"
        needed = max(1, math.floor(BEGUN_SHARE * self.due(GRACE_SECONDS)))
        assert found.begun >= needed, f"{self.due()} requests were due; the machine is too slow: {found}"
        assert found.begun >= at_least, f"{at_least} requests are needed: {found}"
        assert found.gap <= GAP_SECONDS, (
            f"no request began for {found.gap:.1f} s; the machine is too slow: {found}"
        )
        return found

    def assert_nothing_lost(self, at_least: int = 0) -> Summary:
        """The same, and AssertionError unless every answer came whole, and in time."""
        found = self.assert_accounted(at_least)
        failed = [item for item in self.outcomes if item.problem]
        text = "".join(f"\n  {item}" for item in failed[:10])
        assert not failed, f"{len(failed)} of {found.begun} requests are lost: {found}{text}"
        answers = len({item.id for item in self.outcomes})
        assert answers == found.begun, f"{found.begun} requests have {answers} answers: {found}"
        return found

    def _work(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _run(self) -> None:
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_note_reuse)
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._tls, keepalive_timeout=KEEP_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self.target.headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                trace_configs=[tracing],
            ) as session,
            asyncio.TaskGroup() as requests,
        ):
            self._entered = time.monotonic()
            self._ready.set()
            last = 0.0
            while self.begun < self.count and not self._stopping.is_set():
                self._gap, last = max(self._gap, self.now - last), self.now
                self.begun += 1
                requests.create_task(self._request(session))
                await asyncio.sleep(max(0.0, self.begun / self.rate - self.now))
            if self.begun < self.count:
                self._gap = max(self._gap, self.now - last)

    async def _request(self, session: aiohttp.ClientSession) -> None:
        """One request. Whatever happens, it has an outcome."""
        answer = _Answer(self.target, self.now)
        problem, detail = "unforeseen", ""
        try:
            problem, detail = await self._ask(session, answer)
        except asyncio.CancelledError:
            problem = "cancelled"
            raise
        finally:
            begun, now = answer.begun, self.now
            stall = answer.silence(now)
            tokens = answer.stream.usage or 0
            outcome = Outcome(
                begun, now - begun, answer.status, tokens, problem, detail, stall, answer.stream.id
            )
            self.outcomes.append(outcome)

    async def _ask(self, session: aiohttp.ClientSession, answer: _Answer) -> tuple[str, str]:
        """Kind and details of the problem, if there is one."""
        limit = asyncio.timeout(self.target.limit)
        try:
            async with limit:
                await self._exchange(session, answer)
            answer.judge(self.now)
        except Exception as error:
            late = limit.expired() and isinstance(error, TimeoutError)
            return answer.problem(error, self.now, late=late)
        return "", ""

    async def _exchange(self, session: aiohttp.ClientSession, answer: _Answer) -> None:
        target = self.target
        async with session.post(
            target.place, data=target.body, allow_redirects=False, trace_request_ctx=answer.connection
        ) as response:
            answer.status = response.status
            if response.status != 200:
                raise NotWhole("", repr(await response.content.read(200)))
            if response.content_type != "text/event-stream":
                raise NotWhole(f"200 with {response.content_type}", repr(await response.content.read(200)))
            async for line in response.content:
                if answer.stream.line(line):
                    answer.heard(self.now)


class _Answer:
    """One request's answer as far as it came, by the clock of the load."""

    def __init__(self, target: Target, now: float) -> None:
        self.target = target
        self.begun = self.last = now
        self.longest = 0.0
        self.status = 0
        self.stream = Stream(target.model, chat=target.chat)
        self.connection = SimpleNamespace(kept=False)

    def heard(self, now: float) -> None:
        """An event came."""
        self.longest, self.last = self.silence(now), now

    def silence(self, now: float) -> float:
        """The longest time without an event until now."""
        return max(self.longest, now - self.last)

    def judge(self, now: float) -> None:
        """NotWhole unless the answer that has ended is whole and came without a stall."""
        self.stream.judge(self.target.tokens)
        if self.silence(now) > self.target.stall:
            raise NotWhole("stalled", f"{self.silence(now):.1f} s")

    def problem(self, error: Exception, now: float, *, late: bool) -> tuple[str, str]:
        """Kind and details of what ended the exchange."""
        if isinstance(error, NotWhole):
            detail = error.detail
        else:  # not its repr, which may have the request's headers, and so the key
            detail = f"{type(error).__name__} {error} after {self.stream.events} events"[:300]
        if self.status not in (0, 200):
            return f"HTTP {self.status}", detail
        if isinstance(error, NotWhole):
            return error.kind, detail
        if not late:
            return self._cut(error), detail
        if not self.status:
            return "no answer in time", detail
        return "stalled" if self.silence(now) > self.target.stall else "too slow", detail

    def _cut(self, error: Exception) -> str:
        """Kind of what the HTTP client says."""
        if isinstance(error, aiohttp.ClientConnectorError):
            return "connection refused" if error.errno == errno.ECONNREFUSED else "no connection"
        if isinstance(error, aiohttp.ClientResponseError):
            long = any(isinstance(item, aiohttp.http_exceptions.LineTooLong) for item in causes(error))
            return "headers too long" if long else "no HTTP"
        if isinstance(error, aiohttp.ClientConnectionError) and not self.status:
            return "kept connection cut before an answer" if self.connection.kept else "cut before an answer"
        if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError):
            return "cut in the answer"
        return f"unforeseen {type(error).__name__}"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, and those that it came from."""
    while error:
        yield error
        error = error.__cause__


async def _note_reuse(_session: Any, context: Any, _params: Any) -> None:
    context.trace_request_ctx.kept = True


def main() -> int:
    """The command; 1 when something was lost."""
    parser = argparse.ArgumentParser(description="Streaming load on an endpoint")
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--key-file", type=Path, help="YAML, name: key; the first one is used")
    parser.add_argument("--ca", default="")
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--tokens", type=int, default=Target.tokens)
    parser.add_argument("--chat", action="store_true", help="ask /v1/chat/completions")
    parser.add_argument("--limit", type=float, default=Target.limit, help="seconds for a whole answer")
    parser.add_argument("--stall", type=float, default=Target.stall, help="seconds without an event")
    given = parser.parse_args()
    key = first_key(given.key_file) if given.key_file else ""
    target = Target(
        given.url,
        given.model,
        key,
        given.ca,
        given.tokens,
        chat=given.chat,
        limit=given.limit,
        stall=given.stall,
    )
    with Load(target, given.rate) as load:
        time.sleep(given.seconds)
    try:
        print(load.assert_nothing_lost())
    except AssertionError as error:
        print(error)
        return 1
    return 0


def first_key(path: Path) -> str:
    """The first API key of a file such as .secrets/api-keys.yml."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(line.partition(": ")[2] for line in lines if not line.startswith("#"))


if __name__ == "__main__":
    sys.exit(main())
