# SPDX-License-Identifier: Apache-2.0
"""What all formats have in common: their result, names of files, and texts of CSV and JSON. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..measurement.rows import cell_name
from .run_results import Row


@dataclass(frozen=True)
class Export:
    """Files of one format by their relative path, and what it cannot express, one sentence each."""

    files: Mapping[str, str]
    omitted: tuple[str, ...] = ()


def omission_text(rows: Sequence[Row], why: str) -> tuple[str, ...]:
    """Return a sentence about rows that a format cannot express; () if there are none."""
    if not rows:
        return ()
    shown = ", ".join(f"{row.get('host')}/{row.get('instance')} {cell_name(row)}" for row in rows[:3])
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return (f"{shown}{more}: {why}.",)


def unique_name(name: str, taken: Iterable[str]) -> str:
    """Return a name for a directory or file that is not taken: NAME, NAME-2, NAME-3 …"""
    names, number, found = set(taken), 1, name
    while found in names:
        number += 1
        found = f"{name}-{number}"
    return found


def csv_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV. None is an empty cell."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def json_text(data: Any) -> str:
    """Return readable JSON, with a newline at the end."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def known_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries whose value is known: a reader would take null for 0, or fail."""
    return {key: value for key, value in values.items() if value is not None}


def ratio(amount: Any, divisor: Any) -> float | None:
    """Return the quotient of two numbers, None if one is unknown or the divisor is 0."""
    return amount / divisor if amount is not None and divisor else None
