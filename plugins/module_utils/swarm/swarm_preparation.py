# SPDX-License-Identifier: Apache-2.0
"""Before an exchange: check the blobs that a member offers, and get the hashes of the pieces of all others."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..store.blobs import Store
from .swarm_hashes import CheckedHashes, MemberAnswers, ask, hash_blob
from .swarm_job import SwarmJob
from .swarm_pieces import PieceLayout, right_pieces
from .swarm_state import SwarmState

TICK = 0.25
_ASK_SECONDS = 0.2
_OTHERS_EACH = 25  # rounds without an answer from a source
_TELL_SECONDS = 5.0  # that a source without the right content stays, so that the others are told


class CannotContinue(Exception):
    """The run cannot continue; the text says why."""


class Preparation:
    """What a member does before its exchange.

    Attributes:
        wanted, served: SHA-256 of the blobs that it receives, and offers
        begun: which pieces of a blob an earlier run left in incoming/, with the right content
    """

    def __init__(
        self, job: SwarmJob, cut: PieceLayout, state: SwarmState, pause: Callable[[float], None]
    ) -> None:
        self.job, self.cut, self.state, self.pause = job, cut, state, pause
        self.store, self.known = Store(job.root), MemberAnswers(busy=bool(job.serve))
        self.wanted: list[str] = []
        self.served: list[str] = []
        self.begun: dict[str, list[bool]] = {}

    def run(self, pool: ThreadPoolExecutor, stop: threading.Event) -> None:
        """Check, get hashes, and check what was begun. Raise CannotContinue if nobody has what is missing."""
        self._check_served(pool, stop)
        self._learn()
        self._check_begun(pool, stop)

    def _check_served(self, pool: ThreadPoolExecutor, stop: threading.Event) -> None:
        """Check the blobs that this member offers; one with wrong content is removed, and received like others."""
        missing = self.store.missing(self.job.manifest)
        self.wanted = [slot.sha256 for slot in self.cut.slots if slot.sha256 in missing]
        self.served = [sha256 for sha256 in self.job.serve if sha256 not in missing]
        running: dict[str, Future[CheckedHashes]] = {
            sha256: pool.submit(hash_blob, self.store.path(sha256), self.cut.piece_size, stop)
            for sha256 in self.served
            if self.job.manifest.blobs[sha256]
        }
        self._each(running, self._judge)
        self.known.busy = False

    def _check_begun(self, pool: ThreadPoolExecutor, stop: threading.Event) -> None:
        """Compare what an earlier run received with the hashes of pieces: a crash or the disk may have changed it."""
        running: dict[str, Future[CheckedHashes]] = {}
        for sha256 in self.wanted:
            path = self._incoming(sha256)
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(path)
                # A second name is a blob's or the cache's, which must not change with this one.
                if found.st_nlink > 1 or found.st_size > self.cut.slot(sha256).size:
                    os.unlink(path)
                else:
                    running[sha256] = pool.submit(hash_blob, path, self.cut.piece_size, stop)
        self._each(running, self._compare)

    def _compare(self, sha256: str, future: Future[CheckedHashes]) -> None:
        try:
            found = future.result()
        except OSError:
            os.unlink(self._incoming(sha256))
            return
        slot, right = self.cut.slot(sha256), self.known.hashes[sha256]
        self.begun[sha256] = right_pieces(slot, self.cut.piece_size, found.pieces, found.size, right)

    def _incoming(self, sha256: str) -> str:
        return os.path.join(self.store.incoming(self.job.manifest), sha256)

    def _each(
        self, running: dict[str, Future[CheckedHashes]], done: Callable[[str, Future[CheckedHashes]], None]
    ) -> None:
        while running:
            for sha256 in [name for name, future in running.items() if future.done()]:
                done(sha256, running.pop(sha256))
            self.pause(TICK)

    def _judge(self, sha256: str, future: Future[CheckedHashes]) -> None:
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

    def _learn(self) -> None:
        """Ask the others for the hashes of what is wanted, and of all that the torrent describes."""
        self.state.phase = "waiting"
        lengths = {slot.sha256: 20 * slot.count for slot in self.cut.slots}
        sources = {member.name for member in self.job.others if member.serves}
        hopeless_since, asked, since, before = None, 0, time.monotonic(), -1
        patience = _TELL_SECONDS if self.job.me.serves else _TELL_SECONDS / 5
        while lacking := [name for name in lengths if name not in self.known.hashes]:
            answers = self._ask(lacking, lengths, serves=True)
            if not answers and asked % _OTHERS_EACH == _OTHERS_EACH - 1:
                self._ask(lacking, lengths, serves=False)  # the source is gone, and others know its hashes
            asked += 1
            now = time.monotonic()
            busy = any(answer["busy"] for answer in answers.values())
            if busy or len(self.known.hashes) != before:
                since, before = now, len(self.known.hashes)
            hopeless_since = (hopeless_since or now) if sources == answers.keys() and not busy else None
            if (left := [name for name in lacking if name not in self.known.hashes]) and (
                (hopeless_since is not None and now - hopeless_since >= patience)
                or now - since > self.job.stall
            ):
                self.state.missing = left
                self.state.dead = sorted(sources - answers.keys())
                raise CannotContinue(self._silence() if self.state.dead else self._nobody())
            self.pause(_ASK_SECONDS)

    def _ask(self, lacking: list[str], lengths: dict[str, int], serves: bool) -> dict[str, dict[str, Any]]:
        """Ask sources, or receivers, until nothing is missing; return the answers."""
        answers: dict[str, dict[str, Any]] = {}
        for member in self.job.others:
            if member.serves != serves or self.known.hashes.keys() >= lengths.keys():
                continue
            self.pause(0)
            answer = ask(self.job.me, member, self.job.key, lacking)
            if answer is not None:
                answers[member.name] = answer
                self.known.take(answer, lengths)
        return answers

    def _silence(self) -> str:
        places = {member.name: f"{member.address} port {member.port + 1}" for member in self.job.others}
        names = ", ".join(f"{name} ({places[name]})" for name in self.state.dead)
        return (
            f"No answer for {self.job.stall:.0f} s from {names}, which should offer "
            f"{self.job.manifest.name}. Check what "
            "the transfer on those hosts reports, and whether a firewall is in between, and run again."
        )

    def _nobody(self) -> str:
        paths = {item.sha256: item.path for item in self.job.manifest.files}
        names = ", ".join(paths[sha256] for sha256 in self.state.missing[:3])
        return (
            f"{len(self.state.missing)} blobs of {self.job.manifest.name} ({names}, …) are not on any "
            "member with the right "
            "content. Fetch them from their origin to one node, and run again."
        )
