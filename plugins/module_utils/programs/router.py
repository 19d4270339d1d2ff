# SPDX-License-Identifier: Apache-2.0
"""Run a vllm-router for every deployment that is routed by prefix, next to HAProxy on the balancer's host.

A router chooses among HAProxy's loopback URLs, one per instance. HAProxy has the last word, so a drained instance gets
no requests whatever a router chooses. While a router is down, HAProxy works without it. Changes of balancer.json are
sent to the running routers, because a restart would end the requests in flight. One file without imports of the
toolkit: it runs on the balancer's host.

    router.py BALANCER.JSON PIDFILE VLLM-ROUTER
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
from typing import Any

from ..service.endpoint import METRICS, busy

POLL_SECONDS = 1.0
ASK_SECONDS = 5.0
STOP_SECONDS = 5.0
LEAVE_SECONDS = 20.0
"""Seconds that HAProxy may take to reload, and so to forget a router that is no longer needed."""


def command(program: str, port: int, workers: list[str], timeout: int, body_limit: int) -> list[str]:
    """Return the command line of a router, without retries and circuit breaker: both are HAProxy's decisions."""
    return [
        program, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *workers, "--policy", "cache_aware",
        "--prometheus-host", "127.0.0.1", "--prometheus-port", str(port + METRICS),
        "--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-success-threshold", "1",
        "--worker-startup-check-interval", "1", "--request-timeout-secs", str(timeout), "--disable-retries",
        "--disable-circuit-breaker", "--max-payload-size", str(body_limit), "--log-level", "warning",
    ]  # fmt: skip


def wanted_routers(config: dict[str, Any]) -> dict[str, tuple[int, list[str]]]:
    """Return port and workers of each router in balancer.json, by deployment."""
    base = f"http://127.0.0.1:{config['router_port']}"
    return {
        backend["name"]: (
            int(config["routers"][backend["name"]]),
            [f"{base}/{backend['name']}/{server['name']}" for server in backend["servers"]],
        )
        for backend in config["backends"]
        if backend["name"] in config["routers"] and backend["servers"]
    }


class Router:
    """A running vllm-router."""

    def __init__(self, argv: list[str], port: int) -> None:
        self.port = port
        self.unwanted = 0.0
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)

    @property
    def alive(self) -> bool:
        """Return whether its process runs."""
        return self.process.poll() is None

    def idle(self) -> bool:
        """Return whether it can end: it has no requests, and gets none."""
        return not self.alive or (time.monotonic() > self.unwanted + LEAVE_SECONDS and not busy(self.port))

    def tell(self, workers: list[str]) -> None:
        """Set its workers. A change that fails now is repeated at the next check."""
        with contextlib.suppress(OSError, ValueError, KeyError, http.client.HTTPException):
            there = set(json.loads(self.ask("GET", "/list_workers"))["urls"])
            for url in sorted(set(workers) - there):
                self.ask("POST", f"/add_worker?url={urllib.parse.quote(url, safe='')}")
            for url in sorted(there - set(workers)):
                self.ask("POST", f"/remove_worker?url={urllib.parse.quote(url, safe='')}")

    def ask(self, method: str, path: str) -> str:
        """Send one request to it. Raise OSError or HTTPException."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ASK_SECONDS)
        try:
            connection.request(method, path)
            return connection.getresponse().read().decode("utf-8", "replace")
        finally:
            connection.close()

    def stop(self) -> None:
        """Stop it."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may be inside the kernel
                self.process.wait(STOP_SECONDS)


class Routers:
    """All routers of this host."""

    def __init__(self, path: str, program: str) -> None:
        self.path, self.program = path, program
        self.config: dict[str, Any] = {}
        self.running: dict[str, Router] = {}
        self.leaving: list[Router] = []

    def look(self) -> None:
        """Bring the routers in line with balancer.json."""
        with contextlib.suppress(OSError, ValueError), open(self.path, encoding="utf-8") as file:
            self.config = json.load(file)
        wanted = wanted_routers(self.config) if self.config.get("routers") else {}
        for name, router in list(self.running.items()):
            if not router.alive or name not in wanted or wanted[name][0] != router.port:
                router.unwanted = time.monotonic()
                self.leaving.append(self.running.pop(name))
        for router in [item for item in self.leaving if item.idle()]:
            router.stop()
            self.leaving.remove(router)
        for name, (port, workers) in wanted.items():
            if name in self.running:
                self.running[name].tell(workers)
            else:
                timeout, limit = int(self.config["timeout"]) * 24, int(self.config["body_limit"])
                self.running[name] = Router(command(self.program, port, workers, timeout, limit), port)

    def stop(self) -> None:
        """Stop all of them."""
        for router in (*self.running.values(), *self.leaving):
            router.stop()


def stop(*_signal: object) -> None:
    """End this process as a requested stop does."""
    raise SystemExit(0)


def main(path: str, pid_file: str, program: str) -> None:
    """Run until the process is ended."""
    signal.signal(signal.SIGTERM, stop)
    routers = Routers(path, program)
    with open(pid_file, "w", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    try:
        while True:
            routers.look()
            time.sleep(POLL_SECONDS)
    finally:
        routers.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4])
