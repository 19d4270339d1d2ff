# SPDX-License-Identifier: Apache-2.0
"""The GPUs' own past: the medians of earlier runs, from the newest summaries in the results directory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..outliers.evidence import gpus_of
from ..outliers.samples import cell_speeds
from ..outliers.verdicts import Earlier, cell_name

RUNS = 20
"""Number of earlier runs that count: older ones had other drivers and releases."""


def read_earlier(results_dir: Path) -> Earlier:
    """Return the medians of the newest RUNS summaries below `results_dir`; files that cannot be read are left out."""
    paths = [path for path in results_dir.glob("*/summary.json") if not path.parent.is_symlink()]
    newest = sorted(paths, key=lambda path: path.stat().st_mtime)[-RUNS:]
    summaries = []
    for path in newest:
        try:
            summaries.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue  # an incomplete history is used as far as it goes
    return earlier_medians(summary for summary in summaries if isinstance(summary, Mapping))


def earlier_medians(summaries: Iterable[Mapping[str, Any]]) -> Earlier:
    """Return the first metric of each cell, by unique id of the GPU and by cell, in the order of the summaries."""
    found: dict[str, dict[str, list[float]]] = {}
    for summary in summaries:
        try:
            medians = list(_medians(summary))
        except (KeyError, TypeError, AttributeError):
            continue  # written by another program, or by a release with other keys
        for gpu, cell, value in medians:
            found.setdefault(gpu, {}).setdefault(cell, []).append(value)
    return found


def _medians(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Return the unique id of each GPU, with each of its cells and the median there."""
    rows, hosts = summary["benchmarks"], summary["hosts"]
    gpus = gpus_of(rows, hosts)
    for cell in cell_speeds(rows):
        host, speed = cell.instance[0], cell.speeds[0]
        if speed is None:
            continue
        value = math.exp(speed if cell.metrics[0].higher else -speed)
        for gpu in hosts.get(host, {}).get("gpus") or []:
            if gpu["index"] in gpus[cell.instance] and gpu.get("unique_id"):
                yield gpu["unique_id"], cell_name(cell.cell), value
