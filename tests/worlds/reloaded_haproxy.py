# SPDX-License-Identifier: Apache-2.0
"""A real HAProxy on this machine that is configured again and again as on a load balancer's host, and its engines."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint import converge as balancer_node
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint import drain
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.converge import (
    SERVICE,
    BalancerPaths,
    converge,
)
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.drain import (
    ServerStateRequest,
    set_state,
)
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.haproxy_socket import (
    Haproxy,
    HaproxyUnavailable,
)
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.installed import Balancer
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.serving import health
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.backends import (
    Backend,
    group_servers,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.config import config_data
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import BackendServer

from tests.helpers.eventually import GENEROUS, eventually, patient_socket
from tests.helpers.ports import free_port
from tests.worlds.balancer_world import DRAW
from tests.worlds.defaults import balancer_settings
from tests.worlds.programs import program
from tests.worlds.strangers_world import EngineServer

LISTEN = "0A"  # a state in /proc/net/tcp


class ReloadedHaproxy:
    """A load balancer below a directory, and a function in place of systemctl."""

    def __init__(self, tmp: Path) -> None:
        self.tmp, self.port = tmp, free_port()
        self.paths = BalancerPaths(str(tmp / "etc"), str(tmp / "var"), str(tmp / "units"), program("haproxy"))
        self.balancer = Balancer(self.paths.directory, self.paths.state)
        self.settings = balancer_settings(
            listen="127.0.0.1", port=self.port, tls=False, auth=False, metrics_port=free_port()
        )
        self.agent_port = free_port()  # where no agent is, so that checks alone decide
        self.engines: dict[int, EngineServer] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.clients: list[threading.Thread] = []
        (tmp / "units").mkdir()

    def engine(self) -> int:
        """Start an engine; return its port."""
        return self.listen(free_port())

    def listen(self, port: int) -> int:
        """Start an engine at this port."""
        self.engines[port] = EngineServer(port)
        return port

    def stop(self, port: int) -> None:
        """Stop an engine."""
        self.engines.pop(port).stop()

    def configure(
        self, *servers: BackendServer, known: Mapping[str, str] | None = None
    ) -> tuple[Backend, ...]:
        """Put a configuration with these servers in use, and wait until HAProxy runs with it."""
        backends = group_servers(servers, known)
        data = {**config_data(self.settings, backends), "agent_port": self.agent_port}
        text = DRAW(data).replace("/var/lib/instinct-fleet/balancer", self.paths.state)
        for line in ("    user haproxy\n", "    group haproxy\n", "    chroot /var/lib/haproxy\n"):
            assert line in text
            text = text.replace(line, "")
        files = {"haproxy.cfg": text, "balancer.json": json.dumps(data), "agent.py": "pass\n"}
        converge(files, False, self.paths, self._run)
        # The one before is asked to stop once this one runs, and takes a few connections more until it has heard.
        eventually("one HAProxy that listens", lambda: self._listening() == 1)
        return backends

    def _listening(self) -> int:
        """Return how many of HAProxy's processes listen at its port."""
        assert self.process
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        at = f":{self.port:04X}"
        sockets = {f"socket:[{line[9]}]" for line in lines if line[1].endswith(at) and line[3] == LISTEN}
        workers = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return sum(not sockets.isdisjoint(_open_files(pid)) for pid in workers)

    def _run(self, command: Sequence[str]) -> tuple[int, str]:
        if command[0] != "systemctl":
            return balancer_node.run(command)
        if command[1:] == ["start", SERVICE]:
            with (self.tmp / "log").open("wb") as log:
                words = [self.paths.haproxy, "-Ws", "-C", self.paths.current, "-f", "haproxy.cfg"]
                words += ["-p", self.paths.in_state("haproxy.pid")]
                self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        if command[1:] == ["reload", SERVICE]:
            assert self.process
            self.process.send_signal(signal.SIGUSR2)
        return 0, ""

    # ---- what HAProxy says -------------------------------------------------------------------------------

    def state(self, name: str) -> str:
        """Return the state of a server: drain or maint, else up or down."""
        server = self.balancer.haproxy.servers()[name]
        return server.state if server.state != "ready" else "up" if server.up else "down"

    def becomes(self, name: str, state: str) -> None:
        """Wait for the state of a server."""
        with contextlib.suppress(HaproxyUnavailable):
            eventually(f"{name} {state}", lambda: self.state(name) == state)
        assert self.state(name) == state

    def drain(self, name: str) -> None:
        """Drain a server, as an operator does."""
        set_state(self.balancer, ServerStateRequest((name,), "drain", "operator", 0), False)

    def running(self, name: str) -> int:
        """Return how many requests are at a server."""
        return self.balancer.haproxy.loads()[name].running

    # ---- what clients see --------------------------------------------------------------------------------

    def ask(self, model: str, **headers: str) -> int:
        """Return the port of the engine that answers, or the status of another answer."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=GENEROUS)
        try:
            given = {name.replace("_", "-"): text for name, text in headers.items()}
            link.request("POST", "/v1/completions", json.dumps({"model": model}), given)
            answer = link.getresponse()
            text = answer.read()
        finally:
            link.close()
        return int(json.loads(text)["port"]) if answer.status == 200 else answer.status

    def hold(self, model: str, count: int, at: Sequence[str]) -> None:
        """Begin requests that last until the end, one by one, and wait until each is at one of these servers."""
        for number in range(count):
            client = threading.Thread(target=self.ask, args=(model,), kwargs={"X_Hold": "1"}, daemon=True)
            client.start()
            self.clients.append(client)
            eventually("a request", lambda: sum(map(self.running, at)) > number)  # noqa: B023

    def close(self) -> None:
        for engine in self.engines.values():
            engine.go_on.set()
        for client in self.clients:
            client.join(GENEROUS)
        for port in list(self.engines):
            self.stop(port)
        if self.process:
            self.process.kill()
            self.process.wait()


def _open_files(pid: str) -> set[str]:
    """Return what the files that a process has open are links to; none of one that has ended."""
    found = set()
    with contextlib.suppress(FileNotFoundError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            found.add(os.readlink(entry))
    return found


@contextlib.contextmanager
def reloaded_haproxy(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReloadedHaproxy]:
    """A load balancer that has yet to be configured; a busy machine is waited for."""
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp / "lock"))
    monkeypatch.setattr(health, "socket", patient_socket())
    monkeypatch.setattr(balancer_node, "READ_BACK_SECONDS", GENEROUS)
    monkeypatch.setattr(Haproxy.__init__, "__defaults__", (GENEROUS,))
    monkeypatch.setattr(drain, "http", SimpleNamespace(client=http.client))
    world = ReloadedHaproxy(tmp)
    try:
        yield world
    finally:
        world.close()
