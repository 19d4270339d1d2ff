# SPDX-License-Identifier: Apache-2.0
"""One member's run: check what it offers, get the hashes of what it does not have, exchange pieces, take what is
complete.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from ..common.module_main import internal_error
from ..store.blob_files import THREADS
from ..store.blobs import Store, WrongContent
from .swarm_engine import Peer, SwarmEngine
from .swarm_hashes import HashServer, ask, family
from .swarm_job import SwarmJob, SwarmMember
from .swarm_pieces import layout
from .swarm_preparation import TICK, CannotContinue, Preparation
from .swarm_share import OWN, ReceiverShare
from .swarm_state import SwarmState, slow_members, write_state

_STATE_SECONDS = 1.0
_CONNECT_SECONDS = 2.0
_ABSENT_SECONDS = 30.0  # not connected for so long: dead
_INQUIRE_SECONDS = 3.0
_BRIEFLY = 2.0
_HANGS_SECONDS = 5.0  # longer than the hash of a piece takes
_LAST_WORDS = 5.0  # after all are complete, so that the last ones are told too


class SwarmRun:
    """A member's run."""

    def __init__(self, job: SwarmJob, directory: str) -> None:
        self.job, self.store, self.directory = job, Store(job.root), directory
        self.cut = layout(job.manifest)
        self.started = False  # only then is it known what is wanted
        self.left = False  # the sources
        self.done: set[str] = set()
        self.asked: set[str] = set()
        self.inquired = 0.0
        self.progress: dict[str, float] = {}
        self.peers: dict[str, Peer] = {}
        self.state = SwarmState(pid=os.getpid())
        self.prepared = Preparation(job, self.cut, self.state, self._pause)
        self.known = self.prepared.known
        self.stop = threading.Event()
        self.begun, self.written = time.monotonic(), 0.0
        self.names = {member.address: member.name for member in job.members}
        self.received: set[str] = set()
        self.again: set[str] = set()  # blobs that were wrong though their pieces were right
        self.pieces: list[int] = []  # of what is wanted
        self.last = dict.fromkeys((member.name for member in job.others), time.monotonic())
        self.pool, self.inquiries = ThreadPoolExecutor(THREADS), ThreadPoolExecutor(THREADS)

    # ---- the whole ---------------------------------------------------------------------------------------

    def run(self) -> SwarmState:
        """Take part until all members are complete; return the last state."""
        engine = server = None
        try:
            server = self._listen()
            self._take_empty()
            self.prepared.run(self.pool, self.stop)
            engine = self._start()
            self._exchange(engine)
        except CannotContinue as end:
            self.state.error = str(end)
        except ImportError as error:
            self.state.error = (
                f"{error}. Install python3-libtorrent, or set fetch_from: origin for this host."
            )
        except Exception as error:
            self.state.error = internal_error(error)
        finally:
            self.stop.set()
            if engine is not None:
                engine.close()
            if server is not None:
                server.close()
            self.pool.shutdown(wait=False)
            self.inquiries.shutdown(wait=False)
            self.state.phase = "ended"
            self._write()
        return self.state

    def _listen(self) -> HashServer:
        """Answer on the second port.

        Raise CannotContinue if one of the two is not available: the engine would report it late.
        """
        me = self.job.me
        try:
            socket.create_server((me.address, me.port), family=family(me.address)).close()
            return HashServer(me, self.job.others, self.job.key, self.known)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise CannotContinue(
                f"It cannot listen at {me.address} ports {me.port} and {me.port + 1}: {why}. Set "
                "distribution_port or distribution_interface so that they are free and this host's, and run again."
            ) from error

    def _take_empty(self) -> None:
        for item in self.job.manifest.files:
            if not item.size and not self.store.has(item.sha256, 0):
                self.store.put(b"", item.sha256)

    # ---- the exchange ------------------------------------------------------------------------------------

    def _start(self) -> SwarmEngine:
        incoming = self.store.incoming(self.job.manifest)
        wanted = set(self.prepared.wanted)
        places = {
            slot.sha256: os.path.join(incoming, slot.sha256)
            if slot.sha256 in wanted
            else self.store.path(slot.sha256)
            for slot in self.cut.slots
        }
        have = [False] * self.cut.count
        have[self.cut.mark] = self.job.me.serves
        for slot in self.cut.slots:
            served = self.state.files.get(slot.sha256) == "served"
            begun = self.prepared.begun.get(slot.sha256, [False] * slot.count)
            have[slot.first : slot.first + slot.count] = [True] * slot.count if served else begun
        receivers = [member.name for member in self.job.members if not member.serves]
        index = receivers.index(self.job.own) if self.job.own in receivers else -1
        engine = SwarmEngine(self.job, self.cut, self.known.hashes, places)
        self.pieces = [piece for sha256 in wanted for piece in self.cut.slot(sha256).pieces]
        lacking = [piece for piece in self.pieces if not have[piece]]
        self.share = ReceiverShare(lacking, max(0, index), len(receivers) if index >= 0 else 1)
        engine.start(have, self.share.priorities(self.cut.count))
        self.state.bytes = sum(self.job.manifest.blobs[sha256] for sha256 in self.prepared.wanted)
        self.state.files.update(dict.fromkeys(self.prepared.wanted, "receiving"))
        self.state.phase, self.started = "running", True
        return engine

    def _exchange(self, engine: SwarmEngine) -> None:
        started = time.monotonic()
        moved, before, connected = started, -1, 0.0
        checks: dict[str, Future[None]] = {}
        alone_since = None
        while True:
            now = time.monotonic()
            errors = engine.errors()
            if errors:
                raise CannotContinue(
                    f"The engine stopped: {errors[0]}. Free the disk or the port, and run again."
                )
            if now - connected >= (
                _CONNECT_SECONDS if now - started > _CONNECT_SECONDS * 5 else _CONNECT_SECONDS / 4
            ):
                connected = now
                self._look_around(engine, now)
            self._take_complete(engine, checks)
            self._choose(engine, now, now - moved)
            self.state.received, self.state.sent = engine.totals()
            complete = self._is_complete()
            amount = self.state.received + (self.state.sent if complete else 0)
            if amount != before:
                before, moved = amount, now
            if complete:
                if self.state.phase != "complete":
                    self._learn_who_is_slow()
                    self.state.phase, self.known.complete = "complete", True
                    self._write()
                alone_since = None if self._needed() else alone_since or now
                late = now - moved >= self.job.linger or now - self.begun > self.job.deadline
                if late or (alone_since and now - alone_since >= _LAST_WORDS):
                    return
            else:
                self.state.seconds = now - started
                if now - moved > _HANGS_SECONDS and engine.hangs():
                    engine.restart()
                    self._look_around(engine, now)
                if now - moved >= self.job.stall:
                    raise CannotContinue(
                        f"No content arrived for {self.job.stall:.0f} s. Members that were not reached: "
                        f"{', '.join(self.state.dead) or 'none'}; that sent wrong content: "
                        f"{', '.join(self.state.wrong) or 'none'}. Run again: what is here is kept."
                    )
            self._pause()

    def _choose(self, engine: SwarmEngine, now: float, idle: float) -> None:
        """Ask for pieces; leave the sources, or return to them."""
        if self.prepared.served:
            return
        turn = self.share.turn(engine.have(), engine.copies(), now, idle)
        engine.ask_for(turn.changes)
        if turn.sources == self.left:
            self.left = not turn.sources
            engine.admit(member for member in self.job.members if turn.sources or not member.serves)
            self._look_around(engine, now)

    def _is_complete(self) -> bool:
        return self.started and self.received >= set(self.prepared.wanted)

    def _needed(self) -> bool:
        """Return whether another member may still need something; a source only counts while it is connected."""
        return any(
            member.name not in self.done and (not member.serves or member.name in self.peers)
            for member in self.job.others
        )

    def _look_around(self, engine: SwarmEngine, now: float) -> None:
        peers = self.peers = {self.names.get(peer.address, peer.address): peer for peer in engine.peers()}
        self.last.update(dict.fromkeys(peers, now))
        done = self.done = {*self.done, *(name for name, peer in peers.items() if peer.complete)}
        self.state.complete = sorted(done)
        self.state.wrong = sorted({self.names.get(address, address) for address in engine.banned})
        if self.prepared.served:
            self.state.slow = slow_members(
                {**self.progress, **dict.fromkeys(done & self.progress.keys(), 1.0)}
            )
            self.known.slow = tuple(self.state.slow)
        self.state.dead = sorted(
            name for name, seen in self.last.items() if now - seen > _ABSENT_SECONDS and name not in done
        )
        for member in self.job.others:
            if member.name in peers or (member.serves and self.left):
                continue
            if member.serves or not self.prepared.served:
                engine.connect([member])
        # Otherwise those that left this source are not seen, and sources do not show that they are complete.
        serves, rest = bool(self.prepared.served), max(_INQUIRE_SECONDS, len(self.job.members) / 10)
        if (serves or self.state.phase == "complete") and now - self.inquired >= rest:
            self.inquired = now
            for member in self.job.others:
                if (serves or member.serves) and not {member.name} & (done | self.asked):
                    self.asked.add(member.name)
                    self.inquiries.submit(self._inquire, member)

    def _inquire(self, member: SwarmMember) -> None:
        """Ask a member how far it is."""
        answer = ask(self.job.me, member, self.job.key, [])
        if answer is not None:
            self.last[member.name] = time.monotonic()
            if not member.serves:
                self.progress[member.name] = float(answer.get("progress") or 0.0)
            if answer.get("complete"):
                self.done.add(member.name)
        self.asked.discard(member.name)

    def _learn_who_is_slow(self) -> None:
        """Take over what a source knows, so that this member's result names the slow ones too."""
        for member in self.job.others:
            if member.serves and not self.prepared.served:
                answer = ask(self.job.me, member, self.job.key, [], _BRIEFLY)
                if answer is not None:
                    self.state.slow = sorted(str(name) for name in answer.get("slow") or ())
                    return

    def _take_complete(self, engine: SwarmEngine, checks: dict[str, Future[None]]) -> None:
        """Give complete blobs their names in the store, each checked as a whole by its SHA-256."""
        have = engine.have()
        if self.pieces:
            self.known.progress = sum(have[piece] for piece in self.pieces) / len(self.pieces)
        for sha256 in self.prepared.wanted:
            slot = self.cut.slot(sha256)
            if sha256 in self.received or not all(have[slot.first : slot.first + slot.count]):
                continue
            received = os.path.join(self.store.incoming(self.job.manifest), sha256)
            if sha256 not in checks:
                checks[sha256] = self.pool.submit(self.store.add, received, sha256, slot.size)
            elif checks[sha256].done():
                try:
                    checks.pop(sha256).result()
                except WrongContent as error:  # what was written is not what was received
                    if sha256 in self.again:
                        raise CannotContinue(f"{error} Check this host's disk and memory (dmesg).") from error
                    self.again.add(sha256)
                    engine.again()
                    self.share = ReceiverShare(self.pieces, 0, 1)
                    engine.ask_for(dict.fromkeys(self.pieces, OWN))
                    continue
                self.received.add(sha256)
                self.state.files[sha256] = "received"
                engine.moved(sha256, self.store.path(sha256))

    # ---- files -------------------------------------------------------------------------------------------

    def _pause(self, seconds: float = TICK) -> None:
        now = time.monotonic()
        if now - self.begun > self.job.deadline and self.state.phase != "complete":
            raise CannotContinue(
                f"It was not complete after {self.job.deadline:.0f} s. Run again: what is here is kept."
            )
        if now - self.written >= _STATE_SECONDS:
            self._write()
        time.sleep(seconds)

    def _write(self) -> None:
        self.state.finished = self._is_complete()
        self.written = time.monotonic()
        write_state(self.directory, self.state)
