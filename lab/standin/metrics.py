# SPDX-License-Identifier: Apache-2.0
"""The subset of vLLM 0.32's Prometheus metrics that has readers: names, labels, types and buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

# From vllm/v1/metrics/buckets.py of 0.32.
_LATENCY: tuple[float, ...] = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
)
_LATENCY += (960.0, 1920.0, 7680.0)
_FIRST_TOKEN: tuple[float, ...] = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
)
_FIRST_TOKEN += (40.0, 80.0, 160.0, 640.0, 2560.0)
_NEXT_TOKEN: tuple[float, ...] = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
)
_NEXT_TOKEN += (80.0,)

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Counts of observations up to each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Metrics:
    """The engine's counters. Gauges are read from the engine on request."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FINISHED_REASONS, 0)
        self.first_token = Histogram(_FIRST_TOKEN)
        self.next_token = Histogram(_NEXT_TOKEN)
        self.token_mean = Histogram(_NEXT_TOKEN)
        self.end_to_end = Histogram(_LATENCY)
        self.queued = Histogram(_LATENCY)
        self.prefill = Histogram(_LATENCY)
        self.decode = Histogram(_LATENCY)

    def render(self, model: str, gauges: dict[str, float], config: dict[str, str]) -> str:
        """Return the answer of /metrics."""
        labels = f'engine="0",model_name="{model}"'
        lines: list[str] = []
        for name, value in gauges.items():
            lines += _head(name, "gauge", _HELP[name])
            lines.append(f"vllm:{name}{{{labels}}} {float(value)}")
        by_reason = [("capacity", gauges["num_requests_waiting"]), ("deferred", 0)]
        lines += _head("num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.")
        for reason, value in by_reason:
            lines.append(f'vllm:num_requests_waiting_by_reason{{{labels},reason="{reason}"}} {float(value)}')
        for name, count in {
            "prompt_tokens": self.prompt_tokens,
            "generation_tokens": self.generation_tokens,
            "num_preemptions": 0,
            "prefix_cache_queries": self.prompt_tokens,
            "prefix_cache_hits": 0,
        }.items():
            lines += _head(f"{name}_total", "counter", _HELP[name])
            lines.append(f"vllm:{name}_total{{{labels}}} {float(count)}")
        lines += _head("request_success_total", "counter", "Count of successfully processed requests.")
        for reason, count in self.finished.items():
            lines.append(
                f'vllm:request_success_total{{engine="0",finished_reason="{reason}",'
                f'model_name="{model}"}} {float(count)}'
            )
        for name, histogram, text in (
            ("time_to_first_token_seconds", self.first_token, "time to first token in seconds"),
            ("inter_token_latency_seconds", self.next_token, "inter-token latency in seconds"),
            (
                "request_time_per_output_token_seconds",
                self.token_mean,
                "time_per_output_token_seconds per request",
            ),
            ("e2e_request_latency_seconds", self.end_to_end, "e2e request latency in seconds"),
            ("request_queue_time_seconds", self.queued, "time spent in WAITING phase for request"),
            ("request_prefill_time_seconds", self.prefill, "time spent in PREFILL phase for request"),
            ("request_decode_time_seconds", self.decode, "time spent in DECODE phase for request"),
        ):
            lines += _head(name, "histogram", f"Histogram of {text}.")
            lines += _buckets(f"vllm:{name}", labels, histogram)
        lines += _head("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
        inner = ",".join(f'{key}="{value}"' for key, value in sorted({**config, "engine": "0"}.items()))
        lines.append(f"vllm:cache_config_info{{{inner}}} 1.0")
        return "\n".join(lines) + "\n"


_HELP = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "generation_tokens": "Number of generation tokens processed.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
}


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"]


def _buckets(name: str, labels: str, histogram: Histogram) -> Iterator[str]:
    total = 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        engine, model = labels.split(",", 1)
        yield f'{name}_bucket{{{engine},le="{bound}",{model}}} {float(total)}'
    yield f"{name}_count{{{labels}}} {float(total)}"
    yield f"{name}_sum{{{labels}}} {histogram.sum}"
