# SPDX-License-Identifier: Apache-2.0
"""What ranks of an engine say to one another, line by line: one of them is real, the others are sockets of the test."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor import (
    group as supervise_group,
)
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor import link
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.child import Events
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.group import RankGroup
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.link import (
    LINE_LIMIT,
    HeartbeatTimes,
    Membership,
)

from tests.helpers.eventually import GENEROUS
from tests.helpers.ports import free_port
from tests.worlds.supervise_world import wait_for

PULSE = HeartbeatTimes(
    beat=0.05, silent=600, hello=400, retry=0.05
)  # its clock is set forward, nobody waits so long
SECONDS = GENEROUS  # for anything that is to happen


class Peer:
    """Another rank, as a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(SECONDS)
        self._stream = sock.makefile("rb")

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.sock.sendall(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")

    def hear(self, *kinds: str) -> dict[str, Any]:
        """The next message, but signs of life; of these kinds, if some are named. {} when it was cut off."""
        while True:
            with suppress(ConnectionResetError):
                if line := self._stream.readline():
                    message: dict[str, Any] = json.loads(line)
                    if message["t"] in kinds or (not kinds and message["t"] != "beat"):
                        return message
                    continue
            return {}

    def leave(self) -> None:
        """Say nothing more. Closed with something unread, it would take back what it said."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._stream.close()
        self.sock.close()


class Ranks:
    """A real rank, what it told its supervisor, and its peers."""

    def __init__(self) -> None:
        self.address = ("127.0.0.1", free_port())
        self.events, self.said = Events(), list[str]()
        self.group: RankGroup | None = None
        self.closed: list[Any] = []
        self.later = 0.0  # by so many seconds its clock is fast
        self.pulse = PULSE

    def start(self, rank: int = 0, hosts: int = 2, gave_up: str = "") -> RankGroup:
        member = Membership(self.address, rank, tuple(f"n{number}" for number in range(hosts)), "llama-0")
        self.group = RankGroup(member, self.events, self.said.append, self.pulse, gave_up)
        self.group.start()
        return self.group

    def hears(self) -> tuple[str, Any]:
        """The next event."""
        event = self.events.get(SECONDS)
        assert event, "nothing happened"
        return event.kind, event.value

    def peer(self, source: str = "127.0.0.1") -> Peer:
        """A connection to rank 0, from this address."""
        made: list[socket.socket] = []

        def connect() -> bool:
            with suppress(ConnectionRefusedError):
                made.append(socket.create_connection(self.address, SECONDS, (source, 0)))
            return bool(made)

        wait_for("the port", connect)
        self.closed.append(Peer(made[0]))
        return self.closed[-1]

    def member(self, rank: int, hosts: int = 2, **more: Any) -> Peer:
        """A connection to rank 0 that has said who it is."""
        peer = self.peer()
        peer.send(hello(rank, hosts, **more))
        return peer

    def listen(self) -> socket.socket:
        """As rank 0."""
        listener = socket.create_server(self.address)
        listener.settimeout(SECONDS)
        self.closed.append(listener)
        return listener

    def accept(self, listener: socket.socket) -> Peer:
        """The real rank, as it connects."""
        self.closed.append(Peer(listener.accept()[0]))
        return self.closed[-1]


def hello(rank: Any, hosts: int = 2, **more: Any) -> dict[str, Any]:
    names = [f"n{number}" for number in range(hosts)]
    return {"t": "hello", "v": 1, "engine": "llama-0", "hosts": names, "rank": rank, "gave_up": "", **more}


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    found = Ranks()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + found.later)
    for module in (supervise_group, link):
        monkeypatch.setattr(module, "time", clock)
    yield found
    for item in found.closed:
        item.close()
    if found.group:
        left(found.group)


def left(group: RankGroup) -> None:
    """It leaves, and its thread ends; close() itself waits for some seconds only."""
    group.close()
    group.join(SECONDS)
    assert not group.is_alive()


def begun(ranks: Ranks, hosts: int = 2) -> list[Peer]:
    """Rank 0 with all the others, at the moment when all go on."""
    ranks.start(hosts=hosts)
    peers = [ranks.member(rank, hosts) for rank in range(1, hosts)]
    assert [peer.hear("go") for peer in peers] == [{"t": "go"}] * (hosts - 1)
    while ranks.hears() != ("go", None):
        pass
    return peers


END = {"t": "end", "rank": 1, "kind": "killed", "line": "it ended", "next_step": "Look."}
LOST = {"rank": 1, "host": "n1", "kind": "killed", "line": "it ended", "next_step": "Look."}


# ---- the first rank ---------------------------------------------------------------------------------


def test_it_waits_for_all_and_says_for_whom(ranks: Ranks) -> None:
    ranks.start(hosts=3)
    assert ranks.hears() == ("waits", "waits for n1 (rank 1); waits for n2 (rank 2)")
    second = ranks.member(2, 3)
    assert ranks.hears() == ("waits", "waits for n1 (rank 1)")
    assert second.hear() == {"t": "waits", "why": "waits for n1 (rank 1)"}
    first = ranks.member(1, 3)
    assert ranks.hears() == ("go", None)
    assert (first.hear("go"), second.hear("go")) == ({"t": "go"}, {"t": "go"})
    assert first.hear("beat") == second.hear("beat") == {"t": "beat"}
    with pytest.raises(ConnectionRefusedError):  # nobody else is let in
        socket.create_connection(ranks.address, SECONDS)
    assert ranks.said == []


def test_one_that_leaves_before_all_are_there_is_waited_for_again(ranks: Ranks) -> None:
    ranks.start(hosts=3)
    first = ranks.member(1, 3)
    assert [ranks.hears()[1] for _ in range(2)][-1] == "waits for n2 (rank 2)"
    first.leave()
    assert ranks.hears() == ("waits", "waits for n1 (rank 1); waits for n2 (rank 2)")
    assert ranks.said == []


def test_one_that_was_started_again_takes_its_own_place(ranks: Ranks) -> None:
    ranks.start(hosts=3)
    old = ranks.member(1, 3)
    assert old.hear()["t"] == "waits"
    new = ranks.member(1, 3)
    assert new.hear()["t"] == "waits"
    while old.hear():
        pass
    ranks.member(2, 3)
    assert new.hear("go") == {"t": "go"}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"v": 2}, "its version of the supervisor is 2, here it is 1"),
        ({"engine": "other-0"}, "its engine is 'other-0', here it is 'llama-0'"),
        ({"hosts": ["n0", "n7"]}, "its hosts is ['n0', 'n7'], here it is ['n0', 'n1']"),
        ({"engine": "x" * 1000}, f"its engine is '{'x' * 285}"),
        ({"rank": 0}, "there is no rank 0"),
        ({"rank": -1}, "there is no rank -1"),
        ({"rank": 2}, "there is no rank 2"),
        ({"rank": "1"}, "there is no rank '1'"),
        ({"rank": "x" * 1000}, f"there is no rank '{'x' * 282}"),
    ],
)
def test_who_does_not_belong_hears_why(ranks: Ranks, more: dict[str, Any], why: str) -> None:
    ranks.start()
    peer = ranks.peer()
    peer.send({**hello(1), **more})
    assert peer.hear() == {"t": "no", "why": why}
    assert peer.hear() == {}
    port = peer.sock.getsockname()[1]
    wait_for("the word", lambda: ranks.said == [f"127.0.0.1:{port} was disconnected: {why}"])
    assert ranks.member(1).hear("go") == {"t": "go"}


def test_who_gave_up_holds_all(ranks: Ranks) -> None:
    ranks.start(hosts=3)
    first, second = ranks.member(1, 3, gave_up="out_of_memory: no"), ranks.member(2, 3)
    why = "n1 (rank 1) gave up: out_of_memory: no"
    while ranks.hears() != ("waits", why):
        pass
    for peer in (first, second):
        while peer.hear() != {"t": "waits", "why": why}:
            pass
    # Started again, it takes part.
    assert ranks.member(1, 3).hear("go") == {"t": "go"}


def test_the_first_rank_that_gave_up_says_so(ranks: Ranks) -> None:
    ranks.start(gave_up="killed: so")
    assert ranks.hears() == ("waits", "n0 (rank 0) gave up: killed: so; waits for n1 (rank 1)")
    peer = ranks.member(1)
    assert peer.hear() == {"t": "waits", "why": "n0 (rank 0) gave up: killed: so"}


@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/1.1\n",
        b"[]\n",
        b'{"t": "go"}\n',
        b'{"t": "beat"}\n',
        b"x" * (LINE_LIMIT + 1),
        b"y" * LINE_LIMIT + b"z\n",
    ],
)
def test_strangers_are_cut_off(ranks: Ranks, text: bytes) -> None:
    ranks.start()
    peer = ranks.peer()
    peer.send(text)
    assert peer.hear() == {}
    wait_for("the word", lambda: len(ranks.said) == 1)
    assert ranks.said[0].endswith(" was disconnected: nonsense")


def test_only_the_first_strangers_are_told_of(ranks: Ranks) -> None:
    ranks.start()
    for _ in range(7):
        peer = ranks.peer()
        peer.send(b"x\n")
        assert peer.hear() == {}
    assert ranks.member(1).hear("go") == {"t": "go"}
    assert len(ranks.said) == 5


def test_a_stranger_that_leaves_and_one_that_says_nothing(ranks: Ranks) -> None:
    ranks.start()
    ranks.peer().leave()
    wait_for("the word", lambda: len(ranks.said) == 1)
    assert ranks.said[0].endswith("was disconnected: connection closed")
    member, stranger = ranks.member(1, 2, engine="other"), ranks.peer()
    assert member.hear()["t"] == "no"
    ranks.later += 401
    assert stranger.hear() == {}
    wait_for("the words", lambda: len(ranks.said) == 3)
    assert ranks.said[2].endswith("was disconnected: silent for 400 s")


def test_there_is_room_for_so_many_strangers(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise_group, "MAX_UNIDENTIFIED", 3)
    ranks.start(hosts=3)
    member = ranks.member(1, 3)  # is none
    assert member.hear("waits")
    quiet = [ranks.peer() for _ in range(4)]
    assert quiet[0].hear() == {}  # the oldest makes room
    quiet[1].send(hello(2, 3))
    assert quiet[1].hear("go") == {"t": "go"}
    assert quiet[2].hear() == {}  # the run begins
    wait_for("the words", lambda: len(ranks.said) == 3)
    assert ranks.said[0].endswith("was disconnected: too many others are waiting to be identified")
    assert ranks.said[1].endswith("was disconnected: the run begins")


def test_strangers_make_room_for_their_own_address(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one machine that connects fast enough pushes out every rank before it says who it is."""
    monkeypatch.setattr(supervise_group, "MAX_UNIDENTIFIED", 3)
    ranks.start()
    slow = ranks.peer("127.0.0.2")
    many = [ranks.peer() for _ in range(5)]
    assert [peer.hear() for peer in many[:3]] == [{}, {}, {}]
    slow.send(hello(1))
    assert slow.hear("go") == {"t": "go"}


def test_messages_may_come_in_pieces_and_several_at_once(ranks: Ranks) -> None:
    ranks.start(hosts=2)
    peer = ranks.peer()
    text = json.dumps(hello(1)).encode()
    peer.send(text[:20])
    peer.send(text[20:] + b'\n{"t": "step", "name": "a"}\n{"t": "unknown"}\n{"t": "step", "name": "b"}\n{"t"')
    peer.send(b': "serving"}\n')
    found = [ranks.hears()]
    while len([kind for kind, _ in found if kind in ("step", "serving")]) < 3:
        found.append(ranks.hears())
    assert [event for event in found if event[0] != "waits"] == [
        ("go", None), ("step", "a"), ("step", "b"), ("serving", None),
    ]  # fmt: skip


def test_the_first_rank_passes_on_what_one_says_to_the_others(ranks: Ranks) -> None:
    first, second = begun(ranks, 3)
    first.send({"t": "serving", "rank": 1}, {"t": "step", "rank": 1, "name": "ray"}, END)
    assert [ranks.hears() for _ in range(3)] == [("serving", None), ("step", "ray"), ("lost", LOST)]
    assert [second.hear() for _ in range(3)] == [
        {"t": "serving", "rank": 1}, {"t": "step", "rank": 1, "name": "ray"}, END,
    ]  # fmt: skip
    second.send({"t": "serving", "rank": 2})
    assert first.hear() == {"t": "serving", "rank": 2}  # its own came not back


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {}),
        ({"rank": 7}, {"rank": -1, "host": ""}),
        ({"rank": 2}, {"rank": -1, "host": ""}),
        ({"rank": -1}, {"rank": -1, "host": ""}),
        ({"rank": "1"}, {"rank": -1, "host": ""}),
        ({"rank": 0}, {"rank": 0, "host": "n0"}),
        ({"line": "x" * 2000}, {"line": "x" * 1000}),
        ({"line": None, "kind": 5}, {"line": "", "kind": "5"}),
    ],
)
def test_what_a_rank_says_at_its_end(ranks: Ranks, more: dict[str, Any], expected: dict[str, Any]) -> None:
    (peer,) = begun(ranks)
    peer.send({**END, **more})
    assert ranks.hears() == ("lost", {**LOST, **expected})


