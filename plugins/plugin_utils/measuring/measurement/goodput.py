# SPDX-License-Identifier: Apache-2.0
"""Count the requests of a run that kept an SLO, after the run and for any SLO. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .requests import Requests

if TYPE_CHECKING:
    from numpy.typing import NDArray

LIMITS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class LatencyLimits:
    """Limits in milliseconds; None for what is not limited."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None


def goodput(requests: Requests, slo: LatencyLimits) -> float | None:
    """Return the requests/s that kept an SLO, over the whole run; None for a run without a duration.

    An answer of one token or none has no time per output token, so it does not show whether it keeps a TPOT limit, and
    does not count. (vLLM's own client counts such answers as good.)
    """
    return attainment(requests, slo)[0] / requests.duration if requests.duration > 0 else None


def attainment(requests: Requests, slo: LatencyLimits) -> tuple[int, int]:
    """Return how many requests kept an SLO, and how many missed it; those that show neither are not counted."""
    kept, missed = kept_and_missed(requests, slo)
    return int(kept.sum()), int(missed.sum())


def kept_and_missed(requests: Requests, slo: LatencyLimits) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return for each request whether it kept an SLO, and whether it missed it."""
    import numpy as np

    kept, missed = np.ones(len(requests.ttft), bool), np.zeros(len(requests.ttft), bool)
    for name in LIMITS:
        limit = getattr(slo, name)
        if limit is not None:
            values = getattr(requests, name) * 1000  # NaN is neither
            kept &= values <= limit
            missed |= values > limit
    return kept, missed


def attained_share(requests: Requests, slo: LatencyLimits) -> float | None:
    """Return the share of requests that kept an SLO, among those that show it or failed; None if there are none."""
    kept, missed = attainment(requests, slo)
    decided = kept + missed + requests.failed
    return kept / decided if decided else None
