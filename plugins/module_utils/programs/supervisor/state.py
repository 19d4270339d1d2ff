# SPDX-License-Identifier: Apache-2.0
"""The supervisor's state across restarts of its container: what it does, and consecutive failures.

The state is kept in state.json in a directory that outlives the container; root of the node reads it there.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = 1
STATE_FILE = "state.json"
LIMIT = 3
"""Consecutive failures after which the supervisor gives up."""
WINDOW = 1800.0
"""Seconds: failures of an engine that served in between count as consecutive within this time."""
STABLE = 600.0
"""Seconds of serving after which earlier failures no longer count."""
WAITING, STARTING, RUNNING, STOPPING, GAVE_UP = "waiting", "starting", "running", "stopping", "gave_up"


@dataclass(frozen=True)
class RunFailure:
    """An end that nobody requested. at: seconds since 1970; seconds: duration of the run; served: seconds of it after
    vLLM reported that it was ready; code: the exit code, 128 + n for signal n; log: a file name, or "".
    """

    at: float
    seconds: float
    served: float
    code: int
    kind: str
    line: str
    next_step: str
    log: str = ""

    @property
    def text(self) -> str:
        """Return kind and line, for messages."""
        return f"{self.kind}: {self.line}"

    @classmethod
    def from_json(cls, item: Any) -> RunFailure:
        """Parse an entry of state.json.

        Raise KeyError, TypeError or ValueError if it is malformed.
        """
        numbers = (float(item["at"]), float(item["seconds"]), float(item["served"]), int(item["code"]))
        return cls(*numbers, *(str(item[key]) for key in ("kind", "line", "next_step", "log")))


def extend_series(earlier: Sequence[RunFailure], new: RunFailure) -> tuple[RunFailure, ...]:
    """Return the failures that count together with a new one, which is last.

    A run that served for STABLE seconds ends a series, and so does a pause, in which the node was off or the container
    was stopped. A failed start counts however long it took; a failure after serving counts only within WINDOW.
    """
    began = new.at - new.seconds
    if not earlier or new.served >= STABLE or began - earlier[-1].at > WINDOW:
        return (new,)
    kept = [item for item in earlier if not new.served or new.at - item.at <= WINDOW]
    return (*kept, new)


class FailureHistory:
    """The file state.json. A disk that cannot be written must not stop vLLM: `trouble` then describes the error."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._state: tuple[str, str] = ("", "")
        self._noted: tuple[str, str, bool] = ("", "", False)
        self._since = time.time()
        self._asked = False
        self.trouble = ""
        before = self._load()
        # After a requested stop, and after giving up, start without earlier failures.
        over = before.get("asked") or before.get("state") == GAVE_UP
        self.failures: tuple[RunFailure, ...] = () if over else _failures(before.get("failures"))
        self.peer: dict[str, Any] | None = None if over else before.get("peer")

    def note(self, state: str, why: str = "") -> None:
        """Record the present state and its reason. `since` is kept while only the reason changes."""
        if (state, why, self._asked) == self._noted:
            return
        if state != self._state[0]:
            self._since = time.time()
        self._state = (state, why)
        self._noted = (state, why, self._asked)
        self._save()

    def asked(self) -> None:
        """Record that a stop was requested. An earlier gave_up stays visible."""
        self._asked = True
        self.note(self._state[0] if self._state[0] == GAVE_UP else STOPPING, self._state[1] or "asked to")

    def failed(self, failure: RunFailure, log: str) -> RunFailure:
        """Record a failure and write its log to a file. Return the failure with the file name."""
        number = len(extend_series(self.failures, failure))
        name = f"failure-{number}.log"
        kept = RunFailure(**{**vars(failure), "log": name if self._write(name, log) else ""})
        self.failures = extend_series(self.failures, kept)
        self._save()
        return kept

    def lost(self, peer: dict[str, Any] | None) -> None:
        """Record that another rank ended the run; None: all ranks run again."""
        if peer != self.peer:
            self.peer = peer
            self._save()

    @property
    def gave_up(self) -> bool:
        """Return whether LIMIT consecutive failures are reached."""
        return len(self.failures) >= LIMIT

    def _load(self) -> dict[str, Any]:
        try:
            with open(os.path.join(self._directory, STATE_FILE), encoding="utf-8") as stream:
                found = json.load(stream)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and found.get("schema") == SCHEMA else {}

    def _save(self) -> None:
        state, why = self._state
        data = {
            "schema": SCHEMA,
            "state": state,
            "since": round(self._since, 1),
            "why": why,
            "asked": self._asked,
            "failures": [vars(item) for item in self.failures],
            "peer": self.peer,
        }
        self._write(STATE_FILE, json.dumps(data, indent=1) + "\n")

    def _write(self, name: str, text: str) -> bool:
        """Replace a file atomically. Return whether that succeeded."""
        path = os.path.join(self._directory, name)
        temporary = f"{path}.new"
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
            os.replace(temporary, path)
        except OSError as error:
            self.trouble = f"{path} cannot be written: {error.strerror}"
            return False
        self.trouble = ""
        return True


def _failures(items: Any) -> tuple[RunFailure, ...]:
    try:
        return tuple(RunFailure.from_json(item) for item in items)
    except (KeyError, TypeError, ValueError):
        return ()
