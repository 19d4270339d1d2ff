# SPDX-License-Identifier: Apache-2.0
"""Simulate the requests of a benchmark in virtual time, as `vllm bench serve --save-detailed` writes them.

The server works at a speed that depends on the time only: half while it is cold, none while it stalls. Its truth, the
throughput with all requests in flight at full speed, is thus known exactly.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

HORIZON = 100_000.0


@dataclass(frozen=True)
class Server:
    """Seconds to the first token and for each further one, at full speed; jitter: relative, of each request's speed.

    cold: seconds at half speed. stall: seconds without any progress, every `stall_every` seconds.
    """

    ttft: float = 0.3
    tpot: float = 0.02
    jitter: float = 0.05
    cold: float = 0.0
    stall: float = 0.0
    stall_every: float = 30.0

    def clock(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return times, and the work done until then, between which both grow linearly."""
        times, work = [0.0], [0.0]

        def go_on(until: float, speed: float) -> None:
            times.append(until)
            work.append(work[-1] + (until - times[-2]) * speed)

        if self.cold:
            go_on(self.cold, 0.5)
        while self.stall and times[-1] < HORIZON / 10:
            go_on(times[-1] + self.stall_every - self.stall, 1.0)
            go_on(times[-1] + self.stall, 1e-9)
        go_on(HORIZON, 1.0)
        return np.array(times), np.array(work)

    def truth(self, concurrency: int, tokens: int) -> float:
        """Return the output tokens/s at a fixed concurrency and full speed."""
        return concurrency * tokens / (self.ttft + (tokens - 1) * self.tpot)


@dataclass(frozen=True)
class Client:
    """How requests are sent: at a concurrency, or else at a rate (requests/s).

    lag: seconds that each send is late at a concurrency. spacing: seconds that the client needs between two sends.
    chunk_cost: seconds of CPU time that it needs for each piece of an answer.
    """

    requests: int
    concurrency: int = 0
    rate: float = 0.0
    lag: float = 0.0
    spacing: float = 0.0
    chunk_cost: float = 20e-6


def simulate(server: Server, client: Client, tokens: int = 200, seed: int = 1) -> dict[str, Any]:
    """Return the detailed result of a run, in the form of vLLM 0.15.0 and later."""
    rng = np.random.default_rng(seed)
    times, work = server.clock()
    slow = np.exp(server.jitter * rng.standard_normal(client.requests))
    arrivals = _arrivals(client, rng)
    free = [0.0] * client.concurrency
    starts, firsts, gaps = [], [], []
    for number in range(client.requests):
        start = heapq.heappop(free) if client.concurrency else float(arrivals[number])
        start += client.lag if number >= client.concurrency else 0.0
        start = max(start, starts[-1] + client.spacing) if starts else start
        done = np.interp(start, times, work) + slow[number] * (server.ttft + server.tpot * np.arange(tokens))
        seen = np.interp(done, work, times)
        starts.append(start)
        firsts.append(float(seen[0]) - start)
        gaps.append(np.diff(seen).tolist())
        if client.concurrency:
            heapq.heappush(free, float(seen[-1]))
    return _result(client, tokens, starts, firsts, gaps)


def cpu_share(client: Client, result: dict[str, Any]) -> float:
    """Return the share of the run for which the client's process was on a CPU."""
    pieces = sum(len(gaps) + 1 for gaps in result["itls"])
    return float(min(1.0, pieces * client.chunk_cost / result["duration"]))


def _arrivals(client: Client, rng: np.random.Generator) -> NDArray[Any]:
    """Return Poisson arrivals as vLLM's client makes them: the last one falls at requests/rate."""
    if not client.rate:
        return np.zeros(client.requests)
    waits = np.cumsum(rng.exponential(1 / client.rate, client.requests))
    return waits * (client.requests / client.rate / waits[-1])


def _result(
    client: Client, tokens: int, starts: list[float], firsts: list[float], gaps: list[list[float]]
) -> dict[str, Any]:
    e2els = np.array(firsts) + np.array([sum(item) for item in gaps])
    duration = float((np.array(starts) + e2els).max())
    result: dict[str, Any] = {
        "num_prompts": client.requests,
        "completed": client.requests,
        "failed": 0,
        "request_rate": client.rate or "inf",
        "max_concurrency": client.concurrency or None,
        "duration": duration,
        "total_output_tokens": tokens * client.requests,
        "output_throughput": tokens * client.requests / duration,
        "output_lens": [tokens] * client.requests,
        "ttfts": firsts,
        "itls": gaps,
        "errors": [""] * client.requests,
        "start_times": [1000.0 + start for start in starts],
    }
    for name, values in (("ttft", np.array(firsts)), ("e2el", e2els)):
        for percentile in (50, 90, 95, 99):
            result[f"p{percentile}_{name}_ms"] = float(np.percentile(values, percentile)) * 1000
    return result
