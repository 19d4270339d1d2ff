# SPDX-License-Identifier: Apache-2.0
"""Transfers over shaped links in which something breaks: the others go on, and the next run completes the victim."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
        return max(fleet.wait(NODES, 200).values())


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
    assert (
        max(fleet.wait(others, 200, at_half(fleet, 2, lambda: kill(fleet, 2))).values()) <= 1.3 * undisturbed
    )
    fleet.check(others)
    end(fleet)
    fleet.start([1, 2], seeds=[1])  # the source is not needed any more
    fleet.wait([2], 200)
    fleet.check([2])
    state = fleet.state(2)
    assert state is not None
    assert state.received < 0.75 * TOTAL


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
    assert took <= 1.3 * undisturbed
    fleet.wait([2], 200, mend)
    fleet.check(NODES)


def test_a_source_killed_where_another_one_is(fleet: Fleet) -> None:
    fleet.fill(5)
    fleet.start([*NODES, 5], seeds=[0, 5])
    fleet.wait(range(1, 5), 200, at_half(fleet, 1, lambda: kill(fleet, 0)))
    fleet.check(range(1, 5))


def test_the_only_source_killed_and_started_again(fleet: Fleet) -> None:
    fleet.changes["stall"] = 15.0
    fleet.start(NODES)
    with pytest.raises(RuntimeError, match=r"No content came for 15 s\. Members that were not reached"):
        fleet.wait(range(1, 5), 200, at_half(fleet, 1, lambda: kill(fleet, 0)))
    end(fleet)
    before = sum(len(path.read_bytes()) for path in fleet.root.glob("node1/blobs/sha256/*"))
    fleet.start(NODES)
    fleet.wait(range(1, 5), 200)
    fleet.check(range(1, 5))
    state = fleet.state(1)
    assert state is not None
    assert state.received < 0.75 * TOTAL, before


def test_a_slow_link_is_named_and_holds_up_nobody(fleet: Fleet, undisturbed: float) -> None:
    fleet.net.shape(3, MBIT / 10)
    named: set[str] = set()

    def look() -> None:
        state = fleet.state(0)
        named.update(state.slow if state is not None else ())

    fleet.start(NODES)
    others = [node for node in NODES if node != 3]
    assert max(fleet.wait(others, 300, look).values()) <= 1.3 * undisturbed
    fleet.check(others)
    assert named == {"n3"}


def test_the_controller_is_gone(fleet: Fleet) -> None:
    fleet.start([0, 1])
    parents = [fleet.running[node].pid for node in (0, 1)]
    assert all(os.getsid(pid) == pid for pid in parents)  # a session of its own: no hang-up reaches it
    fleet.wait([0, 1], 200)
    fleet.check([1])


def test_a_flipped_byte_on_the_disk_of_the_only_source(fleet: Fleet) -> None:
    bad = largest(fleet)
    flip(fleet.store(0).path(bad))
    fleet.start([0, 1, 2])
    with pytest.raises(RuntimeError, match="are on no member with the right content"):
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


def test_a_byte_flipped_after_it_was_hashed(fleet: Fleet) -> None:
    """As on the way, or in the sender's memory: pieces are refused, and their sender is named."""
    fleet.fill(5)
    bad, flipped = largest(fleet), []

    def look() -> None:
        state = fleet.state(0)
        if not flipped and state is not None and state.phase == "running":
            for offset in range(0, fleet.manifest.blobs[bad], 50_000):
                with open(fleet.store(0).path(bad), "r+b") as stream:
                    stream.seek(offset)
                    stream.write(b"\0\1\2\3")
            flipped.append(True)

    fleet.start([0, 1, 2, 5], seeds=[0, 5])
    fleet.wait([1, 2], 200, look)
    fleet.check([1, 2])
    states = [fleet.state(node) for node in (1, 2)]
    assert any("n0" in state.wrong for state in states if state is not None)


def test_a_byte_flipped_in_the_store_afterwards(fleet: Fleet) -> None:
    fleet.start([0, 1])
    fleet.wait([1], 200)
    end(fleet)
    bad = largest(fleet)
    flip(fleet.store(1).path(bad))
    assert list(fleet.store(1).verify()) == [bad]
    fleet.store(1).remove(bad)
    fleet.start([0, 1])
    fleet.wait([1], 200)
    fleet.check([1])
