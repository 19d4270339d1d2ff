# SPDX-License-Identifier: Apache-2.0
"""Transfers over shaped links in which something breaks: the others go on, and the next run completes the victim.

Seconds are printed: pytest -m deep -rP shows them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import Manifest
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_hashes import hash_blob
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_pieces import (
    bencode,
    layout,
    torrent,
)
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_state import read_state

from tests.fanout.net import ShapedNet
from tests.fanout.swarm import PYTHON, Fleet, content, weight_sizes

MBIT, SECONDS, RECEIVERS = 8, 25, 4
NODES = range(RECEIVERS + 1)
TOTAL = int(MBIT * 1e6 / 8 * SECONDS)


def _possible() -> bool:
    if os.geteuid() or shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    return (
        subprocess.run([PYTHON, "-c", "import libtorrent"], capture_output=True, check=False).returncode == 0
    )


pytestmark = [
    pytest.mark.deep,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not _possible(), reason="needs root, iproute2 and python3-libtorrent"),
]


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return content(weight_sizes(TOTAL))


@pytest.fixture
def fleet(tmp_path: Path, files: dict[str, bytes]) -> Iterator[Fleet]:
    with ShapedNet(RECEIVERS + 2, MBIT) as net:
        yield Fleet(net, tmp_path, files)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> float:
    with ShapedNet(RECEIVERS + 1, MBIT) as net:
        fleet = Fleet(net, tmp_path_factory.mktemp("fleet"), files)
        fleet.start(NODES)
        took = max(fleet.wait(NODES, 200).values())
        print(f"undisturbed: {took:.1f} s")
        return took


def within(what: str, took: float, undisturbed: float) -> None:
    print(
        f"{what}: the others took {took:.1f} s, {took / undisturbed:.2f} of {undisturbed:.1f} s undisturbed"
    )
    assert took <= 1.3 * undisturbed


def at_half(fleet: Fleet, node: int, do: Callable[[], None]) -> Callable[[], None]:
    """Do something once when a node has half."""
    done = []

    def look() -> None:
        state = fleet.state(node)
        if not done and state is not None and state.received > TOTAL / 2:
            done.append(do())

    return look


def kill(fleet: Fleet, node: int) -> None:
    fleet.running[node].send_signal(signal.SIGKILL)
    fleet.running[node].wait()


def flip(path: str) -> None:
    with open(path, "r+b") as stream:
        stream.seek(1000)
        byte = stream.read(1)
        stream.seek(1000)
        stream.write(bytes([byte[0] ^ 1]))


def largest(fleet: Fleet) -> str:
    return max(fleet.manifest.files, key=lambda item: (item.size, item.sha256)).sha256


def end(fleet: Fleet) -> None:
    for node in list(fleet.running):
        kill(fleet, node)


def test_a_receiver_killed_at_half_stops_nobody_and_goes_on_in_the_next_run(
    fleet: Fleet, undisturbed: float
) -> None:
    fleet.start(NODES)
    others = [node for node in NODES if node != 2]
    took = max(fleet.wait(others, 200, at_half(fleet, 2, lambda: kill(fleet, 2))).values())
    within("a receiver killed", took, undisturbed)
    fleet.check(others)
    end(fleet)
    fleet.start([1, 2], seeds=[1])  # the source is not needed any more
    fleet.wait([2], 200)
    fleet.check([2])
    state = fleet.state(2)
    assert state is not None
    print(f"the victim received {state.received / TOTAL:.2f} of all in the next run")
    assert state.received < 0.75 * TOTAL


def test_what_a_killed_receiver_had_is_checked_before_it_goes_on(fleet: Fleet) -> None:
    fleet.start([0, 1])
    killed: list[bool] = []
    look = at_half(fleet, 1, lambda: (kill(fleet, 1), killed.append(True))[1])
    with pytest.raises(RuntimeError, match="n1 ended"):
        fleet.wait([1], 200, look)
    assert killed
    end(fleet)
    begun = [
        path
        for path in fleet.root.glob("node1/incoming/*/*")
        if path.stat().st_size > 1000 and path.stat().st_nlink == 1  # else it is a blob's too
    ]
    assert begun
    for path in begun:
        flip(str(path))
    fleet.start([0, 1])
    fleet.wait([1], 200)
    fleet.check([1])
    state = fleet.state(1)
    assert state is not None
    assert state.received < 0.75 * TOTAL
    assert state.wrong == []


def test_what_the_disk_changed_after_it_was_received_is_received_again(fleet: Fleet) -> None:
    """The pieces were right when they came, and the whole is not."""

    def spoil() -> None:
        for path in fleet.root.glob("node1/incoming/*/*"):
            if path.stat().st_nlink == 1:
                with path.open("r+b") as stream:
                    for offset in range(0, path.stat().st_size - 8, 100_000):
                        stream.seek(offset)
                        stream.write(b"\0\1\2\3")

    fleet.start([0, 1])
    fleet.wait([1], 200, at_half(fleet, 1, spoil))
    fleet.check([1])
    state = fleet.state(1)
    assert state is not None
    assert state.wrong == []


def test_a_link_cut_for_a_minute(fleet: Fleet, undisturbed: float) -> None:
    cut: list[float] = []
    fleet.changes["linger"] = 120.0

    def mend() -> None:
        if cut and time.monotonic() - cut[0] > 60:
            fleet.net.link(2, True)

    look = at_half(fleet, 2, lambda: (fleet.net.link(2, False), cut.append(time.monotonic()))[1])
    fleet.start(NODES)
    others = [node for node in NODES if node != 2]
    took = max(fleet.wait(others, 200, lambda: (look(), mend())[1]).values())
    within("a link cut", took, undisturbed)
    fleet.wait([2], 200, mend)
    assert time.monotonic() - cut[0] > 60
    fleet.check(NODES)


def test_a_source_killed_where_another_one_is(fleet: Fleet) -> None:
    fleet.fill(5)
    fleet.start([*NODES, 5], seeds=[0, 5])
    fleet.wait(range(1, 5), 200, at_half(fleet, 1, lambda: kill(fleet, 0)))
    fleet.check(range(1, 5))


def test_the_only_source_killed_and_started_again(fleet: Fleet) -> None:
    fleet.changes["stall"] = 15.0
    fleet.start(NODES)
    with pytest.raises(RuntimeError, match=r"No content arrived for 15 s\. Members that were not reached"):
        fleet.wait(range(1, 5), 200, at_half(fleet, 1, lambda: kill(fleet, 0)))
    for node in range(1, 5):
        assert fleet.running[node].wait(15) == 1
    listening(fleet, range(1, 5), False)
    fleet.start(NODES)
    fleet.wait(range(1, 5), 200)
    fleet.check(range(1, 5))
    state = fleet.state(1)
    assert state is not None
    print(f"a receiver got {state.received / TOTAL:.2f} of all in the next run")
    assert state.received < 0.75 * TOTAL


def test_a_slow_link_is_named_and_holds_up_nobody(fleet: Fleet, undisturbed: float) -> None:
    fleet.net.shape(3, MBIT / 10)
    named: set[str] = set()

    def look() -> None:
        state = fleet.state(0)
        named.update(state.slow if state is not None else ())

    fleet.start(NODES)
    others = [node for node in NODES if node != 3]
    within("a link at a tenth", max(fleet.wait(others, 300, look).values()), undisturbed)
    fleet.check(others)
    assert named == {"n3"}


LAUNCH = """
import json, sys, time
from ansible_collections.instinct.fleet.plugins.module_utils.swarm import swarm_job, swarm_member
params = json.load(sys.stdin)
swarm_job.RUN_DIR = params.pop("run")
swarm_member.start(params, False)
print("started", flush=True)
time.sleep(600)
"""


def launch(fleet: Fleet, node: int, members: list[dict[str, object]], key: str) -> subprocess.Popen[str]:
    """Start a node's part as the module does, in a process that stays, like a session from a controller."""
    params = {
        "manifest": fleet.manifest.to_json(),
        "own": f"n{node}",
        "members": members,
        "key": key,
        "limit": 0,
        "timeout": 300,
        "store": fleet.store(node).root,
        "program": base64.b64encode(fleet.program.read_bytes()).decode(),
        "run": str(fleet.root / f"own{node}"),
    }
    (fleet.root / f"own{node}").mkdir(mode=0o700)
    process = subprocess.Popen(
        ["ip", "netns", "exec", fleet.net.name(node), sys.executable, "-c", LAUNCH],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(params))
    process.stdin.close()
    assert process.stdout.readline() == "started\n"
    return process


