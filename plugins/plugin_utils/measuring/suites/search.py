# SPDX-License-Identifier: Apache-2.0
"""The searches of a suite on one instance: which probe is next, and what was found. Pure; vllm_bench measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ....module_utils.benchmarks.bench_metrics import normalise
from ....module_utils.benchmarks.bench_results import ResultError, number
from ....module_utils.common.hashing import canonical, text_hash
from ..measurement.client_bound import client_bound, send_lag_ms
from ..measurement.goodput import LatencyLimits
from ..measurement.requests import drop_gaps, read_requests, unpack_lists
from ..measurement.slo_search import Probe, SearchResult, next_probe, read_probe
from .cells import CellSearch, SuiteCell, SuiteCells
from .suite import Slo

METRICS = ("request_throughput", "output_throughput")
Entry = dict[str, Any]


@dataclass(frozen=True)
class MeasuredProbe:
    """A probe of one search: its cell, what it shows for each SLO, and the throughputs of METRICS."""

    cell: str
    of: Mapping[str, Probe]
    throughput: Mapping[str, float | None]


class InstanceSearch:
    """The searches of an instance, one after another, and what has been measured so far.

    A probe counts for all SLOs of its search, which are searched in their order.
    """

    def __init__(self, suite: str, cells: SuiteCells, target: Mapping[str, Any]) -> None:
        self.suite, self.cells, self.target = suite, cells, target
        self.entries: list[Entry] = []
        self.failure = ""
        self._probes: dict[str, list[MeasuredProbe]] = {search.name: [] for search in cells.searches}

    @property
    def work(self) -> str:
        """Return a key that is equal for two calls with the same searches on the same instance."""
        rules = [(search.name, str(search.rules), search.first.to_json()) for search in self.cells.searches]
        served = [self.target.get(key) for key in ("spec_hash", "image", "client", "argv", "env")]
        return text_hash(canonical([str(self.target["name"]), rules, served]))

    def next_job(self) -> dict[str, Any] | None:
        """Return the job of the next probe, as the module takes it; None if all is found, or a probe failed."""
        found = None if self.failure else self._next()
        if found is None:
            return None
        warmups = 0 if self.entries else self.cells.warmups
        return {
            "cells": [found[1].to_json()],
            "suite": self.suite,
            "blocks": 1,
            "most": 1,
            "half_width": self.cells.half_width,
            "warmups": warmups,
            "seed": self.cells.seed + len(self.entries) * (self.cells.warmups + 1),
            "order": [[found[1].name]],
        }

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take what the module returned for the next probe. Without a result, the searches end with a failure."""
        found = self._next()
        if found is None:
            return
        search, cell = found
        try:
            probe = _read(search, cell, entry)
        except ResultError as error:
            self.failure = f"{cell.name}: {entry.get('error') or error}"
            self.entries.append({**entry, "probe": len(self._probes[search.name]) + 1})
            return
        self._probes[search.name].append(probe)
        # All probes of all hosts are in memory until they are reported, and the gaps are nearly all of their size.
        runs = [{**run, "detail": drop_gaps(run.get("detail"))} for run in entry["runs"]]
        # Requests that fail at a load that is too high are a result, not a failure of the measurement.
        self.entries.append({**entry, "runs": runs, "error": None, "probe": len(self._probes[search.name])})

    def restore(self, entries: Iterable[Entry]) -> int:
        """Take over the probes of an interrupted call, as far as they match this one. Return how many."""
        for entry in entries:
            found = self._next()
            if found is None or found[1].name != entry.get("cell"):
                break
            self.add(entry)
        return len(self.entries)

    def results(self) -> list[dict[str, Any]]:
        """Return the result for each SLO of each search; after a failure, what is known."""
        return [
            self._result(search, slo, place)
            for search in self.cells.searches
            for place, slo in enumerate(search.first.slos)
        ]

    def rows(self) -> list[Entry]:
        """Return the entries, each with the SLOs for which it is the result: the interval of its requests/s."""
        at: dict[str, dict[str, Any]] = {}
        for result in self.results():
            if result["cell"]:
                interval = result["request_throughput"]
                at.setdefault(result["cell"], {})[result["slo"]["name"]] = [interval["low"], interval["high"]]
        return [{**entry, "at_slo": at.get(str(entry.get("cell")), {})} for entry in self.entries]

    def _next(self) -> tuple[CellSearch, SuiteCell] | None:
        for search in self.cells.searches:
            for place, slo in enumerate(search.first.slos):
                load = self._state(search, slo, place)
                if not isinstance(load, SearchResult):
                    return search, search.at(load)
        return None

    def _state(self, search: CellSearch, slo: Slo, place: int) -> float | SearchResult:
        history = [probe.of[slo.name] for probe in self._probes[search.name]]
        rules = search.rules
        # Shared: a search that needs fewer leaves the rest to the next.
        return next_probe(history, replace(rules, probes=rules.probes * (place + 1)))

    def _result(self, search: CellSearch, slo: Slo, place: int) -> dict[str, Any]:
        state = self._state(search, slo, place)
        found = state if isinstance(state, SearchResult) else None
        probes = {probe.of[slo.name].load: probe for probe in self._probes[search.name]}
        best = probes.get(found.load) if found and found.load is not None else None
        ends = (found.load, found.low, found.high) if found else (None, None, None)
        loads = [None if load is None else search.rules.point(load).value for load in ends]
        plans = [entry.get("instance_plan") or {} for entry in self.entries]  # complete, unlike the target
        gpus = max((len(plan.get("gpus") or ()) for plan in plans), default=0) or None
        throughputs = {key: _interval(key, found, probes, 1) for key in METRICS}
        return {
            "instance": str(self.target["name"]),
            "deployment": str(self.target.get("deployment") or ""),
            "suite": self.suite,
            "search": search.name,
            "shape": search.first.shape.to_json() if search.first.shape else None,
            "slo": slo.to_json(),
            "share": search.rules.share,
            "load": search.rules.kind,
            "value": loads[0],
            "low": loads[1],
            "high": loads[2],
            "cell": best.cell if best else None,
            "probes": len(probes),
            **throughputs,
            "output_throughput_per_gpu": _interval("output_throughput", found, probes, gpus),
            "why": found.why if found else f"the search ended early: {self.failure or 'it was interrupted'}",
        }


