# SPDX-License-Identifier: Apache-2.0
"""The Docker Engine client against a fake engine, and without one."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.docker import client, image_api
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import (
    Conflict,
    DockerClient,
    DockerError,
    DockerTimeout,
    DockerUnavailable,
    NotFound,
    _negotiate,
)
from ansible_collections.instinct.fleet.plugins.module_utils.docker.containers import (
    containers_labelled,
    create_container,
    remove_container,
    rename_container,
    wait_container,
)
from ansible_collections.instinct.fleet.plugins.module_utils.docker.logs import container_log, demultiplex

from tests.helpers.eventually import GENEROUS
from tests.worlds.fake_docker import CUT, STALLED, FakeContainer, FakeDocker


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[FakeDocker]:
    with FakeDocker(tmp_path) as fake:
        yield fake


@pytest.fixture
def engine(docker: FakeDocker) -> DockerClient:
    return DockerClient(docker.path, timeout=GENEROUS)


@pytest.fixture
def hasty(docker: FakeDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what has stalled until the time is over."""
    monkeypatch.setattr(client, "socket", SimpleNamespace(**{**vars(socket), "socket": docker.hasty()}))


@pytest.mark.parametrize(
    ("offered", "prefix"),
    [
        ("1.24", "/v1.24"),
        ("1.41", "/v1.41"),
        ("1.51", "/v1.51"),
        ("1.99", "/v1.51"),
        ("2.0", "/v1.51"),
        ("", ""),
    ],
)
def test_speaks_the_daemons_version_up_to_the_newest_it_knows(offered: str, prefix: str) -> None:
    assert _negotiate(offered) == prefix


def test_asks_for_the_version_once_and_keeps_one_connection(docker: FakeDocker, engine: DockerClient) -> None:
    docker.add_image("a:1")
    for _ in range(3):
        assert image_api.image(engine, "a:1") is not None
    assert docker.requests.count("GET /_ping") == 1
    assert image_api.image(engine, "b:1") is None


def test_errors_have_types_and_the_daemons_words(docker: FakeDocker, engine: DockerClient) -> None:
    with pytest.raises(NotFound, match="No such image: x:1") as missing:
        create_container(engine, "c", {"Image": "x:1"})
    assert missing.value.status == 404
    docker.add_image("x:1")
    create_container(engine, "c", {"Image": "x:1"})
    with pytest.raises(Conflict, match="in use"):
        create_container(engine, "c", {"Image": "x:1"})
    docker.errors["POST /containers/c/start"] = (500, "no such device")
    with pytest.raises(DockerError, match="no such device") as failed:
        engine.start("c")
    assert failed.value.status == 500


def test_a_container_lives_and_ends(docker: FakeDocker, engine: DockerClient) -> None:
    docker.add_image("x:1")

    def program(container: FakeContainer) -> int:
        container.log = "line\n" * 1000
        container.stopping.wait(GENEROUS)
        return 3

    docker.programs["c"] = program
    identity = create_container(engine, "c", {"Image": "x:1", "Labels": {"a": "b"}})
    engine.start("c")
    assert wait_container(engine, "c", 0.05) is None
    found = engine.container("c")
    assert found is not None
    assert found["Id"] == identity
    assert found["State"]["Status"] == "running"
    engine.stop("c", 5)
    assert wait_container(engine, "c", GENEROUS) == 3
    assert container_log(engine, "c") == "line\n" * 1000
    rename_container(engine, "c", "d")
    remove_container(engine, "d")
    remove_container(engine, "d")
    assert engine.container("d") is None
    assert container_log(engine, "d") == ""
    assert "POST /containers/c/stop?t=5" in docker.requests


def test_a_removal_that_is_under_way_is_waited_for(docker: FakeDocker, engine: DockerClient) -> None:
    docker.add_image("x:1")
    create_container(engine, "c", {"Image": "x:1"})
    docker.errors["DELETE /containers/c"] = (409, "removal of container c is already in progress")
    timer = threading.Timer(0.2, docker.containers.clear)
    timer.start()
    remove_container(engine, "c")
    assert docker.containers == {}
    create_container(engine, "d", {"Image": "x:1"})
    docker.errors["DELETE /containers/d"] = (409, "You cannot remove a running container")
    with pytest.raises(Conflict, match="running container"):
        remove_container(engine, "d")


