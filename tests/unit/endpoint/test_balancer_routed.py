# SPDX-License-Identifier: Apache-2.0
"""HAProxy's part in routing by prefix: a router chooses, and HAProxy has the last word; with the real HAProxy."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.credentials.instance_key import header_map
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.haproxy_socket import (
    Haproxy,
    HaproxyUnavailable,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.backends import Backend
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.config import config_data
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import BackendServer
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.render import (
    template_renderer,
)

from tests import ROOT
from tests.helpers.eventually import GENEROUS
from tests.helpers.ports import free_port
from tests.worlds.defaults import balancer_settings
from tests.worlds.programs import program

TEMPLATE = ROOT / "templates/haproxy.cfg.j2"
KEY = "sk-instances-" + "k" * 30


class Engine(BaseHTTPRequestHandler):
    """An instance that tells its port, and what it was sent."""

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.answer({})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        port = self.server.server_address[1]
        self.answer({"port": port, "key": self.headers["Authorization"], "path": self.path})

    def answer(self, found: Any) -> None:
        text = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Chooser(BaseHTTPRequestHandler):
    """A router that chooses the same worker every time, healthy or not."""

    worker = ""
    asked = 0

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        Chooser.asked += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = urllib.request.Request(Chooser.worker + self.path, body)
        with urllib.request.urlopen(request, timeout=GENEROUS) as answer:
            text = answer.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class World:
    def __init__(self, tmp: Path) -> None:
        self.engines = [serve(Engine, free_port()) for _ in range(2)]
        ports = [engine.server_port for engine in self.engines]
        self.names = [f"n1.llama-{port}:{port}" for port in ports]
        self.router = serve(Chooser, free_port())
        self.port, inner = free_port(), free_port()
        self.inner = f"http://127.0.0.1:{inner}"
        Chooser.worker, Chooser.asked = f"{self.inner}/llama/{self.names[0]}", 0
        members = tuple(
            BackendServer("n1", f"llama-{port}", "llama", "127.0.0.1", port, 9, ("m",)) for port in ports
        )
        settings = balancer_settings(
            listen="127.0.0.1", port=self.port, tls=False, auth=False, metrics_port=free_port()
        )
        data = config_data(
            settings, [Backend("llama", ("m",), members, True)], True, {"llama": self.router.server_port}
        )
        text = template_renderer(TEMPLATE.read_text(encoding="utf-8"))({**data, "router_port": inner})
        for line in ("    user haproxy\n", "    group haproxy\n", "    chroot /var/lib/haproxy\n"):
            text = text.replace(line, "")
        # Who is here is slow by the machine only, and is not to be taken for ill; who is gone refuses at once.
        for line in ("    timeout check 5s\n", "    timeout connect 2s\n"):
            assert line in text
            text = text.replace(line, f"{line.rpartition(' ')[0]} {GENEROUS:.0f}s\n")
        text = text.replace(" check inter 1s ", " check inter 3s ")  # which also limits connections
        (tmp / "haproxy.cfg").write_text(text.replace("/var/lib/instinct-fleet/balancer", str(tmp)))
        (tmp / "instance.map").write_text(header_map(KEY))
        (tmp / "servers").write_text("1\n")
        with (tmp / "log").open("wb") as log:
            command = [program("haproxy"), "-db", "-C", str(tmp), "-f", "haproxy.cfg"]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self.haproxy = Haproxy(str(tmp / "admin.sock"))

    def ask(self, path: str = "/v1/completions") -> dict[str, Any]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", b'{"model": "m"}')
        with urllib.request.urlopen(request, timeout=GENEROUS) as answer:
            return json.loads(answer.read())  # type: ignore[no-any-return]

    def health(self, name: str) -> int:
        try:
            return int(urllib.request.urlopen(f"{self.inner}/llama/{name}/health", timeout=GENEROUS).status)
        except urllib.error.HTTPError as error:
            return error.code

    def state(self, name: str) -> Any:
        return self.haproxy.servers()[name]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        for server in (*self.engines, self.router):
            server.shutdown()
            server.server_close()


def serve(handler: type[BaseHTTPRequestHandler], port: int) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + GENEROUS
    while True:
        try:
            if condition():
                return
        except (OSError, KeyError, RuntimeError, http.client.HTTPException, HaproxyUnavailable):
            pass
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    try:
        eventually(lambda: bool(made.state("llama.router/router").up))
        yield made
    finally:
        made.close()


def test_the_router_chooses_and_haproxy_has_the_last_word(world: World) -> None:
    first, second = (engine.server_port for engine in world.engines)
    for _ in range(3):
        assert world.ask() == {"port": first, "key": f"Bearer {KEY}", "path": "/v1/completions"}
    assert Chooser.asked == 3
    world.ask("/v1/embeddings")
    assert Chooser.asked == 3  # only what has a prompt with a prefix

    world.haproxy.set_state(f"llama/{world.names[0]}", "drain")
    assert [world.ask()["port"] for _ in range(3)] == [second] * 3
    assert [world.health(name) for name in world.names] == [503, 200]
    world.haproxy.set_state(f"llama/{world.names[0]}", "ready")
    assert [world.ask()["port"] for _ in range(3)] == [first] * 3
    assert world.health(world.names[0]) == 200
    assert world.health("n1.gone-0:1") == 503  # one that is no longer there gets nothing all the same
    Chooser.worker = f"{world.inner}/llama/n1.gone-0:1"
    assert world.ask()["port"] in (first, second)


def test_without_the_router_it_goes_on(world: World) -> None:
    world.router.shutdown()
    world.router.server_close()
    eventually(lambda: not world.state("llama.router/router").up)
    asked = Chooser.asked
    assert {world.ask()["port"] for _ in range(6)} == {engine.server_port for engine in world.engines}
    assert Chooser.asked == asked
