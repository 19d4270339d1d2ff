# SPDX-License-Identifier: Apache-2.0
"""A load balancer with its agent, as processes, in front of stand-in engines that can be stopped with SIGSTOP."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.haproxy_socket import (
    Haproxy,
    HaproxyUnavailable,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import script
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.backends import Backend
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.config import config_data
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import BackendServer

from tests.helpers.eventually import GENEROUS, eventually
from tests.helpers.ports import free_port
from tests.worlds.balancer_world import DRAW
from tests.worlds.defaults import balancer_settings
from tests.worlds.programs import program
from tests.worlds.standin_server import Standin

TOKENS_PER_SECOND = 10
# Another backend whose servers track those of the deployment's own, as routers have them; chosen by a header.
TRACKING = "    use_backend other if {{ req.hdr(x-other) -m found }}\n\nbackend other\n{servers}\n"


class Request(threading.Thread):
    """A request that is sent at once. `status` and `text` of its answer, `whole` if it came to its end."""

    def __init__(self, port: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self.port, self.body, self.given = port, body, headers
        self.status, self.text, self.whole = 0, "", False
        self.retry_after: str | None = None
        self.begun = self.ended = time.monotonic()
        self.start()

    def run(self) -> None:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3 * GENEROUS)
        try:
            link.request("POST", "/v1/completions", json.dumps(self.body), self.given)
            answer = link.getresponse()
            self.status, self.retry_after = answer.status, answer.headers["Retry-After"]
            while part := answer.read1(65536):
                self.text += part.decode()
            self.whole = not self.body.get("stream") or self.text.rstrip().endswith("[DONE]")
        except (OSError, http.client.HTTPException):
            pass
        finally:
            self.ended = time.monotonic()
            link.close()

    def result(self) -> Request:
        """Wait until it is over."""
        self.join(3 * GENEROUS)
        assert not self.is_alive(), "the request hangs"
        return self


class HungWorld:
    """Engines behind a load balancer to which one hangs after `limit` seconds; HAProxy's own checks are shorter."""

    def __init__(self, tmp: Path, count: int = 2, limit: int = 6, **settings: Any) -> None:
        self.tmp, self.limit, self.port = tmp, limit, free_port()
        (tmp / "instinct_guard.py").write_text(script("guard"))
        self.engines = [self._engine(f"engine-{index}") for index in range(count)]
        members = tuple(
            BackendServer("n1", f"m-{index}", "m", "127.0.0.1", engine.port, 50, ("m",))
            for index, engine in enumerate(self.engines)
        )
        self.names = [f"m/{member.name}" for member in members]
        given = {
            "listen": "127.0.0.1",
            "port": self.port,
            "tls": False,
            "auth": False,
            "metrics_port": free_port(),
        }
        chosen = replace(balancer_settings(**given, hang_timeout=limit), **settings)
        self.data = {**config_data(chosen, [Backend("m", ("m",), members)]), "agent_port": free_port()}
        self.haproxy = Haproxy(str(tmp / "admin.sock"), GENEROUS)
        self._write_configuration()
        (tmp / "servers").write_text("1\n")
        (tmp / "agent.py").write_text(script("haproxy_agent"))
        (tmp / "balancer.json").write_text(json.dumps(self.data))
        master = f"{tmp}/master.sock,mode,600,level,admin"
        agent = [tmp / name for name in ("agent.py", "balancer.json", "agent.pid")]
        self.processes = [
            self._start(
                "haproxy", program("haproxy"), "-W", "-S", master, "-C", str(tmp), "-f", "haproxy.cfg"
            ),
            self._start("agent", sys.executable, *map(str, agent)),
        ]
        for engine in self.engines:
            engine.wait()
        eventually("all are in service", lambda: self.up() == self.names)

    def _engine(self, name: str) -> Standin:
        """An engine with the guard, which is told by a byte in a file that it leaves."""
        switch = self.tmp / f"{name}.leaves"
        switch.write_text("0")
        env = {
            "STANDIN_TOKENS_PER_SECOND": str(TOKENS_PER_SECOND),
            "PYTHONPATH": str(self.tmp),
            "INSTINCT_GUARD": str(switch),
        }
        options = ("--shutdown-timeout", "60", "--middleware", "instinct_guard.Guard")
        return Standin(self.tmp / f"{name}.log", "m", *options, env=env)

    def _write_configuration(self) -> None:
        text = DRAW(self.data)
        for line in ("    user haproxy\n", "    group haproxy\n", "    chroot /var/lib/haproxy\n"):
            assert line in text
            text = text.replace(line, "")
        assert "    timeout check 5s\n" in text
        text = text.replace("    timeout check 5s\n", "    timeout check 1s\n")
        places = (f"127.0.0.1:{engine.port}" for engine in self.engines)
        servers = "\n".join(
            f"    server is{at} {place} track {self.names[at]}" for at, place in enumerate(places)
        )
        assert "    default_backend m\n" in text
        text = text.replace(
            "    default_backend m\n", f"    default_backend m\n{TRACKING.format(servers=servers)}"
        )
        (self.tmp / "haproxy.cfg").write_text(text.replace("/var/lib/instinct-fleet/balancer", str(self.tmp)))

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.tmp / name).with_suffix(".log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def up(self) -> list[str]:
        """The deployment's own servers that are in service."""
        try:
            return [
                name for name, server in self.haproxy.servers().items() if server.up and name in self.names
            ]
        except HaproxyUnavailable:
            return []

    def agent_log(self) -> str:
        return (self.tmp / "agent.log").read_text()

    def ask(
        self, index: int, tokens: int, *, stream: bool = True, other: bool = False, prompt: str = "x"
    ) -> Request:
        """Send a request to an engine, and wait until it is there: for tokens / TOKENS_PER_SECOND it is in work.

        other: through the backend whose servers track those of the deployment's own.
        """
        body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": stream, "ignore_eos": True}
        others = [name for name in self.names if name != self.names[index]]
        for name in others:
            self.haproxy.set_state(name, "drain")
        before = self.requests_at(index)
        made = Request(self.port, body, {"X-Other": "1"} if other else {})
        eventually(
            "it is in work", lambda: self.requests_at(index) > before and (made.text != "" or not stream)
        )
        for name in others:
            self.haproxy.set_state(name, "ready")
        return made

    def requests_at(self, index: int) -> int:
        """How many requests HAProxy has given to an engine, by whichever of its backends."""
        loads = self.haproxy.loads()
        return sum(loads[name].running for name in (self.names[index], f"other/is{index}"))

    def stop(self, index: int) -> None:
        """From now on an engine does nothing."""
        self.engines[index].process.send_signal(signal.SIGSTOP)

    def go_on(self, index: int) -> None:
        self.engines[index].process.send_signal(signal.SIGCONT)

    def leave(self, index: int) -> None:
        """Stop an engine as its supervisor does: first balancers leave it, then it finishes what it has."""
        (self.tmp / f"engine-{index}.leaves").write_text("1")
        eventually("the balancer has left", lambda: self.names[index] not in self.up())
        self.engines[index].process.terminate()

    def reload(self) -> None:
        """Have a new HAProxy take over."""
        before = self._pid()
        self.processes[0].send_signal(signal.SIGUSR2)
        eventually("the new HAProxy", lambda: self._pid() not in ("", before))

    def _pid(self) -> str:
        with contextlib.suppress(HaproxyUnavailable):
            return self.haproxy.ask("show info").partition("\nPid: ")[2].partition("\n")[0]
        return ""

    def close(self) -> None:
        for process in [*self.processes, *(engine.process for engine in self.engines)]:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for engine in self.engines:
            engine.process.kill()
        for process in [*self.processes, *(engine.process for engine in self.engines)]:
            process.wait(GENEROUS)


@contextlib.contextmanager
def hung_world(tmp: Path, **given: Any) -> Iterator[HungWorld]:
    """A running load balancer, its agent and its engines."""
    world = HungWorld(tmp, **given)
    try:
        yield world
    finally:
        world.close()
