# SPDX-License-Identifier: Apache-2.0
"""Compare the results of runs: read the results directory, write comparisons/, and judge nothing here.

Documentation: plugins/modules/bench_compare.py (`ansible-doc -t module instinct.fleet.bench_compare`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError, Problem
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import (
    ControllerAction,
    write_json,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import load_baselines
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.cells import Side
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.compare import (
    ComparisonRules,
    compare,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.configuration import (
    differences,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.measurement.published import (
    counterparts,
    read_published,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.report.compare_text import (
    comparison_json,
    comparison_text,
    nothing_compared,
    published_json,
    published_text,
    worse_text,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.index import ResultsIndex
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.results.runs_on_disk import (
    read_run,
    resolve_runs,
)

PREVIOUS, PUBLISHED = "previous", "published"


class ActionModule(ControllerAction):
    """bench_compare."""

    expected: ClassVar = (FleetError, OSError)
    options: ClassVar = {
        "a": {"type": "list", "elements": "str", "default": ["latest"]},
        "b": {"type": "list", "elements": "str", "default": ["previous"]},
        "tolerance": {"type": "float", "default": 2.0},
        "drift": {"type": "float", "default": 2.0},
        "results_dir": {"type": "path", "default": "results"},
    }

    def work(self, options: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return text, worse and the file."""
        del facts
        results_dir = Path(options["results_dir"]).expanduser().absolute()
        new = resolve_runs(results_dir, options["a"])
        a = self._side(results_dir, new)
        if options["b"] == [PUBLISHED]:
            near = counterparts(a, read_published(load_baselines()))
            text, data, worse = published_text(a.name, near), published_json(a.name, near), ""
            name = f"{a.name[:100]}-{PUBLISHED}"
        else:
            rules = ComparisonRules(_share("tolerance", options), _share("drift", options))
            named = [_before(results_dir, new[0])] if options["b"] == [PREVIOUS] else options["b"]
            old = resolve_runs(results_dir, named)
            if both := [name for name in new if name in old]:
                what = f"a and b both have {', '.join(both)}."
                raise FleetError([Problem((), what, "Name different runs: -e a=RUN -e b=RUN.")])
            b = self._side(results_dir, old)
            found, differs = compare(a, b, rules), differences(a, b)
            names = a.name, b.name
            if wrong := nothing_compared(names, found):
                raise FleetError(wrong)
            text, data = (
                comparison_text(names, found, differs, rules),
                comparison_json(names, found, differs, rules),
            )
            worse, name = worse_text(found), f"{a.name[:100]}-{b.name[:100]}"
        path = results_dir / "comparisons" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        write_json(path, data)
        self.show(f"\n{text}\n{path}")
        return {"changed": False, "text": text, "worse": worse, "file": str(path)}

    def _side(self, results_dir: Path, names: list[str]) -> Side:
        """Return the rows of the named runs, taken together."""
        runs = [read_run(results_dir, name) for name in names]
        for note in (note for run in runs for note in run.notes):
            self._display.warning(note)
        hosts = {host: facts for run in runs for host, facts in run.hosts.items()}
        rows = tuple({**row, "run": run.name} for run in runs for row in run.rows)
        return Side("+".join(run.name for run in runs), rows, hosts)


def _before(results_dir: Path, name: str) -> str:
    """Return the last run before one with one of its deployments."""
    index = ResultsIndex(results_dir)
    index.update()
    earlier = index.before(name)
    if not earlier:
        what = f"no run before {name} measured one of its deployments on its hosts."
        raise FleetError([Problem((), what, "Name a run (-e b=RUN), or use -e b=published.")])
    return earlier[0]


def _share(name: str, options: Mapping[str, Any]) -> float:
    value: float = options[name]
    if not 0 <= value < 100 or (name == "tolerance" and not value):
        raise FleetError([Problem((), f"compare_{name} is {value:g}, which is not a usable percentage.")])
    return value / 100
