# SPDX-License-Identifier: Apache-2.0
"""Summarize the repeats of one cell: their spread, and the interval of the median run. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
LEAST_RUNS = 3
"""Fewer runs have no interval."""


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


def _student(count: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.5 + LEVEL / 2))
