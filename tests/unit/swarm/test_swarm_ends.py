# SPDX-License-Identifier: Apache-2.0
"""A transfer that cannot be finished ends by itself, soon, says why, and leaves neither a program nor a port behind."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.store.blobs import Store
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import ManifestFile, manifest_of
from ansible_collections.instinct.fleet.plugins.module_utils.swarm import (
    swarm_job,
    swarm_member,
    swarm_preparation,
    swarm_run,
)
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_hashes import (
    HashServer,
    MemberAnswers,
)
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_job import (
    SwarmJob,
    SwarmMember,
    write_job,
)
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_run import SwarmRun
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_share import ReceiverShare
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_state import SwarmState, read_state
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import archive

KEY = "5a" * 32
DATA = b"weights" * 1000
MANIFEST = manifest_of("m", [ManifestFile("w", len(DATA), sha256(DATA).hexdigest())])
SOURCE, OTHER = "127.0.0.71", "127.0.0.72"


@pytest.fixture
def port() -> int:
    return random.randint(20000, 30000)


@pytest.fixture
def job(port: int, tmp_path: Path) -> SwarmJob:
    members = (SwarmMember("n1", SOURCE, port, True), SwarmMember("n2", OTHER, port))
    return SwarmJob(
        MANIFEST, str(tmp_path / "store"), "n2", members, (), KEY, linger=2.0, stall=1.0, deadline=20.0
    )


def changed(job: SwarmJob, **changes: Any) -> SwarmJob:
    return SwarmJob(**{**vars(job), **changes})


def ended(job: SwarmJob, directory: Path, seconds: float) -> SwarmState:
    """Run a member; assert that it ends within so many seconds, incomplete, with nothing left open."""
    directory.mkdir(exist_ok=True)
    begun = time.monotonic()
    SwarmRun(job, str(directory)).run()
    assert time.monotonic() - begun < seconds
    state = read_state(str(directory))
    assert state is not None
    assert (state.phase, state.finished) == ("ended", False)
    return state


def closed(address: str, *ports: int) -> None:
    for number in ports:
        socket.create_server((address, number)).close()


@contextlib.contextmanager
def source(job: SwarmJob, known: MemberAnswers) -> Iterator[None]:
    """Answer as the source does."""
    server = HashServer(job.members[0], job.members[1:], KEY, known)
    try:
        yield
    finally:
        server.close()


def test_a_source_that_does_not_answer_is_named(job: SwarmJob, tmp_path: Path, port: int) -> None:
    state = ended(job, tmp_path / "run", 5)
    assert f"No answer for 1 s from n1 ({SOURCE} port {port + 1}), which should offer m." in state.error
    assert state.dead == ["n1"]
    closed(OTHER, port, port + 1)


def test_hosts_that_hang_do_not_hold_up_the_end(
    job: SwarmJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes the connection, and says nothing: the end is not the sum of all of them."""
    monkeypatch.setattr(swarm_preparation, "ask", functools.partial(swarm_preparation.ask, seconds=1.0))
    with contextlib.ExitStack() as stack:
        members = [*job.members]
        for number in range(10):
            member = SwarmMember(f"h{number}", f"127.0.0.{80 + number}", job.me.port, True)
            stack.enter_context(socket.create_server((member.address, member.port + 1)))
            members.append(member)
        state = ended(changed(job, members=tuple(members), deadline=3.0), tmp_path / "run", 6)
    assert "It was not complete after 3 s" in state.error


def test_a_source_without_the_right_content_is_believed_at_once(job: SwarmJob, tmp_path: Path) -> None:
    with source(job, MemberAnswers()):
        state = ended(changed(job, stall=60.0), tmp_path / "run", 5)
    assert "1 blobs of m (w, …) are not on any member with the right content" in state.error
    assert state.missing == list(MANIFEST.blobs)


def test_a_source_that_still_hashes_is_waited_for_until_the_deadline(job: SwarmJob, tmp_path: Path) -> None:
    with source(job, MemberAnswers(busy=True)):
        begun = time.monotonic()
        state = ended(changed(job, stall=0.5, deadline=3.0), tmp_path / "run", 6)
    assert time.monotonic() - begun >= 3
    assert "It was not complete after 3 s" in state.error


@pytest.mark.parametrize("taken", [0, 1])
def test_a_port_in_use(job: SwarmJob, tmp_path: Path, port: int, taken: int) -> None:
    with socket.create_server((OTHER, port + taken)):
        state = ended(job, tmp_path / "run", 2)
    assert f"It cannot listen at {OTHER} ports {port} and {port + 1}: Address already in use." in state.error
    closed(OTHER, port, port + 1)


def test_an_address_of_another_host(job: SwarmJob, tmp_path: Path) -> None:
    members = (job.members[0], SwarmMember("n2", "192.0.2.7", 8620))
    state = ended(changed(job, members=members), tmp_path / "run", 2)
    assert "192.0.2.7" in state.error
    assert "distribution_interface" in state.error