def test_pull_streams_progress_and_sends_the_account(docker: FakeDocker, engine: DockerClient) -> None:
    events = list(image_api.pull(engine, "r/x", "sha256:1", {"username": "u", "password": "secret-word"}))
    assert events == docker.pull_events
    header = docker.headers[-1]["X-Registry-Auth"]
    assert json.loads(base64.urlsafe_b64decode(header)) == {"username": "u", "password": "secret-word"}


def test_an_error_inside_the_stream_is_raised(docker: FakeDocker, engine: DockerClient) -> None:
    docker.pull_events = [
        {"status": "Pulling"},
        {"error": "x", "errorDetail": {"message": "manifest unknown"}},
    ]
    with pytest.raises(DockerError, match="manifest unknown"):
        list(image_api.pull(engine, "r/x", "sha256:1"))
    # The connection is usable afterwards.
    assert engine.info()["DockerRootDir"] == docker.root_dir


def test_an_error_before_the_stream_is_raised(docker: FakeDocker, engine: DockerClient) -> None:
    docker.pull_status, docker.pull_events = 404, [{"message": "pull access denied"}]
    with pytest.raises(NotFound, match="pull access denied"):
        list(image_api.pull(engine, "r/x", "sha256:1"))


def test_without_a_daemon_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DockerUnavailable, match=r"does not exist.*docker\.io.*systemctl start docker"):
        DockerClient(str(tmp_path / "none.sock")).info()
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    with pytest.raises(DockerUnavailable, match=r"does not answer.*Connection refused.*journalctl") as error:
        DockerClient(str(path)).info()
    assert error.value.result == {"class": "docker"}


def test_a_socket_of_another_user_says_become(tmp_path: Path, docker: FakeDocker) -> None:
    root = os.geteuid() == 0
    tmp_path.chmod(0o700 if root else 0)
    child = os.fork()
    if child == 0:
        if root:
            os.setuid(65534)
        try:
            DockerClient(docker.path).info()
        except DockerUnavailable as error:
            os._exit(0 if "become" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


class Script(threading.Thread):
    """A daemon that answers each connection with one text, then does what is asked."""

    def __init__(self, path: Path, answers: list[bytes | None]) -> None:
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.answers = answers
        self.start()

    def run(self) -> None:
        for answer in self.answers:
            connection, _ = self.listener.accept()
            connection.recv(65536)
            if answer is None:
                connection.close()
                continue
            connection.sendall(answer)
            if answer.endswith(b"KEEP"):
                continue
            connection.close()


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\nApi-Version: 1.41\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
    return head + body


def test_a_daemon_that_restarts_between_requests_is_asked_again(tmp_path: Path) -> None:
    # Every connection is closed after one answer, without saying so.
    Script(tmp_path / "d.sock", [answer(b"OK"), answer(b'{"a": 1}'), answer(b'{"a": 2}')])
    docker_client = DockerClient(str(tmp_path / "d.sock"), timeout=GENEROUS)
    assert docker_client.info() == {"a": 1}
    assert docker_client.info() == {"a": 2}


def test_a_change_is_never_sent_twice(tmp_path: Path) -> None:
    Script(tmp_path / "d.sock", [answer(b"OK"), None, answer(b"")])
    docker_client = DockerClient(str(tmp_path / "d.sock"), timeout=GENEROUS)
    with pytest.raises(DockerUnavailable, match="closed the connection during POST"):
        docker_client.start("c")


def test_a_silent_daemon_times_out(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "d.sock"))
    listener.listen()
    with pytest.raises(DockerTimeout, match="did not answer GET /_ping within 0 s"):
        DockerClient(str(tmp_path / "d.sock"), timeout=0.05).info()
    listener.close()


# ---- answers that break off in their middle ----------------------------------------------------------

BROKEN: dict[str, tuple[type[DockerError], str]] = {
    CUT: (DockerUnavailable, "The Docker engine closed the connection in the middle of an answer."),
    STALLED: (DockerTimeout, "The Docker engine stopped in the middle of an answer."),
}
REQUESTS: dict[str, tuple[str, Callable[[DockerClient], Any]]] = {
    "a read": ("GET /info", DockerClient.info),
    "a list": ("GET /containers/json", lambda docker_client: containers_labelled(docker_client, "a")),
    "a log": ("GET /containers/c/logs", lambda docker_client: container_log(docker_client, "c")),
    "a change": (
        "POST /containers/create",
        lambda docker_client: create_container(docker_client, "d", {"Image": "x:1"}),
    ),
    "a refusal": ("GET /images/none/json", lambda docker_client: image_api.image(docker_client, "none")),
}


