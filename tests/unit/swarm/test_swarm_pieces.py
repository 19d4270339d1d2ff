# SPDX-License-Identifier: Apache-2.0
"""How a manifest is cut into pieces, what a member asks for, and what it tells others."""

from __future__ import annotations

import hashlib
import random
import threading
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.store.manifest import (
    Manifest,
    ManifestFile,
    manifest_of,
)
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_hashes import (
    HashServer,
    MemberAnswers,
    ask,
    hash_blob,
)
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_job import (
    SwarmJob,
    SwarmMember,
    parse_job,
    read_job,
    write_job,
)
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_pieces import (
    LARGEST,
    SMALLEST,
    PieceSlot,
    bencode,
    layout,
    piece_size,
    right_pieces,
    torrent,
)
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_share import (
    CLOSED,
    OTHER,
    OWN,
    ReceiverShare,
)
from ansible_collections.instinct.fleet.plugins.module_utils.swarm.swarm_state import (
    SwarmState,
    read_state,
    slow_members,
    write_state,
)

KEY = "ab" * 32


def made(*sizes: int) -> Manifest:
    return manifest_of(
        "m",
        (
            ManifestFile(f"f{number}", size, hashlib.sha256(b"%d" % number).hexdigest())
            for number, size in enumerate(sizes)
        ),
    )


# ---- pieces ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "size"),
    [(1, SMALLEST), (2048 * SMALLEST, SMALLEST), (2048 * SMALLEST + 1, 2 * SMALLEST), (10**12, LARGEST)],
)
def test_the_size_of_a_piece(total: int, size: int) -> None:
    assert piece_size(total) == size


def test_each_blob_begins_a_piece_and_empty_ones_have_none() -> None:
    cut = layout(made(SMALLEST + 1, 0, SMALLEST, 5))
    assert sorted(slot.count for slot in cut.slots) == [1, 1, 2]
    assert [slot.first for slot in cut.slots] == [
        sum(slot.count for slot in cut.slots[:number]) for number in range(3)
    ]
    assert sum(size for _, size in cut.files[:-1]) == (cut.mark + 1) * cut.piece_size
    assert cut.count == cut.mark + 2
    assert all(cut.files[slot.file] == (slot.sha256, slot.size) for slot in cut.slots)


def test_equal_content_is_one_blob() -> None:
    one = ManifestFile("a", 7, "0" * 64)
    assert len(layout(manifest_of("m", [one, ManifestFile("b", 7, "0" * 64)])).slots) == 1


def test_the_key_changes_the_description_and_is_not_in_it() -> None:
    cut = layout(made(10))
    hashes = {cut.slots[0].sha256: b"x" * 20}
    first, second = (bencode(torrent(cut, hashes, "m", key)) for key in (KEY, "cd" * 32))
    assert first != second
    assert KEY.encode() not in first


def test_bencode() -> None:
    assert bencode({"b": [1, "x"], "a": b"\xff"}) == b"d1:a1:\xff1:bli1e1:xee"