def secrets_of(manifest: Manifest, key: str, store: Path) -> list[bytes]:
    """Return the forms in which the key of a run, and what is made of it, could be found."""
    cut = layout(manifest)
    hashes = {
        slot.sha256: hash_blob(
            str(store / "blobs/sha256" / slot.sha256), cut.piece_size, threading.Event()
        ).pieces
        for slot in cut.slots
    }
    info = torrent(cut, hashes, manifest.id, key)
    name = hashlib.sha1(bencode(info), usedforsecurity=False)
    hidden = [bytes.fromhex(key), name.digest(), bytes.fromhex(str(info["x-run"]))]
    return [form for raw in hidden for form in (raw, raw.hex().encode(), base64.b64encode(raw).rstrip(b"="))]


def found_in(secrets: list[bytes], root: Path) -> list[str]:
    """Return the files under a directory, and the processes, in which a secret stands."""
    paths = [path for path in root.rglob("*") if path.is_file()]
    processes = [*Path("/proc").glob("[0-9]*/cmdline"), *Path("/proc").glob("[0-9]*/environ")]
    shown = []
    for path in [*paths, *processes]:
        try:
            text = path.read_bytes()
        except OSError:
            continue  # it has ended
        if any(secret in text or secret.lower() in text.lower() for secret in secrets):
            shown.append(str(path))
    return shown


