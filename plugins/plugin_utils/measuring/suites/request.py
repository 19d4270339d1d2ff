# SPDX-License-Identifier: Apache-2.0
"""What a run measures by a suite: the kinds of benchmarks, and everything wrong with it before it begins. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.common.errors import FleetError, Problem, host_names
from ...knowledge.catalog.load import Knowledge
from .compose import suite_cells
from .datasets import SUITE, SUITE_ARGS
from .parse import read_suite
from .suite import SERVE, Suite


def requested_kinds(
    knowledge: Knowledge,
    variables: Mapping[str, Mapping[str, Any]],
    asked: Sequence[str] = (),
    new: bool = False,
) -> tuple[str, ...]:
    """Return the kinds of benchmarks of a run: those that it asks for, else those of its hosts' suites.

    variables: SUITE of each host, evaluated. new: the run measures what it has just started, and what must not stop.
    Raise FleetError for an unknown suite, hosts with different kinds, and new instances that would have to stop.
    """
    if asked:
        return tuple(asked)
    hosts: dict[str, list[str]] = {}
    for host, given in variables.items():
        hosts.setdefault(str(given.get(SUITE) or ""), []).append(host)
    kinds = {name: _kinds(read_suite(knowledge, name)) if name else (SERVE,) for name in hosts}
    offline = [name for name in hosts if kinds[name] != (SERVE,)]
    if new and offline:
        raise FleetError([_stops(name, kinds[name], hosts[name]) for name in offline])
    if len(set(kinds.values())) > 1:
        raise FleetError([_different(hosts, kinds)])
    return next(iter(kinds.values()), (SERVE,))


@dataclass(frozen=True)
class PlannedCells:
    """How many cells of a kind a run measures on an instance. blocks: minimum number of runs of each."""

    host: str
    instance: str
    kind: str
    count: int
    blocks: int

    @property
    def target(self) -> str:
        """Return its directory on the node."""
        return f"{self.instance}-{self.kind}"


def check_cells(
    knowledge: Knowledge,
    variables: Mapping[str, Mapping[str, Any]],
    kinds: Sequence[str],
    instances: Iterable[tuple[str, Mapping[str, Any]]],
) -> tuple[list[str], list[PlannedCells]]:
    """Return what the suites of hosts leave out for each instance, other warnings, and what the suites measure.

    Equal warnings of several hosts are one. variables: SUITE and SUITE_ARGS of each host, evaluated. instances: with
    their hosts. Raise FleetError with everything that would make the measurement fail.
    """
    read: dict[str, Suite] = {}
    problems: list[Problem] = []
    warned: dict[tuple[str, str], dict[str, None]] = {}
    planned: list[PlannedCells] = []
    for host, instance in instances:
        given = variables.get(host, {})
        name = str(given.get(SUITE) or "")
        if not name:
            continue
        suite = read.get(name) or read.setdefault(name, read_suite(knowledge, name))
        overrides = {**(given.get(SUITE_ARGS) or {}), "kinds": list(kinds)}
        try:
            cells = suite_cells(knowledge, suite, instance, overrides)
        except FleetError as error:
            problems += (Problem(item.path, item.what, item.fix, (host,)) for item in error.problems)
            continue
        omitted = (f"{item.name} is left out. {item.reason}" for item in cells.omitted)
        for text in (*cells.warnings, *omitted):
            warned.setdefault((suite.name, text), {})[host] = None
        for kind, count in Counter(cell.kind for cell in cells.cells).items():
            planned.append(PlannedCells(host, str(instance["name"]), kind, count, cells.blocks))
    if problems:
        raise FleetError(problems)
    warnings = [f"suite {name}, {host_names(tuple(hosts))}: {text}" for (name, text), hosts in warned.items()]
    return warnings, planned


def measured_instances(todo: Iterable[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the instances that the hosts of a plan measure (as for add_host), each with its host."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for item in todo:
        plan = item["plan"]
        steps = ((plan.get("rollout") or {}).get("steps") or {}).values()
        batches = [phases["measure"]["args"] for phases in steps if "measure" in phases]
        groups = [*(args.get("instances", ()) for args in batches), plan.get("measure", ())]
        found += [(item["name"], instance) for group in groups for instance in group]
    return found


def _kinds(suite: Suite) -> tuple[str, ...]:
    return tuple(dict.fromkeys(group.kind for group in suite.groups))


def _stops(name: str, kinds: Sequence[str], hosts: Sequence[str]) -> Problem:
    """Return that a suite cannot measure what has just been started."""
    what = (
        f"{name} has offline benchmarks ({', '.join(kinds)}), which stop instances, but this run measures "
        "instances that it has just started."
    )
    fix = (
        "Add -e benchmark_suite=quick, or --skip-tags benchmark to measure nothing. After this run, benchmark.yml "
        f"-e benchmark_suite={name} takes instances out of service and measures them."
    )
    return Problem((SUITE,), what, fix, tuple(hosts))


def _different(hosts: Mapping[str, Sequence[str]], kinds: Mapping[str, Sequence[str]]) -> Problem:
    """Return that hosts have suites of different kinds of benchmarks."""
    each = [
        f"{name or 'no suite'} ({', '.join(kinds[name])}) on {', '.join(some)}"
        for name, some in hosts.items()
    ]
    what = f"a run must have the same kinds of benchmarks on all hosts, but they have {'; '.join(each)}."
    fix = "Choose one suite for all of them with -e benchmark_suite=NAME, or the hosts of one suite with --limit."
    return Problem((SUITE,), what, fix, tuple(host for some in hosts.values() for host in some))