def test_an_end_before_all_began_is_no_loss(ranks: Ranks) -> None:
    ranks.start(hosts=3)
    peer = ranks.member(1, 3)
    peer.send(END, {"t": "step", "name": "after it"})
    found = []
    while ("step", "after it") not in found:
        found.append(ranks.hears())
    assert "lost" not in [kind for kind, _ in found]


def test_the_first_rank_takes_no_orders(ranks: Ranks) -> None:
    ranks.start(hosts=3)
    ranks.member(1, 3).send(
        {"t": "waits", "why": "x"}, {"t": "no", "why": "x"}, {"t": "go"}, {"t": "step", "name": "after it"}
    )
    found = []
    while ("step", "after it") not in found:
        found.append(ranks.hears())
    assert {value for kind, value in found if kind == "waits"} <= {
        "waits for n1 (rank 1); waits for n2 (rank 2)", "waits for n2 (rank 2)",
    }  # fmt: skip
    assert "go" not in [kind for kind, _ in found]


PEER_LOST = {
    "rank": 1, "kind": "peer_lost", "next_step": "Look at that host: whether it is up, its container and its network.",
}  # fmt: skip


@pytest.mark.parametrize(
    ("does", "why"), [(Peer.leave, "connection closed"), (lambda peer: peer.send(b"nonsense\n"), "nonsense")]
)
def test_a_rank_that_goes_without_a_word_is_lost(
    ranks: Ranks, does: Callable[[Peer], None], why: str
) -> None:
    first, second = begun(ranks, 3)
    does(first)
    assert ranks.hears() == ("lost", {**PEER_LOST, "host": "n1", "line": why})
    assert second.hear() == {**PEER_LOST, "t": "end", "line": why}
    assert ranks.said == []


