# SPDX-License-Identifier: Apache-2.0
"""What the supervisor around an instance's vLLM reports about itself, as seen from the node.

The container's root user writes its directory. So no link leads out of it, and nothing in it is trusted.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

from ..engines.failures import Diagnosis
from .supervisor_file import read_supervisor

STATE_FILE = "state.json"


@dataclass(frozen=True)
class SupervisorState:
    """The supervisor's report.

    Attributes:
        state: waiting, starting, running, stopping or gave_up
        failures: number of failures in the present series; `first` is the first of them
        peer: why another rank ended the last run of an engine over several hosts
    """

    state: str
    why: str
    failures: int
    first: Diagnosis | None
    peer: Diagnosis | None

    @property
    def gave_up(self) -> bool:
        """Return whether it will not try again."""
        return self.state == "gave_up"

    @property
    def cause(self) -> Diagnosis | None:
        """Return why there is no vLLM: the first failure of its own, else another rank's."""
        return self.first or self.peer

    @classmethod
    def from_json(cls, item: Any) -> SupervisorState | None:
        """Read it from an instance's entry of node_state."""
        if not item:
            return None
        return cls(
            str(item.get("state") or ""),
            str(item.get("why") or ""),
            int(item.get("failures") or 0),
            _finding(item.get("first")),
            _finding(item.get("peer")),
        )


def _finding(item: Any) -> Diagnosis | None:
    return Diagnosis(*(str(item.get(key) or "") for key in ("kind", "line", "next_step"))) if item else None


def read_state(cache_directory: str) -> SupervisorState | None:
    """Return the supervisor's report; None if there is none."""
    return SupervisorState.from_json(read_supervisor(cache_directory))


def reset_state(cache_directory: str) -> None:
    """Remove the report, so that the next one belongs to the next start."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        parent = os.open(cache_directory, flags)
        try:
            directory = os.open("supervise", flags, dir_fd=parent)
            try:
                os.unlink(STATE_FILE, dir_fd=directory)
            finally:
                os.close(directory)
        finally:
            os.close(parent)
