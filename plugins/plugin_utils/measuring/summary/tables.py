# SPDX-License-Identifier: Apache-2.0
"""Format numbers and tables of the report: one format per column, and a dash for unknown values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EN_DASH = "\u2013"
MINUS = "\u2212"
TIMES = "\u00d7"
UNKNOWN = EN_DASH


def rate(value: float | None) -> str:
    """Return a rate with about four digits: 12,345 · 234.5 · 12.34."""
    return UNKNOWN if value is None else f"{value:,.{_decimals(value)}f}"


def count(value: float | None) -> str:
    """Return an integer."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def ms(value: float | None) -> str:
    """Return milliseconds with about four digits."""
    return rate(value)


def total_of(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the sum of a column over the rows that have a value; None when none has."""
    known = [row[key] for row in rows if row[key] is not None]
    return sum(known) if known else None


def signed_percent(speed: float | None) -> str:
    """Return a speed (1.0 at the median) as a signed percentage; a dash if there was nothing to compare with."""
    if speed is None:
        return UNKNOWN
    percent = round((speed - 1) * 100)
    return "±0%" if percent == 0 else f"{MINUS if percent < 0 else '+'}{abs(percent)}%"


def spread(share: float | None, sign: str = "±") -> str:
    """Return a half width or a coefficient of variation (0.012) as a percentage: ±1.2%; a dash if it is unknown."""
    return UNKNOWN if share is None else f"{sign}{share * 100:.1f}%"


def share(value: float | None) -> str:
    """Return a share (0.31) as a percentage of at least two digits: 31% · 4.2%; a dash if it is unknown."""
    return UNKNOWN if value is None else f"{value * 100:.{0 if value >= 0.1 else 1}f}%"


def table(
    caption: str, columns: Sequence[Any], rows: Sequence[Mapping[str, Any]], closed: bool = False
) -> dict[str, Any]:
    """Return a table for the template.

    A column is its label, or (label, format) or (label, format, group); the format is "rate", "ms", "percent" (signed),
    "spread" or "share" (shown as percentages) or "count". Cells are text or numbers; the numbers of a column, and of a
    group, have the same decimals. `closed` tables start folded.
    """
    heads = [_head(column) for column in columns]
    formatted = []
    for number, head in enumerate(heads):
        alike = [
            at for at, other in enumerate(heads) if at == number or head["group"] == other["group"] != ""
        ]
        largest = max((_size(row["cells"][at]) for row in rows for at in alike), default=0.0)
        formatted.append([_cell(row["cells"][number], head["form"], _decimals(largest)) for row in rows])
    body = [
        {
            "slow": row["slow"],
            "cells": [
                {
                    "text": formatted[number][position],
                    "value": row["cells"][number],
                    "label": heads[number]["label"],
                }
                for number in range(len(heads))
            ],
        }
        for position, row in enumerate(rows)
    ]
    for number, head in enumerate(heads):
        head["numeric"] = head["form"] != "count" or any(
            isinstance(row["cells"][number], (int, float)) for row in rows
        )
    return {"caption": caption, "heads": heads, "groups": _groups(heads), "rows": body, "closed": closed}


def _head(column: Any) -> dict[str, Any]:
    label, form, group = (column, "count", "") if isinstance(column, str) else (*column, "")[:3]
    return {"label": label, "form": form, "group": group}


def _groups(heads: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the upper line of the head: groups with the number of their columns; empty if there are none."""
    groups: list[dict[str, Any]] = []
    for head in heads:
        if groups and groups[-1]["label"] == head["group"]:
            groups[-1]["span"] += 1
        else:
            groups.append({"label": head["group"], "span": 1})
    return groups if any(group["label"] for group in groups) else []


def _size(value: Any) -> float:
    return abs(value) if isinstance(value, (int, float)) else 0.0


def _cell(value: Any, form: str, decimals: int) -> str:
    if value is None:
        return UNKNOWN
    if not isinstance(value, (int, float)):
        return str(value)
    if form == "percent":
        rounded = round(value, 1)
        sign = MINUS if rounded < 0 else "+" if rounded > 0 else "±"
        return f"{sign}{abs(rounded):.1f}%"
    if form == "spread":
        return spread(value, sign="")
    if form == "share":
        return share(value)
    if form == "count":
        return f"{value:,.0f}"
    return f"{value:,.{decimals}f}"


def _decimals(value: float) -> int:
    return 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
