# SPDX-License-Identifier: Apache-2.0
"""One member's run: check what it offers, learn the hashes of what it lacks, exchange pieces, take what is complete."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..common.files import read_text, write_atomic
from .blobs import THREADS, Store, WrongContent
from .swarm_engine import Engine, Peer
from .swarm_hashes import Checked, HashServer, Known, ask, hash_blob
from .swarm_job import Member, SwarmJob
from .swarm_pieces import layout, resume_record, resumed
from .swarm_share import Share
from .swarm_state import SwarmState, slow_members, write_state

TICK = 0.25
_SAVE_SECONDS = 10.0
_STATE_SECONDS = 1.0
_ASK_SECONDS = 0.2
_OTHERS_EACH = 25  # rounds without an answer of a source
_CONNECT_SECONDS = 2.0
_ABSENT_SECONDS = 30.0  # not connected for so long: dead
_LAST_WORDS = 2.0  # after all are complete, so that the last ones learn it too


class Ended(Exception):
    """The run cannot go on; the text says why."""


class SwarmRun:
    """A member's run."""

    def __init__(self, job: SwarmJob, directory: str) -> None:
        self.job, self.store, self.directory = job, Store(job.root), directory
        self.cut = layout(job.manifest)
        self.left = False  # the sources
        self.done: set[str] = set()
        self.asked: set[str] = set()
        self.peers: dict[str, Peer] = {}
        self.known, self.state = Known(busy=bool(job.serve)), SwarmState(pid=os.getpid())
        self.stop = threading.Event()
        self.begun, self.written = time.monotonic(), 0.0
        self.names = {member.address: member.name for member in job.members}
        self.paths = {item.sha256: item.path for item in job.manifest.files}
        lacking = self.store.missing(job.manifest)
        self.wanted = [slot.sha256 for slot in self.cut.slots if slot.sha256 in lacking]
        self.served = [sha256 for sha256 in job.serve if sha256 not in lacking]
        self.received: set[str] = set()
        self.last = dict.fromkeys((member.name for member in job.others), time.monotonic())
        self.pool = ThreadPoolExecutor(THREADS)

    # ---- the whole ---------------------------------------------------------------------------------------

    def run(self) -> SwarmState:
        """Take part until all members are complete; return the last state."""
        engine = None
        server = HashServer(self.job.me, self.job.others, self.job.key, self.known)
        try:
            self._take_empty()
            self._hash_served()
            self._learn_hashes()
            engine = self._start()
            self._exchange(engine)
        except Ended as end:
            self.state.error = str(end)
        finally:
            self.stop.set()
            if engine is not None:
                self._save(engine)
                engine.close()
            server.close()
            self.pool.shutdown(wait=False)
            self.state.phase = "ended"
            self._write()
        return self.state

    def _take_empty(self) -> None:
        for item in self.job.manifest.files:
            if not item.size and not self.store.has(item.sha256, 0):
                self.store.put(b"", item.sha256)

    # ---- hashes ------------------------------------------------------------------------------------------

    def _hash_served(self) -> None:
        """Check the blobs that this member offers; one with wrong content is removed, and received like others."""
        running: dict[str, Future[Checked]] = {
            sha256: self.pool.submit(hash_blob, self.store.path(sha256), self.cut.piece_size, self.stop)
            for sha256 in self.served
            if self.job.manifest.blobs[sha256]
        }
        while running:
            for sha256 in [name for name, future in running.items() if future.done()]:
                self._judge(sha256, running.pop(sha256))
            self._pause()
        self.known.busy = False

    def _judge(self, sha256: str, future: Future[Checked]) -> None:
        try:
            checked = future.result()
            good = (checked.sha256, checked.size) == (sha256, self.job.manifest.blobs[sha256])
        except OSError:
            good = False
        if good:
            with self.known.lock:
                self.known.hashes[sha256] = checked.pieces
            self.state.files[sha256] = "served"
            return
        self.store.remove(sha256)
        self.state.files[sha256] = "corrupt"
        self.state.corrupt.append(sha256)
        self.wanted.append(sha256)

    def _learn_hashes(self) -> None:
        """Ask the others for the hashes of what is wanted, and of all that the torrent describes."""
        self.state.phase = "waiting"
        lengths = {slot.sha256: 20 * slot.count for slot in self.cut.slots}
        sources = {member.name for member in self.job.others if member.serves}
        silent, asked, since = 0, 0, time.monotonic()
        while lacking := [name for name in lengths if name not in self.known.hashes]:
            answers = self._ask(lacking, lengths, serves=True)
            if not answers and asked % _OTHERS_EACH == _OTHERS_EACH - 1:
                self._ask(lacking, lengths, serves=False)  # the source is gone, and others know its hashes
            asked += 1
            now = time.monotonic()
            hopeless = sources == answers.keys() and not any(answer["busy"] for answer in answers.values())
            silent = silent + 1 if hopeless else 0
            if silent >= 3 or now - since > self.job.stall:
                self.state.missing = [name for name in lacking if name not in self.known.hashes]
                if self.state.missing:
                    raise Ended(self._nobody())
            self._pause(_ASK_SECONDS)

    def _ask(self, lacking: list[str], lengths: dict[str, int], serves: bool) -> dict[str, dict[str, Any]]:
        """Ask sources, or receivers, until nothing is lacking; return the answers."""
        answers: dict[str, dict[str, Any]] = {}
        for member in self.job.others:
            if member.serves != serves or self.known.hashes.keys() >= lengths.keys():
                continue
            answer = ask(self.job.me, member, self.job.key, lacking)
            if answer is not None:
                answers[member.name] = answer
                self.known.take(answer, lengths)
        return answers

    def _nobody(self) -> str:
        names = ", ".join(self.paths[sha256] for sha256 in self.state.missing[:3])
        return (
            f"{len(self.state.missing)} blobs of {self.job.manifest.name} ({names}, …) are on no member with the right "
            "content. Fetch them from their origin to one node, and run again."
        )

    # ---- the exchange ------------------------------------------------------------------------------------

    def _start(self) -> Engine:
        incoming = self.store.incoming(self.job.manifest.id)
        wanted = set(self.wanted)
        places = {
            slot.sha256: os.path.join(incoming, slot.sha256)
            if slot.sha256 in wanted
            else self.store.path(slot.sha256)
            for slot in self.cut.slots
        }
        have = [False] * self.cut.count
        have[self.cut.mark] = self.job.me.serves
        record = json.loads(read_text(self._resume_path) or "{}")
        earlier = resumed(self.cut, record)
        for slot in self.cut.slots:
            served = self.state.files.get(slot.sha256) == "served"
            bits = [True] * slot.count if served else earlier.get(slot.sha256, [])
            if bits and (served or (slot.sha256 in wanted and os.path.exists(places[slot.sha256]))):
                have[slot.first : slot.first + slot.count] = bits
        receivers = [member.name for member in self.job.members if not member.serves]
        index = receivers.index(self.job.own) if self.job.own in receivers else -1
        engine = Engine(self.job, self.cut, self.known.hashes, places)
        pieces = [
            piece for sha256 in self.wanted for piece in self.cut.slot(sha256).pieces if not have[piece]
        ]
        self.share = Share(pieces, max(0, index), len(receivers) if index >= 0 else 1)
        engine.start(have, self.share.priorities(self.cut.count))
        self.state.bytes = sum(self.job.manifest.blobs[sha256] for sha256 in self.wanted)
        self.state.files.update(dict.fromkeys(self.wanted, "receiving"))
        self.state.phase = "running"
        return engine

    def _exchange(self, engine: Engine) -> None:
        started = time.monotonic()
        moved, before, connected, saved = started, -1, 0.0, started
        checks: dict[str, Future[None]] = {}
        alone_since = None
        while True:
            now = time.monotonic()
            errors = engine.errors()
            if errors:
                raise Ended(f"The engine stopped: {errors[0]}. Free the disk or the port, and run again.")
            if now - connected >= (
                _CONNECT_SECONDS if now - started > _CONNECT_SECONDS * 5 else _CONNECT_SECONDS / 4
            ):
                connected = now
                self._look_around(engine, now)
            self._take_complete(engine, checks)
            self._choose(engine, now)
            self.state.received, self.state.sent = engine.totals()
            if self.state.received + self.state.sent != before:
                before, moved = self.state.received + self.state.sent, now
            if self._is_complete():
                if self.state.phase != "complete":
                    self.state.phase, self.known.complete = "complete", True
                    self._write()
                everybody = set(self.state.complete) >= {member.name for member in self.job.others}
                alone_since = (alone_since or now) if everybody else None
                if (alone_since and now - alone_since >= _LAST_WORDS) or now - moved >= self.job.linger:
                    return
            else:
                self.state.seconds = now - started
                if now - moved >= self.job.stall:
                    raise Ended(
                        f"No content came for {self.job.stall:.0f} s. Members that were not reached: "
                        f"{', '.join(self.state.dead) or 'none'}; that sent wrong content: "
                        f"{', '.join(self.state.wrong) or 'none'}. Run again: what is here is kept."
                    )
            if now - saved >= _SAVE_SECONDS:
                saved = now
                self._save(engine)
            self._pause()

    def _choose(self, engine: Engine, now: float) -> None:
        """Ask for pieces; leave the sources, or return to them."""
        if self.served:
            return
        turn = self.share.turn(engine.have(), engine.copies(), now)
        engine.ask_for(turn.changes)
        if turn.sources == self.left:
            self.left = not turn.sources
            engine.admit(member for member in self.job.members if turn.sources or not member.serves)
            self._look_around(engine, now)

    def _is_complete(self) -> bool:
        return self.received >= set(self.wanted)

    def _look_around(self, engine: Engine, now: float) -> None:
        peers = self.peers = {self.names.get(peer.address, peer.address): peer for peer in engine.peers()}
        self.last.update(dict.fromkeys(peers, now))
        done = self.done = {*self.done, *(name for name, peer in peers.items() if peer.complete)}
        self.state.complete = sorted(done)
        self.state.wrong = sorted(
            {self.names.get(address, address) for address in engine.banned}
            | {name for name, peer in peers.items() if peer.wrong}
        )
        self.state.slow = slow_members({name: peer.progress for name, peer in peers.items()})
        self.state.dead = sorted(
            name for name, seen in self.last.items() if now - seen > _ABSENT_SECONDS and name not in done
        )
        for member in self.job.others:
            if member.name in peers or (member.serves and self.left):
                continue
            if member.serves or not self.served:
                engine.connect([member])
            elif member.name not in done and member.name not in self.asked:
                self.asked.add(member.name)
                self.pool.submit(self._ask_whether_complete, member)

    def _ask_whether_complete(self, member: Member) -> None:
        """Note whether a member that left this source is complete."""
        answer = ask(self.job.me, member, self.job.key, [])
        if answer is not None:
            self.last[member.name] = time.monotonic()
            if answer.get("complete"):
                self.done.add(member.name)
        self.asked.discard(member.name)

    def _take_complete(self, engine: Engine, checks: dict[str, Future[None]]) -> None:
        """Give complete blobs their names in the store, each checked as a whole by its SHA-256."""
        have = engine.have()
        for sha256 in self.wanted:
            slot = self.cut.slot(sha256)
            if sha256 in self.received or not all(have[slot.first : slot.first + slot.count]):
                continue
            received = os.path.join(self.store.incoming(self.job.manifest.id), sha256)
            if sha256 not in checks:
                checks[sha256] = self.pool.submit(self.store.add, received, sha256, slot.size)
            elif checks[sha256].done():
                try:
                    checks.pop(sha256).result()
                except WrongContent:  # an earlier run's bytes that did not reach the disk
                    engine.again()
                    continue
                self.received.add(sha256)
                self.state.files[sha256] = "received"
                engine.moved(sha256, self.store.path(sha256))

    # ---- files -------------------------------------------------------------------------------------------

    @property
    def _resume_path(self) -> str:
        return os.path.join(self.store.incoming(self.job.manifest.id), "pieces.json")

    def _save(self, engine: Engine) -> None:
        with contextlib.suppress(OSError):
            write_atomic(self._resume_path, json.dumps(resume_record(self.cut, engine.have())), 0o600)

    def _pause(self, seconds: float = TICK) -> None:
        now = time.monotonic()
        if now - self.begun > self.job.deadline:
            raise Ended(
                f"It was not complete after {self.job.deadline:.0f} s. Run again: what is here is kept."
            )
        if now - self.written >= _STATE_SECONDS:
            self._write()
        time.sleep(seconds)

    def _write(self) -> None:
        self.state.finished = self._is_complete()
        self.written = time.monotonic()
        write_state(self.directory, self.state)
