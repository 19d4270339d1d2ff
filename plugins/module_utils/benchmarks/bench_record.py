# SPDX-License-Identifier: Apache-2.0
"""A run of a benchmark as programs/bench_job.py records it, for those that write and those that read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def record_name(position: int, block: int) -> str:
    """Return the file of a run: of the cell at this position of the job, in this block (0: a warm-up)."""
    return f"{position}.{block}.json"


def has_result(record: Mapping[str, Any]) -> bool:
    """Return whether a run wrote a result of at least one answered request."""
    result = record["result"]
    return record["code"] == 0 and isinstance(result, dict) and result.get("completed") != 0