def heard(ranks: Ranks, peer: Peer) -> None:
    """The rank has heard the peer by now."""
    peer.send({"t": "step", "name": "now"})
    assert ranks.hears() == ("step", "now")


def test_a_silent_rank_is_lost_and_signs_of_life_are_enough(ranks: Ranks) -> None:
    first, second = begun(ranks, 3)
    for _ in range(3):
        ranks.later += 500
        for peer in (first, second):
            heard(ranks, peer)
            peer.hear("beat")
    ranks.later += 500
    heard(ranks, second)
    ranks.later += 500
    assert ranks.hears() == ("lost", {**PEER_LOST, "host": "n1", "line": "silent for 600 s"})


def test_what_the_supervisor_tells_goes_to_all(ranks: Ranks) -> None:
    first, second = begun(ranks, 3)
    assert ranks.group
    ranks.group.tell("step", name="ray")
    ranks.group.tell("end", kind="killed", line="it ended", next_step="Look.")
    left(ranks.group)  # what was told before arrives
    for peer in (first, second):
        assert [peer.hear() for _ in range(3)] == [
            {"t": "step", "rank": 0, "name": "ray"},
            {**END, "rank": 0},
            {},
        ]
    ranks.group.tell("serving")  # and after it nothing breaks


def test_the_next_run_listens_at_once(ranks: Ranks) -> None:
    """The kernel keeps the address of a connection that this side closed first for a minute."""
    (peer,) = begun(ranks)
    assert ranks.group
    left(ranks.group)
    assert peer.hear() == {}
    peer.close()
    ranks.closed.remove(peer)
    (peer,) = begun(ranks)
    peer.send(END)
    assert ranks.hears() == ("lost", LOST)


