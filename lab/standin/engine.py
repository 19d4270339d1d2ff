# SPDX-License-Identifier: Apache-2.0
"""The engine: every running request gets one token per step, as with continuous batching.

One timer serves all streams, so that hundreds of them cost little more than writing their chunks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from .knobs import Knobs
from .metrics import Metrics

BLOCK_SIZE = 16
MAKE_UP_SECONDS = 0.5
_TEXT = """the answer comes from a small engine that counts words and never thinks about them so every reply
looks like plain text of usual length while nothing in it means more than that a token was made on time and in
order"""
_WORDS = _TEXT.split()


class EngineDead(Exception):
    """The engine produces no more tokens."""

    def __init__(self) -> None:
        super().__init__("EngineCore encountered an issue. See stack trace (above) for the root cause.")


class Draining(Exception):
    """The engine finishes its requests and accepts no new ones. The text is vLLM 0.32's."""

    def __init__(self) -> None:
        super().__init__("cannot schedule new futures after shutdown")


class Sink(Protocol):
    """The receiver of a request's tokens."""

    def token(self, text: str, finish_reason: str | None, stop_reason: str | None) -> None: ...

    def failed(self, message: str) -> None: ...


@dataclass(eq=False, slots=True)
class Request:
    """One prompt. The same prompt gets the same text from every engine."""

    seed: int
    prompt_tokens: int
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()  # the words of a known answer
    sink: Sink | None = None
    # Set by the engine.
    arrived: float = 0.0
    scheduled: float = 0.0
    first: float = 0.0
    last: float = 0.0
    generated: int = 0
    text: str = ""  # kept only while a stop string may be found in it
    sent: int = 0

    @property
    def natural_length(self) -> int:
        """Return the number of tokens until the end of the text, if nothing else ends it."""
        return len(self.answer) or 16 + self.seed % 48

    @property
    def blocks(self) -> int:
        return -(-(self.prompt_tokens + self.generated) // BLOCK_SIZE)

    def word(self, index: int) -> str:
        if index < len(self.answer):
            return " " + self.answer[index]
        position = self.seed + index * (self.seed % 7 + 1) + index // len(_WORDS)
        return " " + _WORDS[position % len(_WORDS)]


class Engine:
    """Waiting and running requests, and the clock that advances them."""

    def __init__(self, knobs: Knobs, metrics: Metrics, max_num_seqs: int = 256) -> None:
        self.knobs = knobs
        self.metrics = metrics
        self.max_num_seqs = max_num_seqs
        self.interval = 1.0 / knobs.tokens_per_second
        self.blocks = max(1, knobs.kv_tokens // BLOCK_SIZE)
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self.dead = False
        self.draining = False
        self.accepted = 0
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def kv_usage(self) -> float:
        return sum(request.blocks for request in self.running) / self.blocks

    def submit(self, request: Request) -> None:
        """Accept a request. Raise EngineDead or Draining if that is impossible."""
        limit = 0 if self.knobs.fail == "first_request" else self.knobs.crash_after
        if not self.dead and (limit or self.knobs.fail == "first_request") and self.accepted >= limit:
            self.die()
        if self.dead:
            raise EngineDead
        if self.draining:
            raise Draining
        self.accepted += 1
        loop = asyncio.get_running_loop()
        request.arrived = loop.time()
        self.waiting.append(request)
        if self._timer is None:
            self._next = request.arrived + self.interval
            self._timer = loop.call_at(self._next, self._step)

    def abort(self, request: Request) -> None:
        """Remove a request whose client disconnected."""
        if request in self.running:
            del self.running[request]
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            return
        self.metrics.finished["abort"] += 1

    def die(self) -> None:
        """Fail all requests in flight, and all future ones."""
        self.stop()
        self.dead = True
        for request in [*self.running, *self.waiting]:
            self.metrics.finished["error"] += 1
            if request.sink:
                request.sink.failed(str(EngineDead()))
        self.running.clear()
        self.waiting.clear()

    def stop(self) -> None:
        """Stop generating. Requests in flight are not notified, as in vLLM when its engine is killed."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self.interval = float("inf")

    def _step(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        used = sum(request.blocks for request in self.running)
        while self.waiting and len(self.running) < self.max_num_seqs:
            used += self.waiting[0].blocks + 1
            if self.running and used > self.blocks:
                break
            request = self.waiting.popleft()
            request.scheduled = now
            self.running[request] = None
        for request in list(self.running):
            self._generate(request, now)
        self._timer = None
        if self.busy and self.interval != float("inf"):
            # Steps delayed by a busy machine are made up for, to keep the configured speed.
            self._next = max(self._next + self.interval, now - MAKE_UP_SECONDS)
            self._timer = loop.call_at(self._next, self._step)

    def _generate(self, request: Request, now: float) -> None:
        metrics = self.metrics
        if request.generated == 0:
            request.first = now
            metrics.prompt_tokens += request.prompt_tokens
            metrics.first_token.observe(now - request.arrived)
        else:
            metrics.next_token.observe(now - request.last)
        request.last = now
        text = "!" if self.knobs.garbage else request.word(request.generated)
        request.generated += 1
        metrics.generation_tokens += 1
        reason: str | None = None
        stop: str | None = None
        if not request.ignore_eos and request.generated >= max(request.natural_length, request.min_tokens):
            reason = "stop"
        elif request.generated >= request.max_tokens:
            reason = "length"
        if request.stop:
            text, stop = self._look_for_stop(request, text, last=reason is not None)
            reason = "stop" if stop is not None else reason
        if reason is not None:
            self._finish(request, reason, now)
        if request.sink:
            request.sink.token(text, reason, stop)

    def _look_for_stop(self, request: Request, text: str, *, last: bool) -> tuple[str, str | None]:
        """Return the text to send now: a part that could be the start of a stop string is held back."""
        request.text += text
        stop = None
        end = len(request.text) if last else len(request.text) - max(map(len, request.stop)) + 1
        if request.generated >= request.min_tokens:
            found = [(request.text.find(s), s) for s in request.stop if s in request.text]
            if found:
                end, stop = min(found)
        send = request.text[request.sent : max(end, request.sent)]
        request.sent += len(send)
        return send, stop

    def _finish(self, request: Request, reason: str, now: float) -> None:
        del self.running[request]
        metrics = self.metrics
        metrics.finished[reason] += 1
        metrics.end_to_end.observe(now - request.arrived)
        metrics.queued.observe(request.scheduled - request.arrived)
        metrics.prefill.observe(request.first - request.scheduled)
        metrics.decode.observe(now - request.first)
        if request.generated > 1:
            metrics.token_mean.observe((now - request.first) / (request.generated - 1))
