# SPDX-License-Identifier: Apache-2.0
"""Routers follow balancer.json: started, told of workers, ended; against a program that answers as vllm-router does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.programs import router
from ansible_collections.instinct.fleet.plugins.module_utils.programs.router import (
    Routers,
    command,
    wanted_routers,
)

from tests.helpers.eventually import GENEROUS
from tests.helpers.ports import free_port

# Answers /list_workers, /add_worker and /remove_worker; refuses to add a worker that is called bad.
FAKE = """#!/usr/bin/env python3
import http.server, json, sys, urllib.parse
port = int(sys.argv[sys.argv.index("--port") + 1])
start = sys.argv.index("--worker-urls") + 1
workers = []
for word in sys.argv[start:]:
    if word.startswith("--"):
        break
    workers.append(word)
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self): self.answer(json.dumps({"urls": workers}))
    def do_POST(self):
        parts = urllib.parse.urlsplit(self.path)
        url = urllib.parse.parse_qs(parts.query)["url"][0]
        if parts.path == "/remove_worker": workers.remove(url)
        elif not url.endswith("bad"): workers.append(url)
        self.answer("ok")
    def answer(self, text):
        self.send_response(200); self.end_headers(); self.wfile.write(text.encode())
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def config(routers: dict[str, int], **servers: list[str]) -> dict[str, Any]:
    backends = [{"name": key, "servers": [{"name": s} for s in names]} for key, names in servers.items()]
    return {
        "router_port": 8407,
        "routers": routers,
        "timeout": 60,
        "body_limit": 1 << 25,
        "backends": backends,
    }


class World:
    def __init__(self, tmp: Path) -> None:
        self.path, program = tmp / "balancer.json", tmp / "vllm-router"
        program.write_text(FAKE)
        program.chmod(0o755)
        self.routers = Routers(str(self.path), str(program))

    def look(self, data: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(data))
        self.routers.look()

    def workers(self, name: str) -> list[str]:
        urls = json.loads(self.routers.running[name].ask("GET", "/list_workers"))["urls"]
        return sorted(url.rpartition("/")[2] for url in urls)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # A router that misses a notice hears of the change at the next look only.
    monkeypatch.setattr(router, "ASK_SECONDS", GENEROUS)
    made = World(tmp_path)
    yield made
    made.routers.stop()


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + GENEROUS
    while True:
        try:
            if condition():
                return
        except OSError:
            pass
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_balancer_json_wants() -> None:
    data = config({"a": 8410}, a=["n1.a-0:8000", "n2.a-0:8000"], b=["n1.b-0:9000"])
    base = "http://127.0.0.1:8407/a"
    assert wanted_routers(data) == {"a": (8410, [f"{base}/n1.a-0:8000", f"{base}/n2.a-0:8000"])}
    assert wanted_routers(config({"a": 8410}, a=[])) == {}


def test_a_router_reads_no_larger_body_than_the_balancer() -> None:
    argv = command("vllm-router", 8410, ["http://127.0.0.1:8407/a/x"], 60, 1 << 25)
    assert argv[argv.index("--max-payload-size") + 1] == "33554432"


def test_a_running_router_is_told_and_one_that_died_is_started_again(world: World) -> None:
    port = free_port()
    world.look(config({"a": port}, a=["x", "y"]))
    eventually(lambda: world.workers("a") == ["x", "y"])
    first = world.routers.running["a"].process.pid
    world.look(config({"a": port}, a=["y", "z", "bad"]))
    assert world.workers("a") == ["y", "z"]
    assert world.routers.running["a"].process.pid == first

    os.kill(first, 9)
    world.routers.running["a"].process.wait()
    world.look(config({"a": port}, a=["y"]))
    eventually(lambda: world.workers("a") == ["y"])
    assert world.routers.running["a"].process.pid != first


def test_routers_end_with_their_deployment_and_move_with_their_port(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "LEAVE_SECONDS", GENEROUS)
    port, other = free_port(), free_port()
    world.look(config({"a": port}, a=["x"]))
    process = world.routers.running["a"].process
    world.look(config({"a": other}, a=["x"]))
    assert process.poll() is None  # HAProxy may not know yet
    monkeypatch.setattr(router, "LEAVE_SECONDS", -1.0)  # they are over
    world.routers.look()
    assert process.poll() is not None
    eventually(lambda: world.workers("a") == ["x"])
    world.path.write_text("half a fi")  # never seen: files are replaced whole; it goes on all the same
    world.routers.look()
    assert world.workers("a") == ["x"]
    world.look(config({}, a=["x"]))
    assert world.routers.running == {}
