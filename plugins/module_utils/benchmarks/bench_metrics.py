# SPDX-License-Identifier: Apache-2.0
"""The output of vLLM's benchmark clients, across versions, as one set of metrics with units in their names.

Rules: a metric that vLLM did not measure is None, never 0; times are milliseconds (_ms) except the length of a run
(_s). Keys and their history: vllm/benchmarks/{serve,latency,throughput}.py, 0.6.3 to 0.33.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Union

from .bench_results import check_result, count, finite, number, request_counts

Scalar = Union[int, float, str, bool, None]
Metrics = dict[str, Scalar]

LATENCIES = ("ttft", "tpot", "itl", "e2el")
STATISTICS = ("mean", "median", "std", "p50", "p90", "p95", "p99")
BATCH_STATISTICS = ("mean", "median", "min", "max", "p10", "p25", "p50", "p75", "p90", "p99")

GENERAL = (
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "completed",
    "failed",
    "duration_s",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
)
"""Counts, and rates per second of requests or tokens. Every row of a summary has these keys."""

LATENCY_KEYS = tuple(f"{stat}_{name}_ms" for name in LATENCIES for stat in STATISTICS)
BATCH_KEYS = ("iterations", *(f"{stat}_batch_latency_ms" for stat in BATCH_STATISTICS))
METRICS = (*GENERAL, *LATENCY_KEYS, *BATCH_KEYS)

_LATENCY_KEY = re.compile(r"^(mean|median|std|p[0-9]+(?:\.[0-9]+)?)_(ttft|tpot|itl|e2el)_ms$")
# "Throughput: 1.20 requests/s, 900.10 total tokens/s, 450.05 output tokens/s" (0.6.4 and later)
_OUTPUT_RATE = re.compile(r"^Throughput: .* ([0-9.]+) output tokens/s", re.MULTILINE)
_INPUT_TOKENS = re.compile(r"^Total num prompt tokens:\s+([0-9]+)", re.MULTILINE)
_OUTPUT_TOKENS = re.compile(r"^Total num output tokens:\s+([0-9]+)", re.MULTILINE)


def normalise(kind: str, raw: object, log: str = "") -> Metrics:
    """Return the metrics of one vLLM result.

    `raw` is the JSON of `vllm bench <kind>`, `log` is its console output (only `throughput` needs it: output tokens are
    not in its JSON). Every key of METRICS is present; further percentiles are kept under their own name. Raise
    ResultError if `raw` is something else.
    """
    raw = check_result(kind, raw)
    metrics: Metrics = dict.fromkeys(METRICS)
    if kind == "serve":
        metrics.update(_serve(raw))
    elif kind == "latency":
        metrics.update(_latency(raw))
    else:
        metrics.update(_throughput(raw, log))
    return metrics


def other_scalars(raw: Mapping[str, Any]) -> Metrics:
    """Return the other scalars of a result: speculative decoding, probes, --metadata, the back end."""
    known = {"completed", "failed", "duration", "request_goodput:", "avg_latency", "elapsed_time"}
    known |= {"num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second", *GENERAL}
    return {
        key: finite(value)
        for key, value in raw.items()
        if key not in known
        and not _LATENCY_KEY.match(key)
        and isinstance(value, (int, float, str, bool))
        and finite(value) is not None
    }


def _serve(raw: Mapping[str, Any]) -> Metrics:
    counts = request_counts("serve", raw)
    duration = number(raw.get("duration"))
    tokens_in, tokens_out = count(raw.get("total_input_tokens")), count(raw.get("total_output_tokens"))
    both = tokens_in + tokens_out if tokens_in is not None and tokens_out is not None else None
    metrics: Metrics = {
        "num_prompts": counts.prompts,
        "request_rate": _rate_limit(raw.get("request_rate")),
        "burstiness": number(raw.get("burstiness")),
        "max_concurrency": count(raw.get("max_concurrency")),
        "completed": counts.completed,
        "failed": counts.failed,
        "duration_s": duration,
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": _given_or(raw.get("request_throughput"), counts.completed, duration),
        # 0.6.4 to 0.9.1 wrote the key with a colon.
        "request_goodput": number(raw.get("request_goodput", raw.get("request_goodput:"))),
        "output_throughput": _given_or(raw.get("output_throughput"), tokens_out, duration),
        "total_token_throughput": _given_or(raw.get("total_token_throughput"), both, duration),
        "max_output_tokens_per_s": number(raw.get("max_output_tokens_per_s")),
        "max_concurrent_requests": count(raw.get("max_concurrent_requests")),
    }
    for name in LATENCIES:
        metrics.update(_statistics(raw, name))
    return metrics


def _statistics(raw: Mapping[str, Any], name: str) -> Metrics:
    """Return the statistics of one latency, None without a sample: vLLM writes zeros then (np.mean(x or 0))."""
    found: Metrics = {}
    for key, value in raw.items():
        match = _LATENCY_KEY.match(key)
        if match and match.group(2) == name:
            found[key] = number(value)
    if not any(found.values()):
        return dict.fromkeys(found)
    return _median_is_p50(found, f"{name}_ms")


def _latency(raw: Mapping[str, Any]) -> Metrics:
    """Return the latencies of one batch that was timed repeatedly, in ms; vLLM writes seconds."""
    times = [time for time in (number(item) for item in _list(raw.get("latencies"))) if time is not None]
    percentiles = raw.get("percentiles")
    found: Metrics = {"mean_batch_latency_ms": _ms(raw["avg_latency"])}
    if isinstance(percentiles, Mapping):
        found.update({f"p{key}_batch_latency_ms": _ms(value) for key, value in percentiles.items()})
    if times:
        found["min_batch_latency_ms"], found["max_batch_latency_ms"] = _ms(min(times)), _ms(max(times))
        found["iterations"] = len(times)
    return _median_is_p50(found, "batch_latency_ms")


def _throughput(raw: Mapping[str, Any], log: str) -> Metrics:
    duration = number(raw["elapsed_time"])
    counts, tokens = request_counts("throughput", raw), count(raw.get("total_num_tokens"))
    tokens_out = _printed(_OUTPUT_TOKENS, log)
    printed_rate = _OUTPUT_RATE.search(log)
    rate_out = _given_or(None, tokens_out, duration)
    if rate_out is None and printed_rate:
        rate_out = float(printed_rate.group(1))
    return {
        "num_prompts": counts.prompts,
        "completed": counts.completed,
        "failed": counts.failed,
        "duration_s": duration,
        "total_input_tokens": _printed(_INPUT_TOKENS, log),
        "total_output_tokens": tokens_out,
        "request_throughput": _given_or(raw.get("requests_per_second"), counts.prompts, duration),
        "output_throughput": rate_out,
        "total_token_throughput": _given_or(raw.get("tokens_per_second"), tokens, duration),
    }


def _median_is_p50(found: Metrics, suffix: str) -> Metrics:
    median, p50 = found.get(f"median_{suffix}"), found.get(f"p50_{suffix}")
    found[f"median_{suffix}"] = median if median is not None else p50
    found[f"p50_{suffix}"] = p50 if p50 is not None else median
    return found


def _given_or(given: object, amount: float | None, seconds: float | None) -> float | None:
    """Return the rate as vLLM wrote it; compute it if it is missing; None if that is impossible."""
    rate = number(given)
    if rate is None and amount is not None and seconds:
        return amount / seconds
    return rate


def _rate_limit(value: object) -> Scalar:
    """Return the requested rate in requests per second; vLLM writes "inf" for all at once."""
    if value in ("inf", math.inf):
        return "inf"
    return number(value)


def _ms(seconds: object) -> float | None:
    found = number(seconds)
    return found * 1000 if found is not None else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _printed(pattern: re.Pattern[str], log: str) -> int | None:
    match = pattern.search(log)
    return int(match.group(1)) if match else None
