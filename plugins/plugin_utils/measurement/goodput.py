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


@dataclass(frozen=True)
class Goodput:
    """Requests that kept an SLO, missed it (failed ones too), or could not show whether they keep it.

    rate: requests/s that kept it, over the whole run; None for a run without a duration.
    """

    kept: int
    missed: int
    undecided: int
    rate: float | None

    @property
    def attainment(self) -> float | None:
        """Return the share of the decided requests that kept the SLO (0-1); None if none was decided."""
        decided = self.kept + self.missed
        return self.kept / decided if decided else None


def goodput(requests: Requests, slo: LatencyLimits) -> Goodput:
    """Judge each request by an SLO.

    An answer of one token or none has no time per output token: it misses a TPOT limit no more than it keeps it, unless
    it misses another limit. (vLLM's own client counts such answers as good.)
    """
    import numpy as np

    count = len(requests.ttft)
    missed, unknown = np.zeros(count, bool), np.zeros(count, bool)
    for name in LIMITS:
        limit = getattr(slo, name)
        if limit is not None:
            values = getattr(requests, name) * 1000
            missed |= values > limit
            unknown |= np.isnan(values)
    undecided = unknown & ~missed
    kept = int(count - missed.sum() - undecided.sum())
    rate = kept / requests.duration if requests.duration > 0 else None
    return Goodput(kept, int(missed.sum()) + requests.failed, int(undecided.sum()), rate)
