# SPDX-License-Identifier: Apache-2.0
"""Which percentiles a number of samples can support. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

CONFIDENCE = 0.99
"""Of the early stopping criterion of the MLPerf inference rules (mlcommons/inference_policies)."""

_PERCENTILE = re.compile(r"p([0-9]+(?:\.[0-9]+)?)_(?:ttft|tpot|itl|e2el|(batch_latency))_ms")


def needed(percentile: float) -> int:
    """Return the samples of which not one being later shows a percentile: 44 for p90, 90 for p95, 459 for p99."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(percentile / 100))


def supported(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics (METRICS) with None for percentiles above the median that have too few requests, or batches."""
    return {key: None if _lacking(key, metrics) else value for key, value in metrics.items()}


def lacking(row: Mapping[str, Any]) -> list[str]:
    """Return the percentiles that a row has too few requests for: ["p99"]."""
    if row["kind"] != "serve" or row["completed"] is None:
        return []
    return [f"p{percentile}" for percentile in (90, 95, 99) if row["completed"] < needed(percentile)]


def _lacking(key: str, metrics: Mapping[str, Any]) -> bool:
    match = _PERCENTILE.fullmatch(key)
    if not match or not 50 < float(match.group(1)) < 100:
        return False
    samples = metrics["iterations" if match.group(2) else "completed"]
    return samples is None or samples < needed(float(match.group(1)))
