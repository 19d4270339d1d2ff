# SPDX-License-Identifier: Apache-2.0
"""Decide, while a benchmark is planned, which run it performs: a new one, or an unfinished one of the results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from ...knowledge.catalog.load import Knowledge
from ...planning.inventory.public_variables import public_variables
from ...planning.observed.node_state import KeptRuns
from ..suites.datasets import SUITE, SUITE_ARGS, with_dataset
from ..suites.request import PlannedCells
from .continuation import choose_run, count_measured, explain_choice, run_configuration
from .run_names import ResultsError, check_run, free_run
from .unfinished_runs import count_probes, read_unfinished

Options = Mapping[str, Any]
REPEAT = "benchmark_repeat"


def benchmark_variables(kinds: Iterable[str]) -> tuple[str, ...]:
    """Return the variables of hosts that say what a benchmark of these kinds measures."""
    return (SUITE, SUITE_ARGS, *_argument_names(kinds))


def _argument_names(kinds: Iterable[str]) -> tuple[str, ...]:
    """Return the variables of a host that has no suite."""
    return (*(f"benchmark_{kind}_args" for kind in kinds), REPEAT)


def begin_run(
    knowledge: Knowledge,
    options: Options,
    given: Mapping[str, Mapping[str, Any]],
    instances: Sequence[tuple[str, Mapping[str, Any]]],
    cells: Sequence[PlannedCells],
    kept: Mapping[str, Iterable[KeptRuns]],
) -> tuple[dict[str, Any], list[str]]:
    """Return the record of the run that a benchmark performs, and the plan's lines about it.

    given: benchmark_variables() of all hosts, as far as they are set. instances: what is measured, with their hosts.
    cells: those of suites. kept: what the hosts keep. Raise FleetError for a name that the run cannot have.
    """
    results_dir, now = Path(options["results_dir"]).expanduser().absolute(), datetime.now(UTC)
    suites = {host: str(own[SUITE]) for host, own in given.items() if own.get(SUITE)}
    arguments = _arguments(options["kinds"], given)
    contents = {name: knowledge.suite(name) for name in {*suites.values()}}
    wanted = run_configuration(_request(options, given), arguments, (suites, contents), instances)
    try:
        asked = free_run(results_dir, check_run(options["run"])) if options["run"] else ""
    except ResultsError as error:
        raise FleetError([Problem(("benchmark_run",), str(error))]) from None
    new = free_run(results_dir, now.strftime("%Y%m%dT%H%M%SZ"))
    choice = choose_run(asked, new, wanted, read_unfinished(results_dir), now)
    without = [  # a suite, the arguments make one cell
        PlannedCells(host, str(item["name"]), kind, 1, _blocks(arguments[host][REPEAT]))
        for host, item in instances
        if host not in suites
        for kind in options["kinds"]
    ]
    cells = [*cells, *without]
    name = choice.run.name
    measured, probes = count_measured(name, cells, kept), count_probes(results_dir, name)
    return choice.run.to_json(), explain_choice(choice, measured, sum(item.count for item in cells), probes)


def _request(options: Options, given: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return what the operator asked for."""
    return {
        "suite": ", ".join(sorted({str(own.get(SUITE) or "none") for own in given.values()})),
        "kinds": ", ".join(options["kinds"]),
        "deployment": options["deployment"] or "all",
        "instance": options["instance"] or "all",
        "hosts": ", ".join(given),
        "rate": str(options["rate"]) if options["live"] else "none",
    }


def _arguments(kinds: Iterable[str], given: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the variables of each host with their defaults, and the content's hash in place of a data set's path."""
    alone = _argument_names(kinds)
    defaults = {name: public_variables()[name].default for name in (SUITE_ARGS, *alone)}
    read: dict[str, Any] = {}  # by their text: a data set may be large, and all hosts use the same one

    def value(name: str, own: Any) -> Any:
        if not isinstance(own, Mapping):
            return own
        text = json.dumps(own, sort_keys=True, default=str)
        if text not in read:
            read[text] = with_dataset(own, name)[0]
        return read[text]

    return {
        host: {
            name: value(name, own.get(name, defaults[name]))
            for name in ((SUITE_ARGS,) if own.get(SUITE) else alone)
        }
        for host, own in given.items()
    }


def _blocks(repeat: Any) -> int:
    """Return a host's number of runs; the role reports a wrong one."""
    return int(repeat) if str(repeat).isdecimal() else 1
