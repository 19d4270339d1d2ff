# SPDX-License-Identifier: Apache-2.0
"""What a run measures, pass by pass: from the plan of the run to the suites' cells and the run of the benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils.service.generations import BENCHMARK
from ..base.passes import extend, run_passes
from ..knowledge.catalog.load import Knowledge
from ..planning.observed.node_state import KeptRuns
from .results.begin import begin_run
from .suites.request import PlannedCells, check_cells


@dataclass(frozen=True, kw_only=True)
class BenchmarkInputs:
    """What a benchmark is planned from.

    options: of the module. instances: those that the run measures, as its plan has them, with their hosts. variables:
    benchmark_variables() of each host of the run, as far as they are set. kept: the runs whose results hosts keep.
    """

    knowledge: Knowledge
    options: Mapping[str, Any]
    instances: Sequence[tuple[str, Mapping[str, Any]]]
    variables: Mapping[str, Mapping[str, Any]]
    kept: Mapping[str, Iterable[KeptRuns]]


@dataclass(frozen=True, kw_only=True)
class CheckedBenchmark(BenchmarkInputs):
    """cells: what suites measure of each instance. warnings: what they leave out, and others."""

    cells: Sequence[PlannedCells]
    warnings: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class BenchmarkPlan(CheckedBenchmark):
    """run: the run that is performed; None if nothing is measured. lines: what the operator reads about it."""

    run: Mapping[str, Any] | None
    lines: Sequence[str]

    @property
    def text(self) -> str:
        """Return what the operator reads; "" if there is nothing to say."""
        warnings = ["Warnings", *(f"  {text}" for text in self.warnings)] if self.warnings else []
        return "\n".join([*warnings, *self.lines])


def check_suites(state: BenchmarkInputs) -> CheckedBenchmark:
    """Add the cells of suites; raise FleetError with everything that would make the measurement fail."""
    warnings, cells = check_cells(state.knowledge, state.variables, state.options["kinds"], state.instances)
    return extend(CheckedBenchmark, state, cells=cells, warnings=warnings)


def choose_run(state: CheckedBenchmark) -> BenchmarkPlan:
    """Add the run: a new one, or an unfinished one of the results that measures the same."""
    run: Mapping[str, Any] | None = None
    lines: Sequence[str] = ()
    if state.options["operation"] == BENCHMARK and state.instances:
        run, lines = begin_run(
            state.knowledge, state.options, state.variables, state.instances, state.cells, state.kept
        )
    return extend(BenchmarkPlan, state, run=run, lines=lines)


PASSES = (check_suites, choose_run)
"""From BenchmarkInputs to BenchmarkPlan."""


def plan_benchmark(inputs: BenchmarkInputs) -> BenchmarkPlan:
    """Return what the run measures. Raise FleetError."""
    plan: BenchmarkPlan = run_passes(PASSES, inputs)
    return plan
