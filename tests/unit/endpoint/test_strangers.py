# SPDX-License-Identifier: Apache-2.0
"""The endpoint against clients that are slow, idle or greedy, and instances that die; with the real HAProxy."""

from __future__ import annotations

import contextlib
import http.client
import socket
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


# ---- routes -----------------------------------------------------------------------------------------------

CLOSED = [
    "/", "/metrics", "/tokenize", "/detokenize", "/invocations", "/load", "/ping", "/version", "/docs", "/openapi.json",
    "/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache", "/v1", "/v1/", "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter", "/v1/%6Coad_lora_adapter", "/v1/%256Coad_lora_adapter", "/v1/completions/",
    "/v1/../metrics", "/v1/%2e%2e/metrics", "/v1/completions/../../metrics", "/v1/completions%2f..%2f..%2fmetrics",
    "//v1/load_lora_adapter", "/v1//load_lora_adapter", "/v1/responses/../load_lora_adapter",
    "/v1/responses/x/../../load_lora_adapter", "/v1/responses/%2e%2e/load_lora_adapter", "/v1/responses/a/b",
    "/V1/completions", "/v1/completions;x", "/v1/models/../load_lora_adapter", "/v1/not_known_yet",
]  # fmt: skip
OPEN = [
    "/v1/completions", "/v1/chat/completions", "/v1/chat/completions?api-version=1", "/v1/responses",
    "/v1/responses/resp_0a-1/cancel", "/v1/embeddings", "/v1/audio/transcriptions", "/v1/messages",
]  # fmt: skip


def test_only_listed_routes_pass_however_they_are_written(world: World) -> None:
    assert {path: world.ask(path=path)[0] for path in CLOSED} == dict.fromkeys(CLOSED, 404)
    assert {path: world.ask(path=path)[1].get("path") for path in OPEN} == {path: path for path in OPEN}
    assert world.ask("GET", "/v1/models")[1] == {"path": "/v1/models"}
    assert world.ask("GET", "/health", key="")[0] == 200


def test_the_operator_may_open_more(tmp_path: Path) -> None:
    with balancer(tmp_path, routes=("/tokenize",)) as world:
        assert world.ask(path="/tokenize")[1]["path"] == "/tokenize"
        assert world.ask(path="/tokenize", key="")[0] == 401
        assert world.ask(path="/detokenize")[0] == 404


# ---- limits -----------------------------------------------------------------------------------------------


def test_a_body_that_is_too_large_is_told(tmp_path: Path) -> None:
    with balancer(tmp_path, body_limit=1) as world:
        assert world.ask(body=b"x" * (1 << 20))[1]["bytes"] == 1 << 20
        with world.connect() as link:  # told before it is sent
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEYS['web']}\r\n"
            link.sendall(f"{head}Content-Length: 200000000\r\n\r\n".encode())
            answer = link.recv(65536)
        assert b" 413 " in answer
        assert b'"type":"invalid_request_error"' in answer


def test_a_burst_from_one_address_leaves_room(tmp_path: Path) -> None:
    """More connections than there are at all, none of which says anything."""
    with balancer(tmp_path) as world:
        links = []
        try:
            for _ in range(8300):
                with contextlib.suppress(ConnectionError):  # refused beyond its share
                    links.append(world.connect("127.0.0.2"))
            assert len(links) > 1000
            begun = time.monotonic()
            assert [world.ask(source=source)[0] for source in ("127.0.0.1", "127.0.0.3")] == [200, 200]
            assert world.ask("GET", "/health", key="")[0] == 200
            assert time.monotonic() - begun < 5
        finally:
            for link in links:
                link.close()


def test_one_key_cannot_take_all_places(tmp_path: Path) -> None:
    with balancer(tmp_path, count=1, limit=4) as world:  # 4 run, 4 wait, 6 of them may be of one key
        (engine,) = world.engines.values()
        found: list[int] = []
        flood = [
            threading.Thread(target=lambda: found.append(world.ask(key=KEYS["batch"], X_Hold="1")[0]))
            for _ in range(20)
        ]
        for thread in flood:
            thread.start()
        eventually("what is too much is refused", lambda: found == [429] * 14)
        other: list[int] = []
        client = threading.Thread(target=lambda: other.append(world.ask()[0]))
        client.start()
        eventually("it waits", lambda: "key=web" in world.haproxy.ask("show table llama"))
        engine.go_on.set()
        for thread in (client, *flood):
            thread.join()
        assert (other, sorted(found)) == ([200], [200] * 6 + [429] * 14)


def test_who_guesses_keys_is_slowed_down_and_the_log_is_not_filled(tmp_path: Path) -> None:
    with balancer(tmp_path) as world:
        statuses = [world.ask(key=f"sk-guess-{number:030}")[0] for number in range(300)]
        assert {*statuses[:90]} == {401}
        assert statuses.count(429) > 100
        assert world.ask()[0] == 200  # from the same address
        assert world.log.read_text().count(" 401 ") + world.log.read_text().count(" 429 ") < 150


