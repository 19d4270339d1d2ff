# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 on asyncio transports: the part of it that a balancer, curl and the OpenAI clients use.

Bodies come with a Content-Length (chunked requests get 411); answers are whole or chunked.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import cast

MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024

_REASONS = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True)
class Call:
    """One request, complete."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes


class Connection(asyncio.Protocol):
    """One client. `handle` answers a call through respond() or start/chunk/end, at once or later."""

    def __init__(
        self, handle: Callable[[Connection, Call], None], opened: set[Connection], log_access: bool
    ) -> None:
        self._handle = handle
        self._opened = opened
        self._log_access = log_access
        self._buffer = bytearray()
        self._keep_alive = True
        self._chunked = True
        self._line = ""
        self.more: dict[str, str] = {}  # further headers of the next answer
        self.transport: asyncio.Transport | None = None
        self.busy = False  # a call is being answered
        self.closing = False  # close when it is
        self.gone: Callable[[], None] | None = (
            None  # the action if the client disconnects before its answer is complete
        )

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # asyncio does this only for sockets created with the protocol's number. Without it a token waits for the
        # client's acknowledgement of the previous one, up to 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opened.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self)
        self.transport = None
        if self.gone:
            self.gone()
            self.gone = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self.busy:
            self._parse()

    # The answer.

    def respond(
        self, status: int, body: bytes, kind: str | None = "application/json", **headers: str
    ) -> None:
        """Send a complete answer. Header names have _ for -."""
        extra = "".join(f"{name}: {value}\r\n" for name, value in self.more.items())
        extra += "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        if kind is not None:
            extra = f"content-type: {kind}\r\n{extra}"
        self._write(self._head(status, f"content-length: {len(body)}\r\n{extra}") + body)
        self._done()

    def start(self, kind: str) -> None:
        """Begin an answer of unknown length."""
        coding = "transfer-encoding: chunked\r\n" if self._chunked else ""
        self._write(self._head(200, f"content-type: {kind}\r\n{coding}"))

    def chunk(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        if self._chunked:
            self._write(b"0\r\n\r\n")
        else:
            self._keep_alive = False
        self._done()

    def close(self) -> None:
        """Close when idle, else after the answer."""
        self.closing = True
        if not self.busy and self.transport:
            self.transport.close()

    def cut(self) -> None:
        """Close in the middle of the answer."""
        self.gone = None
        if self.transport:
            self.transport.close()

    def _write(self, data: bytes) -> None:
        if self.transport:
            self.transport.write(data)

    def _head(self, status: int, headers: str) -> bytes:
        if self._log_access and self.transport:
            host, port, *_ = self.transport.get_extra_info("peername") or ("-", 0)
            print(f'INFO:     {host}:{port} - "{self._line}" {status} {_REASONS[status]}', flush=True)
        last = "" if self._keep_alive and not self.closing else "connection: close\r\n"
        text = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\ndate: {formatdate(usegmt=True)}\r\nserver: uvicorn\r\n"
            f"{headers}{last}\r\n"
        )
        return text.encode("latin-1")

    def _done(self) -> None:
        self.busy = False
        self.gone = None
        if self.closing or not self._keep_alive:
            if self.transport:
                self.transport.close()
        elif self._buffer:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if not self.busy and self.transport:
            self._parse()

    def _refuse(self, status: int) -> None:
        self._keep_alive = False
        self._line = self._line or "-"
        self.respond(status, b"")

    def _parse(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                self._refuse(431)
            return
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._refuse(400)
            return
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self._line = first
        self._chunked = words[2] != "HTTP/1.0"
        connection = headers.get("connection", "").lower()
        self._keep_alive = connection != "close" if self._chunked else connection == "keep-alive"
        if "transfer-encoding" in headers:
            self._refuse(411)
            return
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY:
            self._refuse(400)
            return
        size = end + 4 + int(length)
        if len(self._buffer) < size:
            if headers.get("expect", "").lower() == "100-continue" and len(self._buffer) == end + 4:
                self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        body = bytes(self._buffer[end + 4 : size])
        del self._buffer[:size]
        self.busy = True
        self._handle(self, Call(words[0], words[1].partition("?")[0], headers, body))
