# SPDX-License-Identifier: Apache-2.0
"""Find how the runs of two sides were interleaved, from their times: that decides what their difference proves. Pure.

Speed drifts between sessions by more than it varies within one. If b was measured once, and a later, that drift is part
of the difference. It is not if a and b alternated on an instance, or if half of the instances had a first. When they
alternate in one order (b a b a), a trend, as from rising heat, favours the same side in every pair. So either each side
was first in half of the pairs, or a session is compared with those of the other side before and after it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from .shift import LEVEL, Estimate, paired_shift, pairs_needed, stratified_shift

DRIFT = 0.02
"""Standard deviation of an instance's speed between sessions, as a share, if no other is given (a judgement)."""
INTERLEAVED, ONE_ORDER, CROSSED, BEFORE_AFTER = (
    "interleaved",
    "interleaved in one order",
    "crossed over",
    "before and after",
)


@dataclass(frozen=True)
class TimedValue:
    """The logarithm of one run's metric on an instance; side: a or b. started: ISO 8601, "" if unknown.

    session: the run of a playbook that measured it, "" if unknown.
    """

    unit: tuple[str, str]
    side: str
    started: str
    log: float
    session: str = ""


@dataclass(frozen=True)
class Effect:
    """How a differs from b, in logarithms.

    spread: standard deviation of a pair's difference, or of a run; None if unknown. drift: what the drift between
    sessions adds to each end of the interval, at its level. count: pairs, or runs of the side that has fewer.
    """

    design: str
    estimate: Estimate
    spread: float | None
    drift: float
    count: int
    units: int


def effect(values: Sequence[TimedValue], drift: float = DRIFT, level: float = LEVEL) -> Effect | None:
    """Return how a differs from b; None if no instance has both."""
    units: dict[tuple[str, str], list[TimedValue]] = {}
    for item in values:
        units.setdefault(item.unit, []).append(item)
    both = {unit: own for unit, own in units.items() if {item.side for item in own} == {"a", "b"}}
    if not both:
        return None
    sessions = {unit: _sessions(own) for unit, own in both.items()}
    pairs = {unit: _pairs(own) for unit, own in sessions.items()}
    if min(len(found) for found in pairs.values()) >= 2:
        turns = [_balanced([pair for own in pairs.values() for pair in own])]
        turns.append([difference for own in sessions.values() for difference in _against_neighbours(own)])
        found = max(turns, key=len)
        if len(found) >= 2:
            design = INTERLEAVED if found is turns[0] else ONE_ORDER
            return Effect(design, paired_shift(found, level), _deviation(found), 0.0, len(found), len(both))
    single = [own[0] for sides in sessions.values() if (own := _pairs(_turns(sides)))]
    a_first = [difference for difference, first in single if first == "a"]
    b_first = [difference for difference, first in single if first == "b"]
    if a_first and b_first and abs(len(a_first) - len(b_first)) <= 1:
        # Time adds the same to a where it came second as to b where b did: it is the same in both samples.
        twice = stratified_shift([([-difference for difference in a_first], b_first)], level)
        half = Estimate(twice.estimate / 2, twice.low / 2, twice.high / 2)
        return Effect(CROSSED, half, _deviation([*a_first, *b_first]), 0.0, len(single), len(both))
    return _before_after(list(both.values()), drift, level)


def units_needed(design: str, level: float) -> int:
    """Return the least number of pairs, or of runs a side, whose interval is finite at a level."""
    if design in (INTERLEAVED, ONE_ORDER):
        return pairs_needed(level)
    least = next(n for n in range(2, 100) if 2 / math.comb(2 * n, n) <= 1 - level)
    return 2 * least if design == CROSSED else least


def _before_after(units: Sequence[Sequence[TimedValue]], drift: float, level: float) -> Effect:
    """Compare each instance only with itself. Drift is assumed to be common to all, so more instances do not help."""
    strata = [
        ([item.log for item in own if item.side == "b"], [item.log for item in own if item.side == "a"])
        for own in units
    ]
    found = stratified_shift(strata, level)
    margin = statistics.NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(2) * drift
    wider = Estimate(
        found.estimate,
        found.estimate - math.hypot(found.estimate - found.low, margin),
        found.estimate + math.hypot(found.high - found.estimate, margin),
    )
    samples = [sample for pair in strata for sample in pair if len(sample) > 1]
    spread = None
    if samples:
        squares = sum(statistics.variance(sample) * (len(sample) - 1) for sample in samples)
        spread = math.sqrt(squares / sum(len(sample) - 1 for sample in samples))
    count = min(len(sample) for pair in strata for sample in pair)
    return Effect(BEFORE_AFTER, wider, spread, margin, count, len(units))


def _sessions(own: Sequence[TimedValue]) -> list[tuple[str, float]]:
    """Return the side and the median of each session of an instance, in their order; [] without all times.

    A session is one run of a playbook; without its name, what a side measured without the other in between.
    """
    if not all(item.started for item in own):
        return []
    found: list[tuple[str, str, list[float]]] = []
    for item in sorted(own, key=lambda item: item.started):
        if not found or found[-1][:2] != (item.side, item.session):
            found.append((item.side, item.session, []))
        found[-1][2].append(item.log)
    return [(side, statistics.median(logs)) for side, _session, logs in found]


def _turns(sessions: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the sessions with those of one side that follow each other joined, in their median."""
    joined = groupby(sessions, key=lambda session: session[0])
    return [(side, statistics.median(log for _side, log in own)) for side, own in joined]


def _pairs(sessions: Sequence[tuple[str, float]]) -> list[tuple[float, str]]:
    """Return the differences (a minus b) of successive sessions, and which side came first in each pair."""
    found, at = [], 0
    while at + 1 < len(sessions):
        (side, first), (other, second) = sessions[at : at + 2]
        if side == other:
            at += 1
            continue
        found.append((second - first if side == "b" else first - second, side))
        at += 2
    return found


def _balanced(pairs: Sequence[tuple[float, str]]) -> list[float]:
    """Return the differences of as many pairs with a first as with b first, in which a trend cancels out."""
    sides = [[difference for difference, first in pairs if first == side] for side in "ab"]
    count = min(map(len, sides))
    return [difference for own in sides for difference in own[:count]]


def _against_neighbours(sessions: Sequence[tuple[str, float]]) -> list[float]:
    """Return a minus b from three sessions each (b a b, or a b a), the middle one against the mean of its neighbours.

    A trend affects both equally. No session is used twice, so the differences are independent.
    """
    turns = _turns(sessions)
    found = []
    for (_side, first), (side, middle), (_last, last) in zip(turns[::3], turns[1::3], turns[2::3]):
        difference = middle - (first + last) / 2
        found.append(difference if side == "a" else -difference)
    return found


def _deviation(differences: Sequence[float]) -> float | None:
    return statistics.stdev(differences) if len(differences) > 1 else None
