# SPDX-License-Identifier: Apache-2.0
"""Decide which percentiles a number of requests can show. Pure.

A percentile is shown if, were the true one worse, so few requests beyond it would be improbable (1 %). This is the rule
of early stopping in MLPerf's inference rules: without a late request p90 needs 44 requests, p95 90, p99 459.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

CONFIDENCE = 0.99
_KEY = re.compile(r"^p([0-9]+(?:\.[0-9]+)?)_(?:ttft|tpot|itl|e2el)_ms$")


@cache
def requests_needed(percentile: float) -> int:
    """Return how many requests it takes to show a percentile (0 < percentile < 100)."""
    share = percentile / 100
    if not 0 < share < 1:
        raise ValueError(f"{percentile:g} is no percentile: it must be above 0 and below 100")
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(max(share, 1 - share)))


def without_unfounded(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a serving benchmark; percentiles for which too few requests succeeded are None."""
    done = metrics.get("completed")
    found = dict(metrics)
    for key in metrics:
        match = _KEY.match(key)
        # The median of a few requests is as honest as their mean; only the tails pretend.
        if match and float(match[1]) > 50 and (done is None or done < requests_needed(float(match[1]))):
            found[key] = None
    return found
