# SPDX-License-Identifier: Apache-2.0
"""The endpoint against clients that are slow, idle or greedy, and instances that die; with the real HAProxy."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.certificate import self_signed

from tests.helpers.eventually import GENEROUS, eventually
from tests.helpers.ports import free_port
from tests.worlds.strangers_attacks import ATTACKS, attacker
from tests.worlds.strangers_world import KEYS, World, balancer, seconds_open
from tests.worlds.supervise_world import SERVES, group, write_lib


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
    # HAProxy's patience is 10 s and more; a busy machine may stand still for as long as that.
    assert all(0 < seconds < 45 for seconds in found.values()), found  # type: ignore[operator]


@pytest.mark.parametrize("deployments", [("llama",), ("llama", "other")], ids=["one", "several"])
def test_who_never_begins_with_tls_is_gone_within_seconds(
    tmp_path: Path, deployments: tuple[str, ...]
) -> None:
    """What limits the time of a request does not begin before its handshake."""
    (tmp_path / "endpoint.pem").write_text(self_signed(["127.0.0.1"]))
    with balancer(tmp_path, deployments=deployments, tls=True) as world, world.connect() as link:
        assert seconds_open(link) < GENEROUS


# ---- hosts that die ---------------------------------------------------------------------------------------


def running(world: World) -> list[int]:
    """The requests that each server works on."""
    return [load.running for load in world.haproxy.loads().values()]


def test_a_dead_host_costs_no_further_request(tmp_path: Path) -> None:
    """More dead instances than HAProxy's usual number of attempts, and they have the fewest requests."""
    with balancer(tmp_path, count=8) as world:
        *dying, first, second = world.ports["llama"]
        held = [threading.Thread(target=world.ask, kwargs={"X_Hold": "1"}) for _ in range(8)]
        # One by one: HAProxy's threads may choose the same server for two that come at the same time.
        for number, thread in enumerate(held, 1):
            thread.start()
            eventually("it is sent", lambda number=number: sorted(running(world))[-number:] == [1] * number)  # type: ignore[misc]
        for port in dying:
            world.engines[port].stop()
        answers = [world.ask() for _ in range(30)]
        assert {(status, found["port"]) for status, found in answers} <= {(200, first), (200, second)}
        eventually("what is dead is out", lambda: world.up() == 2)
        for port in (first, second):
            world.engines[port].go_on.set()
        for thread in held:
            thread.join()


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


def test_an_instance_is_told_who_sends_it_requests(world: World) -> None:
    """By this its guard knows when all of them have left, before it stops."""
    told = {port: f"name=llama/n1.llama-{index}:{port}" for index, port in enumerate(world.ports["llama"])}
    eventually(
        "each has heard that it is in",
        lambda: all(
            engine.told.startswith("UP") and told[port] in engine.told
            for port, engine in world.engines.items()
        ),
    )


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


def test_a_chunked_body_is_counted_by_the_instance(tmp_path: Path) -> None:
    with balancer(tmp_path, body_limit=3) as world:
        assert world.ask(body=iter([b"x" * 1000] * 3000))[1]["bytes"] == 3_000_000
        # What a client says of the limit does not count.
        sent, answer = world.stream(200, X_Instinct_Body_Limit="999999999")
        assert sent < 200
        assert b" 413 " in answer
        assert b"larger than 3145728 bytes" in answer
        assert world.up() == len(world.engines)  # the instance that broke off is no broken one


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


def test_who_sends_too_often_goes_on_at_the_rate_that_is_allowed(tmp_path: Path) -> None:
    with balancer(tmp_path, key_rate=5) as world:  # 50 in 10 s
        statuses = [world.ask(key=KEYS["batch"])[0] for _ in range(150)]
        assert statuses == [200] * 50 + [429] * 100
        link = http.client.HTTPConnection("127.0.0.1", world.port, timeout=GENEROUS)
        link.request("POST", "/v1/completions", b"{}", {"Authorization": f"Bearer {KEYS['batch']}"})
        refused = link.getresponse()
        assert (refused.status, refused.getheader("Retry-After")) == (429, "5")
        error = json.loads(refused.read())["error"]
        assert (error["type"], error["code"]) == ("rate_limit_exceeded", 429)
        assert "50 requests in 10 seconds" in error["message"]
        link.close()
        assert world.ask()[0] == 200  # another key
        assert world.log.read_text().count(" 429 ") < 50
        # Requests that are refused do not count: they would keep a client away for ever.
        eventually("it is served again", lambda: world.ask(key=KEYS["batch"])[0] == 200)


