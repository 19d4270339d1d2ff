# SPDX-License-Identifier: Apache-2.0
"""Build summary.json, one measurement of the fleet, from the results of the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ....module_utils.benchmarks.bench_results import KINDS, ResultError
from ....module_utils.common.errors import natural
from ....module_utils.common.redact import MASK, Redactor, is_secret_name
from ...base.hints import cause
from ...base.json_record import JsonRecord
from ..outliers.verdicts import Earlier, gpu_verdicts
from .cell_summary import cell_summaries
from .node_facts import SoftwareSources, host_facts, versions
from .rows import MeasuredRun, Row, entry_cell, instance_plan, run_rows
from .slo_searches import host_searches, sort_searches

SCHEMA = 1
REGISTERED = (
    "__benchmark_serve",
    "__benchmark_offline",
    "benchmark_results",
)
"""Variables of a host with its results: a registered vllm_bench result, or a list of entries."""
BATCHES = "_benchmark_batches"
"""Variable of a host with its results of all batches; the registered variables only have those of the last batch."""

STATES = ("__benchmark_state", "node_state_result")
"""Variables of a host with its node_state: of the measurement, else of the plan."""


@dataclass(frozen=True)
class MeasurementFailure(JsonRecord):
    """A measurement that is missing or incomplete."""

    host: str
    what: str
    message: str


@dataclass(frozen=True)
class MeasuredRuns:
    """The results of the playbook: the runs of all instances, in order of hosts, instances, cells and blocks."""

    runs: tuple[MeasuredRun, ...] = ()
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failures: tuple[MeasurementFailure, ...] = ()
    deployments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    searches: tuple[Mapping[str, Any], ...] = ()

    @property
    def rows(self) -> list[Row]:
        """Return the row of each run."""
        return [run.row for run in self.runs]


class _EachTextOnce(Redactor):
    """A redactor that masks each text only once: every run has the same keys and commands."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__()
        self._masked = lru_cache(maxsize=4096)(redact)

    def __call__(self, text: str) -> str:
        return self._masked(text)


def collect(
    hosts: Sequence[str],
    variables: Mapping[str, Mapping[str, Any]],
    redact: Redactor,
    gpu_models: Mapping[str, str] | None = None,
    sources: SoftwareSources | None = None,
) -> MeasuredRuns:
    """Gather the results of `hosts` from their variables (REGISTERED and STATES).

    A host without the expected result is a failure, with its error message if that is known. `gpu_models` names PCI ids
    ("1002:74a1": "MI300X"). The input is not changed.
    """
    redact = _EachTextOnce(redact)
    runs: list[MeasuredRun] = []
    facts: dict[str, Mapping[str, Any]] = {}
    failures: list[MeasurementFailure] = []
    deployments: dict[str, dict[str, Any]] = {}
    searches: list[Mapping[str, Any]] = []
    for host in sorted(hosts, key=natural):
        own = variables.get(host, {})
        states = [own[name] for name in STATES if isinstance(own.get(name), Mapping)]
        seen = [state["node_state"] for state in states if isinstance(state.get("node_state"), Mapping)]
        if seen:
            facts[host] = redact.data(host_facts(seen[0], gpu_models or {}))
        tasks, entries = _registered(own)
        failed = [failure for name, task in tasks if (failure := _task_failure(host, name, task))]
        searches += redact.data(
            host_searches(host, [item for _name, task in tasks for item in task.get("searches") or ()])
        )
        if not tasks:
            failed.append(_missing(host, states))
        for entry, what in zip(entries, _names(entries), strict=True):
            try:
                found = _runs(host, entry, seen, redact, sources or SoftwareSources())
            except ResultError as error:
                found = []
                failed.append(
                    MeasurementFailure(host, what, _entry_error(entry) or f"{error}. Its JSON is not used.")
                )
            else:
                failed += _entry_failures(host, what, entry, found)
            runs += found
            if found and found[0].row["deployment"] not in deployments:
                deployments[found[0].row["deployment"]] = _deployment(entry, found[0].row, redact)
            if found and entry.get("slos"):  # offline benchmarks have none
                deployments[found[0].row["deployment"]]["slos"] = list(entry["slos"])
        failures += [MeasurementFailure(host, item.what, redact(item.message)) for item in failed]
    return MeasuredRuns(tuple(sorted(runs, key=_place)), facts, tuple(failures), deployments, tuple(searches))


def _place(run: MeasuredRun) -> tuple[Any, ...]:
    names = (natural(run.row[key]) for key in ("host", "instance", "kind", "cell"))
    return (*names, run.row["block"] or 0)


