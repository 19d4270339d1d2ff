# SPDX-License-Identifier: Apache-2.0
"""The numbers of `vllm bench serve` 0.32: result keys in its order, and its table on stdout."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_NAMES = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}


@dataclass
class Output:
    """The outcome of one request. Times in seconds."""

    prompt_len: int
    start: float = 0.0
    queued: float = 0.0
    ttft: float = 0.0
    latency: float = 0.0
    itl: list[float] = field(default_factory=list)
    tokens: int = 0
    text: str = ""
    error: str = ""

    @property
    def success(self) -> bool:
        return not self.error

    @property
    def tpot(self) -> float:
        """Return the mean time per token after the first; 0 without such tokens."""
        return (self.latency - self.ttft) / (self.tokens - 1) if self.tokens > 1 else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated linearly between the nearest ranks like numpy's; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _peaks(outputs: list[Output]) -> tuple[float, int]:
    """Return the most tokens and the most requests in any second of the run."""
    if not outputs:
        return 0.0, 0
    begin = min(output.start for output in outputs)
    tokens: dict[int, int] = {}
    active: dict[int, int] = {}
    for output in outputs:
        at = output.start + output.ttft
        for gap in [0.0, *output.itl]:
            at += gap
            tokens[int(at - begin)] = tokens.get(int(at - begin), 0) + 1
        for second in range(int(output.start - begin), int(output.start + output.latency - begin) + 1):
            active[second] = active.get(second, 0) + 1
    return float(max(tokens.values())), max(active.values())


def _goodput(outputs: list[Output], limits: Sequence[str], duration: float) -> float | None:
    if not limits:
        return None
    wanted = {name: float(value) / 1000 for name, _, value in (limit.partition(":") for limit in limits)}
    met = 0
    for output in outputs:
        values = {"ttft": output.ttft, "tpot": output.tpot, "e2el": output.latency}
        met += all(values[name] <= limit for name, limit in wanted.items())
    return met / duration


def summarize(args: argparse.Namespace, outputs: list[Output], duration: float) -> dict[str, Any]:
    """Return the result's keys from `duration` on, in vLLM's order, and print the table to stdout."""
    good = [output for output in outputs if output.success]
    tokens = sum(output.tokens for output in good)
    prompts = sum(output.prompt_len for output in good)
    peak_tokens, peak_requests = _peaks(good)
    values = {
        "ttft": [output.ttft for output in good],
        "tpot": [output.tpot for output in good if output.tokens > 1],
        "itl": [gap for output in good for gap in output.itl],
        "e2el": [output.latency for output in good],
    }
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(outputs) - len(good),
        "total_input_tokens": prompts,
        "total_output_tokens": tokens,
        "request_throughput": len(good) / duration,
        "request_goodput": _goodput(good, args.goodput, duration),
        "output_throughput": tokens / duration,
        "total_token_throughput": (prompts + tokens) / duration,
        "input_lens": [output.prompt_len for output in outputs],
        "output_lens": [output.tokens if output.success else 0 for output in outputs],
        "ttfts": [output.ttft for output in outputs],
        "itls": [output.itl for output in outputs],
        "latencies": [output.latency for output in outputs],
        "start_times": [output.start for output in outputs],
        "queue_times": [output.queued for output in outputs],
        "generated_texts": [output.text for output in outputs],
        "errors": [output.error for output in outputs],
        "max_output_tokens_per_s": peak_tokens,
        "max_concurrent_requests": peak_requests,
        "rtfx": 0.0,
    }
    print(" Serving Benchmark Result ".center(50, "="))
    _row("Successful requests:", len(good))
    _row("Failed requests:", result["failed"])
    if args.max_concurrency is not None:
        _row("Maximum request concurrency:", args.max_concurrency)
    if not math.isinf(args.request_rate):
        _row("Request rate configured (RPS):", args.request_rate)
    _row("Benchmark duration (s):", duration)
    _row("Total input tokens:", prompts)
    _row("Total generated tokens:", tokens)
    _row("Request throughput (req/s):", result["request_throughput"])
    if args.goodput:
        _row("Request goodput (req/s):", result["request_goodput"])
    _row("Output token throughput (tok/s):", result["output_throughput"])
    _row("Peak output token throughput (tok/s):", peak_tokens)
    _row("Peak concurrent requests:", float(peak_requests))
    _row("Total token throughput (tok/s):", result["total_token_throughput"])
    for metric, (short, long) in _NAMES.items():
        if metric in args.percentile_metrics.split(","):
            print(long.center(50, "-"))
            result.update(_statistics(metric, short, values[metric], args.metric_percentiles))
    print("=" * 50)
    return result


def _row(label: str, value: float) -> None:
    print(f"{label:<40} {value:<10.2f}" if isinstance(value, float) else f"{label:<40} {value:<10}")


def _statistics(metric: str, short: str, values: list[float], percentiles: str) -> dict[str, float]:
    mean = math.fsum(values) / len(values) if values else 0.0
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values)) if values else 0.0
    out = {f"mean_{metric}_ms": 1000 * mean, f"median_{metric}_ms": 1000 * percentile(values, 50)}
    _row(f"Mean {short} (ms):", out[f"mean_{metric}_ms"])
    _row(f"Median {short} (ms):", out[f"median_{metric}_ms"])
    out[f"std_{metric}_ms"] = 1000 * deviation
    for percent in (float(text) for text in percentiles.split(",")):
        word = f"{percent:g}"
        out[f"p{word}_{metric}_ms"] = 1000 * percentile(values, percent)
        _row(f"P{word} {short} (ms):", out[f"p{word}_{metric}_ms"])
    return out
