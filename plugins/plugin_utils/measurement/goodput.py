# SPDX-License-Identifier: Apache-2.0
"""Count the requests of a run that kept an SLO, after the run and for any SLO. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .requests import Requests

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
    import numpy as np

    kept = np.ones(len(requests.ttft), bool)
    for name in LIMITS:
        limit = getattr(slo, name)
        if limit is not None:
            kept &= getattr(requests, name) * 1000 <= limit
    return float(kept.sum() / requests.duration) if requests.duration > 0 else None
