# SPDX-License-Identifier: Apache-2.0
"""Find the runs in which the client, and not the server, was the limit. Pure.

vLLM's client is a single asyncio process: small models, short answers and high rates can overload it.
"""

from __future__ import annotations

from .requests import LoadPoint, Requests

CPU_SHARE = 0.8
"""CPU time of the client's process over the length of the run."""
LAG_MS = 5.0
"""Median delay of a send."""


def send_lag_ms(requests: Requests, load: LoadPoint) -> float | None:
    """Return the median delay with which requests were sent, in milliseconds; None if it cannot be known.

    At a fixed concurrency, each answer makes room for the next request at once: the delay is the time from the n-th
    answer to the n-th request that waited. At a rate, the client does not record when it wanted to send. Its times of
    arrival are scaled so that the last falls at requests/rate; a last request after that was late by at least the
    difference, and one in the middle by half of it.
    """
    import numpy as np

    starts, ends = requests.starts, requests.ends
    if starts is None or ends is None or requests.failed or len(starts) < 2 or not load.value:
        return None
    if load.kind == "concurrency":
        waited = starts[int(load.value) :]
        if not len(waited):
            return None
        return float(np.median(waited - np.sort(ends)[: len(waited)])) * 1000
    if load.kind == "rate":
        late = float(starts[-1]) - len(starts) / load.value
        return late / 2 * 1000 if late > 0 else None
    return None


def client_bound(cpu_share: float | None, lag_ms: float | None) -> bool | None:
    """Return whether the client was the limit; None if that is not known."""
    if cpu_share is None and lag_ms is None:
        return None
    return (cpu_share or 0.0) > CPU_SHARE or (lag_ms or 0.0) > LAG_MS
