# SPDX-License-Identifier: Apache-2.0
"""How many requests a percentile needs.

MLPerf inference rules, early stopping: with 99 % confidence, the share p of requests kept a limit if n of n requests
did and p to the power of n is at most 1 %. That is 44 requests for p90, 90 for p95, 459 for p99.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

CONFIDENCE = 0.99


def needed_requests(percentile: float) -> int:
    """Return the number of requests below which a percentile (0 to 100, both excluded) says nothing."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(percentile / 100))


def supported(percentiles: Iterable[float], requests: int) -> tuple[float, ...]:
    """Return those of the percentiles for which this many requests are enough."""
    return tuple(item for item in percentiles if requests >= needed_requests(item))


def shortfall(percentiles: Iterable[float], requests: int) -> str:
    """Return which percentiles have too few requests, with the number that each needs; empty if none has."""
    missing = [item for item in percentiles if requests < needed_requests(item)]
    needs = ", ".join(f"p{item:g} needs {needed_requests(item)}" for item in missing)
    return f"{requests} requests are too few: {needs}" if missing else ""
