# SPDX-License-Identifier: Apache-2.0
"""Find a run among the results, read it, and write its export without losing what others wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ....module_utils.common.errors import FleetError, Problem, suggest
from .run_results import RunResults, parse_run

LATEST = "latest"
SHOWN = 5


def find_run(results_dir: Path, run: str) -> Path:
    """Return the directory of a run, or of the newest one for "latest". Raise FleetError with the nearest name."""
    runs = sorted(path.parent.name for path in results_dir.glob("*/summary.json"))
    names = [name for name in runs if name != LATEST]
    if run in runs:
        return (results_dir / run).resolve()
    if not names:
        what = f"there are no results in {results_dir}."
        fix = "Measure with playbooks/benchmark.yml, or set benchmark_results_dir to where the results are."
        raise FleetError([Problem(("run",), what, fix)])
    what = f"there is no run {run!r} in {results_dir}."
    raise FleetError([Problem(("run",), what, suggest(run, [*names, LATEST]))])


def read_run(directory: Path) -> RunResults:
    """Return the results in a run's directory. Raise FleetError if they cannot be read."""
    try:
        summary = json.loads((directory / "summary.json").read_text("utf-8"))
        runs = directory / "runs.jsonl"
        lines = runs.read_text("utf-8") if runs.exists() else ""
    except (OSError, ValueError) as error:
        what = f"the results in {directory} cannot be read: {error}."
        raise FleetError([Problem(("run",), what, "Export another run.")]) from None
    return parse_run(summary, lines)


def write_files(to: Path, files: Mapping[str, str], overwrite: bool, write: bool = True) -> bool:
    """Write files below `to`; return whether anything was written, or would be without `write`.

    Nothing is written, and FleetError raised, if a file has other content already, unless `overwrite`. Each file is
    written whole or not at all.
    """
    changed = [name for name, text in files.items() if not _has(to / name, text)]
    foreign = [name for name in changed if (to / name).exists() or (to / name).is_symlink()]
    if foreign and not overwrite:
        shown = ", ".join(foreign[:SHOWN]) + (
            f" and {len(foreign) - SHOWN} more" if len(foreign) > SHOWN else ""
        )
        fix = "Name another directory with -e to=DIR, or replace these files with -e overwrite=true."
        raise FleetError([Problem(("to",), f"{to} has files with other content: {shown}.", fix)])
    try:
        for name in changed if write else ():
            _write(to / name, files[name])
    except OSError as error:
        what = f"{error.filename or to} cannot be written: {error.strerror}."
        raise FleetError([Problem(("to",), what, "Choose another directory with -e to=DIR.")]) from None
    return bool(changed)


def _has(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except OSError:
        return False


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{os.getpid()}.part")
    try:
        part.write_bytes(text.encode())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
