# SPDX-License-Identifier: Apache-2.0
"""The rendered configuration in a real HAProxy, with engines behind it that tell what reached them."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.credentials.api_keys import keys_map
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.haproxy_socket import (
    Haproxy,
    HaproxyUnavailable,
)
from ansible_collections.instinct.fleet.plugins.module_utils.programs.guard import Guard
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.backends import group_servers
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.config import config_data
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.servers import BackendServer

from tests.helpers.eventually import GENEROUS, eventually
from tests.helpers.ports import free_port
from tests.worlds.balancer_world import DRAW
from tests.worlds.defaults import balancer_settings
from tests.worlds.programs import program

KEYS = {
    "web": "sk-web-" + "w" * 30,
    "bulk": "sk-bulk-" + "u" * 30,
    "batch": "sk-batch,with-a-comma-" + "b" * 20,
}


class Engine(BaseHTTPRequestHandler):
    """An instance. X-Pauses: seconds before each part of its answer; it waits for `go_on` with X-Hold."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        if self.path == "/health":
            self.server.told = self.headers.get("X-Haproxy-Server-State", "")  # type: ignore[attr-defined]
        self._answer({"path": self.path})

    def do_POST(self) -> None:
        """Through the guard, whose coroutines wait for nothing here."""
        headers = [(name.lower().encode(), text.encode("latin-1")) for name, text in self.headers.items()]
        self.left = int(self.headers.get("Content-Length", 0))
        with contextlib.suppress(StopIteration):
            Guard(self._work)(
                {"type": "http", "path": self.path, "headers": headers}, self._read, self._write
            ).send(None)

    async def _read(self) -> dict[str, Any]:
        if self.headers["Transfer-Encoding"]:
            part = self.rfile.read(int(self.rfile.readline(), 16))
            self.rfile.readline()
            return {"type": "http.request", "body": part, "more_body": bool(part)}
        part = self.rfile.read(min(self.left, 1 << 20))
        self.left -= len(part)
        return {"type": "http.request", "body": part, "more_body": self.left > 0}

    async def _write(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.send_response(message["status"])
            for name, text in message["headers"]:
                self.send_header(name.decode(), text.decode())
            self.end_headers()
        else:
            self.wfile.write(message["body"])

    async def _work(self, scope: Any, receive: Any, send: Any) -> None:
        """Read the body, and answer as the headers say."""
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            size, more = size + len(message["body"]), message["more_body"]
        if self.headers["X-Hold"]:
            self.server.go_on.wait(GENEROUS)  # type: ignore[attr-defined]
        pauses = [float(word) for word in self.headers.get("X-Pauses", "").split()]
        if not pauses:
            return self._answer({"path": self.path, "bytes": size, "port": self.server.server_address[1]})
        time.sleep(pauses[0])
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for pause in pauses[1:]:
            self.wfile.write(b"data: token\n\n")
            self.wfile.flush()
            time.sleep(pause)
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def _answer(self, found: Any) -> None:
        text = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class EngineServer(ThreadingHTTPServer):
    """Listens at one port; stop() refuses connections as a host does whose services are gone."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Engine)
        self.go_on = threading.Event()
        self.told = ""  # by HAProxy's last check: what it thinks of this instance
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """A client that goes away is no error."""

    def stop(self) -> None:
        self.go_on.set()
        self.shutdown()
        self.server_close()


class World:
    """A load balancer with `deployments` of `count` instances each, which get `limit` requests at once.

    hosts: those of the instances, in turn.
    """

    def __init__(
        self,
        tmp: Path,
        deployments: Sequence[str] = ("llama",),
        count: int = 2,
        limit: int = 50,
        hosts: Sequence[str] = ("n1",),
        **settings: Any,
    ) -> None:
        self.port = free_port()
        self.ports = {name: [free_port() for _ in range(count)] for name in deployments}
        self.engines = {port: EngineServer(port) for ports in self.ports.values() for port in ports}
        given = {
            "listen": "127.0.0.1",
            "port": self.port,
            "tls": False,
            "metrics_port": free_port(),
            **settings,
        }
        servers = [
            BackendServer(
                hosts[index % len(hosts)], f"{name}-{index // len(hosts)}", name, "127.0.0.1", port, limit,
                (f"lab/{name}",),
            )
            for name, ports in self.ports.items() for index, port in enumerate(ports)
        ]  # fmt: skip
        data = config_data(balancer_settings(**given), group_servers(servers))
        self.data = {**data, "agent_port": free_port()}
        text = DRAW(self.data)
        for line in ("    user haproxy\n", "    group haproxy\n", "    chroot /var/lib/haproxy\n"):
            assert line in text
            text = text.replace(line, "")
        (tmp / "haproxy.cfg").write_text(text.replace("/var/lib/instinct-fleet/balancer", str(tmp)))
        (tmp / "keys.map").write_text(keys_map(KEYS))
        (tmp / "servers").write_text("1\n")
        self.haproxy = Haproxy(str(tmp / "admin.sock"), GENEROUS)
        with (tmp / "log").open("wb") as log:
            command = [program("haproxy"), "-db", "-C", str(tmp), "-f", "haproxy.cfg"]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self.log = tmp / "log"
        eventually("HAProxy", lambda: self.up() == len(self.engines))

    def up(self) -> int:
        """How many servers are in service."""
        try:
            servers = self.haproxy.servers().items()
            return sum(server.up for name, server in servers if not name.startswith("inside/"))
        except HaproxyUnavailable:
            assert self.process.poll() is None, self.log.read_text()
            return 0

    def memory(self) -> int:
        """Bytes of memory that HAProxy has."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) << 10

    def connections(self) -> int:
        """How many connections HAProxy has."""
        text = self.haproxy.ask("show info")
        return int(text.partition("\nCurrConns:")[2].split()[0])

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """A connection of a client at this loopback address."""
        return socket.create_connection(("127.0.0.1", self.port), GENEROUS, (source, 0))

    def ask(
        self, method: str = "POST", path: str = "/v1/completions",
        body: bytes | Iterator[bytes] = b'{"model": "lab/llama"}',
        key: str = KEYS["web"], source: str = "127.0.0.1", **headers: str,
    ) -> tuple[int, Any]:  # fmt: skip
        """Status and content of an answer."""
        link = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=GENEROUS, source_address=(source, 0)
        )
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            link.request(method, path, body, {"Authorization": f"Bearer {key}", **given} if key else given)
            answer = link.getresponse()
            text = answer.read()
        finally:
            link.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text.decode()

    def stream(
        self, pieces: int, key: str = KEYS["web"], source: str = "127.0.0.1", **headers: str
    ) -> tuple[int, bytes]:
        """Send a chunked body of so many MB, until an answer comes; how many were sent, and the answer."""
        lines = ["POST /v1/completions HTTP/1.1", "Host: x", f"Authorization: Bearer {key}"]
        lines += [
            "Transfer-Encoding: chunked",
            *(f"{name.replace('_', '-')}: {text}" for name, text in headers.items()),
        ]
        sent, answer = 0, b""
        with self.connect(source) as link, contextlib.suppress(ConnectionError):
            link.sendall("\r\n".join([*lines, "", ""]).encode())
            while sent < pieces and not select.select([link], [], [], 0)[0]:
                link.sendall(b"f4240\r\n" + b"x" * 1_000_000 + b"\r\n")
                sent += 1
            if sent == pieces:
                link.sendall(b"0\r\n\r\n")
            while not answer.endswith(b"}") and (part := link.recv(65536)):
                answer += part
        return sent, answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for engine in self.engines.values():
            with contextlib.suppress(OSError):
                engine.stop()


@contextlib.contextmanager
def balancer(tmp: Path, **given: Any) -> Iterator[World]:
    """A running load balancer."""
    world = World(tmp, **given)
    try:
        yield world
    finally:
        world.close()


def seconds_open(link: socket.socket) -> float:
    """How long it takes until the other side ends the connection, whatever it says before."""
    begun = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while link.recv(65536):
            pass
    return time.monotonic() - begun