def test_a_rank_that_does_not_read_is_lost(ranks: Ranks) -> None:
    (peer,) = begun(ranks)
    assert ranks.group
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(200):
        ranks.group.tell("end", kind="x" * 100_000, line="", next_step="")
    kind, value = ranks.hears()
    assert (kind, value["kind"], value["rank"]) == ("lost", "peer_lost", 1)
    assert value["line"] in ("it does not read", "Resource temporarily unavailable")


# ---- the other ranks --------------------------------------------------------------------------------


def joined(ranks: Ranks, hosts: int = 2, gave_up: str = "") -> Peer:
    """The real rank 1, as rank 0 sees it."""
    listener = ranks.listen()
    ranks.start(1, hosts, gave_up=gave_up)
    return ranks.accept(listener)


@pytest.mark.parametrize("gave_up", ["", "killed: so"])
def test_who_one_is(ranks: Ranks, gave_up: str) -> None:
    peer = joined(ranks, 3, gave_up)
    assert peer.hear() == hello(1, 3, gave_up=gave_up)
    assert peer.hear("beat") == {"t": "beat"}


def test_it_tries_until_the_first_rank_is_there(ranks: Ranks) -> None:
    ranks.start(1)
    host, port = ranks.address
    assert ranks.hears() == ("waits", f"waits for n0 (rank 0) at {host}:{port}: Connection refused")
    peer = ranks.accept(ranks.listen())
    assert peer.hear()["t"] == "hello"
    peer.send(
        {"t": "waits", "why": "for n2"}, {"t": "waits", "why": "for n2"}, {"t": "waits", "why": "for n3"}
    )
    assert [ranks.hears(), ranks.hears()] == [("waits", "for n2"), ("waits", "for n3")]  # each reason once


