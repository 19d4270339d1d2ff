# SPDX-License-Identifier: Apache-2.0
"""The guard in front of vLLM's API, an ASGI middleware: a client without the instance's key gets health and metrics
only.

vLLM itself asks for its key below some prefixes and leaves other routes open, some of which generate. Here it is the
other way round: every route except OPEN needs the key. If the instance has no key, everything passes.

A key is replaced while instances run. Load balancers send the node's present key from then on, and vLLM knows the one
with which it was started until its instance is replaced, too. The guard accepts both, and also the one in between, if a
key is replaced again before all instances have the last one.

The supervisor runs vLLM with this file on its path, and tells it through one byte of a file when the instance is about
to stop: /health then answers 503, so that load balancers leave before requests are refused. In return, every answer of
an open route says how many requests are in progress, and how many balancers still count on this instance.

A load balancer compares a body's announced length with its limit, but cannot count a chunked one, which announces none.
It names the limit in a header, and the guard counts what vLLM reads.

One file of the standard library of Python 3.9: it runs inside vLLM's API server, in the image's Python.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import time
from typing import Any

OPEN = ("/health", "/metrics")
"""Routes that need no key: load balancers and monitoring ask for these."""
KEY_FILE = "/instinct-keys/instances"
"""The node's present key, as credentials/instance_key.py writes it."""
DRAINING = b"1"
"""The byte in the supervisor's file when the instance is about to stop."""
REQUESTS_HEADER, BALANCERS_HEADER = b"x-instinct-requests", b"x-instinct-balancers"
LIMIT_HEADER = b"x-instinct-body-limit"
"""Bytes that the body of a request may have."""
_STATE_HEADER = b"x-haproxy-server-state"  # HAProxy's `http-check send-state`
_FORGET_SECONDS = 5.0
"""A balancer that has not checked for so long does not count on this instance: it checks every second."""
_LINGER_SECONDS = 5.0
_DENIED = b'{"error":{"message":"This instance answers its load balancers only.","code":401}}'
_TOO_LARGE = (
    b'{"error":{"message":"The body is larger than %d bytes, which the operator allows.",'
    b'"type":"invalid_request_error","code":413}}'
)


class Guard:
    """The middleware: `vllm serve --middleware instinct_guard.Guard`."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._key = os.environ.get("VLLM_API_KEY", "").encode()
        self._newer: list[bytes] = []  # the last two keys in KEY_FILE, the present one first
        self._written = 0  # when that was written
        self._requests = 0
        self._balancers: dict[
            bytes, float
        ] = {}  # those that send requests here, with the time of their last check
        self._file = -1
        with contextlib.suppress(OSError):
            self._file = os.open(os.environ.get("INSTINCT_GUARD", ""), os.O_RDONLY | os.O_CLOEXEC)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request, websocket, or the application's start and end."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and _path(scope) in OPEN:
            await self._open(scope, receive, send)
        else:
            admitted = self._admit(scope)
            if admitted is None:
                await _deny(scope, receive, send)
                return
            self._requests += 1
            try:
                await self._app(admitted, *_limited(admitted, receive, send))
            finally:
                self._requests -= 1

    def _admit(self, scope: Any) -> Any:
        """Return the request as vLLM is to get it, with the key that it knows; None without a valid key."""
        if not self._key:
            return scope
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _unused, key = given.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        # The comparisons take the same time whatever key is sent.
        if hmac.compare_digest(key.strip(), self._key):
            return scope
        # All of them, in the same time.
        if not sum(hmac.compare_digest(key.strip(), newer) for newer in self._newer_keys()):
            return None
        others = [item for item in scope["headers"] if item[0] != b"authorization"]
        return {**scope, "headers": [*others, (b"authorization", b"Bearer " + self._key)]}

    def _newer_keys(self) -> list[bytes]:
        """Return the node's key and the one before, read again when the file was written; the last ones without one."""
        with contextlib.suppress(OSError):
            written = os.stat(KEY_FILE).st_mtime_ns
            if written != self._written:
                with open(KEY_FILE, "rb") as file:
                    present = file.read(4096).strip().partition(b"=")[2]
                self._written = written
                if present and present not in self._newer[:1]:
                    self._newer = [present, *self._newer[:1]]
        return self._newer

    async def _open(self, scope: Any, receive: Any, send: Any) -> None:
        if _path(scope) == "/health":
            self._note(scope["headers"])
            if self._draining():
                return await _answer(send, 503, b'{"status":"draining"}', self._figures())
        figures = self._figures()

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *figures]}
            await send(message)

        await self._app(scope, receive, counted)
        return None

    def _note(self, headers: Any) -> None:
        """Note what a balancer reports of its server in its check: "UP 2/3; name=…; node=…; weight=…"."""
        text = next((value for name, value in headers if name == _STATE_HEADER), b"")
        if not text:
            return
        state, *rest = text.split(b";")
        place = b";".join(item for item in rest if item.strip().startswith((b"name=", b"node=")))
        self._balancers.pop(place, None)
        if state.strip().upper().startswith(b"UP") and len(self._balancers) < 64:
            self._balancers[place] = time.monotonic()

    def _figures(self) -> list[tuple[bytes, bytes]]:
        since = time.monotonic() - _FORGET_SECONDS
        count = sum(seen >= since for seen in self._balancers.values())
        return [(REQUESTS_HEADER, b"%d" % self._requests), (BALANCERS_HEADER, b"%d" % count)]

    def _draining(self) -> bool:
        if self._file < 0:
            return False
        try:
            return os.pread(self._file, 1, 0) == DRAINING
        except OSError:
            return False


def _limited(scope: Any, receive: Any, send: Any) -> tuple[Any, Any]:
    """Return the application's receive and send. A body beyond the limit is answered 413, and broken off for vLLM."""
    limit = next((value for name, value in scope["headers"] if name == LIMIT_HEADER), b"")
    if not limit.isdigit():
        return receive, send
    left = int(limit)
    begun = False

    async def counted() -> Any:
        nonlocal left
        if left < 0:
            return {"type": "http.disconnect"}
        message = await receive()
        left -= len(message.get("body", b""))
        if left >= 0:
            return message
        if not begun:
            await _refuse_body(int(limit), message, receive, send)
        return {"type": "http.disconnect"}

    async def unless_answered(message: Any) -> None:
        nonlocal begun
        if left >= 0 or begun:
            begun = True
            await send(message)

    return counted, unless_answered


def _path(scope: Any) -> str:
    """Return the path as the application's routes see it."""
    path, root = str(scope["path"]), str(scope.get("root_path") or "").rstrip("/")
    return path[len(root) :] if root and path.startswith(root + "/") else path


async def _refuse_body(limit: int, message: Any, receive: Any, send: Any) -> None:
    """Answer, and read on for a while: a connection closed under what is being sent may lose the answer."""
    body = _TOO_LARGE % limit
    await send(_start(413, body, [(b"connection", b"close")]))
    await send({"type": "http.response.body", "body": body, "more_body": True})
    end = time.monotonic() + _LINGER_SECONDS
    while message.get("more_body") and time.monotonic() < end:
        message = await receive()
    await send({"type": "http.response.body", "body": b""})


async def _deny(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": "no key"})
    else:
        await _answer(send, 401, _DENIED, [(b"www-authenticate", b"Bearer")])


async def _answer(send: Any, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    await send(_start(status, body, headers))
    await send({"type": "http.response.body", "body": body})


def _start(status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> Any:
    length = (b"content-length", b"%d" % len(body))
    headers = [(b"content-type", b"application/json"), length, *headers]
    return {"type": "http.response.start", "status": status, "headers": headers}