def build_summary(
    run: str, finished: str, measured: MeasuredRuns, earlier: Earlier | None = None
) -> dict[str, Any]:
    """Return the content of summary.json.

    `finished` is UTC, ISO 8601; `started` is the start of the first run. `earlier`: the GPUs' earlier
    medians.
    """
    cells = cell_summaries(measured.rows)
    starts = [row["started"] for row in measured.rows if row["started"]]
    return {
        "schema": SCHEMA,
        "run": run,
        "started": min(starts) if starts else None,
        "finished": finished,
        "benchmarks": cells,
        "slo_searches": [dict(item) for item in sort_searches(measured.searches)],
        "deployments": {name: dict(item) for name, item in measured.deployments.items()},
        "hosts": {name: dict(item) for name, item in measured.hosts.items()},
        "failures": [failure.to_json() for failure in measured.failures],
        "gpu_verdicts": [verdict.to_json() for verdict in gpu_verdicts(cells, measured.hosts, earlier)],
    }


def _registered(own: Mapping[str, Any]) -> tuple[list[tuple[str, Mapping[str, Any]]], list[Any]]:
    """Return (tasks that ran, with their results; the entries of all of them)."""
    tasks: list[tuple[str, Mapping[str, Any]]] = []
    entries: list[Any] = []
    names = (BATCHES, REGISTERED[-1]) if own.get(BATCHES) else REGISTERED
    for name in names:
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
    kind = str(task.get("item") or name.rsplit("_", 1)[-1])
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


def _names(entries: Sequence[Any]) -> list[str]:
    """Return the name of each entry in failures; the cell is named if an instance has several."""
    keys = [
        (str(entry.get("kind") or "unknown"), str(entry.get("instance") or "no named instance"))
        if isinstance(entry, Mapping)
        else None
        for entry in entries
    ]
    count = Counter(keys)
    return [
        "benchmark"
        if key is None
        else f"{key[0]} benchmark of {key[1]}" + (f", {entry_cell(entry)}" if count[key] > 1 else "")
        for key, entry in zip(keys, entries, strict=True)
    ]


def _entry_error(entry: object) -> str | None:
    if not isinstance(entry, Mapping):
        return f"vllm_bench returned {type(entry).__name__} in place of a benchmark"
    error = entry.get("error") or (entry.get("msg") if entry.get("failed") else None)
    if error or not any(run.get("result") for run in entry.get("runs") or ()):
        return str(error or "the benchmark wrote no result")
    return None


def _runs(
    host: str, entry: Any, states: Sequence[Mapping[str, Any]], redact: Redactor, sources: SoftwareSources
) -> list[MeasuredRun]:
    """Return the runs of an entry of vllm_bench that have a result. Raise ResultError if they cannot be read."""
    if not isinstance(entry, Mapping) or not entry.get("runs"):
        return []
    plan = instance_plan(entry)
    image = str(entry.get("image") or plan.get("image") or "")
    return list(run_rows(host, entry, versions(plan, image, states, sources), redact))


def _entry_failures(
    host: str, what: str, entry: Any, found: Sequence[MeasuredRun]
) -> list[MeasurementFailure]:
    """Return the failure of an entry: of its runs, or that some of a run's requests failed."""
    error = _entry_error(entry)
    if not error and not entry.get("probe"):  # a search's result says where requests failed
        error = next((why for run in found if (why := _partial(run.row))), None)
    return [MeasurementFailure(host, what, error)] if error else []


def _partial(row: Row) -> str | None:
    """Return why a result covers only some requests; None if it covers all."""
    if row["kind"] == "serve" and row["completed"] == 0:
        return "no request completed: the figures of this instance mean nothing"
    if row["failed"]:
        total = row["num_prompts"] if row["num_prompts"] is not None else row["completed"] + row["failed"]
        return f"{row['failed']} of {total} requests failed: such runs only count if there are no others"
    return None


def _deployment(entry: Mapping[str, Any], row: Row, redact: Redactor) -> dict[str, Any]:
    """Return what the instances of a deployment have in common, with the reasons of the first one's values."""
    plan = instance_plan(entry)
    shared: dict[str, Any] = {
        "model": row["model"],
        "revision": plan.get("revision"),
        "commit": row["commit"],
        "image": row["image"],
        "digest": row["digest"],
        "served_model": plan.get("served_model"),
        "slos": [],
        "reasons_of": row["instance"],
        "reasons": [_reason(item) for item in plan.get("reasons") or []],
    }
    masked: dict[str, Any] = redact.data(shared)
    return masked


def _reason(item: Mapping[str, Any]) -> dict[str, Any]:
    setting = str(item.get("setting") or "")
    value = MASK if is_secret_name(setting.lstrip("-")) else item.get("value")
    return {"setting": setting, "value": value, "reason": item.get("reason"), "source": item.get("source")}
