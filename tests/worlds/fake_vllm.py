# SPDX-License-Identifier: Apache-2.0
"""Programs for FakeDocker's containers that answer like a vLLM server, or fail like one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.worlds.fake_docker import FakeContainer, Program


def vllm(
    port: int,
    *,
    delay: float = 0.0,
    begin: Callable[[], object] = bool,
    tokens: int = 4,
    status: int = 200,
    message: str = "",
    api_key: str = "",
    asked: list[dict[str, Any]] | None = None,
    dies_after: int = 0,
    last_words: str = "(EngineCore pid=9) Memory access fault by GPU node-2 on address 0x1.\n",
) -> Program:
    """A server on `port`: ready after `delay` seconds and `begin`, answering completions with `status`."""

    def program(container: FakeContainer) -> int:
        container.log += "INFO: starting\n"
        if container.stopping.wait(delay):
            return 143
        begin()
        count = 0
        dead = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_args: object) -> None: ...

            def reply(self, code: int, data: Any) -> None:
                payload = json.dumps(data).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def do_GET(self) -> None:
                self.reply(200 if self.path == "/health" else 404, {})

            def do_POST(self) -> None:
                nonlocal count
                count += 1
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if asked is not None:
                    asked.append(body)
                if dies_after and count >= dies_after:
                    container.log += last_words
                    dead.set()
                    return
                if api_key and self.headers.get("Authorization") != f"Bearer {api_key}":
                    self.reply(401, {"error": "Unauthorized"})
                elif status != 200:
                    self.reply(status, {"error": {"message": message}})
                else:
                    self.reply(200, {"choices": [{"text": "x"}], "usage": {"completion_tokens": tokens}})

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            while not dead.is_set():
                if container.stopping.wait(0.01):
                    return 143
            return 134
        finally:
            server.shutdown()
            server.server_close()

    return program


def crash(log: str, code: int = 1) -> Program:
    """A server that writes this log and ends."""

    def program(container: FakeContainer) -> int:
        container.log += log
        return code

    return program


def crash_loop(log: str) -> Program:
    """A server that Docker restarts again and again."""

    def program(container: FakeContainer) -> int:
        while not container.stopping.is_set():
            container.log += log
            container.restarts += 1
            container.status = "restarting"
            container.stopping.wait(0.05)
        container.status = "running"
        return 1

    return program
