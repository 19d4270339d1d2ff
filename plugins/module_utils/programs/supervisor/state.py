# SPDX-License-Identifier: Apache-2.0
"""What the supervisor remembers over restarts of its container: its state, and the failures of a series.

Kept in state.json of a directory that outlives the container; the node's root reads it from there.
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
"""Failures of a series, until it gives up."""
WINDOW = 1800.0
"""Seconds: failures of an engine that serves in between are a series when they come within this time."""
STABLE = 600.0
"""Seconds of serving that end a series."""
WAITING, STARTING, RUNNING, STOPPING, GAVE_UP = "waiting", "starting", "running", "stopping", "gave_up"


@dataclass(frozen=True)
class Failure:
    """An end that nobody asked for. at: when, seconds since 1970; seconds: how long it ran, of which `served`
    after it said that it was ready; code: the exit code, 128 + n for a signal; log: a file's name, or "".
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
        """For people."""
        return f"{self.kind}: {self.line}"

    @classmethod
    def from_json(cls, item: Any) -> Failure:
        """Raises KeyError, TypeError, ValueError."""
        numbers = (float(item["at"]), float(item["seconds"]), float(item["served"]), int(item["code"]))
        return cls(*numbers, *(str(item[key]) for key in ("kind", "line", "next_step", "log")))


def series(earlier: Sequence[Failure], new: Failure) -> tuple[Failure, ...]:
    """The failures that count together with a new one, which is the last of them.

    A run that served long enough ends a series, and so does a pause: the node was off, or the container was
    stopped. A start that fails counts however long it took; one that served for a while only within WINDOW.
    """
    began = new.at - new.seconds
    if not earlier or new.served >= STABLE or began - earlier[-1].at > WINDOW:
        return (new,)
    kept = [item for item in earlier if not new.served or new.at - item.at <= WINDOW]
    return (*kept, new)


class Memory:
    """state.json. A disk that cannot be written must not keep vLLM from running: `trouble` says it then."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._state: tuple[str, str] = ("", "")
        self._noted: tuple[str, str, bool] = ("", "", False)
        self._since = time.time()
        self._asked = False
        self.trouble = ""
        before = self._load()
        # After a stop that was asked for, and after giving up, it begins anew.
        over = before.get("asked") or before.get("state") == GAVE_UP
        self.failures: tuple[Failure, ...] = () if over else _failures(before.get("failures"))
        self.peer: dict[str, Any] | None = None if over else before.get("peer")

    def note(self, state: str, why: str = "") -> None:
        """What it does now, and why; `since` is kept while only the reason changes."""
        if (state, why, self._asked) == self._noted:
            return
        if state != self._state[0]:
            self._since = time.time()
        self._state = (state, why)
        self._noted = (state, why, self._asked)
        self._save()

    def asked(self) -> None:
        """Somebody asked it to stop. That it had given up stays to be read."""
        self._asked = True
        self.note(self._state[0] if self._state[0] == GAVE_UP else STOPPING, self._state[1] or "asked to")

    def failed(self, failure: Failure, log: str) -> Failure:
        """Remember a failure, and its log in a file. Returns it with the file's name."""
        number = len(series(self.failures, failure))
        name = f"failure-{number}.log"
        kept = Failure(**{**vars(failure), "log": name if self._write(name, log) else ""})
        self.failures = series(self.failures, kept)
        self._save()
        return kept

    def lost(self, peer: dict[str, Any] | None) -> None:
        """Remember that another rank ended the run; None: they run together again."""
        if peer != self.peer:
            self.peer = peer
            self._save()

    @property
    def gave_up(self) -> bool:
        """Whether the series is over."""
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
        """Replace a file at once; whether it worked."""
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


def _failures(items: Any) -> tuple[Failure, ...]:
    try:
        return tuple(Failure.from_json(item) for item in items)
    except (KeyError, TypeError, ValueError):
        return ()