def test_without_the_engine(
    job: SwarmJob, tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "libtorrent", None)
    with source(job, MemberAnswers({next(iter(MANIFEST.blobs)): bytes(20)})):  # of its only piece
        state = ended(job, tmp_path / "run", 5)
    assert "Install python3-libtorrent, or set fetch_from: origin" in state.error
    closed(OTHER, port, port + 1)


def test_a_fault_of_its_own_is_said_in_the_state(
    job: SwarmJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SwarmRun, "_take_empty", lambda _: 1 / 0)
    assert "Internal error, please report it: ZeroDivisionError" in ended(job, tmp_path / "run", 2).error


# ---- the program -----------------------------------------------------------------------------------------------


def test_the_program_ends_and_keeps_no_key(job: SwarmJob, tmp_path: Path, port: int) -> None:
    program = tmp_path / "swarm.pyz"
    program.write_bytes(base64.b64decode(archive("swarm")))
    path = write_job(job, str(tmp_path / "run"))
    done = subprocess.run(
        [sys.executable, str(program), path], capture_output=True, timeout=30, check=False, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert sorted(item.name for item in (tmp_path / "run").iterdir()) == ["state.json"]
    assert KEY not in (tmp_path / "run" / "state.json").read_text()
    closed(OTHER, port, port + 1)


@pytest.fixture
def params(job: SwarmJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "all").mkdir(mode=0o700)
    monkeypatch.setattr(swarm_job, "RUN_DIR", str(tmp_path / "all"))
    monkeypatch.setattr(swarm_member, "PYTHON", sys.executable)
    monkeypatch.setattr(swarm_member, "_require_engine", lambda: None)
    return {
        "manifest": MANIFEST.to_json(),
        "own": "n2",
        "members": [vars(member) for member in job.members],
        "key": KEY,
        "limit": 0,
        "timeout": 2,
        "store": job.root,
        "program": archive("swarm"),
    }


@pytest.mark.timeout(60)
def test_a_program_that_survives_its_kill_is_reported(
    params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that waits for a dead disk."""
    sent: list[int] = []
    for name in ("_STOP_SECONDS", "_KILL_SECONDS", "_STOP_POLL_SECONDS"):
        monkeypatch.setattr(swarm_member, name, 0.01)
    monkeypatch.setattr(swarm_member, "read_state", lambda _directory: SwarmState(pid=4711))
    monkeypatch.setattr(swarm_member, "_runs", lambda *_unused: True)
    monkeypatch.setattr(swarm_member.os, "kill", lambda _pid, number: sent.append(number))
    with pytest.raises(
        NodeError, match=r"Process 4711, .* did not end although it was killed: .*reboot the node"
    ):
        swarm_member.start(params, check=False)
    assert sent == [15, 9]


def test_the_module_fails_at_once_where_the_port_is_in_use(
    params: dict[str, Any], tmp_path: Path, port: int
) -> None:
    begun = time.monotonic()
    with (
        socket.create_server((OTHER, port)),
        pytest.raises(NodeError, match=r"did not start: It cannot listen at 127\.0\.0\.72"),
    ):
        swarm_member.start(params, False)
    assert time.monotonic() - begun < 15
    assert not list((tmp_path / "all").rglob("job.json"))


def test_the_module_fails_when_the_time_is_over_and_the_program_is_gone(
    params: dict[str, Any], tmp_path: Path, port: int
) -> None:
    swarm_member.start(params, False)
    directory = next((tmp_path / "all").iterdir())
    pid = json.loads((directory / "state.json").read_text())["pid"]
    with pytest.raises(NodeError, match=r"not complete after 2 s|did not arrive within 2 s"):
        swarm_member.finish(params, False)
    limit = time.monotonic() + 15
    while Path(f"/proc/{pid}").exists() and _state_of(pid) != "Z":
        assert time.monotonic() < limit
        time.sleep(0.1)
    closed(OTHER, port, port + 1)
    assert Store(params["store"]).blobs() == []


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def test_no_thread_is_left(job: SwarmJob, tmp_path: Path) -> None:
    before = threading.active_count()
    ended(job, tmp_path / "run", 5)
    limit = time.monotonic() + 5
    while threading.active_count() > before:
        assert time.monotonic() < limit, threading.enumerate()
        time.sleep(0.05)


class Restarted(Exception):
    pass


class HangingEngine:
    """An engine that has all blocks of a piece, and waits for them."""

    banned: frozenset[str] = frozenset()

    def restart(self) -> None:
        raise Restarted

    def __getattr__(self, name: str) -> Any:
        answers = {"hangs": True, "have": [False, False], "copies": [0, 0], "totals": (0, 0)}
        return lambda *_args: answers.get(name, [])


def test_an_engine_that_waits_for_what_it_has_is_restarted(
    job: SwarmJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swarm_run, "_HANGS_SECONDS", 0.3)
    run = SwarmRun(changed(job, stall=5.0), str(tmp_path))
    run.share = ReceiverShare([0], 0, 1)
    begun = time.monotonic()
    with pytest.raises(Restarted):
        run._exchange(HangingEngine())  # type: ignore[arg-type]
    assert time.monotonic() - begun > 0.3
