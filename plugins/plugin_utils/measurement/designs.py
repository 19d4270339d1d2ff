# SPDX-License-Identifier: Apache-2.0
"""See from the times of two sides' runs how they were interleaved, which decides what their difference proves. Pure.

Speed drifts between sessions by more than it varies within one. If b was measured once, and a later, that drift is part
of what is seen. It is not if a and b took turns on an instance, or if half of the instances had a first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .shift import LEVEL, Estimate, paired_shift, pairs_needed, stratified_shift

DRIFT = 0.02
"""Standard deviation of an instance's speed between sessions, as a share, if no other is given (a judgement)."""
INTERLEAVED, CROSSED, BEFORE_AFTER = "interleaved", "crossed over", "before and after"


@dataclass(frozen=True)
class TimedValue:
    """The logarithm of one run's metric on an instance; side: a or b. started: ISO 8601, "" if unknown."""

    unit: tuple[str, str]
    side: str
    started: str
    log: float


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
    pairs = {unit: _pairs(own) for unit, own in both.items()}
    if min(len(found) for found in pairs.values()) >= 2:
        found = [difference for own in pairs.values() for difference, _first in own]
        return Effect(INTERLEAVED, paired_shift(found, level), _deviation(found), 0.0, len(found), len(both))
    single = [own[0] for own in pairs.values() if own]
    a_first = [difference for difference, first in single if first == "a"]
    b_first = [difference for difference, first in single if first == "b"]
    if a_first and b_first and abs(len(a_first) - len(b_first)) <= 1:
        # What time adds to a where it came second it adds to b where that did: it is the same in both samples.
        twice = stratified_shift([([-difference for difference in a_first], b_first)], level)
        half = Estimate(twice.estimate / 2, twice.low / 2, twice.high / 2)
        return Effect(CROSSED, half, _deviation([*a_first, *b_first]), 0.0, len(single), len(both))
    return _before_after(list(both.values()), drift, level)


def units_needed(design: str, level: float) -> int:
    """Return the least number of pairs, or of runs a side, whose interval is finite at a level."""
    if design == INTERLEAVED:
        return pairs_needed(level)
    least = next(n for n in range(2, 100) if 2 / math.comb(2 * n, n) <= 1 - level)
    return 2 * least if design == CROSSED else least


def _before_after(units: Sequence[Sequence[TimedValue]], drift: float, level: float) -> Effect:
    """Compare the runs of each instance with its own. Drift is taken for common to all: more instances do not help."""
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


def _pairs(own: Sequence[TimedValue]) -> list[tuple[float, str]]:
    """Return the differences (a minus b) of an instance's successive sessions, and which side came first in each.

    A session is what one side measured without the other in between. Without all times there are no pairs.
    """
    if not all(item.started for item in own):
        return []
    sessions: list[tuple[str, list[float]]] = []
    for item in sorted(own, key=lambda item: item.started):
        if not sessions or sessions[-1][0] != item.side:
            sessions.append((item.side, []))
        sessions[-1][1].append(item.log)
    medians = [(side, statistics.median(logs)) for side, logs in sessions]
    found = []
    for (side, first), (_other, second) in zip(medians[::2], medians[1::2]):
        found.append((second - first if side == "b" else first - second, side))
    return found


def _deviation(differences: Sequence[float]) -> float | None:
    return statistics.stdev(differences) if len(differences) > 1 else None