def rounds(group: RankGroup) -> None:
    """Its loop goes round some times."""
    for _ in range(4):
        group.tell("serving")
        wait_for("a round", group._commands.empty)


def test_it_does_not_try_all_the_time(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def resolve(host: str, port: int) -> None:
        tried.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(supervise_group, "resolve", resolve)
    ranks.pulse = replace(PULSE, retry=30)
    group = ranks.start(1)
    assert ranks.hears()[1].endswith(": no such name")
    rounds(group)
    assert len(tried) == 1
    ranks.later += 30
    wait_for("another try", lambda: len(tried) > 1)
    rounds(group)
    assert len(tried) == 2


def test_it_is_turned_away_and_comes_again(ranks: Ranks) -> None:
    listener = ranks.listen()
    ranks.start(1)
    peer = ranks.accept(listener)
    peer.send({"t": "no", "why": "x" * 1000})
    peer.leave()
    kind, why = ranks.hears()
    assert (kind, len(why)) == ("waits", 400)
    assert why.startswith("n0 (rank 0) refuses it: xxx")
    peer = ranks.accept(listener)
    assert peer.hear()["t"] == "hello"
    peer.leave()
    assert ranks.hears() == ("waits", "waits for n0 (rank 0): connection closed")
    assert ranks.accept(listener).hear()["t"] == "hello"


def test_it_goes_on_once_and_hears_of_the_others(ranks: Ranks) -> None:
    peer = joined(ranks, 3)
    peer.send({"t": "step", "name": "before"}, {"t": "go"}, {"t": "go"}, {"t": "serving"}, {**END, "rank": 2})
    assert [ranks.hears() for _ in range(4)] == [
        ("step", "before"), ("go", None), ("serving", None), ("lost", {**LOST, "rank": 2, "host": "n2"}),
    ]  # fmt: skip
    assert peer.hear("hello")
    peer.send({"t": "step", "name": "after"})
    assert ranks.hears() == ("step", "after")
    assert ranks.group
    ranks.group.tell("serving")
    assert peer.hear() == {"t": "serving", "rank": 1}  # only its own: it passes nothing on


def test_the_first_rank_may_be_lost(ranks: Ranks) -> None:
    listener = ranks.listen()
    ranks.start(1)
    peer = ranks.accept(listener)
    peer.send({"t": "go"})
    assert ranks.hears() == ("go", None)
    peer.leave()
    assert ranks.hears() == ("lost", {**PEER_LOST, "rank": 0, "host": "n0", "line": "connection closed"})
    ranks.later += 10
    assert ranks.group
    rounds(ranks.group)
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):  # a run has one connection
        listener.accept()


def test_an_address_that_cannot_be_listened_at_is_told(ranks: Ranks) -> None:
    listener = ranks.listen()
    ranks.start(0)
    host, port = ranks.address
    said = f"cannot listen at {host}:{port} for the other ranks: Address already in use"
    assert ranks.hears() == ("waits", said)
    listener.close()
    assert ranks.member(1).hear("go") == {"t": "go"}


