# SPDX-License-Identifier: Apache-2.0
"""Build summary.json, one measurement of the fleet, from the results of the nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from ...module_utils.common.bench_metrics import (
    KINDS,
    ResultError,
    Scalar,
    finite,
    normalise,
    number,
    other_scalars,
)
from ...module_utils.common.errors import natural
from ...module_utils.common.redact import MASK, Redactor, is_secret_name
from ..hints import cause
from ..instances.redact import redact_command, redact_variables

SCHEMA = 1
REGISTERED = (
    "__benchmark_serve",
    "__benchmark_offline",
    "benchmark_results",
)
"""Variables of a host with its results: a registered vllm_bench result, or a list of entries."""

STATES = ("__benchmark_state", "node_state_result")
"""Variables of a host with its node_state: of the measurement, else of the plan."""

Row = dict[str, Any]

_GPU_FACTS = ("index", "bdf", "gfx", "unique_id", "vram_total", "numa_node", "link_speed", "link_width")
_GPU_MODES = ("compute_partition", "memory_partition")


@dataclass(frozen=True)
class MeasurementFailure:
    """A measurement that is missing or incomplete."""

    host: str
    what: str
    message: str

    def to_json(self) -> dict[str, str]:
        """Return an entry of `failures` in summary.json."""
        return {"host": self.host, "what": self.what, "message": self.message}


@dataclass(frozen=True)
class Measured:
    """The results of a run. `raw` has vLLM's own JSON, one for each row."""

    rows: tuple[Row, ...] = ()
    raw: tuple[Any, ...] = ()
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failures: tuple[MeasurementFailure, ...] = ()
    deployments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def collect(
    hosts: Sequence[str],
    variables: Mapping[str, Mapping[str, Any]],
    redact: Redactor,
    gpu_models: Mapping[str, str] | None = None,
) -> Measured:
    """Gather the results of `hosts` from their variables (REGISTERED and STATES).

    A host without the expected result is a failure, with its error message if that is known. `gpu_models` names PCI ids
    ("1002:74a1": "MI300X"). The input is not changed.
    """
    rows: list[tuple[Row, Any]] = []
    facts: dict[str, Mapping[str, Any]] = {}
    failures: list[MeasurementFailure] = []
    deployments: dict[str, Mapping[str, Any]] = {}
    for host in sorted(hosts, key=natural):
        own = variables.get(host, {})
        states = [own[name] for name in STATES if isinstance(own.get(name), Mapping)]
        seen = [state["node_state"] for state in states if isinstance(state.get("node_state"), Mapping)]
        if seen:
            facts[host] = redact.data(host_facts(seen[0], gpu_models or {}))
        tasks, entries = _registered(own)
        failed = [failure for name, task in tasks if (failure := _task_failure(host, name, task))]
        if not tasks:
            failed.append(_missing(host, states))
        for entry in entries:
            outcome = _row(host, entry, redact)
            if isinstance(outcome, MeasurementFailure):
                failed.append(outcome)
                continue
            rows.append((outcome, finite(redact.data(entry["result"]))))
            if outcome["deployment"] not in deployments:
                deployments[outcome["deployment"]] = _deployment(entry, outcome, redact)
            failed += _partial_failure(outcome, _entry_error(entry))
        failures += [MeasurementFailure(host, item.what, redact(item.message)) for item in failed]
    rows.sort(key=lambda pair: (natural(pair[0]["host"]), natural(pair[0]["instance"]), pair[0]["kind"]))
    return Measured(
        tuple(row for row, _unused in rows),
        tuple(raw for _unused, raw in rows),
        facts,
        tuple(failures),
        deployments,
    )


def build_summary(run: str, finished: str, measured: Measured) -> dict[str, Any]:
    """Return the content of summary.json.

    `finished` is UTC, ISO 8601; `started` is the start of the first benchmark.
    """
    starts = [row["started"] for row in measured.rows if row["started"]]
    return {
        "schema": SCHEMA,
        "run": run,
        "started": min(starts) if starts else None,
        "finished": finished,
        "benchmarks": [dict(row) for row in measured.rows],
        "deployments": {name: dict(item) for name, item in measured.deployments.items()},
        "hosts": {name: dict(item) for name, item in measured.hosts.items()},
        "failures": [failure.to_json() for failure in measured.failures],
    }


