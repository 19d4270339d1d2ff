# SPDX-License-Identifier: Apache-2.0
"""What a report shows in addition to its own run: the previous run, published results, accuracy of the same image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....module_utils.common.errors import FleetError
from ...knowledge.catalog.load import load_baselines
from ..measurement.cells import Side, by_cell
from ..measurement.published import PublishedResult, read_published
from ..results.accuracy_runs import read_accuracy_runs
from ..results.index import ResultsIndex
from ..results.runs_on_disk import read_run

Row = Mapping[str, Any]
CANDIDATES = 20
"""How many earlier runs are searched for one that measured a cell of this run."""


@dataclass(frozen=True)
class RunContext:
    """What is known in addition to the summary.

    Attributes:
        runs: the rows of the run's single runs (runs.jsonl)
        previous: the last run that measured one of its cells on one of its hosts; None if there is none
        problem: why earlier runs could not be read; "" if they could
        published: the rows of the catalogue's baselines
        accuracy: the contents of accuracy.json of each accuracy run
        plan: whether plan.json is next to the page
    """

    runs: Sequence[Row] = ()
    previous: Side | None = None
    problem: str = ""
    published: Sequence[PublishedResult] = ()
    accuracy: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    plan: bool = False


def read_run_context(
    results_dir: Path, summary: Mapping[str, Any], runs: Sequence[Row], plan: bool
) -> RunContext:
    """Read the context of a run, whether the run is written yet or not.

    What cannot be read is left out, as a report must appear.
    """
    previous, problem = None, ""
    try:
        previous = _previous(results_dir, Side(summary["run"], tuple(runs), summary["hosts"]))
    except FleetError as error:
        problem = str(error)
    return RunContext(
        runs, previous, problem, read_published(load_baselines()), read_accuracy_runs(results_dir), plan
    )


def _previous(results_dir: Path, own: Side) -> Side | None:
    """Return the last earlier run with a cell of this one. Runs of other loads in between are skipped."""
    started = min((str(row["started"]) for row in own.rows if row["started"]), default="")
    if not started or not results_dir.is_dir():
        return None
    index = ResultsIndex(results_dir)
    index.update()
    places = {(row["deployment"], row["host"]) for row in own.rows}
    cells = by_cell(own).keys()
    for name in index.earlier(started, places)[:CANDIDATES]:
        run = read_run(results_dir, name)
        side = Side(name, run.rows, run.hosts)
        if cells & by_cell(side).keys():
            return side
    return None
