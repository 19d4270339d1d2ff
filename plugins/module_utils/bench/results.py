# SPDX-License-Identifier: Apache-2.0
"""The results of a benchmark: each run's outcome, and its per-request lists in a size that Ansible can carry. Pure."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..benchmarks.bench_results import ResultError, check_result, finite, number, request_counts
from ..docker.client import Json
from ..engines.failure_signatures import SIGNATURES
from ..engines.failures import classify, tail
from .jobs import Record

LOG_LINES = 60
CARRIED_BYTES = 16 * 1024 * 1024
"""What the per-request lists of all runs of a call may take, in base64. Ansible keeps a module's result in memory."""

# Lists with an entry for each request, in seconds or tokens (catalog/vllm/bench_results.yml, `detail`).
_TIMES = ("start_times", "ttfts", "itls", "latencies", "queue_times", "server_ttfts", "server_queue_times")
_COUNTS = ("input_lens", "output_lens")
REQUEST_LISTS = (*_TIMES, *_COUNTS, "generated_texts", "errors")


def run_entry(kind: str, record: Record, carried: int) -> Json:
    """Return what the module returns of a run. `carried`: bytes that its per-request lists may take in base64."""
    result, error = outcome(kind, record["code"], record["log"], record["result"], record["problem"])
    plain, lists = separate(kind, result) if result else (None, {})
    return {
        **{key: record[key] for key in ("block", "order", "seed", "started", "seconds", "client_cpu_share")},
        "result": plain,
        "detail": compress_lists(lists, carried),
        "log": "\n".join(tail(record["log"], LOG_LINES)) if error or kind == "throughput" else "",
        "error": error,
        "telemetry": None,
    }


def outcome(
    kind: str, code: int | None, log: str, found: Any, problem: str = ""
) -> tuple[Json | None, str | None]:
    """Return (result, error) of a run of the client that ended with `code`; `problem`: why its JSON is unusable."""
    if code != 0:
        finding = classify(SIGNATURES, log, code)
        mend = finding.next_step
        if finding.kind == "unknown_flag":  # of the client, not of the deployment
            mend = f"Correct benchmark_{kind}_args: this image's vLLM does not accept that."
        return None, f"{finding.kind}: {finding.line} | {mend}"
    # vLLM writes NaN if it has no sample; standard JSON has no such number.
    result = finite(found)
    try:
        if problem:
            raise ResultError(problem)
        counts = request_counts(kind, check_result(kind, result))
    except ResultError as error:
        nothing = found is None and not problem
        what = "succeeded, but wrote no result" if nothing else f"wrote no usable result: {error}"
        return None, f"the client {what}. Last line: {' '.join(tail(log, 1)) or 'none'}"
    if kind == "serve" and not counts.completed:
        return result, f"none of {counts.prompts} requests was completed."
    if counts.failed:
        # vLLM's client writes tracebacks, of which the last line says most.
        words = next((str(text).split() for text in found.get("errors") or () if text), [])
        why = f" The first one's error ends: {' '.join(words)[-200:]}" if words else ""
        return result, f"{counts.failed} of {counts.prompts} requests failed.{why}"
    return result, None


def separate(kind: str, result: Mapping[str, Any]) -> tuple[Json, Json]:
    """Return a result without its per-request lists, and these without texts, with times to 10 µs.

    A list of errors says only which requests failed. Start times count from the first one. `latencies`, which older
    clients do not write, follow from the others.
    """
    if kind != "serve":
        return dict(result), {}
    plain = {key: value for key, value in result.items() if key not in REQUEST_LISTS}
    lists: Json = {
        key: result[key] for key in (*_TIMES, *_COUNTS, "errors") if isinstance(result.get(key), list)
    }
    if "errors" in lists:
        lists["errors"] = ["failed" if text else "" for text in lists["errors"]]
    if "latencies" not in lists and "ttfts" in lists and "itls" in lists:
        lists["latencies"] = [_sum([ttft, *gaps]) for ttft, gaps in zip(lists["ttfts"], lists["itls"])]
    starts = [value for value in lists.get("start_times", ()) if number(value) is not None]
    if starts:
        first = min(starts)
        lists["start_times"] = [None if value is None else value - first for value in lists["start_times"]]
    return plain, {key: _rounded(value) if key in _TIMES else value for key, value in lists.items()}


def compress_lists(lists: Mapping[str, Sequence[Any]], limit: int) -> str | None:
    """Return per-request lists as JSON, gzip, base64; where that is too large, without the many gaps between tokens.

    None if there are no lists, or not even those fit.
    """
    for leave_out in ((), ("itls",)):
        chosen = {key: value for key, value in lists.items() if key not in leave_out}
        text = json.dumps(chosen, separators=(",", ":"), allow_nan=False)
        coded = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
        if lists and len(coded) <= limit:
            return coded
    return None


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 5) if isinstance(value, float) else value


def _sum(values: Sequence[Any]) -> float | None:
    known = [value for value in values if number(value) is not None]
    return sum(known) if len(known) == len(values) else None