def test_without_a_rate_no_key_is_refused(tmp_path: Path) -> None:
    with balancer(tmp_path, key_rate=0) as world:
        assert {world.ask(key=KEYS["batch"])[0] for _ in range(100)} == {200}


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
    before, few = shared.memory(), shared.connections() + 10
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
        # 49 MiB were seen on a busy machine.
        assert shared.memory() - before < 400 * (256 << 10)
        for link in links:
            link.close()
        eventually("they are gone, and their memory is free", lambda: shared.connections() <= few)


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
        assert max(seconds_open(nothing), seconds_open(part)) < 45
    waits.join()
    assert found == [200]


# ---- all of it, at full size -----------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize(
    ("attacks", "seconds"),
    [
        (("idle",), 25),
        (("unfinished",), 15),
        (("group",), 15),
        (("bodies",), 20),
        (("flood",), 20),
        ((*ATTACKS,), 60),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else f"{value}s",
)
def test_a_client_with_a_key_is_served_throughout(
    tmp_path: Path, attacks: Sequence[str], seconds: int
) -> None:
    """Attackers and HAProxy are processes of their own; the client that is measured waits for one answer at a time."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        first, second = stack.enter_context(group(write_lib(tmp_path), tmp_path, port))(2)
        first.times["hello"] = 5
        world = stack.enter_context(balancer(tmp_path, deployments=("llama", "other"), limit=20))
        first.sh(SERVES)
        first.until("waiting", "waits for n1")
        before = world.memory()
        attackers = [stack.enter_context(attacker(name, world.port, port)) for name in attacks]
        begun, times, failures = time.monotonic(), [], []
        connections = memory = 0
        while time.monotonic() < begun + seconds:
            asked = time.monotonic()
            try:
                answer = world.ask()
            except OSError as error:
                answer = (0, error)
            times.append(time.monotonic() - asked)
            failures += [] if answer[0] == 200 else [answer]
            if len(times) % 10 == 0:
                connections = max(connections, world.connections())
                memory = max(memory, world.memory() - before)
            if second.process is None and time.monotonic() > begun + seconds / 2:
                assert first.state["state"] == "waiting"
                second.sh("exec sleep 3600")
            time.sleep(0.05)
        times.sort()
        half, most = times[len(times) // 2], times[len(times) * 99 // 100]
        log = world.log.read_text()
        refused = {status: log.count(f" {status} ") for status in (200, 408, 413, 429, 502, 503)}
        print(
            f"\n{'+'.join(attacks)}: {len(times)} requests, {len(failures)} failed, 50 %: {half * 1000:.0f} ms, "
            f"99 %: {most * 1000:.0f} ms, longest: {times[-1] * 1000:.0f} ms; connections: {connections}, "
            f"memory: +{memory >> 20} MiB, answers in the log: {refused}"
        )
        assert failures == []
        assert len(times) > 2 * seconds
        assert times[-1] < 5
        assert memory < 512 << 20
        assert connections > {"idle": 2000, "unfinished": 300}.get(attacks[0], 0)
        if "bodies" in attacks:  # the balancer refuses what has a length, an instance what has none
            assert {"<NOSRV>" in line for line in log.splitlines() if " 413 " in line} == {True, False}
        assert refused[429] > 0 or "flood" not in attacks
        assert [process.is_alive() for process in attackers] == [True] * len(attackers)
        for rank in (first, second):  # the engine over two hosts has come up in the midst of it
            rank.until("running")
