# SPDX-License-Identifier: Apache-2.0
"""What strangers and greedy clients do to a load balancer, and to an engine over several hosts: each in a process."""

from __future__ import annotations

import contextlib
import http.client
import multiprocessing
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

from tests.helpers.eventually import GENEROUS
from tests.worlds.strangers_world import KEYS

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


def _connect(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), GENEROUS, (source, 0))


def idle(port: int, _group: int) -> None:
    """8,192 connections that say nothing, again and again."""
    while True:
        with contextlib.ExitStack() as links:
            for _ in range(8192):
                with contextlib.suppress(OSError):
                    links.enter_context(_connect(port, "127.0.0.2"))
            time.sleep(8)


def unfinished(port: int, _group: int) -> None:
    """400 headers that never end, as much of each as is taken."""
    while True:
        with contextlib.ExitStack() as stack:
            links = []
            for _ in range(400):
                with contextlib.suppress(OSError):
                    links.append(stack.enter_context(_connect(port, "127.0.0.3")))
            for link in links:
                link.setblocking(False)
                with contextlib.suppress(OSError):
                    link.send(HEAD + b"X: " + b"a" * 15_000)
            for _ in range(6):
                time.sleep(1)
                for link in links:
                    with contextlib.suppress(OSError):
                        link.send(b"a" * 1000)


def group(_port: int, group: int) -> None:
    """40 connections to the port of an engine's supervisors that say nothing, opened again when they are closed."""
    links: set[socket.socket] = set()
    while True:
        while len(links) < 40:
            with contextlib.suppress(OSError):
                links.add(_connect(group, "127.0.0.6"))
            time.sleep(0.001)
        for link in select.select([*links], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):
                if link.recv(4096):
                    continue
            links.remove(link)
            link.close()


def bodies(port: int, _group: int) -> None:
    """200 MB each, with a length and chunked, sent on whatever the answer is."""

    def send(framing: bytes, before: bytes, after: bytes) -> None:
        key = b"Authorization: Bearer " + KEYS["bulk"].encode()
        while True:
            with contextlib.suppress(OSError), _connect(port, "127.0.0.4") as link:
                link.sendall(HEAD + key + b"\r\nX-Model: lab/llama\r\n" + framing + b"\r\n\r\n")
                for _ in range(200):
                    link.sendall(before + b"x" * 1_000_000 + after)

    chunked = (b"Transfer-Encoding: chunked", b"f4240\r\n", b"\r\n")
    _all([lambda: send(*chunked)] * 3 + [lambda: send(b"Content-Length: 200000000", b"", b"")])


def flood(port: int, _group: int) -> None:
    """Requests of two seconds each, of one key, as many as it is allowed and at once again when it is refused."""

    def ask() -> None:
        while True:
            link = http.client.HTTPConnection(
                "127.0.0.1", port, timeout=GENEROUS, source_address=("127.0.0.5", 0)
            )
            headers = {"Authorization": f"Bearer {KEYS['batch']}", "X-Pauses": "1 1"}
            with contextlib.suppress(OSError, http.client.HTTPException):
                link.request("POST", "/v1/completions", b'{"model": "lab/llama"}', headers)
                link.getresponse().read()
            link.close()

    _all([ask] * 100)


def _all(jobs: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ATTACKS = {made.__name__: made for made in (idle, unfinished, group, bodies, flood)}


@contextlib.contextmanager
def attacker(name: str, port: int, group_port: int) -> Iterator[multiprocessing.process.BaseProcess]:
    """A process that does this."""
    process = multiprocessing.get_context("spawn").Process(
        target=ATTACKS[name], args=(port, group_port), daemon=True
    )
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
