# SPDX-License-Identifier: Apache-2.0
"""Estimate how far a sample is shifted from another: Hodges and Lehmann's shift with its exact interval. Pure.

The method assumes nothing about the noise, and one outlier among five runs has little effect: estimate and interval
come from the order of all differences between a new run and an old one, or of all averages of two paired differences.
For the intervals see Hollander, Wolfe, Chicken, Nonparametric Statistical Methods, 3rd ed., 3.2, 3.3, 4.2 and 4.3.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

LEVEL = 0.95
"""Probability that an interval contains the true shift."""
MIN_RUNS = 4
"""Minimum number of runs on each side: with three, no order of runs is rare enough for an interval of this level."""


@dataclass(frozen=True)
class Estimate:
    """New against old, in the unit of the samples; low and high are infinite if there are too few runs."""

    estimate: float
    low: float
    high: float


def shift(old: Sequence[float], new: Sequence[float], level: float = LEVEL) -> Estimate:
    """Return the shift from `old` to `new`. Raise ValueError if one of them is empty."""
    return stratified_shift([(old, new)], level)


def stratified_shift(
    strata: Sequence[tuple[Sequence[float], Sequence[float]]], level: float = LEVEL
) -> Estimate:
    """Return the common shift from old to new of several pairs of samples, each of which is only compared with itself.

    Differences between the strata, such as nodes, do not matter. Raise ValueError if a sample is empty.
    """
    if not strata or not all(old and new for old, new in strata):
        raise ValueError("a shift needs runs on both sides")
    differences = sorted(after - before for old, new in strata for after in new for before in old)
    sizes = tuple(sorted((len(old), len(new)) for old, new in strata))
    return _interval(differences, _rank(_orders(sizes), level))


def paired_shift(differences: Sequence[float], level: float = LEVEL) -> Estimate:
    """Return the shift that the differences of pairs, new minus old, have in common. Raise ValueError without any."""
    if not differences:
        raise ValueError("a shift needs pairs")
    averages = sorted(
        (first + second) / 2 for at, first in enumerate(differences) for second in differences[at:]
    )
    return _interval(averages, _rank(_signs(len(differences)), level))


def pairs_needed(level: float = LEVEL) -> int:
    """Return the least number of pairs whose differences have an interval of a level."""
    return math.ceil(math.log2(2 / (1 - level)))


def _interval(ordered: Sequence[float], rank: int) -> Estimate:
    estimate = statistics.median(ordered)
    if not rank:
        return Estimate(estimate, -math.inf, math.inf)
    return Estimate(estimate, ordered[rank - 1], ordered[-rank])


def _rank(shares: Iterable[float], level: float) -> int:
    """Return the rank of the interval's lower end among the ordered values; 0 if there is no interval.

    The upper end has the same rank from above. It is the largest rank with P(U < rank) at most half of 1 - level, where
    U is the statistic of equal samples, whose probabilities `shares` are.
    """
    below, rank = 0.0, 0
    for share in shares:
        below += share
        if below > (1 - level) / 2 * (1 + 1e-9):
            break
        rank += 1
    return rank


@cache
def _orders(sizes: tuple[tuple[int, int], ...]) -> tuple[float, ...]:
    """Return the probabilities that the sum of Mann and Whitney's U over strata of equal samples is 0, 1, 2 …"""
    import numpy as np

    found = np.ones(1)
    for old, new in sizes:
        counts = np.array(_arrangements(old, new), float)
        found = np.convolve(found, counts / counts.sum())
    return tuple(found.tolist())


@cache
def _signs(pairs: int) -> tuple[float, ...]:
    """Return the probabilities that Wilcoxon's sum of signed ranks of equal samples is 0, 1, 2 …"""
    import numpy as np

    found = np.ones(1)
    for rank in range(1, pairs + 1):
        longer = np.zeros(len(found) + rank)
        longer[: len(found)] += found / 2  # the difference of this rank is negative
        longer[rank:] += found / 2
        found = longer
    return tuple(found.tolist())


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
