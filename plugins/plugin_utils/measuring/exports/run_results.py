# SPDX-License-Identifier: Apache-2.0
"""Read one run of the benchmarks, summary.json and runs.jsonl, as rows that hold no secret. Pure."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....module_utils.common.errors import FleetError, Problem
from ....module_utils.common.redact import MASK, Redactor
from ...planning.instances.redact import redact_command, redact_variables

Row = Mapping[str, Any]
"""A benchmark; a key that is absent is unknown, like one that is null."""

_HEADERS = {"--header", "--headers", "--extra-headers"}
_IDENTITY = ("host", "instance", "kind", "cell")


@dataclass(frozen=True)
class RunResults:
    """The results of a run.

    cells: one row for each cell of an instance, with medians of its runs. runs: one row for each run of a cell; `cells`
    where they were recorded without runs.jsonl. failures: as in summary.json.
    """

    run: str
    cells: tuple[Row, ...]
    runs: tuple[Row, ...]
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failures: tuple[Mapping[str, Any], ...] = ()

    def runs_of(self, cell: Row) -> tuple[Row, ...]:
        """Return the runs of a cell of an instance, in their order; the cell itself if none is recorded."""
        return self._by_cell.get(_key(cell)) or (cell,)

    @functools.cached_property
    def _by_cell(self) -> Mapping[tuple[Any, ...], tuple[Row, ...]]:
        found: dict[tuple[Any, ...], tuple[Row, ...]] = {}
        for row in self.runs:
            found[_key(row)] = (*found.get(_key(row), ()), row)
        return found

    def gpu(self, row: Row, fact: str) -> str | None:
        """Return a fact about the GPUs of a row's host, such as model or gfx; None if it is unknown or differs."""
        found = {gpu.get(fact) for gpu in self.hosts.get(str(row.get("host")), {}).get("gpus") or []}
        return str(found.pop()) if len(found) == 1 and None not in found else None


def parse_run(summary: Any, lines: str = "") -> RunResults:
    """Return the results of a run. Raise FleetError if the files are not results.

    summary: the content of summary.json. lines: the text of runs.jsonl, empty if there is none.
    """
    if not isinstance(summary, Mapping) or not isinstance(summary.get("benchmarks"), Sequence):
        raise FleetError([Problem((), "summary.json has no list of benchmarks.", "Export another run.")])
    redact = Redactor()
    cells = [_without_secrets(row, redact) for row in summary["benchmarks"]]
    runs = []
    for number, line in enumerate(lines.splitlines(), 1):
        if line.strip():
            runs.append(_without_secrets(_parsed(line, number), redact))
    return RunResults(
        run=str(summary.get("run") or "run"),
        cells=tuple(cells),
        runs=tuple(runs or cells),
        hosts=summary.get("hosts") or {},
        failures=tuple(redact.data(item) for item in summary.get("failures") or ()),
    )


def _parsed(line: str, number: int) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        what = f"runs.jsonl: line {number} is not a JSON object."
        raise FleetError(
            [Problem((), what, "A run that was killed may leave half a line: remove that line.")]
        )
    return row


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in _IDENTITY)


def _without_secrets(row: Row, redact: Redactor) -> Row:
    """Mask secrets by the names of options and variables, and by their form.

    bench_report masked them already, those of the inventory also by value: what leaves the site is checked once more,
    and gets no headers of requests, which may contain accounts of proxies and gateways.
    """
    masked: dict[str, Any] = {
        **row,
        "serve_command": _without_headers(redact_command(row.get("serve_command"))),
        "command": _without_headers(redact_command(row.get("command"))),
        "env": redact_variables(row.get("env") or {}),
    }
    found: dict[str, Any] = redact.data(masked)
    return found


def _without_headers(command: str | None) -> str | None:
    try:
        words = shlex.split(command or "")
    except ValueError:  # not a shell line
        return None
    masked, header = [], False
    for word in words:
        if word.startswith("--"):
            option, equals, _unused = word.partition("=")
            header = option in _HEADERS
            masked.append(f"{option}={MASK}" if header and equals else word)
        else:
            masked.append(MASK if header else word)
    return shlex.join(masked) if masked != words else command
