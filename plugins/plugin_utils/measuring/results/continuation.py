# SPDX-License-Identifier: Apache-2.0
"""Decide whether a benchmark continues a run that was killed, and say so. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from ....module_utils.common.hashing import text_hash
from ...base.text import MANY, plural
from ...planning.explanation.text import titled_paragraph
from ...planning.observed.node_state import KeptRuns
from ..suites.request import PlannedCells

YOUNG = timedelta(hours=24)
"""Age up to which a run is continued without being named: later, the fleet has probably changed."""
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_SHOWN = 80
"""Maximum length at which two values are both shown."""


@dataclass(frozen=True)
class RunConfiguration:
    """What a run measures. Both are by name, and a name that only one of two runs has does not count as a difference.

    request: values that are shown. fingerprints: hashes of arguments, of the suite, and of each instance ("host/name").
    """

    request: Mapping[str, str]
    fingerprints: Mapping[str, str]

    def differences(self, earlier: RunConfiguration) -> list[str]:
        """Return how it differs from an earlier run, as text; nothing if that run can be continued."""
        found = []
        for name, now in self.request.items():
            then = earlier.request.get(name, now)
            if then != now:
                short = len(then) + len(now) <= _SHOWN
                found.append(f"{name} {then}, now {now}" if short else f"other {name}")
        others = [
            name for name, now in self.fingerprints.items() if earlier.fingerprints.get(name, now) != now
        ]
        more = f" and {len(others) - MANY} more" if len(others) > MANY else ""
        return [*found, *([f"other {', '.join(others[:MANY])}{more}"] if others else [])]


@dataclass(frozen=True)
class UnfinishedRun:
    """A run whose results are not written. begun: ISO 8601, UTC."""

    name: str
    begun: str
    configuration: RunConfiguration

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> UnfinishedRun:
        """Return the run of a record. Raise KeyError, TypeError, ValueError or AttributeError for a damaged one."""
        datetime.strptime(data["begun"], _TIME)
        parts = [
            {str(key): str(value) for key, value in data[part].items()}
            for part in ("request", "fingerprints")
        ]
        return cls(name, data["begun"], RunConfiguration(*parts))

    def to_json(self) -> dict[str, Any]:
        """Return the record, and its name."""
        own = self.configuration
        return {
            "name": self.name,
            "begun": self.begun,
            "request": dict(own.request),
            "fingerprints": dict(own.fingerprints),
        }

    @property
    def since(self) -> datetime:
        """Return when it began."""
        return datetime.strptime(self.begun, _TIME).replace(tzinfo=UTC)

    @property
    def text(self) -> str:
        """Return which run it is."""
        return f"run {self.name}, begun {self.begun}"


@dataclass(frozen=True)
class RunChoice:
    """The run that a benchmark performs. continues: whether it was begun earlier. notes: runs that stay unfinished."""

    run: UnfinishedRun
    continues: bool = False
    notes: tuple[str, ...] = ()


def choose_run(
    asked: str, new: str, wanted: RunConfiguration, unfinished: Sequence[UnfinishedRun], now: datetime
) -> RunChoice:
    """Return the unfinished run to continue, or a new one.

    asked: the operator's name for the run, "" for none: then the newest run is continued that measures the same and is
    younger than YOUNG. new: the name of a new one. Raise FleetError if `asked` is an unfinished run of something else.
    """
    begun = UnfinishedRun(asked or new, now.strftime(_TIME), wanted)
    differing = {run.name: wanted.differences(run.configuration) for run in unfinished}
    if asked:
        found = next((run for run in unfinished if run.name == asked), None)
        if found and differing[asked]:
            what = (
                f"{found.text}, is not finished, but measures something else: {'; '.join(differing[asked])}."
            )
            raise FleetError(
                [Problem(("benchmark_run",), what, "Choose another name, or repeat the command of that run.")]
            )
        return RunChoice(_going_on(found, wanted), continues=True) if found else RunChoice(begun)
    same = [run for run in unfinished if not differing[run.name] and now - run.since < YOUNG]
    newest = max(same, key=lambda run: (run.since, run.name), default=None)
    notes = tuple(_note(run, differing[run.name]) for run in unfinished if run != newest)
    return RunChoice(_going_on(newest, wanted) if newest else begun, newest is not None, notes)


def _going_on(run: UnfinishedRun, wanted: RunConfiguration) -> UnfinishedRun:
    """Return a run to continue, with what is measured in addition, such as an instance that did not run before."""
    prints = {**run.configuration.fingerprints, **wanted.fingerprints}
    return replace(run, configuration=replace(wanted, fingerprints=prints))


def _note(run: UnfinishedRun, differences: Sequence[str]) -> str:
    if differences:
        return f"{run.text}, unfinished: it measures something else ({'; '.join(differences)})"
    return f"{run.text}, unfinished: -e benchmark_run={run.name} continues it"


def run_configuration(
    request: Mapping[str, str],
    arguments: Mapping[str, Mapping[str, Any]],
    suites: tuple[Mapping[str, str], Mapping[str, object]],
    instances: Iterable[tuple[str, Mapping[str, Any]]],
) -> RunConfiguration:
    """Return what a run measures.

    arguments: by host and variable. suites: their names by host, and their contents by name. instances: those of the
    plan, with their hosts.
    """
    names = dict.fromkeys(name for given in arguments.values() for name in given)
    prints = {
        name: _fingerprint({host: given.get(name) for host, given in arguments.items()}) for name in names
    }
    served = {
        f"{host}/{item['name']}": _fingerprint([item.get("spec_hash"), item.get("image")])
        for host, item in instances
    }
    of_suite = {"content of the suite": _fingerprint(suites)} if suites[0] else {}
    return RunConfiguration(request, {**prints, **of_suite, **served})


def _fingerprint(value: object) -> str:
    return text_hash(json.dumps(value, sort_keys=True, default=str))


def count_measured(name: str, planned: Iterable[PlannedCells], kept: Mapping[str, Iterable[KeptRuns]]) -> int:
    """Return how many of the planned cells are complete, by what the hosts keep of a run."""
    runs = {
        (host, item.target): item.runs for host, items in kept.items() for item in items if item.name == name
    }
    return sum(
        min(cells.count, sum(count >= cells.blocks for count in runs.get((cells.host, cells.target), ())))
        for cells in planned
    )


def explain_choice(choice: RunChoice, measured: int, cells: int, probes: int) -> list[str]:
    """Return the lines of a plan. cells: 0 of a search, which has probes."""
    lines = []
    if choice.continues:
        done = (
            f"{measured} of {plural(cells, 'cell')} are measured"
            if cells
            else f"it has {plural(probes, 'probe')}"
        )
        lines = titled_paragraph(
            "continues", f"{choice.run.text}: {done}; -e benchmark_run=NEW begins another"
        )
    return [*lines, *(line for note in choice.notes for line in titled_paragraph("leaves", note))]
