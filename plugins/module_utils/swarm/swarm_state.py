# SPDX-License-Identifier: Apache-2.0
"""What a member of a swarm says of its run: a small file, which outlives the program."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from ..common.files import read_text, write_atomic

SLOW = 0.5  # of the median
_BEGUN = 0.1  # below this part of the whole, a rate says nothing


@dataclass
class SwarmState:
    """How far a member is.

    Attributes:
        phase: hashing, waiting (for hashes), running, complete (and serving) or ended
        bytes, received, sent: of blobs that were not in the store at the beginning; of content, over the network
        seconds: since the swarm started
        files: what became of each blob: served, receiving, received; corrupt where the content was wrong at the start
        corrupt: blobs of this node whose content was wrong, which it removed
        missing: blobs of which no member has a copy with the right content
        slow, dead, complete, wrong: names of members: below half the median, not reached, done, sent wrong content
        error: why it ended incomplete
    """

    phase: str = "hashing"
    pid: int = 0
    bytes: int = 0
    received: int = 0
    sent: int = 0
    seconds: float = 0.0
    files: dict[str, str] = field(default_factory=dict)
    corrupt: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    complete: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    error: str = ""
    finished: bool = False

    @property
    def rate(self) -> float:
        """Return the bytes received per second."""
        return self.received / self.seconds if self.seconds > 0 else 0.0


def write_state(directory: str, state: SwarmState) -> None:
    """Write a member's state."""
    text = json.dumps({**asdict(state), "rate": round(state.rate)}, indent=1) + "\n"
    write_atomic(os.path.join(directory, "state.json"), text, 0o600)


def read_state(directory: str) -> SwarmState | None:
    """Return the state that a member wrote; None if there is none."""
    try:
        data = json.loads(read_text(os.path.join(directory, "state.json")) or "")
        data.pop("rate", None)
        return SwarmState(**data)
    except (ValueError, TypeError, AttributeError):
        return None


def slow_members(progress: Mapping[str, float]) -> list[str]:
    """Return the members with less than half of the median progress, once half of all have begun."""
    if len(progress) < 3:
        return []
    median = statistics.median(progress.values())
    if median < _BEGUN:
        return []
    return sorted(name for name, part in progress.items() if part < SLOW * median)
