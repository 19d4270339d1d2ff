# SPDX-License-Identifier: Apache-2.0
"""Keep the probes of a run's searches beside its results until these are written, so that a killed run goes on.

A line for each probe of an instance, in a file for each host; a line that was cut off is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class SearchJournal:
    """The probes of a host in a run. Without a name there is no run to go on with: nothing is kept then."""

    def __init__(self, results_dir: Path, run: str, host: str) -> None:
        self._path = _directory(results_dir, run) / f"{host}.jsonl" if run else None

    def entries(self, work: str) -> Iterator[dict[str, Any]]:
        """Yield the probes of the searches whose InstanceSearch.work is this, in the order in which they were made."""
        text = ""
        if self._path and self._path.is_file():
            text = self._path.read_text(encoding="utf-8")
        for line in text.splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and found.get("work") == work:
                yield found["entry"]

    def add(self, work: str, entry: Mapping[str, Any]) -> None:
        """Append a probe."""
        if not self._path:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8", opener=_private) as stream:
            # The line's own beginning is kept from the rest of one that was cut off.
            stream.write("\n" + json.dumps({"work": work, "entry": entry}, default=str) + "\n")


def remove_journals(results_dir: Path, run: str) -> None:
    """Remove the probes of a run, whose results are written."""
    shutil.rmtree(_directory(results_dir, run), ignore_errors=True)


def _directory(results_dir: Path, run: str) -> Path:
    return results_dir / f".{run}.searches"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
