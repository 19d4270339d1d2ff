# SPDX-License-Identifier: Apache-2.0
"""Render a planned cell for the client of an instance's release. Pure.

The words of the command line are those of compose_command, which also renders benchmarks without a suite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from ...knowledge.catalog.load import Knowledge
from ...knowledge.vllm.findings import BAD_CHOICE, GONE, NOT_YET, Finding
from ...knowledge.vllm.flag_values import Value
from ...planning.instances.benchmark import compose_command
from ...planning.instances.cells import main_metric
from ..statistics.percentiles import shortfall, supported_percentiles
from .cells import SuiteCell
from .datasets import DATASET_PATHS, dataset_path, missing_file_problem
from .expand import OmittedCell, PlannedCell
from .overrides import Overrides
from .suite import SERVE, Suite

OTHER_RELEASE = (NOT_YET, GONE, BAD_CHOICE)
"""The client of another release can express the argument."""
MEDIAN = 50


@dataclass(frozen=True)
class Renderer:
    """Renders the cells of a suite for one instance."""

    knowledge: Knowledge
    suite: Suite
    instance: Mapping[str, Any]
    overrides: Overrides

    def render(self, planned: PlannedCell) -> SuiteCell | OmittedCell:
        """Return the cell, or why the release cannot measure it.

        Raise FleetError for a wrong argument, a data set without its file, and too few requests for a requested
        percentile.
        """
        percentiles, warning = self._percentiles(planned)
        arguments = self._arguments(planned, percentiles)
        self._check_file(planned, arguments)
        made = compose_command(self.knowledge, planned.group.kind, self.instance, arguments)
        lost = [item for item in made.findings if _lost(item, planned.basis)]
        if lost:
            return OmittedCell(planned.name, f"{lost[0].subject}: {lost[0].what}.")
        wrong = [item for item in made.findings if item.is_error]
        if wrong:
            where = f"suite {self.suite.name}"
            raise FleetError(
                Problem((where, planned.group.title, item.subject), f"{item.what}.", item.fix)
                for item in wrong
            )
        return SuiteCell(
            name=planned.name,
            kind=planned.group.kind,
            argv=made.argv,
            shape=planned.shape,
            load=planned.load,
            num_prompts=planned.num_prompts,
            slos=self.suite.slos_of(str(self.instance["model"])) if planned.group.kind == SERVE else (),
            percentiles=percentiles,
            metric=main_metric(planned.group.kind, planned.load.kind),
            warnings=(*((warning,) if warning else ()), *(item.text() for item in made.findings)),
        )

    def _percentiles(self, planned: PlannedCell) -> tuple[tuple[float, ...], str]:
        """Return the percentiles that the cell's requests can show, and a warning about the others."""
        if planned.group.kind != SERVE:
            return (), ""
        explicit, requests = self.overrides.percentiles, planned.num_prompts or 0
        asked = self.suite.percentiles if explicit is None else explicit
        short = shortfall(asked, requests)
        if short and explicit is not None:
            fix = "Leave them out, or write a suite of your own with more requests and give its path."
            raise FleetError([Problem((planned.name, "percentiles"), f"{short}.", fix)])
        return supported_percentiles(
            asked, requests
        ), f"{planned.name}: {short}; they are null." if short else ""

    def _arguments(self, planned: PlannedCell, percentiles: Iterable[float]) -> dict[str, Value]:
        kind = planned.group.kind
        found = {**planned.args, **self.overrides.args.get(kind, {})}
        if not self._reads_file(planned):  # it is for another group
            found = {name: value for name, value in found.items() if name not in DATASET_PATHS}
        if kind == SERVE:
            found["save_detailed"] = True
            found["percentiles"] = [f"{item:g}" for item in percentiles] or [MEDIAN]
        return found

    def _reads_file(self, planned: PlannedCell) -> bool:
        return "file" in self.knowledge.bench_book["datasets"].get(planned.group.dataset, {})

    def _check_file(self, planned: PlannedCell, arguments: Mapping[str, Value]) -> None:
        if self._reads_file(planned) and not dataset_path(arguments):
            what, fix = missing_file_problem(self.knowledge, planned.group.dataset)
            raise FleetError([Problem((f"suite {self.suite.name}", "dataset_path"), what, fix)])


def _lost(found: Finding, basis: frozenset[str]) -> bool:
    """Return whether the release's client cannot express a cell; a lost basis would make it another cell."""
    return found.certain and found.status in OTHER_RELEASE and (found.is_error or found.subject in basis)