def listening(fleet: Fleet, nodes: Iterable[int], expected: bool) -> None:
    """Assert that these nodes listen, or not."""
    for node in nodes:
        shown = subprocess.run(
            ["ip", "netns", "exec", fleet.net.name(node), "ss", "-ltnH"],
            check=True,
            capture_output=True,
            text=True,
        )
        assert bool(shown.stdout.strip()) == expected, shown.stdout


def test_the_controller_is_gone_and_the_key_is_nowhere(fleet: Fleet) -> None:
    key = "5a0b" * 16
    members: list[dict[str, object]] = [
        {"name": f"n{node}", "address": fleet.net.address(node), "port": 8620, "serves": node == 0}
        for node in (0, 1)
    ]
    launched = [launch(fleet, node, members, key) for node in (0, 1)]
    run = {node: fleet.root / f"own{node}" / fleet.manifest.id for node in (0, 1)}
    states = {node: read_state(str(run[node])) for node in (0, 1)}
    pids = [state.pid for state in states.values() if state is not None]
    for process in launched:
        os.killpg(process.pid, signal.SIGHUP)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert len(pids) == 2
    assert all(os.getsid(pid) == pid for pid in pids)  # alive, in sessions of their own
    hidden = secrets_of(fleet.manifest, key, fleet.root / "node0")
    limit, looked = time.monotonic() + 200, False
    while (state := read_state(str(run[1]))) is None or state.phase != "ended":
        assert time.monotonic() < limit, state
        if not looked and state is not None and state.received > TOTAL / 2:
            looked = True
            assert found_in(hidden, fleet.root) == []
            listening(fleet, [0, 1], True)
        time.sleep(0.2)
    assert looked
    assert state.finished
    fleet.check([1])
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < limit
        time.sleep(0.2)
    listening(fleet, [0, 1], False)
    assert found_in(hidden, fleet.root) == []
    assert all((run[node] / "log").exists() and (run[node] / "state.json").exists() for node in (0, 1))


