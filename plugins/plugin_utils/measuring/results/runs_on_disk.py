# SPDX-License-Identifier: Apache-2.0
"""Read the results of runs from the results directory: runs.jsonl, or summary.json where a run has no runs.jsonl.

These files are authoritative; they are written once, or appended to, and never changed.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....module_utils.common.errors import FleetError, Problem, natural, suggest

LATEST = "latest"
ROWS, SUMMARY = "runs.jsonl", "summary.json"


@dataclass(frozen=True)
class StoredRun:
    """One run: its rows, one for each run of a cell on an instance, and what summary.json says of hosts.

    started: of its first row, ISO 8601; "" if unknown. notes: what was skipped when reading.
    """

    name: str
    started: str
    rows: tuple[Mapping[str, Any], ...]
    hosts: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...] = ()


def run_names(results_dir: Path) -> list[str]:
    """Return the names of the existing runs."""
    if not results_dir.is_dir():
        return []
    names = [
        path.name
        for path in results_dir.iterdir()
        if path.is_dir()
        and not path.is_symlink()
        and not path.name.startswith(".")
        and any((path / name).is_file() for name in (ROWS, SUMMARY))
    ]
    return sorted(names, key=natural)


def resolve_runs(results_dir: Path, names: Sequence[str]) -> list[str]:
    """Return the names of runs, each once; `new-*` means all that match. Raise FleetError with the nearest name."""
    there = run_names(results_dir)
    found = [fnmatch.filter(there, name) or [resolve_run(results_dir, name)] for name in names]
    return list(dict.fromkeys(name for group in found for name in group))


def resolve_run(results_dir: Path, name: str) -> str:
    """Return the name of a run; `latest` is the one that was measured last. Raise FleetError with the nearest name."""
    names = run_names(results_dir)
    if not names:
        what = f"{results_dir} has no results."
        fix = (
            "Measure first with benchmark.yml, or set benchmark_results_dir to the directory of the results."
        )
        raise FleetError([Problem((), what, fix)])
    if name == LATEST:
        link = results_dir / LATEST
        target = link.readlink().name if link.is_symlink() else ""
        return target if target in names else names[-1]
    if name not in names:
        raise FleetError([Problem((), f"{results_dir} has no run {name}.", suggest(name, names))])
    return name


def read_run(results_dir: Path, name: str) -> StoredRun:
    """Return the results of a run. Raise FleetError with file and line if they cannot be read."""
    directory = results_dir / name
    summary = _summary(directory / SUMMARY)
    rows, notes = _rows(directory / ROWS)
    if not (directory / ROWS).is_file():
        rows = list(summary.get("benchmarks") or ())
    starts = [str(row["started"]) for row in rows if row.get("started")]
    started = min(starts, default=str(summary.get("started") or ""))
    return StoredRun(name, started, tuple(rows), summary.get("hosts") or {}, tuple(notes))


def _summary(path: Path) -> Mapping[str, Any]:
    if not path.is_file():  # a run that was interrupted has only its rows
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FleetError([_unreadable(path, error)]) from None
    return data if isinstance(data, Mapping) else {}


def _rows(path: Path) -> tuple[list[Mapping[str, Any]], list[str]]:
    if not path.is_file():
        return [], []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise FleetError([_unreadable(path, error)]) from None
    rows: list[Mapping[str, Any]] = []
    notes: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows.append(_checked(row))
        except ValueError as error:
            if number == len(lines):  # without its end: the run was killed while it wrote
                notes.append(f"{path}:{number}: the last row is incomplete and was left out")
            else:
                raise FleetError([_unreadable(Path(f"{path}:{number}"), error)]) from None
    return rows, notes


def _checked(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise ValueError("is not a JSON object")
    missing: Sequence[str] = [key for key in ("host", "instance", "deployment", "kind") if key not in row]
    if missing:
        raise ValueError(f"does not have {', '.join(missing)}")
    return row


def _unreadable(path: Path, error: Exception) -> Problem:
    fix = "Restore the file from a backup, or move the run's directory out of the results."
    return Problem((), f"{path}: cannot be read: {error}.", fix)
