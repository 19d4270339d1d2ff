# SPDX-License-Identifier: Apache-2.0
"""Decide which percentiles a number of requests can show. Pure.

MLPerf inference rules, early stopping (mlcommons/inference_policies): with 99 % confidence, the share p of requests
kept a limit if n of n requests did and p to the power of n is at most 1 %. So p90 needs 44 requests, p95 90, p99 459.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

CONFIDENCE = 0.99
_KEY = re.compile(r"p([0-9]+(?:\.[0-9]+)?)_(?:ttft|tpot|itl|e2el|(batch_latency))_ms")


def requests_needed(percentile: float) -> int:
    """Return the number of requests below which a percentile means nothing. Raise ValueError outside (0, 100)."""
    if not 0 < percentile < 100:
        raise ValueError(f"{percentile:g} is not a percentile: it must be above 0 and below 100")
    share = percentile / 100
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(max(share, 1 - share)))


def supported_percentiles(percentiles: Iterable[float], requests: int) -> tuple[float, ...]:
    """Return those of the percentiles for which this many requests are enough."""
    return tuple(item for item in percentiles if requests >= requests_needed(item))


def shortfall(percentiles: Iterable[float], requests: int) -> str:
    """Return which percentiles have too few requests, with the number that each needs; "" if none has too few."""
    missing = [item for item in percentiles if requests < requests_needed(item)]
    needs = ", ".join(f"p{item:g} needs {requests_needed(item)}" for item in missing)
    return f"{requests} requests are too few: {needs}" if missing else ""


def null_unsupported(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a run with None for percentiles above the median of too few requests, or batches."""
    return {key: None if _unsupported(key, metrics) else value for key, value in metrics.items()}


def _unsupported(key: str, metrics: Mapping[str, Any]) -> bool:
    match = _KEY.fullmatch(key)
    # The median of a few requests is as reliable as their mean; only the tails are not.
    if not match or not 50 < float(match[1]) < 100:
        return False
    samples = metrics["iterations" if match[2] else "completed"]
    return samples is None or samples < requests_needed(float(match[1]))
