# SPDX-License-Identifier: Apache-2.0
"""The endpoint against clients that are slow, idle or greedy, and instances that die; with the real HAProxy."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.eventually import GENEROUS, eventually
from tests.worlds.strangers_world import KEYS, World, balancer, seconds_open


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with balancer(tmp_path_factory.mktemp("world")) as made:
        yield made


# ---- slow ones, all at once, since each of them takes as long as HAProxy's patience ----------------------


def test_who_keeps_silent_is_gone_within_seconds_and_who_waits_or_works_is_not(world: World) -> None:
    request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + KEYS["web"].encode()
    silent = {
        "nothing": b"",
        "a part of a header": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 5000,
        "a part of a body": request + b"\r\nContent-Length: 100\r\n\r\n{",
    }
    found: dict[str, object] = {}

    def keep_silent(name: str, text: bytes) -> None:
        with world.connect() as link:
            link.sendall(text)
            found[name] = seconds_open(link)

    def trickle() -> None:
        """Headers byte by byte: each of them resets a clock, but not that of the whole."""
        with world.connect() as link:
            begun = time.monotonic()
            try:
                while time.monotonic() < begun + GENEROUS:
                    link.sendall(b"G")
                    time.sleep(0.5)
            except ConnectionError:
                found["byte by byte"] = time.monotonic() - begun

    def wait(name: str, pauses: str) -> None:
        found[name] = world.ask(X_Pauses=pauses)

    def upload() -> None:
        """Slow, and never silent for long: 14 s in all."""
        with world.connect() as link:
            link.sendall(request + b"\r\nContent-Length: 14\r\nConnection: close\r\n\r\n")
            for _ in range(14):
                link.sendall(b"x")
                time.sleep(1)
            answer = b"".join(iter(lambda: link.recv(65536), b""))
            found["upload"] = b"200 OK" in answer and b'"bytes": 14' in answer

    threads = [threading.Thread(target=keep_silent, args=item) for item in silent.items()]
    threads += [threading.Thread(target=wait, args=("before", "14 0")), threading.Thread(target=trickle)]
    threads += [threading.Thread(target=wait, args=("inside", "0 14 0")), threading.Thread(target=upload)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.pop("before") == (200, "data: token\n\ndata: [DONE]\n\n")
    assert found.pop("inside") == (200, "data: token\n\ndata: token\n\ndata: [DONE]\n\n")
    assert found.pop("upload") is True
    assert {*found} == {*silent, "byte by byte"}
    assert 0 < found.pop("a part of a body") < 45  # type: ignore[operator]
    assert all(0 < seconds < 20 for seconds in found.values()), found  # type: ignore[operator]


# ---- hosts that die ---------------------------------------------------------------------------------------


def test_a_dead_host_costs_no_further_request(tmp_path: Path) -> None:
    """More dead instances than HAProxy's usual number of attempts, and they have the fewest requests."""
    with balancer(tmp_path, count=8) as world:
        *dying, first, second = world.ports["llama"]
        for port in dying:
            world.engines[port].stop()
        answers = [world.ask() for _ in range(30)]
        assert {(status, found["port"]) for status, found in answers} <= {(200, first), (200, second)}
        eventually("what is dead is out", lambda: world.up() == 2)


def test_who_comes_back_serves_again(tmp_path: Path) -> None:
    with balancer(tmp_path) as world:
        gone, stays = world.ports["llama"]
        old = world.engines[gone]
        old.stop()
        assert {world.ask()[1]["port"] for _ in range(4)} == {stays}
        eventually("it is out", lambda: world.up() == 1)
        world.engines[gone] = type(old)(gone)
        begun = time.monotonic()
        eventually("it is back", lambda: world.up() == 2)
        assert time.monotonic() - begun < 15
        assert {world.ask()[1]["port"] for _ in range(8)} == {gone, stays}


# ---- keys -------------------------------------------------------------------------------------------------


def test_every_valid_key_works_whatever_is_in_it(world: World) -> None:
    assert {name: world.ask(key=key)[0] for name, key in KEYS.items()} == dict.fromkeys(KEYS, 200)
    assert world.ask(key="sk-wrong," + KEYS["web"])[0] == 401
