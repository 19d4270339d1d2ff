# SPDX-License-Identifier: Apache-2.0
"""Write the report of a stored run again, when something that it shows has been measured since."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ....module_utils.common.files import write_atomic
from ..results.index import ResultsIndex
from ..results.runs_on_disk import SUMMARY, read_run
from .report import render_report
from .run_context import read_run_context

REPORT = "report.html"


def rewrite_newest(results_dir: Path, deployments: Iterable[str]) -> list[Path]:
    """Write the report of each deployment's newest run again, from its files. Return the reports that were written.

    A run without a report gets none. Raise FleetError, OSError or ValueError for files that cannot be read or written.
    """
    index = ResultsIndex(results_dir)
    index.update()
    newest = dict.fromkeys(run for name in deployments for run in index.runs(name)[:1])
    paths = [results_dir / run / REPORT for run in newest]
    found = [path for path in paths if path.is_file()]
    for path in found:
        _rewrite(path)
    return found


def _rewrite(path: Path) -> None:
    directory = path.parent
    summary = json.loads((directory / SUMMARY).read_text(encoding="utf-8"))
    rows = read_run(directory.parent, directory.name).rows
    around = read_run_context(directory.parent, summary, rows, (directory / "plan.json").is_file())
    write_atomic(str(path), render_report(summary, around), path.stat().st_mode & 0o777)