def test_a_flipped_byte_on_the_disk_of_the_only_source(fleet: Fleet) -> None:
    bad = largest(fleet)
    flip(fleet.store(0).path(bad))
    fleet.start([0, 1, 2])
    with pytest.raises(RuntimeError, match="are not on any member with the right content"):
        fleet.wait([1], 100)
    state = fleet.state(0)
    assert state is not None
    assert state.corrupt == [bad]
    assert all(not fleet.store(node).has(bad, fleet.manifest.blobs[bad]) for node in (0, 1, 2))


def test_a_flipped_byte_on_the_disk_of_one_source_is_healed_by_another(fleet: Fleet) -> None:
    fleet.fill(5)
    flip(fleet.store(0).path(largest(fleet)))
    fleet.start([0, 1, 2, 5], seeds=[0, 5])
    fleet.wait([0, 1, 2, 5], 200)
    fleet.check([0, 1, 2, 5])


def spoil_when_running(fleet: Fleet, bad: str) -> Callable[[], None]:
    """Change many bytes of a blob once its source has hashed it."""
    spoilt: list[bool] = []

    def look() -> None:
        state = fleet.state(0)
        if not spoilt and state is not None and state.phase in ("running", "complete"):
            with open(fleet.store(0).path(bad), "r+b") as stream:
                for offset in range(0, fleet.manifest.blobs[bad], 10_000):
                    stream.seek(offset)
                    stream.write(b"\0\1\2\3")
            spoilt.append(True)

    return look


def test_a_byte_flipped_after_it_was_hashed_is_healed_by_another_source(fleet: Fleet) -> None:
    """As on the way, or in the sender's memory: pieces are refused, and their sender is named."""
    fleet.fill(5)
    bad = largest(fleet)
    fleet.start([0, 1, 2, 5], seeds=[0, 5])
    named: set[str] = set()

    def look() -> None:
        spoil()
        for node in (1, 2):
            state = fleet.state(node)
            named.update(state.wrong if state is not None else ())

    spoil = spoil_when_running(fleet, bad)
    fleet.wait([1, 2], 200, look)
    look()
    fleet.check([1, 2])
    assert named == {"n0"}


def test_a_byte_flipped_after_it_was_hashed_on_the_only_source(fleet: Fleet) -> None:
    fleet.changes["stall"] = 15.0
    bad = largest(fleet)
    fleet.start([0, 1, 2])
    with pytest.raises(RuntimeError, match="that sent wrong content: n0"):
        fleet.wait([1, 2], 200, spoil_when_running(fleet, bad))
    end(fleet)
    for node in (1, 2):
        assert not fleet.store(node).has(bad, fleet.manifest.blobs[bad])
        assert fleet.store(node).verify() == {}


@pytest.mark.parametrize("recorded", [False, True])
def test_a_byte_flipped_in_the_store_afterwards(fleet: Fleet, recorded: bool) -> None:
    fleet.start([0, 1])
    fleet.wait([1], 200)
    end(fleet)
    if recorded:
        fleet.store(1).record(fleet.manifest)
    bad = largest(fleet)
    flip(fleet.store(1).path(bad))
    assert list(fleet.store(1).verify()) == [bad]
    fleet.store(1).remove(bad)
    assert fleet.store(1).manifest(fleet.manifest.name) is None
    fleet.start([0, 1])
    fleet.wait([1], 200)
    fleet.check([1])
    state = fleet.state(1)
    assert state is not None
    print(f"{state.received} bytes received to heal a blob of {fleet.manifest.blobs[bad]}")
    assert state.received < 1.2 * fleet.manifest.blobs[bad]
