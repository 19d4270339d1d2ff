# SPDX-License-Identifier: Apache-2.0
"""Find the part of a run in which the load was steady, and the throughput in it. Pure.

The client's own throughput covers the whole run, until the last answer, with fewer and fewer requests in flight. It is
what others publish. The steady throughput is for comparing one's own runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .requests import LoadPoint, Requests

if TYPE_CHECKING:
    from numpy.typing import NDArray

REACHED = 0.95
"""Share of its limit that the concurrency must have reached."""
RATE_LEAST, RATE_ANSWERS = 30.0, 3.0
"""A run at a rate is not steady before these seconds, nor before that many times the p95 of E2EL."""
LEAST_SHARE = 0.5
"""Below this share of the run, a warning says that the window is small."""
BATCHES = 20
"""Parts of the window for the trend: each is longer than neighbouring seconds resemble each other."""
SIGNIFICANT = 2.878
"""Slopes of fewer standard errors are due to chance: Student's t for BATCHES - 2 degrees of freedom at 1 %, two-sided.

Source: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, column 0.995.
"""
LEAST_TREND = 0.01
"""Smaller relative changes over the window do not matter, however significant."""


@dataclass(frozen=True)
class SteadyState:
    """The window in seconds since the first request, output tokens/s in it, and its share of the run (0-1).

    All are None if there is no window; then `warnings` says why. Warnings contain no figures of the run, so that equal
    warnings of several runs are shown once.
    """

    start: float | None = None
    end: float | None = None
    throughput: float | None = None
    share: float | None = None
    warnings: tuple[str, ...] = ()


def steady_state(requests: Requests, load: LoadPoint) -> SteadyState:
    """Return the steady window of a run: from when the load was reached, and speed had settled, to the last send.

    Requests that are all sent at once have none: nothing follows that could keep the load up.
    """
    import numpy as np

    if load.kind == "all":
        return SteadyState()

    starts, ends = requests.starts, requests.ends
    if starts is None or ends is None:
        return SteadyState(warnings=("vLLM records when requests were sent from 0.15.0 on",))
    if len(starts) < 2:
        return SteadyState(warnings=("fewer than two requests succeeded",))
    reached = _reached(starts, ends, load)
    last = float(starts[-1])
    if reached is None or reached >= last:
        return SteadyState(warnings=(_never(load),))
    settled = _settled(requests, reached, last)
    # From one send to another: where requests are sent in waves, the window then has whole waves.
    start = float(starts[np.searchsorted(starts, settled - 1e-9)])
    if start >= last:
        return SteadyState(warnings=("the speed had not settled when the last request was sent",))
    before, after = requests.produced(np.array([start, last]))
    throughput = float((after - before) / (last - start))
    duration = max(requests.duration, float(ends.max()))
    share = (last - start) / duration
    warnings = []
    if share < LEAST_SHARE:
        warnings.append(f"less than {LEAST_SHARE:.0%} of the run was steady: use more requests")
    change = _trend(requests, start, last)
    if change is not None:
        direction = "rose" if change > 0 else "fell"
        warnings.append(f"not yet steady: the throughput {direction} over the steady window")
    return SteadyState(start, last, throughput, share, tuple(warnings))


def _reached(starts: NDArray[Any], ends: NDArray[Any], load: LoadPoint) -> float | None:
    """Return when the load was reached, in seconds; None if it never was."""
    import numpy as np

    if load.kind == "rate":
        return max(RATE_LEAST, RATE_ANSWERS * float(np.percentile(ends - starts, 95)))
    times = np.concatenate((starts, ends))
    steps = np.concatenate((np.ones(len(starts)), -np.ones(len(ends))))
    order = np.lexsort((steps, times))  # at the same time, an answer makes room first
    inflight = np.cumsum(steps[order])
    limit = load.value or float(inflight.max())
    full = np.flatnonzero(inflight >= REACHED * limit)
    return float(times[order][full[0]]) if len(full) else None


def _never(load: LoadPoint) -> str:
    if load.kind == "rate":
        return f"the run was too short: the first {RATE_LEAST:.0f} s, or three times the p95 of E2EL, do not count"
    return "the run never reached its load while requests were still being sent: use more requests"


def _settled(requests: Requests, start: float, last: float) -> float:
    """Return when the speed had settled: where the mean of the rest is known best.

    This is the marginal standard error rule for the initial transient of a simulation (MSER; K. P. White, An effective
    truncation heuristic for bias reduction in simulation output, Simulation 69(6), 1997), over seconds. As there, at
    most half of the window is cut off.
    """
    import numpy as np

    count = int(last - start)
    if count < 10:
        return start
    seconds = start + np.arange(count + 1)
    speed = np.diff(requests.produced(seconds))
    # For each cut: the variance of what is left, over its length.
    rest = np.arange(count, 0, -1)
    mean = np.cumsum(speed[::-1])[::-1] / rest
    square = np.cumsum((speed**2)[::-1])[::-1] / rest
    error = np.maximum(square - mean**2, 0) / rest
    half = count // 2
    return float(seconds[int(np.argmin(error[: half + 1]))])


def _trend(requests: Requests, start: float, last: float) -> float | None:
    """Return by what share the throughput changes linearly over the window, if that is significant; else None."""
    import numpy as np

    speed = np.diff(requests.produced(np.linspace(start, last, BATCHES + 1)))
    mean = float(speed.mean())
    if last - start < BATCHES or not mean:
        return None
    at = np.arange(BATCHES) - (BATCHES - 1) / 2
    slope = float(at @ speed / (at @ at))
    change = slope * BATCHES / mean
    left = speed - mean - slope * at
    error = float(np.sqrt(left @ left / (BATCHES - 2) / (at @ at)))
    if abs(change) < LEAST_TREND or abs(slope) < SIGNIFICANT * error:
        return None
    return change
