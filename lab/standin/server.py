# SPDX-License-Identifier: Apache-2.0
"""The API server: routes, API key, metrics, the log of throughput, and the shutdown.

SIGTERM has the same effect as on vLLM 0.32 (tested with the real one):

--shutdown-timeout 0 (default): no more tokens at once; streams in flight stay open without an end until their
    clients leave or the process is killed.
--shutdown-timeout N: requests in flight are finished, for up to N seconds; in that time new requests get 500 and
    /health still returns 200.

An engine that dies ends its streams with an error event, /health returns 503, and the process exits with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import importlib
import json
import os
import signal
import socket
import time
import zlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from .api import Answer, ApiError, dump, parse
from .engine import BLOCK_SIZE, Engine, EngineDead
from .exam import Exam
from .knobs import Knobs
from .metrics import Metrics
from .startup import Model, log
from .wire import Call, Connection

LOG_SECONDS = 10.0
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")


@dataclass(frozen=True)
class Settings:
    """The server's settings beyond those of the engine."""

    names: list[str]
    model: Model
    max_model_len: int
    api_keys: list[str]
    shutdown_timeout: float
    log_access: bool = True
    middleware: list[str] = field(default_factory=list)


async def _pass_on(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": [], "scope": scope})


class Server:
    """Answers calls until it must stop or its engine dies."""

    def __init__(self, settings: Settings, knobs: Knobs, max_num_seqs: int = 256) -> None:
        self.settings = settings
        self.knobs = knobs
        self.metrics = Metrics()
        self.engine = Engine(knobs, self.metrics, max_num_seqs)
        self.exam = Exam(knobs)
        self.connections: set[Connection] = set()
        self.created = int(time.time())
        self.finished = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged = (time.monotonic(), 0, 0)
        self._middleware = [self._load(name) for name in settings.middleware]
        self._routes: dict[str, tuple[str, Callable[[Connection, Call], None]]] = {
            "/health": ("GET", self._health),
            "/ping": ("GET POST", self._health),
            "/version": ("GET", self._version),
            "/metrics": ("GET", self._metrics),
            "/v1/models": ("GET", self._models),
            "/tokenize": ("POST", self._tokenize),
            "/v1/completions": ("POST", lambda c, call: self._generate(c, call, chat=False)),
            "/v1/chat/completions": ("POST", lambda c, call: self._generate(c, call, chat=True)),
        }

    async def run(self, listener: socket.socket, others: Sequence[socket.socket] = ()) -> None:
        """Serve on a bound socket until finished. If another rank is lost, the engine hangs."""
        for rank in others:
            asyncio.get_running_loop().add_reader(rank, self._lost, rank)
        await self.listen(listener)
        print(f"INFO:     Started server process [{os.getpid()}]", flush=True)
        print("INFO:     Waiting for application startup.", flush=True)
        print("INFO:     Application startup complete.", flush=True)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.shut_down)
        await self.finished.wait()
        for text in ("Waiting for application shutdown.", "Application shutdown complete."):
            print(f"INFO:     {text}", flush=True)
        print(f"INFO:     Finished server process [{os.getpid()}]", flush=True)

    async def listen(self, listener: socket.socket) -> None:
        """Begin to accept connections."""
        loop = asyncio.get_running_loop()

        def connect() -> Connection:
            return Connection(self._call, self.connections, self.settings.log_access)

        self._listener = await loop.create_server(connect, sock=listener, backlog=2048)
        loop.call_later(LOG_SECONDS, self._log_throughput)

    # Shutdown.

    def _lost(self, rank: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(rank)
        self.engine.stop()

    def shut_down(self) -> None:
        """React to SIGTERM; further signals have no effect."""
        if self._stopping:
            return
        self._stopping = True
        timeout = self.settings.shutdown_timeout
        log("APIServer", "launcher.py:254", "[shutdown] API server: shutdown triggered")
        mode = "drain" if timeout else "abort"
        text = f"[shutdown] API server: stopping engine client mode={mode} timeout={timeout:g}s"
        log("APIServer", "launcher.py:270", text)
        self._start(self._drain(timeout))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, timeout: float) -> None:
        self.engine.draining = True
        if timeout:
            count = len(self.engine.running) + len(self.engine.waiting)
            text = f"[shutdown] EngineCore: draining in-flight requests count={count} timeout={timeout:g}s"
            log("EngineCore", "core.py:1655", text)
            end = time.monotonic() + timeout
            while self.engine.busy and time.monotonic() < end:
                await asyncio.sleep(0.01)
        self.engine.stop()
        log("APIServer", "launcher.py:279", "[shutdown] API server: engine client stopped")
        await self._close()

    async def _close(self) -> None:
        print("INFO:     Shutting down", flush=True)
        if self._listener:
            self._listener.close()
        if any(connection.busy for connection in self.connections):
            print("INFO:     Waiting for connections to close. (CTRL+C to force quit)", flush=True)
        while self.connections:
            for connection in list(self.connections):
                connection.close()
            await asyncio.sleep(0.01)
        self.finished.set()

    def _engine_died(self) -> None:
        log("APIServer", "async_llm.py:906", "AsyncLLM output_handler failed.", "ERROR")
        text = f"vllm.v1.engine.exceptions.EngineDeadError: {EngineDead()}"
        log("APIServer", "async_llm.py:906", text, "ERROR")
        self._start(self._close_soon())

    async def _close_soon(self) -> None:
        await asyncio.sleep(0.5)
        await self._close()

    # Calls.

    @staticmethod
    def _load(name: str) -> Any:
        """Return a middleware by its dotted name, on no application: it is asked what it answers by itself."""
        module, _, kind = name.rpartition(".")
        return getattr(importlib.import_module(module), kind)(_pass_on)

    def _answered(self, connection: Connection, call: Call) -> bool:
        """Return whether a middleware answered by itself; its coroutines wait for nothing."""
        headers = [(name.encode(), value.encode("latin-1")) for name, value in call.headers.items()]
        scope = {"type": "http", "method": call.method, "path": call.path, "headers": headers}
        for middleware in self._middleware:
            sent: list[dict[str, Any]] = []

            async def send(message: dict[str, Any], sent: list[dict[str, Any]] = sent) -> None:
                sent.append(message)

            with contextlib.suppress(StopIteration):
                middleware(scope, None, send).send(None)
            if sent[0]["status"] != 299:
                more = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
                kind = more.pop("content-type", None)
                more.pop("content-length", None)
                connection.respond(sent[0]["status"], sent[1]["body"], kind, **more)
                return True
            scope = sent[0]["scope"]
            call.headers.update((name.decode(), value.decode("latin-1")) for name, value in scope["headers"])
            connection.more = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return False

    def _call(self, connection: Connection, call: Call) -> None:
        connection.more = {}
        if self._answered(connection, call):
            return
        if call.path.startswith(_GUARDED) and call.method != "OPTIONS" and not self._authorized(call):
            connection.respond(401, b'{"error":"Unauthorized"}')
            return
        methods, handle = self._routes.get(call.path, ("", None))
        if handle is None:
            connection.respond(404, b'{"detail":"Not Found"}')
        elif call.method not in methods.split():
            connection.respond(405, b'{"detail":"Method Not Allowed"}', allow=methods.replace(" ", ", "))
        else:
            handle(connection, call)

    def _authorized(self, call: Call) -> bool:
        keys = self.settings.api_keys
        scheme, _, given = call.headers.get("authorization", "").partition(" ")
        if not keys:
            return True
        return scheme.lower() == "bearer" and any(
            hmac.compare_digest(given.encode(), k.encode()) for k in keys
        )

    def _health(self, connection: Connection, call: Call) -> None:
        connection.respond(503 if self.engine.dead else 200, b"", None)

    def _version(self, connection: Connection, call: Call) -> None:
        connection.respond(200, dump({"version": self.knobs.version}))

    def _models(self, connection: Connection, call: Call) -> None:
        root = str(self.settings.model.name)
        about = {"object": "model", "created": self.created, "owned_by": "vllm", "root": root, "parent": None}
        about["max_model_len"] = self.settings.max_model_len
        data = [{"id": name, **about, "permission": []} for name in self.settings.names]
        connection.respond(200, dump({"object": "list", "data": data}))

    def _tokenize(self, connection: Connection, call: Call) -> None:
        """Return a token per word, the same for equal words."""
        try:
            asked = json.loads(call.body)
            text = (
                asked["prompt"]
                if "prompt" in asked
                else " ".join(str(m["content"]) for m in asked["messages"])
            )
            tokens = [zlib.crc32(word.encode()) % 32000 for word in str(text).split()]
        except (ValueError, KeyError, TypeError) as error:
            connection.respond(400, ApiError(400, repr(error)).body())
            return
        found = {"count": len(tokens), "max_model_len": self.settings.max_model_len, "tokens": tokens}
        connection.respond(200, dump({**found, "token_strs": None}))

    def _metrics(self, connection: Connection, call: Call) -> None:
        gauges = {
            "num_requests_running": len(self.engine.running),
            "num_requests_waiting": len(self.engine.waiting),
            "kv_cache_usage_perc": self.engine.kv_usage,
        }
        tokens = self.engine.blocks * BLOCK_SIZE
        config = {
            "block_size": str(BLOCK_SIZE),
            "cache_dtype": "auto",
            "enable_prefix_caching": "False",
            "gpu_memory_utilization": "0.92",
            "kv_cache_max_concurrency": str(tokens / self.settings.max_model_len),
            "kv_cache_size_tokens": str(tokens),
            "num_gpu_blocks": str(self.engine.blocks),
        }
        text = self.metrics.render(self.settings.names[0], gauges, config)
        connection.respond(200, text.encode(), "text/plain; version=1.0.0; charset=utf-8")

    def _generate(self, connection: Connection, call: Call, *, chat: bool) -> None:
        was_dead = self.engine.dead
        try:
            payload, request = parse(call.body, self.settings.names, self.settings.max_model_len, chat=chat)
            if self.exam.fails():
                raise ApiError(500, "the stand-in fails this one (STANDIN_FAIL_RATE)")
            prompt = str(payload.get("prompt"))
            request.answer = self.exam.answer(prompt)
            logprobs = None if payload.get("prompt_logprobs") is None else self.exam.prompt_logprobs(prompt)
            Answer(connection, self.engine, request, payload, chat=chat, prompt_logprobs=logprobs).submit()
        except ApiError as error:
            connection.respond(error.status, error.body())
        if self.engine.dead and not was_dead:
            self._engine_died()

    def _log_throughput(self) -> None:
        asyncio.get_running_loop().call_later(LOG_SECONDS, self._log_throughput)
        then, prompt, generated = self._logged
        now = time.monotonic()
        self._logged = (now, self.metrics.prompt_tokens, self.metrics.generation_tokens)
        rates = [
            (new - old) / (now - then) for new, old in zip(self._logged[1:], (prompt, generated), strict=True)
        ]
        if not any(rates):
            return
        engine = self.engine
        text = (
            f"Engine 000: Avg prompt throughput: {rates[0]:.1f} tokens/s,"
            f" Avg generation throughput: {rates[1]:.1f} tokens/s, Running: {len(engine.running)} reqs,"
            f" Waiting: {len(engine.waiting)} reqs, GPU KV cache usage: {100 * engine.kv_usage:.1f}%,"
            " Prefix cache hit rate: 0.0%"
        )
        log("APIServer", "loggers.py:335", text)