def _interval(
    key: str, found: SearchResult | None, probes: Mapping[float, MeasuredProbe], divisor: int | None
) -> dict[str, float | None]:
    """Return {value, low, high} of a throughput: that of the probes at the load found and at its interval's ends."""

    def at(load: float | None) -> float | None:
        value = probes[load].throughput[key] if load is not None else None
        return None if value is None or divisor is None else value / divisor

    value, low, high = (at(load) for load in ((found.load, found.low, found.high) if found else (None,) * 3))
    if value is None:
        return {"value": None, "low": None, "high": None}
    # Beyond its limit, an engine may do less than at its limit.
    return {
        "value": value,
        "low": None if low is None else min(low, value),
        "high": None if high is None else max(high, value),
    }


def _read(search: CellSearch, cell: SuiteCell, entry: Mapping[str, Any]) -> MeasuredProbe:
    """Return a probe from the module's entry. Raise ResultError where it does not show how its requests did."""
    run: Mapping[str, Any] = next(iter(entry.get("runs") or ()), {})
    result = run.get("result")
    if not isinstance(result, Mapping) or not result.get("completed"):
        raise ResultError("no request completed")
    metrics = normalise(cell.kind, dict(result), str(run.get("log") or ""))
    try:
        requests = read_requests({**result, **(unpack_lists(run.get("detail")) or {})})
    except (TypeError, ValueError) as error:
        raise ResultError(f"its lists of requests cannot be read ({error})") from None
    if requests is None:
        raise ResultError(
            "its single requests are not recorded; with fewer requests they may be (num_prompts)"
        )
    bound = client_bound(number(run.get("client_cpu_share")), send_lag_ms(requests, cell.load))
    probes = {
        slo.name: read_probe(
            requests, cell.load, LatencyLimits(slo.ttft_ms, slo.tpot_ms, slo.e2el_ms), bool(bound)
        )
        for slo in search.first.slos
    }
    undecided = [name for name, probe in probes.items() if not probe.decided and not probe.failed]
    if undecided:
        raise ResultError(
            f"none of its answers shows whether it keeps {undecided[0]}: they have only one token"
        )
    return MeasuredProbe(cell.name, probes, {key: number(metrics.get(key)) for key in METRICS})