def host_facts(state: Mapping[str, Any], gpu_models: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts of a node_state that must be equal on another node for comparable numbers."""

    def get(*path: str) -> Any:
        value: Any = state
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    gpus = [_gpu(gpu, gpu_models) for gpu in get("gpus") or []]
    return {
        "os": get("os", "pretty_name"),
        "kernel": get("kernel"),
        "cmdline": get("cmdline"),
        "rocm": get("rocm", "version"),
        "driver": get("driver", "version"),
        "docker": get("docker", "version"),
        "cpu": get("cpu"),
        "memory_bytes": get("memory_bytes"),
        "numa_nodes": len(get("numa_nodes")) if get("numa_nodes") is not None else None,
        "numa_balancing": get("numa_balancing", "runtime"),
        "virtual_machine": get("virtual_machine"),
        "compute_partition": _joined(gpu["compute_partition"] for gpu in gpus),
        "memory_partition": _joined(gpu["memory_partition"] for gpu in gpus),
        "gpus": gpus,
    }


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


def ended(row: Mapping[str, Any]) -> str | None:
    """Return when a benchmark ended, from its start and duration, including the start-up of the client."""
    if row["started"] is None or row["seconds"] is None:
        return None
    start = datetime.strptime(row["started"], "%Y-%m-%dT%H:%M:%SZ")
    return (start + timedelta(seconds=row["seconds"])).strftime("%Y-%m-%dT%H:%M:%SZ")


def _registered(own: Mapping[str, Any]) -> tuple[list[tuple[str, Mapping[str, Any]]], list[Any]]:
    """Return (tasks that ran, with their results; the entries of all of them)."""
    tasks: list[tuple[str, Mapping[str, Any]]] = []
    entries: list[Any] = []
    for name in REGISTERED:
        value = own.get(name)
        if isinstance(value, (list, tuple)):
            value = {"benchmarks": value}
        if not isinstance(value, Mapping):
            continue
        # A task with a loop registers the result of each iteration.
        for task in value.get("results", [value]):
            if not task.get("skipped"):
                tasks.append((name, task))
                entries += task.get("benchmarks") or []
    return tasks, entries


def _task_failure(host: str, name: str, task: Mapping[str, Any]) -> MeasurementFailure | None:
    """Return the failure of a task, unless its entries say which benchmark failed and why."""
    if task.get("unreachable"):
        return MeasurementFailure(host, "connection", str(task.get("msg") or "unreachable"))
    if not task.get("failed") or any(_entry_error(entry) for entry in task.get("benchmarks") or []):
        return None
    kind = name.rsplit("_", 1)[-1]
    what = f"{kind} benchmark" if kind in KINDS else "benchmark"
    why = cause(task) or str(task.get("msg") or "the benchmark failed without a message")
    return MeasurementFailure(host, what, why)


def _missing(host: str, states: Sequence[Mapping[str, Any]]) -> MeasurementFailure:
    for state in states:
        if state.get("unreachable"):
            return MeasurementFailure(host, "connection", str(state.get("msg") or "unreachable"))
        if state.get("failed"):
            return MeasurementFailure(
                host, "observation", cause(state) or str(state.get("msg") or "failed without a message")
            )
    message = "not measured: the host failed earlier in this run; its error is in the play's output"
    return MeasurementFailure(host, "benchmark", message)


def _entry_error(entry: object) -> str | None:
    if not isinstance(entry, Mapping):
        return f"vllm_bench returned {type(entry).__name__} in place of a benchmark"
    error = entry.get("error") or (entry.get("msg") if entry.get("failed") else None)
    if error or entry.get("result") is None:
        return str(error or "the benchmark wrote no result")
    return None


def _row(host: str, entry: Any, redact: Redactor) -> Row | MeasurementFailure:
    """Return the row of an entry of vllm_bench, or why there is none."""
    error = _entry_error(entry)
    what = "benchmark"
    if isinstance(entry, Mapping):
        what = f"{entry.get('kind') or 'unknown'} benchmark of {entry.get('instance') or 'no named instance'}"
    if error is None or (isinstance(entry, Mapping) and entry.get("result") is not None):
        try:
            metrics = normalise(str(entry.get("kind")), entry["result"], str(entry.get("log") or ""))
        except ResultError as exc:
            return MeasurementFailure(host, what, error or f"{exc}. Its JSON is not used.")
    else:
        return MeasurementFailure(host, what, error)
    plan = _instance(entry)
    argv = plan.get("argv")
    env = redact_variables(plan.get("env") or {})
    identity: dict[str, Any] = {
        "host": host,
        "instance": str(entry.get("instance") or plan.get("name") or ""),
        "deployment": str(entry.get("deployment") or plan.get("deployment") or ""),
        "kind": entry["kind"],
        "started": iso(entry.get("started")),
        "seconds": number(entry.get("seconds")),
        "model": entry.get("model") or plan.get("model"),
        "commit": entry.get("commit") or plan.get("commit"),
        "image": entry.get("image") or plan.get("image"),
        "digest": entry.get("digest"),
    }
    reproduction: dict[str, Any] = {
        "gpus": list(plan.get("gpus") or []),
        "render_nodes": list(plan.get("render_nodes") or []),
        "port": plan.get("port"),
        "serve_command": redact_command(argv),
        "env": env,
        "command": redact_command(entry.get("command")),
        "spec_hash": plan.get("spec_hash"),
    }
    other: dict[str, Scalar] = other_scalars(entry["result"])
    row: Row = redact.data({**identity, **metrics, **reproduction, "other": other})
    return row


def _partial_failure(row: Row, error: str | None) -> list[MeasurementFailure]:
    """Return the failure of a result that covers only some requests, with vllm_bench's reason (`error`) if known."""
    what = f"{row['kind']} benchmark of {row['instance']}"
    if error is not None:
        return [MeasurementFailure(row["host"], what, error)]
    if row["kind"] == "serve" and row["completed"] == 0:
        return [
            MeasurementFailure(
                row["host"], what, "no request completed: the numbers of this instance mean nothing"
            )
        ]
    if row["failed"]:
        total = row["num_prompts"] if row["num_prompts"] is not None else row["completed"] + row["failed"]
        message = f"{row['failed']} of {total} requests failed: the numbers are those of the others"
        return [MeasurementFailure(row["host"], what, message)]
    return []


def _deployment(entry: Mapping[str, Any], row: Row, redact: Redactor) -> dict[str, Any]:
    """Return what the instances of a deployment have in common, with the reasons of the first one's values."""
    plan = _instance(entry)
    shared: dict[str, Any] = {
        "model": row["model"],
        "revision": plan.get("revision"),
        "commit": row["commit"],
        "image": row["image"],
        "digest": row["digest"],
        "served_model": plan.get("served_model"),
        "reasons_of": row["instance"],
        "reasons": [_reason(item) for item in plan.get("reasons") or []],
    }
    masked: dict[str, Any] = redact.data(shared)
    return masked


def _reason(item: Mapping[str, Any]) -> dict[str, Any]:
    setting = str(item.get("setting") or "")
    value = MASK if is_secret_name(setting.lstrip("-")) else item.get("value")
    return {"setting": setting, "value": value, "reason": item.get("reason"), "source": item.get("source")}


def _instance(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    plan = entry.get("instance_plan")
    return plan if isinstance(plan, Mapping) else {}


def _gpu(gpu: Mapping[str, Any], models: Mapping[str, str]) -> dict[str, Any]:
    vendor, device = gpu.get("vendor_id"), gpu.get("device_id")
    pci_id = f"{vendor:04x}:{device:04x}" if isinstance(vendor, int) and isinstance(device, int) else None
    return {
        "model": models.get(pci_id or ""),
        "pci_id": pci_id,
        **{key: gpu.get(key) for key in (*_GPU_FACTS, *_GPU_MODES)},
        "partitions": len(gpu.get("partitions") or []),
    }


def _joined(values: Iterable[str | None]) -> str | None:
    """Return the partition mode of a node: "SPX", or "CPX, SPX" if its GPUs differ; None if there is none."""
    found = sorted({re.sub(r"\s+", " ", str(value)) for value in values if value})
    return ", ".join(found) or None
