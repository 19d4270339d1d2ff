# SPDX-License-Identifier: Apache-2.0
"""How far one small sample lies beside another: Hodges and Lehmann's shift with its exact interval. Pure.

Nothing is assumed of the noise, and one wild run among five moves the estimate little: both come from the
order of all differences between a new run and an old one. For the interval see Hollander, Wolfe, Chicken,
Nonparametric Statistical Methods, 3rd ed., 4.2 and 4.3.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

LEVEL = 0.95
"""How often an interval holds the true shift."""
FEWEST = 4
"""Runs on either side; with three no order of the runs is rare enough for an interval of this level."""


@dataclass(frozen=True)
class Shift:
    """New against old, in the unit of the samples; low and high are infinite when there are too few runs."""

    estimate: float
    low: float
    high: float


def shift(old: Sequence[float], new: Sequence[float]) -> Shift:
    """The shift from `old` to `new`. ValueError when one of them is empty."""
    if not old or not new:
        raise ValueError("a shift needs runs on both sides")
    differences = sorted(after - before for after in new for before in old)
    estimate = statistics.median(differences)
    rank = _rank(len(old), len(new))
    if not rank:
        return Shift(estimate, -math.inf, math.inf)
    return Shift(estimate, differences[rank - 1], differences[-rank])


@cache
def _rank(old: int, new: int) -> int:
    """The interval goes from the difference of this rank to the one as far from the end; 0: there is none.

    It is the largest rank with P(U < rank) at most half of what the level leaves, U being Mann and Whitney's
    statistic of equal samples.
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
    """In how many orders of the two samples U is 0, 1, 2 …"""
    if not old or not new:
        return (1,)
    # The largest value is an old one, or it is a new one, which lies above all old ones.
    found = [0] * (old * new + 1)
    for value, count in enumerate(_arrangements(old - 1, new)):
        found[value] += count
    for value, count in enumerate(_arrangements(old, new - 1)):
        found[value + old] += count
    return tuple(found)
