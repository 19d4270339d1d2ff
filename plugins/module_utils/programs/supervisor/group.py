# SPDX-License-Identifier: Apache-2.0
"""Keep the supervisors of an engine that spans hosts together: they start together and end together.

Rank 0 listens and the others connect; each message is one line of JSON. Once all ranks are connected and ready, all
start. From then on, all ranks are told if any rank ends or falls silent. A run has one connection per rank; the
next run opens new ones. A peer that does not speak this protocol, or does not have the instances' key where there is
one, is disconnected, has no effect and is told nothing.
"""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from .child import Events
from .link import (
    LINE_LIMIT,
    VERSION,
    HeartbeatTimes,
    Json,
    Membership,
    PeerConnection,
    is_proven,
    parse_message,
    proof,
    read_key,
    resolve,
)

MAX_UNIDENTIFIED = 32
"""The most connections that have not identified themselves. One more ends the oldest of the address with the most."""
_LINGER = 1.0  # seconds for the last message to arrive


class RankGroup(threading.Thread):
    """Communicate with the other ranks, and report to the supervisor by events.

    Events: waits (reason), go, serving, step (name), lost (a map with rank, host, kind, line, next_step).
    """

    def __init__(
        self,
        member: Membership,
        events: Events,
        say: Callable[[str], None],
        pulse: HeartbeatTimes,
        gave_up: str = "",
    ) -> None:
        """Prepare the thread. gave_up: why this rank will not start; "" if it is ready to start."""
        super().__init__(daemon=True)
        self._member, self._events, self._say, self._pulse = member, events, say, pulse
        self._gave_up = gave_up
        self._commands: queue.SimpleQueue[Json] = queue.SimpleQueue()
        self._waking, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._links: dict[socket.socket, PeerConnection] = {}
        self._begun = self._closing = False
        self._waiting_for = self._refused = ""
        self._last_beat = self._last_attempt = 0.0
        self._unidentified = 0

    # Called by the supervisor.

    def tell(self, what: str, **data: Any) -> None:
        """Send to the other ranks: serving, step (name) or end (kind, line, next_step)."""
        self._command({"t": what, "rank": self._member.rank, **data})

    def close(self) -> None:
        """Leave the group. Messages sent before still arrive."""
        self._command({"t": "close"})
        if self.is_alive():
            self.join(3 * _LINGER)

    def _command(self, message: Json) -> None:
        self._commands.put(message)
        with contextlib.suppress(OSError):
            self._waking.send(b".")

    # The thread.

    def run(self) -> None:
        """Handle messages until the group is closed."""
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        try:
            while not self._closing:
                self._connect_or_listen()
                half = self._pulse.beat / 2
                for key, _unused in self._selector.select(half if self._begun else min(0.2, half)):
                    self._readable(key.fileobj)  # type: ignore[arg-type]
                self._watch()
        finally:
            self._end()

    def _readable(self, sock: socket.socket) -> None:
        if sock is self._woken:
            with contextlib.suppress(OSError):
                sock.recv(4096)
            while not self._commands.empty():
                self._execute(self._commands.get())
        elif sock is self._listener:
            self._accept(sock)
        elif sock in self._links:
            self._receive(self._links[sock])

    def _execute(self, message: Json) -> None:
        if message["t"] == "close":
            self._closing = True
        else:
            self._send_all(message)

    def _connect_or_listen(self) -> None:
        now = time.monotonic()
        if self._begun or self._listener or self._links or now - self._last_attempt < self._pulse.retry:
            return
        self._last_attempt = now
        if self._member.rank == 0:
            self._listen()
        else:
            self._connect()

    def _listen(self) -> None:
        host, port = self._member.address
        try:
            family, _unused, _unused, _unused, address = resolve(host, port)
            if str(address[0]).startswith("127.") and not host.startswith(("127.", "localhost")):
                address = (
                    "0.0.0.0",
                    port,
                )  # Debian's /etc/hosts maps the host's own name to a loopback address
            listener = socket.socket(family, socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(MAX_UNIDENTIFIED)
            except BaseException:
                listener.close()
                raise
        except OSError as error:
            self._wait(f"cannot listen at {host}:{port} for the other ranks: {error.strerror or error}")
            return
        listener.setblocking(False)
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)

    def _connect(self) -> None:
        host, port = self._member.address
        try:
            family, _unused, _unused, _unused, address = resolve(host, port)
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(self._pulse.hello)
                sock.connect(address)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            self._wait(f"waits for {self._member.named(0)} at {host}:{port}: {error.strerror or error}")
            return
        link = self._add(sock, f"{host}:{port}")
        link.rank = 0
        if read_key():
            link.nonce = secrets.token_hex(16)  # rank 0 speaks first
        else:
            self._send(link, self._introduction())

    def _introduction(self) -> Json:
        return {
            "t": "hello", "v": VERSION, "engine": self._member.engine, "rank": self._member.rank,
            "hosts": list(self._member.hosts), "gave_up": self._gave_up,
        }  # fmt: skip

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
        except OSError:
            return
        strangers = [link for link in self._links.values() if link.rank is None]  # the oldest first
        if len(strangers) >= MAX_UNIDENTIFIED:
            count = Counter(link.source for link in strangers)
            self._drop(
                max(strangers, key=lambda link: count[link.source]),
                "too many others are waiting to be identified",
            )
        link = self._add(sock, f"{address[0]}:{address[1]}")
        if read_key():
            link.nonce = secrets.token_hex(16)
            self._send(link, {"t": "prove", "nonce": link.nonce})

    def _add(self, sock: socket.socket, peer: str) -> PeerConnection:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = self._links[sock] = PeerConnection(sock, peer)
        self._selector.register(sock, selectors.EVENT_READ)
        return link

    def _receive(self, link: PeerConnection) -> None:
        try:
            data = link.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(link, "connection closed")
            return
        *lines, link.buffer = (link.buffer + data).split(b"\n")
        for line in lines:
            message = parse_message(line)
            if message is None:
                return self._drop(link, "nonsense")
            self._handle(link, message)
            if link.sock not in self._links:
                return None
        if len(link.buffer) > LINE_LIMIT:
            self._drop(link, "nonsense")
        return None

    def _handle(self, link: PeerConnection, message: Json) -> None:
        link.heard = time.monotonic()
        kind = message["t"]
        if link.nonce and not self._prove(link, message):
            return
        if link.rank is None:
            if kind == "hello":
                self._hello(link, message)
            else:
                self._drop(link, "nonsense")
        elif kind == "end":
            self._relay(link, message)
            self._lost(message)
        elif kind == "serving" or kind == "step":
            self._relay(link, message)
            self._events.put(kind, message.get("name"))
        elif self._member.rank and kind == "waits":
            self._wait(str(message.get("why")))
        elif self._member.rank and kind == "no":
            self._refused = f"{self._member.named(0)} refuses it: {message.get('why')}"[:400]
        elif self._member.rank and kind == "go" and not self._begun:
            self._begun = True
            self._events.put("go")

    def _prove(self, link: PeerConnection, message: Json) -> bool:
        """Exchange the proofs of the key. Return whether the message is a proven one, to be handled."""
        key, kind = read_key(), message["t"]
        if self._member.rank and kind == "prove":
            hello = {**self._introduction(), "nonce": link.nonce}
            self._send(link, {**hello, "mac": proof(key, str(message.get("nonce")), hello)})
        elif self._member.rank and kind == "no":
            self._refused = f"{self._member.named(0)} refuses it: {message.get('why')}"[:400]
        elif (
            kind == ("welcome" if self._member.rank else "hello")
            and key
            and is_proven(key, link.nonce, message)
        ):
            link.nonce = ""
            if not self._member.rank:
                welcome: Json = {"t": "welcome"}
                self._send(link, {**welcome, "mac": proof(key, str(message.get("nonce")), welcome)})
            return True
        else:
            self._send(link, {"t": "no", "why": "it did not prove that it has the instances' key"})
            self._drop(link, "it does not have the instances' key")
        return False

    def _hello(self, link: PeerConnection, message: Json) -> None:
        wrong = self._refusal(message)
        if wrong:
            self._send(link, {"t": "no", "why": wrong})
            return self._drop(link, wrong)
        rank = message["rank"]
        for other in [item for item in self._links.values() if item.rank == rank]:
            self._drop(other, "it was started again")
        link.rank, link.gave_up = rank, str(message.get("gave_up") or "")
        return self._start_or_wait()

    def _refusal(self, message: Json) -> str:
        mine = (VERSION, self._member.engine, list(self._member.hosts))
        theirs = (message.get("v"), message.get("engine"), message.get("hosts"))
        for what, ours, other in zip(("version of the supervisor", "engine", "hosts"), mine, theirs):
            if ours != other:
                return f"its {what} is {other!r}, here it is {ours!r}"[:300]
        rank = message.get("rank")
        if not isinstance(rank, int) or not 0 < rank < len(self._member.hosts):
            return f"there is no rank {rank!r}"[:300]
        return ""

    # Effects of messages.

    def _start_or_wait(self) -> None:
        """Start the run if all ranks are connected and ready; otherwise report which ones are missing."""
        if self._begun or self._member.rank != 0 or not self._listener:
            return
        links = {link.rank: link for link in self._links.values() if link.rank is not None}
        others = range(1, len(self._member.hosts))
        reasons = [f"{self._member.named(0)} gave up: {self._gave_up}"] if self._gave_up else []
        reasons += [
            f"{self._member.named(rank)} gave up: {links[rank].gave_up}"
            for rank in others
            if rank in links and links[rank].gave_up
        ]
        reasons += [f"waits for {self._member.named(rank)}" for rank in others if rank not in links]
        if not reasons:
            self._begin(self._listener)
            return
        why = "; ".join(reasons)
        self._wait(why)
        self._send_all({"t": "waits", "why": why})

    def _begin(self, listener: socket.socket) -> None:
        """Start the run and admit nobody else: a rank that reconnects is refused, and waits."""
        self._selector.unregister(listener)
        listener.close()
        for link in [item for item in self._links.values() if item.rank is None]:
            self._drop(link, "the run begins")
        self._begun = True
        self._send_all({"t": "go"})
        self._events.put("go")

    def _wait(self, why: str) -> None:
        if why != self._waiting_for:
            self._waiting_for = why
            self._events.put("waits", why)

    def _relay(self, link: PeerConnection, message: Json) -> None:
        """Forward a message to the other ranks, as rank 0."""
        if self._member.rank == 0:
            for other in list(self._links.values()):
                if other is not link and other.rank is not None:
                    self._send(other, message)

    def _lost(self, message: Json) -> None:
        rank = message.get("rank")
        known = isinstance(rank, int) and 0 <= rank < len(self._member.hosts)
        data = {key: str(message.get(key) or "")[:1000] for key in ("kind", "line", "next_step")}
        if self._begun:
            host = self._member.hosts[rank] if known and isinstance(rank, int) else ""
            self._events.put("lost", {"rank": rank if known else -1, "host": host, **data})

    def _watch(self) -> None:
        """Send heartbeats, and drop connections whose heartbeats are missing."""
        now = time.monotonic()
        if now - self._last_beat >= self._pulse.beat:
            self._last_beat = now
            self._start_or_wait()
            self._send_all({"t": "beat"})
        for link in list(self._links.values()):
            limit = self._pulse.hello if link.rank is None else self._pulse.silent
            if now - link.heard > limit:
                self._drop(link, f"silent for {limit:.0f} s")

    def _drop(self, link: PeerConnection, why: str) -> None:
        if self._links.pop(link.sock, None) is None:
            return
        self._selector.unregister(link.sock)
        link.sock.close()
        if link.rank is None:
            self._unidentified += 1
            if self._unidentified <= 5:
                self._say(f"{link.peer} was disconnected: {why}")
            return
        if self._begun:
            message = {
                "t": "end", "rank": link.rank, "kind": "peer_lost", "line": why,
                "next_step": "Look at that host: whether it is up, its container and its network.",
            }  # fmt: skip
            self._relay(link, message)
            self._lost(message)
        elif self._member.rank:
            self._wait(self._refused or f"waits for {self._member.named(0)}: {why}")
            self._refused = ""
        else:
            self._start_or_wait()

    def _send_all(self, message: Json) -> None:
        for link in list(self._links.values()):
            if link.rank is not None:
                self._send(link, message)

    def _send(self, link: PeerConnection, message: Json) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            if link.sock.send(data) == len(data):
                return
            why = "it does not read"
        except OSError as error:
            why = error.strerror or str(error)
        self._drop(link, why)

    def _end(self) -> None:
        if self._listener:
            self._listener.close()
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.sock.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _LINGER
        for link in self._links.values():
            # Closing a socket with unread data would reset the connection and lose what was sent.
            with contextlib.suppress(OSError):
                link.sock.settimeout(max(0.01, deadline - time.monotonic()))
                while time.monotonic() < deadline and link.sock.recv(65536):
                    pass
            link.sock.close()
        self._selector.close()
        self._waking.close()
        self._woken.close()
