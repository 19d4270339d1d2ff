# SPDX-License-Identifier: Apache-2.0
"""Read the accuracy runs of a results directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "accuracy.json"


def read_accuracy_runs(results_dir: Path) -> dict[str, Mapping[str, Any]]:
    """Return the contents of each run's accuracy.json, by the run's name; what cannot be read is left out."""
    found: dict[str, Mapping[str, Any]] = {}
    for path in sorted(results_dir.glob(f"*/{FILE}")):
        if path.parent.is_symlink():
            continue
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(data, Mapping):
            found[path.parent.name] = data
    return found
