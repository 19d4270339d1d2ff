# SPDX-License-Identifier: Apache-2.0
"""Estimate how far a small sample is shifted from another: Hodges and Lehmann's shift with its exact interval. Pure.

The method assumes nothing about the noise, and one outlier among five runs has little effect: estimate and interval
come from the order of all differences between a new run and an old one. For the interval see Hollander, Wolfe, Chicken,
Nonparametric Statistical Methods, 3rd ed., 4.2 and 4.3.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

LEVEL = 0.95
"""Probability that an interval contains the true shift."""
MIN_RUNS = 4
"""Minimum of runs on each side: with three, no order of the runs is rare enough for an interval of this level."""


@dataclass(frozen=True)
class Estimate:
    """New against old, in the unit of the samples; low and high are infinite if there are too few runs."""

    estimate: float
    low: float
    high: float


def shift(old: Sequence[float], new: Sequence[float]) -> Estimate:
    """Return the shift from `old` to `new`. Raise ValueError if one of them is empty."""
    if not old or not new:
        raise ValueError("a shift needs runs on both sides")
    differences = sorted(after - before for after in new for before in old)
    estimate = statistics.median(differences)
    rank = _rank(len(old), len(new))
    if not rank:
        return Estimate(estimate, -math.inf, math.inf)
    return Estimate(estimate, differences[rank - 1], differences[-rank])


@cache
def _rank(old: int, new: int) -> int:
    """Return the rank of the difference at the interval's lower end; 0 if there is no interval.

    The upper end has the same rank from above. It is the largest rank with P(U < rank) at most half of 1 - level, where
    U is Mann and Whitney's statistic of equal samples.
    """
    counts = _arrangements(old, new)
    total, below, rank = sum(counts), 0, 0
    for count in counts:
        below += count
        if below / total > (1 - LEVEL) / 2:
            break
        rank += 1
    return rank


@cache
def _arrangements(old: int, new: int) -> tuple[int, ...]:
    """Return the number of orders of the two samples for which U is 0, 1, 2 …"""
    if not old or not new:
        return (1,)
    # The largest value is either an old one, or a new one, which exceeds all old ones.
    found = [0] * (old * new + 1)
    for value, count in enumerate(_arrangements(old - 1, new)):
        found[value] += count
    for value, count in enumerate(_arrangements(old, new - 1)):
        found[value + old] += count
    return tuple(found)
