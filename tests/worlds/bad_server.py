# SPDX-License-Identifier: Apache-2.0
"""A server on loopback that answers completions as a test's coroutine does it: well, or in whatever way not."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

TOKENS = 3  # that are asked for
MODEL = "m"
ID = "cmpl-00000000"  # stands for the id of each answer in what is sent
OF = {"id": ID, "model": MODEL}  # what is the same in all events of an answer
SSE = "text/event-stream; charset=utf-8"
USAGE = {"prompt_tokens": 4, "total_tokens": 4 + TOKENS, "completion_tokens": TOKENS}
DONE = "data: [DONE]\n\n"


class Client:
    """A request that the server has, and the way back to who sent it.

    number: of the request on its connection. id: of its answer, put where ID stands in what is sent.
    """

    def __init__(self, writer: asyncio.StreamWriter, asked: dict[str, Any], number: int) -> None:
        self.writer, self.asked, self.number = writer, asked, number
        self.id = "cmpl-" + os.urandom(4).hex()

    async def head(self, status: str = "200 OK", **headers: str) -> None:
        """Status line and headers; names have _ for -."""
        lines = [
            f"HTTP/1.1 {status}",
            *(f"{key.replace('_', '-')}: {value}" for key, value in headers.items()),
        ]
        await self.raw("\r\n".join([*lines, "", ""]))

    async def raw(self, text: str) -> None:
        self.writer.write(self.named(text).encode())
        await self.writer.drain()

    async def chunks(self, *texts: str, end: bool = True) -> None:
        """Chunks of a body, each in a packet of its own."""
        for text in texts:
            await self.raw(f"{len(text.encode()):x}\r\n{text}\r\n")
        if end:
            await self.raw("0\r\n\r\n")

    async def stream(self, *texts: str, end: bool = True) -> None:
        """An event stream of these chunks."""
        await self.head(content_type=SSE, transfer_encoding="chunked")
        await self.chunks(*texts, end=end)

    async def json(self, status: str, data: Any) -> None:
        text = json.dumps(data)
        await self.head(status, content_type="application/json", content_length=str(len(text)))
        await self.raw(text)

    def named(self, text: str) -> str:
        """The text with this answer's id."""
        return text.replace(ID, self.id)

    def close(self) -> None:
        """The end of what is sent, in order (FIN)."""
        self.writer.write_eof()
        self.writer.close()

    def reset(self) -> None:
        """An end with a bang (RST)."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()


Way = Callable[[Client], Awaitable[None]]


def event(text: str = "x", reason: str | None = None, **more: Any) -> str:
    """An event of /v1/completions, as vLLM has it."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}
    return f"data: {json.dumps({**OF, 'object': 'text_completion', 'choices': [choice], **more})}\n\n"


def delta(content: dict[str, str], reason: str | None = None) -> str:
    """An event of /v1/chat/completions."""
    choice = {"index": 0, "delta": content, "logprobs": None, "finish_reason": reason}
    return f"data: {json.dumps({**OF, 'choices': [choice]})}\n\n"


def usage(tokens: int = TOKENS) -> str:
    return f"data: {json.dumps({**OF, 'choices': [], 'usage': {**USAGE, 'completion_tokens': tokens}})}\n\n"


WHOLE = [event(), event(), event(reason="length"), usage(), DONE]


class BadServer:
    """Listens on `url`; how many requests and connections it has had."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.requests = self.connections = 0
        self.url = ""
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, tls: ssl.SSLContext | None) -> asyncio.Server:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=tls)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    def drop(self) -> None:
        """Let go of all clients that still wait."""
        for task in self._open:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.connections += 1
        number = 0
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
                asked = json.loads(await reader.readexactly(length))
                self.requests += 1
                number += 1
                await self.way(Client(writer, asked, number))
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()


@contextmanager
def serving(way: Way, tls: ssl.SSLContext | None = None) -> Iterator[BadServer]:
    """A server in a thread of its own."""
    bad = BadServer(way)
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(bad.start(tls))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield bad
    finally:
        loop.call_soon_threadsafe(bad.drop)
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.call_soon, loop.stop)
        thread.join()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()


def forever() -> asyncio.Event:
    """Something to wait for that never comes."""
    return asyncio.Event()
