# SPDX-License-Identifier: Apache-2.0
"""HAProxy's agent: reports which instances have generated tokens since they were started.

HAProxy queries it on loopback for each server, by a mark of its address and model (`probe` in balancer.json). It puts a
server into service only if the agent answers "up" and its own check of /health succeeds. An instance whose port refuses
connections, as while Docker restarts it, must generate tokens again. An empty or missing answer changes nothing: while
this program is restarted or stopped, HAProxy keeps its last state. One file without imports of the toolkit: it runs on
the balancer's host.

    agent.py BALANCER.JSON PIDFILE
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

POLL_SECONDS = 1.0
CONNECT_SECONDS = 3.0
HEALTH_SECONDS = 10.0
TOKEN_SECONDS = 900.0  # an engine's first tokens may compile kernels
ANSWER_BYTES = 1 << 20  # an answer with one token has some hundred
UNREACHABLE = "gone"
"""Connections are refused, or the engine reports that it is dead."""
BUSY = "busy"
"""It accepts connections, but does not answer in time."""


class ProbedInstance:
    """One server of the balancer; proven None: unknown yet, because this program has just started."""

    def __init__(self, host: str, port: int, model: str, key_file: str = "") -> None:
        self.host, self.port, self.model, self.key_file = host, port, model, key_file
        self.proven: bool | None = None

    async def watch(self) -> None:
        """Check the instance forever, whatever it answers."""
        while True:
            try:
                await self.look()
            except Exception as error:
                # No answer may end the watch: the instance would stay as it is for ever.
                self.proven = False
                sys.stderr.write(f"{self.host}:{self.port}: {type(error).__name__}: {error}\n")
            await asyncio.sleep(POLL_SECONDS)

    async def look(self) -> None:
        """Check the instance once: a proof lasts until the instance is gone."""
        state = await self.health()
        if state == UNREACHABLE:
            self.proven = False
        elif state != BUSY and not self.proven:
            self.proven = await self.generates()

    async def health(self) -> str:
        """Return the result of GET /health: "ok", GONE or BUSY."""
        try:
            status, _unused = await self.ask("GET", "/health", b"", HEALTH_SECONDS)
        except asyncio.TimeoutError:
            return BUSY
        except (OSError, ValueError, EOFError):
            return UNREACHABLE
        return "ok" if status == 200 else UNREACHABLE

    async def generates(self) -> bool:
        """Return whether it answers a request with tokens."""
        body = {"model": self.model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        try:
            status, text = await self.ask("POST", "/v1/completions", json.dumps(body).encode(), TOKEN_SECONDS)
            return status == 200 and int(json.loads(text)["usage"]["completion_tokens"]) > 0
        except (OSError, ValueError, KeyError, TypeError, EOFError, asyncio.TimeoutError):
            return False

    async def ask(self, method: str, path: str, body: bytes, seconds: float) -> tuple[int, bytes]:
        """Send one request; return status and body. Raise OSError, ValueError, EOFError or asyncio.TimeoutError."""
        opening = asyncio.open_connection(self.host, self.port)
        try:
            reader, writer = await asyncio.wait_for(opening, CONNECT_SECONDS)
        except asyncio.TimeoutError:
            raise ConnectionError("no connection") from None
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


class Agent:
    """All instances in a balancer's balancer.json."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.key_file = os.path.join(os.path.dirname(path), "instance.map")
        self.seen: Any = None
        self.instances: dict[str, ProbedInstance] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def follow(self) -> None:
        """Apply every change of the file."""
        while True:
            with contextlib.suppress(OSError, ValueError, KeyError):
                found = os.stat(self.path)
                mark = (found.st_ino, found.st_mtime_ns)
                if mark != self.seen:
                    with open(self.path, encoding="utf-8") as file:
                        self.take(json.load(file))
                    self.seen = mark
            await asyncio.sleep(POLL_SECONDS)

    def take(self, config: dict[str, Any]) -> None:
        """Watch the servers of the configuration; keep the state of unchanged ones."""
        wanted = {
            server["probe"]: (server["address"], int(server["port"]), server["models"][0])
            for backend in config["backends"]
            for server in backend["servers"]
        }
        for probe in [probe for probe in self.instances if probe not in wanted]:
            self.tasks.pop(probe).cancel()
            del self.instances[probe]
        for probe, place in wanted.items():
            if probe not in self.instances:
                self.instances[probe] = ProbedInstance(*place, self.key_file)
                # When this program starts, HAProxy knows more; what comes later has yet to show that it works.
                self.instances[probe].proven = None if self.seen is None else False
                self.tasks[probe] = asyncio.get_running_loop().create_task(self.instances[probe].watch())

    def proven(self, probe: str) -> bool | None:
        """Return whether an instance has generated tokens; None if that is not known.

        HAProxy reads a new configuration earlier than this program. What is unknown here is new then, unless HAProxy
        has a configuration of an earlier release, which asks by other words.
        """
        known = self.instances.get(probe)
        if known:
            return known.proven
        return None if self.seen is None or "/" in probe else False

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one query of HAProxy."""
        with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):
            line = await asyncio.wait_for(reader.readline(), CONNECT_SECONDS)
            proven = self.proven(line.decode("ascii", "replace").strip())
            writer.write(b"\n" if proven is None else b"up\n" if proven else b"down\n")
            await writer.drain()
        writer.close()


async def serve(path: str, pid_file: str) -> None:
    """Run until the process is ended."""
    agent = Agent(path)
    with open(path, encoding="utf-8") as file:
        port = int(json.load(file)["agent_port"])
    server = await asyncio.start_server(agent.answer, "127.0.0.1", port)
    with open(pid_file, "w", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    async with server:
        await agent.follow()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:3]))
