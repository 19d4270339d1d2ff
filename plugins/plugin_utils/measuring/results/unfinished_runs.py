# SPDX-License-Identifier: Apache-2.0
"""Keep what a killed benchmark needs to continue in results/.NAME.unfinished/, until its results are written.

run.json says what the run measures. HOST.jsonl has the probes of searches; finished runs of cells are on the nodes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .continuation import UnfinishedRun

_ENDING = ".unfinished"
_RECORD = "run.json"


def read_unfinished(results_dir: Path) -> list[UnfinishedRun]:
    """Return the runs whose results are not written. One whose record cannot be read is left out, and not continued."""
    found = []
    for path in sorted(results_dir.glob(f".*{_ENDING}/{_RECORD}")):
        name = path.parent.name[1 : -len(_ENDING)]
        if (results_dir / name).exists():  # killed after its results were written
            continue
        try:
            found.append(UnfinishedRun.from_json(name, json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def keep_unfinished(results_dir: Path, run: UnfinishedRun) -> None:
    """Write what a run measures. Raise OSError if that is impossible."""
    path = _directory(results_dir, run.name) / _RECORD
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{_RECORD}.{os.getpid()}")
    with open(draft, "w", encoding="utf-8", opener=_private) as stream:
        json.dump(run.to_json(), stream, indent=2)
    draft.replace(path)


def remove_unfinished(results_dir: Path, name: str) -> None:
    """Remove what was kept of a run once its results are written."""
    shutil.rmtree(_directory(results_dir, name), ignore_errors=True)


class ProbeJournal:
    """The probes of a host in a run. Without a name there is no run to continue, and nothing is kept.

    A line for each probe; one that was cut off is skipped.
    """

    def __init__(self, results_dir: Path, run: str, host: str) -> None:
        self._path = _directory(results_dir, run) / f"{host}.jsonl" if run else None

    def entries(self, work: str) -> Iterator[dict[str, Any]]:
        """Yield the probes of the searches whose InstanceSearch.work is this, in the order in which they were made."""
        for found in _lines(self._path):
            if found.get("work") == work:
                yield found["entry"]

    def add(self, work: str, entry: Mapping[str, Any]) -> None:
        """Append a probe."""
        if not self._path:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8", opener=_private) as stream:
            # A newline first, so that this line does not follow the rest of one that was cut off.
            stream.write("\n" + json.dumps({"work": work, "entry": entry}, default=str) + "\n")


def count_probes(results_dir: Path, name: str) -> int:
    """Return how many probes of a run are kept."""
    journals = _directory(results_dir, name).glob("*.jsonl")
    return sum(1 for path in journals for _line in _lines(path))


def _lines(path: Path | None) -> Iterator[dict[str, Any]]:
    text = path.read_text(encoding="utf-8") if path and path.is_file() else ""
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def _directory(results_dir: Path, run: str) -> Path:
    return results_dir / f".{run}{_ENDING}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