@pytest.mark.parametrize(
    ("host", "found", "bound"),
    [
        ("node-a", "127.0.1.1", "0.0.0.0"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_a_name_that_is_a_loopback_address_here_is_listened_at_everywhere(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, host: str, found: str, bound: str
) -> None:
    """Debian writes the host's own name as 127.0.1.1 into /etc/hosts; the other ranks come from elsewhere."""
    port = ranks.address[1]
    answer = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (found, port))
    monkeypatch.setattr(supervise_group, "resolve", lambda *_: answer)
    ranks.address = (host, port)
    group = ranks.start()
    wait_for("the port", lambda: group._listener is not None)
    assert group._listener is not None
    assert group._listener.getsockname() == (bound, port)


# ---- the instances' key ---------------------------------------------------------------------------------

KEY = "sk-" + "k" * 30


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "instances"
    file.write_text(f"VLLM_API_KEY={KEY}\n")
    monkeypatch.setattr(link, "KEY_FILE", str(file))
    return file


def proves(peer: Peer, message: dict[str, Any], key: str = KEY) -> None:
    """Answer rank 0's question with a proof."""
    asked = peer.hear("prove")
    message = {**message, "nonce": "n" * 32}
    peer.send({**message, "mac": link.proof(key.encode(), asked["nonce"], message)})


def test_ranks_prove_the_key_to_each_other_and_start(ranks: Ranks, key: Path) -> None:
    ranks.start()
    peer = ranks.peer()
    proves(peer, hello(1))
    welcome = peer.hear("welcome")
    assert link.is_proven(KEY.encode(), "n" * 32, welcome)
    assert not link.is_proven(KEY.encode(), "m" * 32, welcome)
    assert peer.hear("go") == {"t": "go"}


@pytest.mark.parametrize(
    "case", ["no proof", "another key", "another nonce", "changed", "nothing of the kind"]
)
def test_who_lacks_the_key_learns_nothing_and_changes_nothing(ranks: Ranks, key: Path, case: str) -> None:
    ranks.start()
    peer = ranks.peer()
    asked, message = peer.hear("prove"), {**hello(1), "nonce": "n" * 32}
    assert set(asked) == {"t", "nonce"}
    secret = b"x" * 30 if case == "another key" else KEY.encode()
    mac = link.proof(secret, "0" * 32 if case == "another nonce" else asked["nonce"], message)
    sent = {
        "no proof": hello(1),
        "changed": {**message, "mac": mac, "rank": 2},
        "nothing of the kind": {"t": "serving", "rank": 1},
    }
    peer.send(sent.get(case, {**message, "mac": mac}))
    assert peer.hear("no") == {"t": "no", "why": "it did not prove that it has the instances' key"}
    assert peer.hear() == {}
    assert ranks.hears() == ("waits", "waits for n1 (rank 1)")
    again = ranks.peer()
    proves(again, hello(1))
    assert again.hear("go") == {"t": "go"}


def test_another_rank_obeys_only_a_first_one_that_has_the_key(ranks: Ranks, key: Path) -> None:
    listener = ranks.listen()
    ranks.start(rank=1)
    stranger = ranks.accept(listener)
    stranger.send({"t": "prove", "nonce": "a" * 32})
    hello = stranger.hear("hello")
    assert KEY not in json.dumps(hello)
    stranger.send({"t": "welcome", "mac": link.proof(b"x" * 30, hello["nonce"], {"t": "welcome"})})
    stranger.send({"t": "go"})
    first = ranks.accept(listener)  # it has left, and tries again
    first.send({"t": "prove", "nonce": "a" * 32})
    hello = first.hear("hello")
    assert link.is_proven(KEY.encode(), "a" * 32, hello)
    first.send({"t": "welcome", "mac": link.proof(KEY.encode(), hello["nonce"], {"t": "welcome"})})
    first.send({"t": "go"})
    while (event := ranks.hears()) != ("go", None):
        assert event[0] == "waits"


def test_two_real_ranks_with_the_key(ranks: Ranks, key: Path) -> None:
    ranks.start()
    other = Ranks()
    other.address = ranks.address
    second = other.start(rank=1)
    try:
        for each in (ranks, other):
            while each.hears() != ("go", None):
                pass
    finally:
        left(second)


def test_forty_silent_connections_renewed_each_second_do_not_keep_a_group_from_forming(ranks: Ranks) -> None:
    ranks.start()
    done = threading.Event()

    def strangers() -> None:
        while not done.is_set():
            some: list[socket.socket] = []
            for _ in range(40):
                with suppress(OSError):
                    some.append(socket.create_connection(ranks.address, 1))
            done.wait(1)
            for sock in some:
                sock.close()

    thread = threading.Thread(target=strangers)
    thread.start()
    try:
        time.sleep(1.5)
        assert ranks.member(1).hear("go") == {"t": "go"}
    finally:
        done.set()
        thread.join()
