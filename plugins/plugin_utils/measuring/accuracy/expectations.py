# SPDX-License-Identifier: Apache-2.0
"""Compare a score with published ones (expectations of catalog/accuracy.yml). Pure.

A published score only decides if the key is equal: another commit, task, number of examples or chat template changes
a score by points. Otherwise it is shown for information, with what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..statistics.wilson import wilson

BELOW, WITHIN, ABOVE = "below", "within", "above"
_KEY = {
    "commit": "commit of the model",
    "task_hash": "task",
    "shots": "number of examples",
    "template": "chat template",
}


@dataclass(frozen=True)
class ScoreKey:
    """What a score belongs to. Attributes other than model and task are None if they are not known."""

    model: str
    task: str
    commit: str | None = None
    task_hash: str | None = None
    shots: int | None = None
    template: str | None = None


@dataclass(frozen=True)
class ExpectationNote:
    """A published score compared with ours. differs: what may not be equal; decides: whether that is nothing."""

    state: str
    differs: tuple[str, ...]
    expected: Mapping[str, Any]

    @property
    def decides(self) -> bool:
        """Return whether the published score has the key of ours."""
        return not self.differs

    @property
    def text(self) -> str:
        """Return the comparison in one line."""
        what = f"{self.state} the published {self.expected['score']:g}"
        n = f", n = {self.expected['n']}" if self.expected["n"] else ""
        precision = f"{self.expected['precision']}, " if self.expected["precision"] else ""
        text = f"{what} ({precision}{self.expected['kind']}{n}; {self.expected['source']})"
        return (
            text if self.decides else f"{text}; information only, other or unknown: {', '.join(self.differs)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as accuracy.json has it."""
        return {"state": self.state, "decides": self.decides, "differs": list(self.differs), **self.expected}


def compare(
    expectations: Iterable[Mapping[str, Any]], key: ScoreKey, right: int, n: int
) -> tuple[ExpectationNote, ...]:
    """Compare the published scores of a model and task with ours: `right` of `n` items (n above 0)."""
    low, high = wilson(right, n)
    found = []
    for expected in expectations:
        if (expected["model"], expected["task"]) != (key.model, key.task):
            continue
        ends = (expected["score"], expected["score"])
        if expected["kind"] == "score" and expected["n"]:
            ends = wilson(round(expected["score"] * expected["n"]), expected["n"])
        state = BELOW if high < ends[0] else ABOVE if low > ends[1] else WITHIN
        own = {
            "commit": key.commit,
            "task_hash": key.task_hash,
            "shots": key.shots,
            "template": key.template,
        }
        differs = [
            words
            for name, words in _KEY.items()
            if expected.get(name) is None or expected.get(name) != own[name]
        ]
        found.append(ExpectationNote(state, tuple(differs), expected))
    return tuple(found)
