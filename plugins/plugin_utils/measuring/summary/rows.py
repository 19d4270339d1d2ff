# SPDX-License-Identifier: Apache-2.0
"""Build rows: what was measured in each run, from the entries of vllm_bench."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ....module_utils.benchmarks.bench_metrics import normalise, other_scalars
from ....module_utils.benchmarks.bench_results import ResultError, finite, number
from ....module_utils.common.redact import Redactor
from ...planning.instances.cells import MAIN_METRIC, describe_cell
from ...planning.instances.redact import redact_command, redact_variables
from ..measurement.goodput import LatencyLimits
from ..measurement.requests import LoadPoint, unpack_lists
from ..measurement.run_fields import run_fields
from ..statistics.percentiles import null_unsupported
from .roofline import roofline
from .telemetry import telemetry_columns

Row = dict[str, Any]

UNMEASURED = (
    "kv_usage_max",
    "preemptions",
    "prefix_hit_rate",
    "acceptance_length",
)
"""Keys of a row that need more than the client's result, which has the acceptance length from 0.14.0 on."""


@dataclass(frozen=True)
class MeasuredRun:
    """A run: its row; vLLM's own JSON without per-request lists; these lists, None if they are not known.

    error: why its figures do not cover all requests; None if they do.
    """

    row: Row
    raw: Any
    detail: Mapping[str, Any] | None
    error: str | None


def run_rows(
    host: str, entry: Mapping[str, Any], versions: Mapping[str, Any], redact: Redactor
) -> Iterator[MeasuredRun]:
    """Yield the runs of an entry that have a result. Raise ResultError for one that is not a result of its kind."""
    shared = _identity(host, entry)
    reproduction = _reproduction(entry)
    for run in entry["runs"]:
        result = run.get("result")
        if result is None:
            continue
        metrics = normalise(str(entry.get("kind")), result, str(run.get("log") or ""))
        detail = unpack_lists(run.get("detail"))
        row: Row = {
            **shared,
            **{key: run.get(key) for key in ("block", "order", "seed")},
            "started": iso(run.get("started")),
            "seconds": number(run.get("seconds")),
            **null_unsupported(metrics),
            **dict.fromkeys(UNMEASURED),
            "acceptance_length": number(result.get("spec_decode_acceptance_length")),
            **telemetry_columns(run, metrics),
            **_of_requests({**result, **(detail or {})}, shared["load"], entry, run),
            **reproduction,
            "versions": dict(versions),
            "other": other_scalars(result),
        }
        row |= roofline(row, instance_plan(entry).get("decode_step"))
        yield MeasuredRun(redact.data(row), finite(redact.data(result)), detail, run.get("error"))


def entry_cell(entry: Mapping[str, Any]) -> str:
    """Return the name of an entry's cell; for one without, what its command line says."""
    return str(entry.get("cell") or _described(entry)["cell"])


def iso(value: object) -> str | None:
    """Return a time as UTC in ISO 8601, from seconds since 1970 or ISO text (without a zone: UTC); else None."""
    seconds = number(value)
    try:
        if seconds is not None:
            moment = datetime.fromtimestamp(seconds, timezone.utc)
        else:
            moment = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except (ValueError, OverflowError, OSError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def instance_plan(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the INSTANCE of an entry, {} if it has none."""
    plan = entry.get("instance_plan")
    return plan if isinstance(plan, Mapping) else {}


def _identity(host: str, entry: Mapping[str, Any]) -> Row:
    plan = instance_plan(entry)
    described = _described(entry)
    cell = {key: entry.get(key) or described[key] for key in ("cell", "shape", "load", "metric")}
    return {
        "host": host,
        "instance": str(entry.get("instance") or plan.get("name") or ""),
        "deployment": str(entry.get("deployment") or plan.get("deployment") or ""),
        "kind": entry["kind"],
        "suite": entry.get("suite"),
        **cell,
        "probe": entry.get("probe"),
        "at_slo": dict(entry.get("at_slo") or {}),
        "live": bool(entry.get("live")),
        "model": entry.get("model") or plan.get("model"),
        "commit": entry.get("commit") or plan.get("commit"),
        "image": entry.get("image") or plan.get("image"),
        "digest": entry.get("digest"),
    }


def _of_requests(
    raw: Mapping[str, Any], load: Mapping[str, Any], entry: Mapping[str, Any], run: Mapping[str, Any]
) -> Row:
    """Return what the single requests of a run show, and `warnings` about it. Raise ResultError for broken lists."""
    slos = {
        str(slo["name"]): LatencyLimits(slo.get("ttft_ms"), slo.get("tpot_ms"), slo.get("e2el_ms"))
        for slo in entry.get("slos") or ()
    }
    point = LoadPoint(str(load["kind"]), number(load["value"]))
    try:
        fields, warnings = run_fields(raw, point, slos, number(run.get("client_cpu_share")))
    except (TypeError, ValueError) as error:
        raise ResultError(f"its lists of requests cannot be read ({error})") from None
    return {**finite(fields), "warnings": list(warnings)}


def _described(entry: Mapping[str, Any]) -> dict[str, Any]:
    command = entry.get("command") or ()
    words = command.split() if isinstance(command, str) else list(command)
    kind = str(entry.get("kind"))
    if kind not in MAIN_METRIC:
        raise ResultError(f"unknown kind of benchmark {kind!r}; known: {', '.join(MAIN_METRIC)}")
    return describe_cell(kind, words)


def _reproduction(entry: Mapping[str, Any]) -> Row:
    plan = instance_plan(entry)
    return {
        "gpus": list(plan.get("gpus") or []),
        "render_nodes": list(plan.get("render_nodes") or []),
        "port": plan.get("port"),
        "serve_command": redact_command(plan.get("argv")),
        "env": redact_variables(plan.get("env") or {}),
        "command": redact_command(entry.get("command")),
        "spec_hash": plan.get("spec_hash"),
    }