def test_what_an_earlier_run_left_counts_where_its_pieces_are_right(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(2 * SMALLEST + 5)
    path, slot = tmp_path / "blob", PieceSlot("a" * 64, len(data), 0, 0, 3)

    def right(content: bytes) -> list[bool]:
        path.write_bytes(content)
        found = hash_blob(str(path), SMALLEST, threading.Event())
        return right_pieces(slot, SMALLEST, found.pieces, found.size, hashes)

    path.write_bytes(data)
    hashes = hash_blob(str(path), SMALLEST, threading.Event()).pieces
    assert right(data) == [True, True, True]
    assert right(data[:SMALLEST] + b"x" + data[SMALLEST + 1 :]) == [True, False, True]
    assert right(data[: SMALLEST + 9]) == [True, False, False]
    assert right(b"") == [False, False, False]
    assert right(bytes(SMALLEST) + data[SMALLEST:]) == [False, True, True]


# ---- shares ----------------------------------------------------------------------------------------------------


def test_each_piece_is_in_one_share() -> None:
    shares = [ReceiverShare(range(100), index, 7) for index in range(7)]
    assert sorted(piece for share in shares for piece in share.asked) == list(range(100))
    assert all(
        share.priorities(101)[piece] == (OWN if piece in share.asked else CLOSED)
        for share in shares
        for piece in range(100)
    )


def test_another_share_is_asked_for_once_another_receiver_has_it_and_then_the_sources_are_left() -> None:
    share = ReceiverShare(range(6), 0, 3)
    have, copies = [False] * 6, [0] * 6
    assert share.turn(have, copies, 0.0).changes == {}
    copies[1] = 1
    turn = share.turn(have, copies, 1.0)
    assert (turn.changes, turn.sources) == ({1: OTHER}, True)
    have[0] = have[3] = True
    assert not share.turn(have, copies, 2.0).sources


def test_the_source_is_asked_where_a_holder_is_gone() -> None:
    share = ReceiverShare(range(2), 0, 2)
    share.turn([True, False], [0, 1], 0.0)
    assert share.turn([True, False], [0, 0], 1.0).sources


def test_the_share_of_a_dead_receiver_is_dealt_out_each_piece_once_in_a_round() -> None:
    receivers, pieces = 4, range(400)
    dead = {piece for piece in pieces if piece % receivers == 3}
    shares = [ReceiverShare(pieces, index, receivers) for index in range(3)]
    have, copies = [piece not in dead for piece in pieces], [int(piece not in dead) for piece in pieces]
    for second in range(4):  # the others' pieces appear
        part = [int(copies[piece] and piece < 100 * (second + 1)) for piece in pieces]
        for share in shares:
            share.turn([False] * 400, part, float(second))
    rounds: list[list[set[int]]] = []
    for second in range(5, 30):
        dealt = [
            {
                piece
                for piece, priority in share.turn(have, copies, float(second)).changes.items()
                if priority == OWN
            }
            for share in shares
        ]
        if any(dealt):
            rounds.append(dealt)
        for piece in set().union(*dealt):  # which the source sends
            have[piece], copies[piece] = True, 1
    assert set().union(*(part for dealt in rounds for part in dealt)) == dead
    assert all(sum(map(len, dealt)) == len(set().union(*dealt)) for dealt in rounds)


def test_what_only_a_slow_receiver_has_is_asked_of_the_sources() -> None:
    """It trickles, so that something comes all the time, and its pieces are open, but hardly move."""
    pieces = 400
    shares = [ReceiverShare(range(pieces), index, 4) for index in range(3)]
    have = [piece % 4 != 3 for piece in range(pieces)]
    for second in range(5):
        part = [held and piece < 80 * (second + 1) for piece, held in enumerate(have)]
        for share in shares:
            share.turn(part, list(map(int, part)), float(second))
    slow = [piece for piece in range(pieces) if not have[piece]]
    copies, asked = [int(held) for held in have], set[int]()
    for second in range(5, 15):
        for piece in slow[3 * (second - 5) : 3 * (second - 4)]:
            copies[piece] = 1
        have[slow[second - 5]] = True
        for share in shares:
            turn = share.turn(have, copies, float(second), 0.5)
            asked.update(piece for piece, priority in turn.changes.items() if priority == OWN)
    assert asked >= {piece for piece in slow if not have[piece]}
    assert all(share.turn(have, copies, 15.0, 0.5).sources for share in shares)


def test_nothing_is_dealt_out_while_pieces_appear_as_fast_as_before() -> None:
    share = ReceiverShare(range(200), 0, 2)
    have, copies = [False] * 200, [0] * 200
    for second in range(40):
        for piece in range(5 * second, 5 * second + 5):
            copies[piece] = have[piece] = True
        assert OWN not in share.turn(have, copies, float(second)).changes.values()


# ---- hashes ----------------------------------------------------------------------------------------------------


def test_a_blob_is_hashed_as_a_whole_and_by_piece(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(2 * SMALLEST + 5)
    path = tmp_path / "blob"
    path.write_bytes(data)
    checked = hash_blob(str(path), SMALLEST, threading.Event())
    padded = data + bytes(3 * SMALLEST - len(data))
    assert checked.sha256 == hashlib.sha256(data).hexdigest()
    assert checked.pieces == b"".join(
        hashlib.sha1(padded[start : start + SMALLEST]).digest() for start in range(0, len(padded), SMALLEST)
    )


def free_port() -> int:
    return random.randint(20000, 30000)


def test_members_who_know_the_key_get_hashes_and_others_nothing() -> None:
    port = free_port()
    source, other = SwarmMember("a", "127.0.0.1", port, True), SwarmMember("b", "127.0.0.1", port + 2)
    known = MemberAnswers({"x": b"1" * 20}, busy=True)
    server = HashServer(source, (other,), KEY, known)
    try:
        answer = ask(other, source, KEY, ["x", "y"])
        assert answer is not None
        taken = MemberAnswers()
        taken.take(answer, {"x": 20})
        assert taken.hashes == {"x": b"1" * 20}
        assert (answer["busy"], answer["complete"]) == (True, False)
        short = MemberAnswers()
        short.take(answer, {"x": 40})
        assert short.hashes == {}
        assert ask(other, source, "cd" * 32, ["x"]) is None
    finally:
        server.close()
    assert ask(other, source, KEY, ["x"]) is None


# ---- jobs and states -------------------------------------------------------------------------------------------


def job(**changes: object) -> SwarmJob:
    members = (SwarmMember("a", "10.0.0.1", 8620, True), SwarmMember("b", "10.0.0.2", 8620))
    return parse_job(
        {
            "manifest": made(1).to_json(),
            "root": "/r",
            "own": "b",
            "members": [vars(member) for member in members],
            "serve": [],
            "key": KEY,
            **changes,
        }
    )


def test_a_job_is_read_as_it_was_written_by_root_alone(tmp_path: Path) -> None:
    path = write_job(job(), str(tmp_path / "run"))
    assert read_job(path) == job()
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"own": "c"}, "c is not among them"),
        ({"key": "abc"}, "32 random bytes"),
        ({"key": "zz" * 32}, "32 random bytes"),
        ({"serve": ["0" * 64]}, "is not a blob of m"),
        ({"members": [{"name": "b", "address": "host", "port": 1}]}, "is not an IP address"),
        ({"members": [{"name": "b", "address": "10.0.0.1", "port": 65535}]}, "between 1 and 65534"),
        ({"members": [{"name": "b", "address": "10.0.0.1", "port": 1}] * 2}, "twice"),
        (
            {"members": [{"name": name, "address": "10.0.0.1", "port": 1} for name in ("a", "b")]},
            "the same address",
        ),
    ],
)
def test_a_malformed_job(changes: dict[str, object], message: str) -> None:
    with pytest.raises(NodeError, match=message) as caught:
        job(**changes)
    assert KEY not in str(caught.value)


def test_states(tmp_path: Path) -> None:
    assert read_state(str(tmp_path)) is None
    state = SwarmState(received=10, seconds=2.0, slow=["n1"])
    write_state(str(tmp_path), state)
    assert read_state(str(tmp_path)) == state
    assert state.rate == 5.0
    (tmp_path / "state.json").write_text("{")
    assert read_state(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("progress", "slow"),
    [
        ({"a": 0.6, "b": 0.5, "c": 0.1}, ["c"]),
        ({"a": 0.6, "b": 0.5, "c": 0.3}, []),
        ({"a": 0.05, "b": 0.05, "c": 0.0}, []),  # hardly begun
        ({"a": 0.9, "b": 0.1}, []),  # which of two is usual?
    ],
)
def test_slow_members(progress: dict[str, float], slow: list[str]) -> None:
    assert slow_members(progress) == slow
