# SPDX-License-Identifier: Apache-2.0
"""What a run measures by a suite: the kinds of benchmarks, and everything wrong with it before it begins. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...module_utils.common.errors import FleetError, Problem, host_names
from ..catalog.flag_values import Value
from ..catalog.load import Knowledge
from .compose import suite_cells
from .parse import read_suite


def requested_kinds(knowledge: Knowledge, name: str, asked: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds of benchmarks that a run measures by a suite: those that it asks for, else all.

    Raise FleetError for an unknown suite.
    """
    return tuple(asked) or tuple(dict.fromkeys(group.kind for group in read_suite(knowledge, name).groups))


def check_cells(
    knowledge: Knowledge,
    name: str,
    kinds: Sequence[str],
    instances: Iterable[tuple[str, Mapping[str, Any]]],
    overrides: Mapping[str, Value],
) -> list[str]:
    """Return what a suite leaves out of each instance, and other warnings; equal ones of several instances once.

    instances: with their hosts. Raise FleetError with everything that would make the measurement fail.
    """
    suite = read_suite(knowledge, name)
    problems: list[Problem] = []
    warned: dict[str, dict[str, None]] = {}
    for host, instance in instances:
        try:
            cells = suite_cells(knowledge, suite, instance, {**overrides, "kinds": list(kinds)})
        except FleetError as error:
            problems += (Problem(item.path, item.what, item.fix, (host,)) for item in error.problems)
            continue
        omitted = (f"{item.name} is left out. {item.reason}" for item in cells.omitted)
        for text in (*cells.warnings, *omitted):
            warned.setdefault(text, {})[host] = None
    if problems:
        raise FleetError(problems)
    return [f"suite {suite.name}, {host_names(tuple(hosts))}: {text}" for text, hosts in warned.items()]


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
