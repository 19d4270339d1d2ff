# SPDX-License-Identifier: Apache-2.0
"""How well few runs of a benchmark agree: coefficient of variation, and the interval of their median."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# Student's t for a two-sided interval of 95 %, by degrees of freedom from 1 on.
# Source: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, column 0.975.
_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
MIN_RUNS = 3
"""Fewer runs have no interval: with two of them it would be 12.7 standard errors wide."""


def variation(values: Sequence[float]) -> float | None:
    """Return the coefficient of variation (0.01: 1 %); None below two values, or around zero."""
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    return statistics.stdev(values) / abs(mean) if mean else None


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return (low, high), the 95 % interval of the median of the runs; None below MIN_RUNS.

    It is Student's interval around the mean. An interval from the order of so few values does not exist (n >= 6 for
    95 %), and a benchmark's runs spread symmetrically enough for mean and median to be the same parameter.
    """
    if len(values) < MIN_RUNS:
        return None
    mean = statistics.fmean(values)
    reach = _T_95[min(len(values) - 1, len(_T_95)) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return mean - reach, mean + reach


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of that interval relative to its middle (0.02: ±2 %); None where there is none."""
    found = median_interval(values)
    middle = found and abs(found[0] + found[1]) / 2
    return (found[1] - found[0]) / 2 / middle if found and middle else None
