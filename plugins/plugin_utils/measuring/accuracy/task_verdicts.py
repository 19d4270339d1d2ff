# SPDX-License-Identifier: Apache-2.0
"""Judge the tasks of a run: against the previous run, against published scores, and by failed requests. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..measurement.rows import MOST_FAILED
from ..statistics.wilson import wilson
from .expectations import ExpectationNote, ScoreKey, compare
from .paired import FAIL, PairedVerdict, judge_pairs
from .pairing import AccuracyError, PairedCounts, pair
from .results import DeploymentRun, TaskRun

_SHOWN = 5  # names of items in a message


@dataclass(frozen=True)
class TaskVerdict:
    """A task's score (None if nothing was answered) with its interval, and the verdict against the previous run.

    why: the reason if there is no verdict. failed: the names of items whose request failed now but not in the previous
    run. groups: (right, answered) by category.
    """

    task: str
    run: TaskRun
    against: PairedVerdict | None
    why: str
    failed: tuple[str, ...]
    groups: Mapping[str, tuple[int, int]]
    published: tuple[ExpectationNote, ...] = ()

    @property
    def score(self) -> float | None:
        """Return the share of right answers among the answered items."""
        return self.run.right / self.run.answered if self.run.answered else None

    @property
    def unanswered(self) -> str:
        """Return that too many requests failed to judge the release by the others; "" if only few failed."""
        asked = len(self.run.outcomes)
        if len(self.failed) <= MOST_FAILED * asked:
            return ""
        shown = ", ".join(self.failed[:_SHOWN]) + (" …" if len(self.failed) > _SHOWN else "")
        return (
            f"{self.task}: {len(self.failed)} of {asked} requests failed, more than {MOST_FAILED:.0%} ({shown}). What "
            "the others were answered says little of the release: look for the cause in the log of its instances"
        )

    @property
    def problem(self) -> str:
        """Return that the new release is worse than the previous one; "" if that is not shown."""
        return f"{self.task}: {self.against.text}" if self.against and self.against.kind == FAIL else ""

    @property
    def note(self) -> str:
        """Return which requests failed; "" if none did."""
        failed = self.run.failed
        shown = ", ".join(failed[:_SHOWN]) + (" …" if len(failed) > _SHOWN else "")
        return f"{self.task}: {len(failed)} requests failed and are not scored: {shown}" if failed else ""

    def to_json(self) -> dict[str, Any]:
        """Return the task as accuracy.json has it."""
        answered = self.run.answered
        return {
            "score": self.score,
            "interval": list(wilson(self.run.right, answered)) if answered else None,
            "n": answered,
            "right": self.run.right,
            "failed": list(self.run.failed),
            "categories": {name: list(counts) for name, counts in self.groups.items()},
            "against": self.against.to_json() if self.against else None,
            "why": self.why,
            "published": [note.to_json() for note in self.published],
        }


@dataclass(frozen=True)
class ComparedTask:
    """A task of a run paired with the previous run: the counts of their pairs, or why there are none."""

    name: str
    run: TaskRun
    failed: tuple[str, ...]
    counts: PairedCounts | None
    why: str = ""


def compare_tasks(run: DeploymentRun, before: DeploymentRun | None) -> list[ComparedTask]:
    """Pair the tasks of a run with those of the previous one, None if there is none."""
    found = []
    for name, task in run.tasks.items():
        old = before.tasks.get(name) if before else None
        known = old.outcomes if old else {}
        failed = tuple(
            task.name(doc)
            for doc, item in task.outcomes.items()
            if item.correct is None and not (doc in known and known[doc].correct is None)
        )
        counts, why = None, "no earlier run to compare with"
        if old is not None:
            try:
                counts, why = pair(old.outcomes, task.outcomes), ""
            except AccuracyError as error:
                why = str(error)
            if counts and not counts.n:
                counts, why = None, "no item was answered in both runs"
        found.append(ComparedTask(name, task, failed, counts, why))
    return found


def judge_tasks(
    family: Sequence[tuple[ComparedTask, Mapping[str, str]]],
    tolerance: float,
    expectations: Iterable[Mapping[str, Any]],
) -> list[TaskVerdict]:
    """Judge tasks whose verdicts decide together, each with the identity of its release."""
    paired = [task.counts for task, _identity in family if task.counts]
    verdicts = iter(judge_pairs(paired, tolerance))
    return [
        TaskVerdict(
            task.name,
            task.run,
            next(verdicts) if task.counts else None,
            task.why,
            task.failed,
            _groups(task.run),
            _published(task, identity, expectations),
        )
        for task, identity in family
    ]


def _published(
    task: ComparedTask, identity: Mapping[str, str], expectations: Iterable[Mapping[str, Any]]
) -> tuple[ExpectationNote, ...]:
    """Compare the published scores with ours, in which a failed request counts as a wrong answer."""
    found = task.run
    if not found.answered:
        return ()
    about = {key: found.about.get(key) for key in ("task_hash", "shots", "template")}
    key = ScoreKey(identity.get("model", ""), task.name, identity.get("commit") or None, **about)
    return compare(expectations, key, found.right, len(found.outcomes))


def _groups(found: TaskRun) -> dict[str, tuple[int, int]]:
    """Return (right, answered) by category, in the order in which categories appear."""
    right, answered = Counter[str](), Counter[str]()
    for doc, group in found.groups.items():
        correct = found.outcomes[doc].correct
        answered[group] += correct is not None
        right[group] += bool(correct)
    return {group: (right[group], count) for group, count in answered.items()}
