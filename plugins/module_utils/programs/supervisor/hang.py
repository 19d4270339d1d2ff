# SPDX-License-Identifier: Apache-2.0
"""Find an engine that hangs: its API server is silent, or it has requests and generates nothing.

Nothing is sent to the engine: its requests are the probe, and its own figures the answer. Loading,
compiling and capturing graphs come before its API server reports that it serves, which begins the watch. Its first
tokens may still compile kernels: until they are there, requests without progress do not count as a hang, and silence
must last as long as requests without progress later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .engine import Look

POLL_SECONDS = 10.0
ANSWER_SECONDS = 10.0
SILENT_SECONDS = 120.0
"""An API server that has not answered for so long hangs: its answer needs no engine."""


class HangJudge:
    """Decide from one look after another whether an engine hangs.

    limit: seconds without progress while there are requests, or without an answer before the first token. since: when
    the watch began. Times are seconds of a clock that only goes forward.
    """

    def __init__(self, limit: float, since: float) -> None:
        self.limit, self._silence = limit, min(limit, SILENT_SECONDS)
        self._generated = False
        self._progress: tuple[bytes, ...] = ()
        self._answered = self._moved = since

    def judge(self, look: Look | None, now: float) -> str:
        """Return how the engine hangs; "" if it does not."""
        if look is None:
            silent = now - self._answered
            if silent >= (self._silence if self._generated else self.limit):
                return f"the API server has not answered for {silent:.0f} s"
            return ""
        self._answered = now
        self._generated = self._generated or look.generated
        if not self._generated or not look.working or look.progress != self._progress:
            self._moved, self._progress = now, look.progress
        elif look.progress and now - self._moved >= self.limit:
            return f"it has requests, and has generated nothing for {now - self._moved:.0f} s"
        return ""


class HangWatch(threading.Thread):
    """Looks at the engine now and then, and reports once when it hangs."""

    def __init__(
        self, look: Callable[[float], Look | None], limit: float, poll: float, report: Callable[[str], None]
    ) -> None:
        super().__init__(daemon=True)
        self._look, self._poll, self._report = look, poll, report
        self._judge = HangJudge(limit, time.monotonic())
        self._over = threading.Event()

    def run(self) -> None:
        """Look until it hangs, or until the watch is over."""
        last = time.monotonic()
        while not self._over.wait(self._poll):
            look, now = self._look(ANSWER_SECONDS), time.monotonic()
            if now - last > 3 * (self._poll + ANSWER_SECONDS):
                # Everything was stopped, such as by a paused container.
                self._judge = HangJudge(self._judge.limit, now)
            found, last = self._judge.judge(look, now), now
            if found and not self._over.is_set():
                return self._report(found)
        return None

    def end(self) -> None:
        """Stop looking."""
        self._over.set()
