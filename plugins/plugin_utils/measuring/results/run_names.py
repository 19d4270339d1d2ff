# SPDX-License-Identifier: Apache-2.0
"""Names of runs: they name directories of the results, and of the nodes until a run is reported."""

from __future__ import annotations

import re
from pathlib import Path

from ....module_utils.common.paths import DATA_DIR

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ResultsError(Exception):
    """The results cannot be written as requested."""


def check_run(run: str) -> str:
    """Return the name of a run if it is valid for a directory. Raise ResultsError if not."""
    if not _RUN.fullmatch(run) or run == "latest":
        raise ResultsError(
            f"run: {run!r} cannot name a run. Use up to 64 letters, digits, dots, dashes and underscores, "
            "not 'latest', or leave it empty for the time in UTC."
        )
    return run


def free_run(results_dir: Path, run: str) -> str:
    """Return `run`, or `run`-2, -3 … if the run exists already: measurements are never overwritten."""
    name, number = run, 1
    while (results_dir / name).exists():
        number += 1
        name = f"{run}-{number}"
    return name


def node_directory(run: str) -> str:
    """Return where nodes keep the finished measurements of a run until it is reported. Raise ResultsError for no name.

    module_utils/bench/entries.py has the same path.
    """
    return f"{DATA_DIR}/bench/{check_run(run)}"
