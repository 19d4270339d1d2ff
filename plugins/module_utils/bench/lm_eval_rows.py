# SPDX-License-Identifier: Apache-2.0
"""What lm-eval wrote about the items of a task: which were answered correctly, and which have no answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
"""A line of a file that lm-eval wrote with --log_samples."""


def samples_of(
    rows: Sequence[Row], metric: str, kind: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the answers as [{doc, prompt, correct, answer}], and the items that lm-eval could not score.

    metric, kind: the metric and the filter that count; empty: the first ones of the task. A metric that does not tell
    right from wrong gives no item an answer.
    """
    wanted = kind or (rows[0].get("filter") if rows else "")
    samples, unscored = [], []
    for row in rows:
        if row.get("filter") != wanted:
            continue
        value = row.get(metric or next(iter(row.get("metrics") or ()), ""))
        if isinstance(value, (int, float)) and value in (0, 1):
            answer = str((row.get("filtered_resps") or [""])[0])
            samples.append(
                {
                    "doc": row["doc_hash"],
                    "prompt": row["prompt_hash"],
                    "correct": bool(value),
                    "answer": answer,
                }
            )
        else:
            unscored.append(_failed(row.get("doc_id"), row))
    return samples, unscored if samples else []


def failed_items(items: Iterable[int], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return items without an answer as [{item, doc, prompt}], with the hashes that lm-eval gives to answered ones.

    rows: what lm-eval wrote about them without asking; of an item that is not there the hashes are "".
    """
    known = {row.get("doc_id"): row for row in rows}
    return [_failed(item, known.get(item) or {}) for item in items]


def _failed(item: Any, row: Row) -> dict[str, Any]:
    return {"item": item, "doc": row.get("doc_hash") or "", "prompt": row.get("prompt_hash") or ""}
