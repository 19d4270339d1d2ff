# SPDX-License-Identifier: Apache-2.0
"""What is kept of benchmarks that were not reported: bench/jobs.py continues from it."""

from __future__ import annotations

from .source import listing

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any


def read_benchmarks(data_dir: str) -> list[dict[str, Any]]:
    """Return the finished runs of each cell, by run and target, from the names of their files: CELL.BLOCK.json."""
    top = f"{data_dir}/bench"
    found = []
    for run in listing(top):
        for target in listing(f"{top}/{run}"):
            runs: dict[str, int] = {}
            for name in listing(f"{top}/{run}/{target}"):
                cell, _dot, block = name.partition(".")
                if cell.isdigit() and block[:-5].isdigit() and block[:1] != "0" and block[-5:] == ".json":
                    runs[cell] = runs.get(cell, 0) + 1
            found.append({"run": run, "target": target, "runs": [runs[cell] for cell in sorted(runs)]})
    return found
