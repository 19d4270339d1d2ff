# SPDX-License-Identifier: Apache-2.0
"""Compare the results of runs: reads the results directory, writes comparisons/; the judgement is made elsewhere.

Documentation: plugins/modules/bench_compare.py (`ansible-doc -t module instinct.fleet.bench_compare`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError, Problem
from ansible_collections.instinct.fleet.plugins.plugin_utils.action_base import ControllerAction, write_json
from ansible_collections.instinct.fleet.plugins.plugin_utils.catalog.load import load_baselines
from ansible_collections.instinct.fleet.plugins.plugin_utils.measurement.cells import Side
from ansible_collections.instinct.fleet.plugins.plugin_utils.measurement.compare import (
    ComparisonRules,
    compare,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measurement.configuration import differences
from ansible_collections.instinct.fleet.plugins.plugin_utils.measurement.published import (
    counterparts,
    read_published,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.report.compare_text import (
    comparison_json,
    comparison_text,
    published_json,
    published_text,
    worse_text,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.store.index import ResultsIndex
from ansible_collections.instinct.fleet.plugins.plugin_utils.store.runs_on_disk import read_run, resolve_run

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
        a = self._side(results_dir, options["a"])
        if options["b"] == [PUBLISHED]:
            near = counterparts(a, read_published(load_baselines()))
            text, data, worse = published_text(a.name, near), published_json(a.name, near), ""
            name = f"{a.name}-{PUBLISHED}"
        else:
            rules = ComparisonRules(_share("tolerance", options), _share("drift", options))
            b = self._side(
                results_dir, _before(results_dir, a) if options["b"] == [PREVIOUS] else options["b"]
            )
            if a.name == b.name:
                what = f"a and b are both {a.name}."
                raise FleetError([Problem((), what, "Name two runs: -e a=RUN -e b=RUN.")])
            found, differs = compare(a, b, rules), differences(a, b)
            names = a.name, b.name
            text, data = (
                comparison_text(names, found, differs, rules),
                comparison_json(names, found, differs, rules),
            )
            worse, name = worse_text(found), f"{a.name}-{b.name}"
        path = results_dir / "comparisons" / f"{name[:200]}.json"
        path.parent.mkdir(exist_ok=True)
        write_json(path, data)
        self.show(f"\n{text}\n{path}")
        return {"changed": False, "text": text, "worse": worse, "file": str(path)}

    def _side(self, results_dir: Path, names: list[str]) -> Side:
        """Return the rows of the named runs, taken together."""
        runs = [read_run(results_dir, resolve_run(results_dir, name)) for name in names]
        for note in (note for run in runs for note in run.notes):
            self._display.warning(note)
        hosts = {host: facts for run in runs for host, facts in run.hosts.items()}
        return Side("+".join(run.name for run in runs), tuple(row for run in runs for row in run.rows), hosts)


def _before(results_dir: Path, a: Side) -> list[str]:
    """Return the last run before the first of a's with one of its deployments."""
    index = ResultsIndex(results_dir)
    index.update()
    earlier = index.before(a.name.split("+")[0])
    if not earlier:
        what = f"no run before {a.name} measured one of its deployments on its hosts."
        raise FleetError([Problem((), what, "Name a run (-e b=RUN), or use -e b=published.")])
    return earlier[:1]


def _share(name: str, options: Mapping[str, Any]) -> float:
    value: float = options[name]
    if not 0 <= value < 100 or (name == "tolerance" and not value):
        raise FleetError([Problem((), f"compare_{name} is {value:g}, which is not a usable percentage.")])
    return value / 100
