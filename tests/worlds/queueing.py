# SPDX-License-Identifier: Apache-2.0
"""Simulate an engine with a limit: requests beyond its slots wait. As `vllm bench serve --save-detailed` writes it.

Each request takes the same time in a slot, so that the limit is known: slots / seconds of a request.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Queue:
    """An engine of `slots` places; seconds to the first token in one, and for each of its further tokens."""

    slots: int = 32
    ttft: float = 0.3
    tpot: float = 0.3
    tokens: int = 16

    @property
    def seconds(self) -> float:
        """Return how long a request is in a slot."""
        return self.ttft + self.tpot * (self.tokens - 1)

    @property
    def capacity(self) -> float:
        """Return the requests/s that it can answer."""
        return self.slots / self.seconds

    def at_rate(self, rate: float, requests: int, seed: int) -> dict[str, Any]:
        """Return the result of a run in which they arrive by a Poisson process."""
        dice, arrivals, at = random.Random(seed), [], 0.0
        for _ in range(requests):
            arrivals.append(at)
            at += dice.expovariate(rate)
        scale = (requests / rate) / arrivals[-1]  # as vLLM's client does
        return self._result([item * scale for item in arrivals], {"request_rate": rate})

    def at_once(self, concurrency: int, requests: int) -> dict[str, Any]:
        """Return the result of a run that keeps so many requests in flight."""
        ends: list[float] = []
        free = [0.0] * self.slots
        arrivals = []
        for _ in range(requests):
            arrival = 0.0 if len(ends) < concurrency else heapq.heappop(ends)
            arrivals.append(arrival)
            heapq.heappush(ends, self._end(free, arrival))
        return self._result(arrivals, {"max_concurrency": concurrency})

    def _end(self, free: list[float], arrival: float) -> float:
        begin = max(arrival, heapq.heappop(free))
        heapq.heappush(free, begin + self.seconds)
        return begin + self.seconds

    def _result(self, arrivals: list[float], load: dict[str, Any]) -> dict[str, Any]:
        free = [0.0] * self.slots
        ttfts, last = [], 0.0
        for arrival in arrivals:
            end = self._end(free, arrival)
            ttfts.append(end - self.seconds + self.ttft - arrival)
            last = max(last, end)
        count = len(arrivals)
        return {
            "num_prompts": count,
            "request_rate": "inf",
            "max_concurrency": None,
            **load,
            "duration": last,
            "completed": count,
            "failed": 0,
            "total_input_tokens": 16 * count,
            "total_output_tokens": self.tokens * count,
            "request_throughput": count / last,
            "output_throughput": self.tokens * count / last,
            "mean_ttft_ms": 1000 * sum(ttfts) / count,
            "start_times": arrivals,
            "ttfts": ttfts,
            "output_lens": [self.tokens] * count,
            "latencies": [item + self.tpot * (self.tokens - 1) for item in ttfts],
            "errors": [""] * count,
        }
