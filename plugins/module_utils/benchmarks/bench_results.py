# SPDX-License-Identifier: Apache-2.0
"""Whether JSON is a result of a benchmark client of vLLM, and of how many requests; bench_metrics.py has the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KINDS = ("serve", "latency", "throughput")


class ResultError(ValueError):
    """The JSON is not a result of the expected kind of benchmark."""


@dataclass(frozen=True)
class RequestCounts:
    """How many requests a benchmark sent, got answers to, and did not; None if the client does not say it."""

    prompts: int | None = None
    completed: int | None = None
    failed: int | None = None


def check_result(kind: str, raw: object) -> Mapping[str, Any]:
    """Return the JSON of `vllm bench <kind>`. Raise ResultError if it is something else."""
    if kind not in KINDS:
        raise ResultError(f"unknown kind of benchmark {kind!r}; known: {', '.join(KINDS)}")
    if not isinstance(raw, Mapping):
        raise ResultError(f"the result of vllm bench {kind} is {type(raw).__name__}, not a JSON object")
    required = {"serve": "completed", "latency": "avg_latency", "throughput": "elapsed_time"}[kind]
    if number(raw.get(required)) is None:
        raise ResultError(f"not a result of vllm bench {kind}: it has no number {required!r}")
    return raw


def request_counts(kind: str, raw: Mapping[str, Any]) -> RequestCounts:
    """Return how many requests a result is about."""
    if kind == "latency":
        return RequestCounts()
    if kind == "throughput":  # offline, one failed request ends the whole benchmark
        requests = count(raw.get("num_requests"))
        return RequestCounts(requests, requests, None if requests is None else 0)
    prompts, completed, failed = (count(raw.get(key)) for key in ("num_prompts", "completed", "failed"))
    if failed is None and completed is not None and prompts is not None and prompts >= completed:
        failed = prompts - completed  # vLLM before 0.11.1 did not write the count
    return RequestCounts(prompts, completed, failed)


def number(value: object) -> float | None:
    """Return a finite number unchanged (int stays int), or None for anything else, including NaN, "inf" and True."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None


def count(value: object) -> int | None:
    """Return a finite number as an integer, or None for anything else."""
    found = number(value)
    return int(found) if found is not None else None


def finite(value: Any) -> Any:
    """Return the same JSON data with None for NaN and infinities: RFC 8259 has no such numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
