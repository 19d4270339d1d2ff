# SPDX-License-Identifier: Apache-2.0
"""Judge the repeats of one cell: their spread, the interval of the median run, and how many more are needed. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
LEAST_RUNS = 3
"""Fewer runs have no interval."""
MOST_RUNS = 10
WIDTH = 0.02
"""The interval of the median is narrow enough when no end is farther from it than this share."""


@dataclass(frozen=True)
class RunSpread:
    """The runs of a cell: cv (standard deviation over mean) is None below 2 runs, the interval below LEAST_RUNS."""

    runs: int
    median: float
    cv: float | None
    low: float | None
    high: float | None

    @property
    def interval(self) -> list[float] | None:
        """Return [low, high] as it stands in summary.json."""
        return None if self.low is None or self.high is None else [self.low, self.high]

    @property
    def width(self) -> float | None:
        """Return the larger distance of an end from the median, as a share of it."""
        if self.low is None or self.high is None or not self.median:
            return None
        return max(self.high - self.median, self.median - self.low) / self.median


def repeats(values: Sequence[float]) -> RunSpread:
    """Summarize the runs of a cell by one metric. Raise ValueError if there is none, or one is not above 0.

    The interval is Student's on logarithms: it needs no more than three runs, and its ends are those of the median if
    the logarithms are distributed symmetrically. Order statistics alone give a 95 % interval only from six runs on.
    """
    if not values or min(values) <= 0:
        raise ValueError("repeats need at least one run, and values above 0")
    count, median = len(values), statistics.median(values)
    cv = statistics.stdev(values) / statistics.fmean(values) if count > 1 else None
    if count < LEAST_RUNS:
        return RunSpread(count, median, cv, None, None)
    logs = [math.log(value) for value in values]
    half = _student(count) * statistics.stdev(logs) / math.sqrt(count)
    centre = statistics.fmean(logs)
    return RunSpread(count, median, cv, math.exp(centre - half), math.exp(centre + half))


def more_runs(values: Sequence[float], width: float = WIDTH, most: int = MOST_RUNS) -> int:
    """Return how many further runs to make now; 0 if the interval is narrow enough, or `most` runs were made."""
    found = repeats(values)
    if found.runs < LEAST_RUNS:
        return min(LEAST_RUNS, most) - found.runs
    if found.runs >= most or (found.width is not None and found.width <= width):
        return 0
    spread = statistics.stdev([math.log(value) for value in values])
    needed = next(
        (n for n in range(found.runs + 1, most) if _student(n) * spread / math.sqrt(n) <= width), most
    )
    return needed - found.runs


def _student(count: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.5 + LEVEL / 2))
