# SPDX-License-Identifier: Apache-2.0
"""Ask an instance behind the load balancer whether it is healthy, and for a token."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
from dataclasses import dataclass

CONNECT_SECONDS = 3.0
TOKEN_SECONDS = 900.0  # an engine's first tokens may compile kernels
ANSWER_BYTES = 1 << 20  # an answer with one token has some hundred
HEALTHY = "ok"
UNREACHABLE = "gone"
"""Connections are refused, or the engine reports that it is dead."""
LOST = "lost"
"""No connection in time: its host or the network is down, or its queue of connections is full."""
BUSY = "busy"
"""It accepts connections, but does not answer in time."""
_NO_WAY = (errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT)


class NoConnection(OSError):
    """Nobody accepts a connection, and nobody refuses it."""


@dataclass(frozen=True)
class InstanceClient:
    """An instance, as its load balancer reaches it. key_file: a map of HAProxy with the header that has its key."""

    host: str
    port: int
    model: str
    key_file: str = ""

    async def health(self, seconds: float) -> str:
        """Return the result of GET /health: HEALTHY, UNREACHABLE, LOST or BUSY."""
        try:
            status, _unused = await self.ask("GET", "/health", b"", seconds)
        except asyncio.TimeoutError:
            return BUSY
        except NoConnection:
            return LOST
        except (OSError, ValueError, EOFError):
            return UNREACHABLE
        return HEALTHY if status == 200 else UNREACHABLE

    async def generates(self) -> bool:
        """Return whether it answers a request with tokens."""
        body = {"model": self.model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        try:
            status, text = await self.ask("POST", "/v1/completions", json.dumps(body).encode(), TOKEN_SECONDS)
            return status == 200 and int(json.loads(text)["usage"]["completion_tokens"]) > 0
        except (OSError, ValueError, KeyError, TypeError, EOFError, asyncio.TimeoutError):
            return False

    async def ask(self, method: str, path: str, body: bytes, seconds: float) -> tuple[int, bytes]:
        """Send one request; return status and body.

        Raise NoConnection, another OSError, ValueError, EOFError or asyncio.TimeoutError.
        """
        opening = asyncio.open_connection(self.host, self.port)
        try:
            reader, writer = await asyncio.wait_for(opening, CONNECT_SECONDS)
        except asyncio.TimeoutError:
            raise NoConnection(errno.ETIMEDOUT, "no connection") from None
        except OSError as error:
            if error.errno in _NO_WAY:
                raise NoConnection(error.errno, error.strerror) from error
            raise
        try:
            lines = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n"
            lines += self.authorization() if path.startswith("/v1/") else ""
            lines += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(lines.encode() + body)
            answer = await asyncio.wait_for(self.read(reader), seconds)
        finally:
            writer.close()
        head, _unused, text = answer.partition(b"\r\n\r\n")
        words = head.split(None, 2)
        return int(words[1]) if len(words) > 1 else 0, text

    @staticmethod
    async def read(reader: asyncio.StreamReader) -> bytes:
        """Read a whole answer. Raise ValueError if it is longer than any that was asked for."""
        answer = b""
        while True:
            part = await reader.read(65536)
            if not part:
                return answer
            answer += part
            if len(answer) > ANSWER_BYTES:
                raise ValueError("an endless answer")

    def authorization(self) -> str:
        """Return the header that HAProxy sends too."""
        with contextlib.suppress(OSError), open(self.key_file, encoding="ascii") as file:
            return f"Authorization: {file.read().partition(' ')[2].strip()}\r\n"
        return ""
