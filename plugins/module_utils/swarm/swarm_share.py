# SPDX-License-Identifier: Apache-2.0
"""Which pieces a receiver asks for, and when: so that the sources send each piece once, and the receivers the rest.

Each receiver gets the pieces of its own share from the sources, and others only once another receiver has them. Then it
leaves the sources: their links are free for those who still need them. The share of a slow or dead receiver remains:
when new pieces appear much more slowly than before, and nothing else is left to ask for or hardly anything comes, they
are dealt out among the receivers, round by round, each time differently. So are pieces that only a slow one has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

OWN, OTHER, CLOSED = 7, 1, 0  # priorities of the engine
ROUND_SECONDS = 1.0
_WINDOW = 2.0  # seconds, or the time of this many pieces:
_PIECES = 8
_SLOW = 0.4  # of the mean rate
_IDLE_SECONDS = 3.0  # a receiver that announced pieces hangs: the sources have them too
_LAST = 8  # missing pieces below which a block may be asked of two members
_FEW = 2  # pieces still to ask for of other receivers: fewer, and this one has nothing to do


@dataclass(frozen=True)
class PieceRequest:
    """What to do now: priorities to change, by piece, and whether to be connected to the sources."""

    changes: Mapping[int, int]
    sources: bool


class Appearance:
    """How fast pieces appear: at other receivers, or here."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []
        self.total = 0

    def note(self, count: int, now: float) -> None:
        """Note that so many appeared."""
        self.total += count
        if not self.seen or count:
            self.seen.append((now, self.total))

    def stalls(self, now: float) -> bool:
        """Return whether the rate of late is far below the mean."""
        begun = self.seen[0][0]
        if now - begun < 2 * _WINDOW:
            return False
        mean = self.total / (now - begun)
        window = max(_WINDOW, _PIECES / mean) if mean else _WINDOW
        before = max((total for time, total in self.seen if time <= now - window), default=0)
        return self.total - before < _SLOW * mean * window


class ReceiverShare:
    """The share of one receiver."""

    def __init__(self, wanted: Iterable[int], index: int, receivers: int) -> None:
        """`wanted` has all pieces that this one does not have; `index` is its place among the receivers."""
        self.index, self.receivers = index, receivers
        self.wanted = sorted(wanted)
        self.asked = {
            piece for piece in self.wanted if piece % receivers == index
        }  # for which the sources are asked
        self.closed = [piece for piece in self.wanted if piece not in self.asked]
        self.round, self.since = 0, 0.0
        self.appeared, self.arrived, self.had = Appearance(), Appearance(), 0

    def priorities(self, count: int) -> list[int]:
        """Return the priority of each of so many pieces at the start.

        The last one, which nobody has, is wanted until the end is near: if all that is wanted were asked for already,
        the engine would ask for it twice.
        """
        return [*(OWN if piece in self.asked else CLOSED for piece in range(count - 1)), OTHER]

    def turn(
        self, have: Sequence[bool], copies: Sequence[int], now: float, idle: float = 0.0
    ) -> PieceRequest:
        """Return what to do; `copies` is how many other receivers have each piece, `idle` since when nothing came."""
        changes = {piece: OTHER for piece in self.closed if copies[piece] > 0 or have[piece]}
        self.closed = [piece for piece in self.closed if piece not in changes]
        self.appeared.note(len(changes), now)
        missing = [piece for piece in self.wanted if not have[piece]]
        closed = set(self.closed)
        open_here = sum(1 for piece in missing if piece not in closed)
        had, self.had = self.had, len(self.wanted) - len(missing)
        self.arrived.note(self.had - had, now)
        idles = idle > _IDLE_SECONDS or self.arrived.stalls(now)
        stuck = [piece for piece in missing if piece not in self.asked] if idles else self.closed
        if (
            stuck
            and (open_here <= _FEW or idles)
            and now - self.since >= ROUND_SECONDS
            and self.appeared.stalls(now)
        ):
            self.round, self.since = self.round + 1, now
            dealt = [
                piece
                for piece in stuck
                if (piece // self.receivers + piece + self.round) % self.receivers == self.index
            ]
            changes.update(dict.fromkeys(dealt, OWN))
            self.asked.update(dealt)
            self.closed = [piece for piece in self.closed if piece not in changes]
        if not self.closed and len(missing) <= _LAST:
            changes[len(have) - 1] = CLOSED
        # What another receiver had is asked for again where that one is gone.
        sources = any(piece in self.asked or copies[piece] <= 0 for piece in missing if piece not in closed)
        return PieceRequest(changes, sources or (idle > _IDLE_SECONDS and bool(missing)))