@pytest.mark.parametrize(
    ("case", "fault"), [*((case, CUT) for case in REQUESTS), ("a read", STALLED), ("a change", STALLED)]
)
def test_an_answer_that_breaks_off(docker: FakeDocker, hasty: None, case: str, fault: str) -> None:
    request, ask = REQUESTS[case]
    kind, text = BROKEN[fault]
    docker.add_image("x:1")
    docker.add_container("c", {"Image": "x:1"}, "exited").log = "line\n"
    docker_client = DockerClient(docker.path, timeout=GENEROUS)
    assert docker_client.container("c") is not None  # the connection is there, and is broken by this
    docker.faults[request] = fault
    with pytest.raises(kind) as caught:
        ask(docker_client)
    assert str(caught.value) == text
    assert [item.partition("?")[0] for item in docker.requests].count(request) == 1  # nothing is sent twice
    # What comes next goes through a connection of its own, and gets its own answer.
    docker.faults.clear()
    assert docker_client.info()["DockerRootDir"] == docker.root_dir


PULLS: dict[str, tuple[str, bytes, type[DockerError], str]] = {
    "between two events": (CUT, b"", DockerUnavailable, "closed the connection during /images/create"),
    "in an event": (CUT, b'20\r\n{"status": "Down', DockerUnavailable, "closed the connection during /images/create"),
    "in the length of one": (CUT, b"2", DockerUnavailable, "closed the connection during /images/create"),
    "no progress": (STALLED, b"", DockerTimeout, "POST /images/create made no progress for a long time"),
    "no progress in an event": (STALLED, b'20\r\n{"status": "Down', DockerTimeout, "made no progress"),
}  # fmt: skip


@pytest.mark.parametrize("case", PULLS)
def test_a_pull_that_breaks_off(docker: FakeDocker, hasty: None, engine: DockerClient, case: str) -> None:
    fault, docker.pull_rest, kind, text = PULLS[case]
    docker.faults["POST /images/create"] = fault
    seen = []
    with pytest.raises(kind, match=text):
        seen += list(image_api.pull(engine, "r/x", "sha256:1", timeout=GENEROUS))
    assert docker.images == {}
    assert engine.info()["DockerRootDir"] == docker.root_dir


def test_progress_is_told_until_a_pull_breaks_off(docker: FakeDocker, engine: DockerClient) -> None:
    docker.faults["POST /images/create"] = CUT
    seen: list[dict[str, Any]] = []
    with pytest.raises(DockerUnavailable):
        seen.extend(image_api.pull(engine, "r/x", "sha256:1"))
    assert seen == docker.pull_events


def test_a_log_is_read_up_to_its_limit(
    docker: FakeDocker, engine: DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ansible_collections.instinct.fleet.plugins.module_utils.docker.logs._LOG_LIMIT", 1008
    )  # a frame of the fake engine, with its head
    docker.add_container("c", {}, "exited").log = "x" * 999 + "\n" + "rest\n" * 500
    assert container_log(engine, "c") == "x" * 999 + "\n"
    # The rest of that answer is not taken for the next one.
    assert engine.info()["DockerRootDir"] == docker.root_dir


def test_a_connection_that_was_idle_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is sent only once: it must not go where a daemon that restarted does not listen any more."""
    monkeypatch.setattr(
        "ansible_collections.instinct.fleet.plugins.module_utils.docker.client._IDLE_SECONDS", -1.0
    )
    Script(tmp_path / "d.sock", [answer(b"OK") + b"KEEP", answer(b"")])
    DockerClient(str(tmp_path / "d.sock"), timeout=GENEROUS).start("c")


def frame(stream: int, text: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", b""),
        (frame(1, b"out\n") + frame(2, b"err\n"), b"out\nerr\n"),
        (b"plain text of a terminal\n", b"plain text of a terminal\n"),
        (frame(1, b"whole") + b"\1\0\0", b"whole"),
        (frame(1, b"cut off")[:-3], b"cut "),
    ],
)
def test_log_frames_are_joined(raw: bytes, text: bytes) -> None:
    assert demultiplex(raw) == text
