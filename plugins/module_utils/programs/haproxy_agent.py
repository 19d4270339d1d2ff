# SPDX-License-Identifier: Apache-2.0
"""HAProxy's agent: reports which instances have generated tokens since they were started, and ends those that hang.

HAProxy queries it on loopback for each server, by a mark of its address and model (`probe` in balancer.json). It puts a
server into service only if the agent answers "up" and its own check of /health succeeds. An instance whose port refuses
connections, as while Docker restarts it, must generate tokens again. An empty or missing answer changes nothing: while
this program is restarted or stopped, HAProxy keeps its last state.

Streams end with their instance. One that hangs keeps them open, so that their clients would wait for ever: when it has
answered no check for `hang_timeout` seconds, this program has HAProxy close its streams. A refused connection is an
answer: an instance that stops gracefully refuses new ones, and finishes what it has.

    agent.py BALANCER.JSON PIDFILE

It is sent as one file, with what it imports, to the balancer's host. HAProxy's sockets are next to PIDFILE.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from functools import partial
from typing import Any, Callable

from ..common.module_main import NodeError
from ..endpoint.hung_streams import close_streams
from ..endpoint.instance_client import BUSY, CONNECT_SECONDS, HEALTHY, LOST, UNREACHABLE, InstanceClient
from ..endpoint.silence import Silence

POLL_SECONDS = 1.0
HEALTH_SECONDS = 10.0
CHECKS = 3
"""The least number of consecutive checks without an answer that make an instance count as hung."""


class ProbedInstance:
    """One server of the balancer; proven None: unknown yet, because this program has just started.

    limit: seconds without any answer after which it hangs. close: closes its streams; returns how many, or None if
    HAProxy has it in service. models: all names for which it is asked, of which a proof asks the first.
    """

    def __init__(
        self, client: InstanceClient, name: str = "", close: Callable[[], int | None] = lambda: None
    ) -> None:
        self.client, self.name, self.close = client, name, close
        self.limit = float("inf")
        self.models: frozenset[str] = frozenset()
        self.proven: bool | None = None
        self.proof: asyncio.Task[None] | None = None
        self._checks, self._silent = Silence(), 0.0

    async def watch(self) -> None:
        """Check the instance forever, whatever it answers."""
        try:
            while True:
                begun = time.monotonic()
                try:
                    await self.look()
                except Exception as error:
                    self._distrust(error)
                await asyncio.sleep(max(0.0, begun + POLL_SECONDS - time.monotonic()))
        finally:
            self._drop_proof()

    async def look(self) -> None:
        """Check the instance once: a proof lasts until the instance is gone.

        Checks continue while a proof is awaited.
        """
        begun, patience, before = time.monotonic(), min(HEALTH_SECONDS, self.limit / CHECKS), self._silent
        state = await self.client.health(patience)
        ended = time.monotonic()
        answered = state not in (BUSY, LOST)
        self._silent = self._checks.note(answered, begun, ended, CONNECT_SECONDS + patience)
        if state in (UNREACHABLE, LOST):
            self._drop_proof()
            self.proven = False
        elif state == HEALTHY and not self.proven and (self.proof is None or self.proof.done()):
            self.proof = asyncio.get_running_loop().create_task(self._prove())
        if self._silent >= self.limit:
            await self._end_streams(before < self.limit)
        elif before and answered:
            self._say(f"answers again after {before + ended - begun:.0f} s")

    async def _end_streams(self, first: bool) -> None:
        """Close its streams, and those that came since the last time, as they do with a HAProxy that was restarted."""
        try:
            closed = await asyncio.to_thread(self.close)
        except (NodeError, ValueError, LookupError) as error:
            self._say(f"no answer for {self._silent:.0f} s; its streams could not be closed: {error}")
            return
        if closed or (first and closed is not None):
            self._say(
                f"no answer for {self._silent:.0f} s (load_balancer_hang_timeout); closed {closed} streams to it"
            )

    async def _prove(self) -> None:
        try:
            self.proven = await self.client.generates()
        except Exception as error:
            self._distrust(error)

    def _drop_proof(self) -> None:
        if self.proof is not None:
            self.proof.cancel()

    def _distrust(self, error: Exception) -> None:
        """Report an unexpected answer. It must not end the watch: the instance would stay as it is for ever."""
        self.proven = False
        self._say(f"{type(error).__name__}: {error}")

    def _say(self, text: str) -> None:
        sys.stderr.write(f"{self.name or self.client.host}: {text}\n")


class Agent:
    """All instances in a balancer's balancer.json. state: the directory of HAProxy's sockets."""

    def __init__(self, path: str, state: str) -> None:
        self.path, self.state = path, state
        self.key_file = os.path.join(os.path.dirname(path), "instance.map")
        self.seen: Any = None
        self.instances: dict[str, ProbedInstance] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def follow(self) -> None:
        """Apply every change of the file."""
        while True:
            self.read()
            await asyncio.sleep(POLL_SECONDS)

    def read(self) -> None:
        """Apply the file, if it has changed."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = os.stat(self.path)
            mark = (found.st_ino, found.st_mtime_ns)
            if mark != self.seen:
                with open(self.path, encoding="utf-8") as file:
                    self.take(json.load(file))
                self.seen = mark

    def take(self, config: dict[str, Any]) -> None:
        """Watch the servers of the configuration; keep the state of unchanged ones.

        One that will be asked for another of its names keeps its proof: it already got requests for that name.
        """
        wanted = {
            server["probe"]: (
                f"{backend['name']}/{server['name']}",
                InstanceClient(server["address"], int(server["port"]), server["models"][0], self.key_file),
                frozenset(server["models"]),
            )
            for backend in config["backends"]
            for server in backend["servers"]
        }
        limit = float(config["hang_timeout"])
        former: dict[tuple[str, int], list[ProbedInstance]] = {}
        for one in self.instances.values():
            former.setdefault((one.client.host, one.client.port), []).append(one)
        for probe in [probe for probe in self.instances if probe not in wanted]:
            self.tasks.pop(probe).cancel()
            del self.instances[probe]
        for probe, (name, client, models) in wanted.items():
            if probe not in self.instances:
                made = self.instances[probe] = ProbedInstance(client)
                there = former.get((client.host, client.port), ())
                asked = [one.proven for one in there if client.model in one.models]
                # When this program starts, HAProxy knows more; instances that come later have yet to show that they
                # work.
                made.proven = None if self.seen is None else asked[0] if asked else False
                self.tasks[probe] = asyncio.get_running_loop().create_task(made.watch())
            known = self.instances[probe]
            known.models = models
            known.name, known.limit, known.close = name, limit, partial(close_streams, self.state, name)

    def proven(self, probe: str) -> bool | None:
        """Return whether an instance has generated tokens; None if that is not known.

        HAProxy may have read a new configuration earlier than this program, which is why that is read here. What is
        still unknown then belongs to an earlier release's configuration, which asks by other words, or to a former one.
        """
        if self.seen is not None and probe not in self.instances:
            self.read()
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
    agent = Agent(path, os.path.dirname(pid_file))
    with open(path, encoding="utf-8") as file:
        port = int(json.load(file)["agent_port"])
    server = await asyncio.start_server(agent.answer, "127.0.0.1", port)
    with open(pid_file, "w", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    async with server:
        await agent.follow()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:3]))