# ---- several deployments: bodies are searched for their model, in large buffers ------------------------------------


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with balancer(tmp_path_factory.mktemp("shared"), deployments=("llama", "other")) as made:
        yield made


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


def test_the_model_is_found_behind_long_messages(shared: World) -> None:
    body = b'{"messages": "' + b"x" * 900_000 + b'", "model": "lab/other"}'
    assert shared.ask(body=body)[1]["port"] in shared.ports["other"]
    assert shared.ask(body=b"x" * 3_000_000, X_Model="lab/other")[1]["port"] in shared.ports["other"]
    assert shared.ask(body=b"x" * 3_000_000)[0] == 413


def test_nobody_fills_large_buffers_without_a_key(shared: World) -> None:
    """400 headers that never end: all at once, in steps, and as large as is allowed; 400 MiB before."""
    before = shared.memory()
    for step, steps in ((1_000_000, 1), (20_000, 50), (15_000, 1)):
        links = [shared.connect("127.0.0.2") for _ in range(400)]
        for link in links:
            link.sendall(HEAD + b"X: ")
            link.setblocking(False)
        for _ in range(steps):
            for link in links:
                with contextlib.suppress(OSError):
                    link.send(b"a" * step)
        assert shared.ask()[0] == 200
        assert shared.memory() - before < 400 * (96 << 10)
        for link in links:
            link.close()


def test_who_has_no_key_gets_one_answer_on_a_connection(shared: World) -> None:
    """Otherwise the headers of the next request would come to the large buffers."""
    for head in (
        HEAD,
        b"GET /health HTTP/1.1\r\nHost: x\r\n",
        b"GET /nothing HTTP/1.1\r\nHost: x\r\n",
        b"nonsense\r\n",
    ):
        with shared.connect() as link:
            link.sendall(head + b"\r\n")
            assert seconds_open(link) < 5
    link = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=GENEROUS)
    for _ in range(2):  # who has one keeps it
        link.request(
            "POST", "/v1/completions", b'{"model": "lab/llama"}', {"Authorization": f"Bearer {KEYS['web']}"}
        )
        answer = link.getresponse()
        assert (answer.status, answer.read() != b"") == (200, True)
        assert answer.getheader("Connection") is None
        assert link.sock is not None
    link.close()


def test_silence_of_a_request_is_allowed_and_of_a_stranger_is_not(shared: World) -> None:
    """Longer than a client may pause: the request waits for its tokens, in both."""
    found: list[int] = []
    waits = threading.Thread(target=lambda: found.append(shared.ask(X_Pauses="12 1 12")[0]))
    waits.start()
    with shared.connect() as nothing, shared.connect() as part:
        part.sendall(HEAD)
        assert max(seconds_open(nothing), seconds_open(part)) < 20
    waits.join()
    assert found == [200]


@pytest.mark.deep
def test_all_of_them_at_once_at_full_size(tmp_path: Path) -> None:
    """Idle connections, unfinished headers, large bodies and a key that floods: another key is served throughout."""
    with balancer(tmp_path, deployments=("llama", "other"), count=2, limit=20) as world:
        done = threading.Event()
        links: list[socket.socket] = []

        def idle() -> None:
            for _ in range(8192):
                with contextlib.suppress(OSError):
                    links.append(world.connect("127.0.0.2"))

        def unfinished() -> None:
            while not done.is_set():
                some = [world.connect("127.0.0.3") for _ in range(400)]
                for link in some:
                    link.setblocking(False)
                    with contextlib.suppress(OSError):
                        link.send(HEAD + b"X: " + b"a" * 1_000_000)
                done.wait(2)
                for link in some:
                    link.close()

        def large() -> None:
            head = (
                HEAD
                + b"Authorization: Bearer "
                + KEYS["batch"].encode()
                + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            while not done.is_set():
                with contextlib.suppress(OSError), world.connect("127.0.0.4") as link:
                    link.sendall(head)
                    for _ in range(200):
                        link.sendall(b"f4240\r\n" + b"x" * 1_000_000 + b"\r\n")

        def flood() -> None:
            while not done.is_set():
                with contextlib.suppress(OSError, http.client.HTTPException):
                    if world.ask(key=KEYS["batch"], source="127.0.0.5", X_Pauses="1 1")[0] == 429:
                        done.wait(0.1)

        threads = [threading.Thread(target=job) for job in (idle, unfinished, large, *[flood] * 60)]
        for thread in threads:
            thread.start()
        try:
            begun, times = time.monotonic(), []
            while time.monotonic() - begun < 45:
                asked = time.monotonic()
                assert world.ask()[0] == 200
                times.append(time.monotonic() - asked)
                time.sleep(0.05)
            assert len(links) > 2000
            assert max(times) < 5
            assert world.memory() < 512 << 20
        finally:
            done.set()
            for thread in threads:
                thread.join()
            for link in links:
                link.close()
