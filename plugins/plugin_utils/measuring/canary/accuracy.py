# SPDX-License-Identifier: Apache-2.0
"""Judge whether a new release answers as rightly as the old one, for a canary. Pure.

Both releases answer the sanity set and score the passages, once each. The package `accuracy` scores and pairs; this
module decides what stops an upgrade. RESULT is that of vllm_accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..accuracy.judge import (
    AccuracyRules,
    DeploymentVerdict,
    judge_deployment,
    same_weights,
    unscored_passages,
)
from ..accuracy.nll import BROKEN as BROKEN_NLL
from ..accuracy.nll import SUSPICIOUS, NllLimits
from ..accuracy.paired import FAIL
from ..accuracy.results import SANITY, DeploymentRun, TaskRun, gather
from ..accuracy.scoring import SanityItem

LEVEL = 0.01
"""Maximum probability of stopping a release that is as accurate as the old one, by McNemar's exact test."""


@dataclass(frozen=True)
class AccuracyEvidence:
    """What one release answered.

    run: the scored answers, None if there are none. notes: what could not be measured. answers: the texts, by the hash
    of an item's document. result: the RESULT that all of it was read from.
    """

    run: DeploymentRun | None
    limits: NllLimits
    notes: tuple[str, ...] = ()
    answers: Mapping[str, tuple[SanityItem, str]] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)


def read_accuracy(
    result: Mapping[str, Any], items: Sequence[SanityItem], limits: NllLimits
) -> AccuracyEvidence:
    """Score a RESULT. items: those that were asked."""
    entries = result.get("instances") or ()
    notes = [note for entry in entries for note in _failures(entry)]
    if result.get("failed"):
        notes.append(f"the accuracy could not be measured: {result.get('msg')}")
    known = {item.id: item for item in items}
    answers = {
        known[row["id"]].doc: (known[row["id"]], str(row["text"]))
        for entry in entries
        for row in entry["answers"]
        if row["id"] in known
    }
    runs = gather({"canary": entries}, items)
    run = next((run for run in runs.values() if run.tasks or run.passages), None)
    return AccuracyEvidence(run, limits, tuple(notes), answers, result)


def _failures(entry: Mapping[str, Any]) -> Iterator[str]:
    for key, what in (("answers", "items of the sanity set"), ("passages", "passages")):
        errors = [row["error"] for row in entry[key] if row["error"]]
        if errors:
            yield f"{len(errors)} of {len(entry[key])} {what} got no answer and are not scored: {errors[0]}"


@dataclass(frozen=True)
class LostItem:
    """An item that only the old release has right, with the new one's answer."""

    item: SanityItem
    answer: str

    def to_json(self) -> dict[str, object]:
        """Return an entry of `lost` in canary.json."""
        accepted = list(self.item.accepted)
        return {"id": self.item.id, "prompt": self.item.prompt, "accepted": accepted, "answer": self.answer}


@dataclass(frozen=True)
class AccuracyComparison:
    """The new release's answers against the old one's.

    less: why the new one is less accurate. unanswered: which answers are missing. Both are empty if nothing is wrong.
    verdict: that of the package `accuracy`, None if one side was not measured. found: what was compared, in words.
    scores: (right, answered) of the old release and the new one.
    """

    less: tuple[str, ...] = ()
    unanswered: str = ""
    found: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    verdict: DeploymentVerdict | None = None
    scores: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    lost: tuple[LostItem, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return `accuracy` of canary.json."""
        verdict = self.verdict.to_json() if self.verdict else {}
        return {
            **{key: verdict.get(key) for key in ("tasks", "nll", "nll_change", "differences")},
            "less_accurate": list(self.less),
            "lost": [item.to_json() for item in self.lost],
        }


def compare_accuracy(
    before: DeploymentRun | None, now: AccuracyEvidence, tolerance: float
) -> AccuracyComparison:
    """Compare the new release's answers with what the old one answered, None if it was not asked.

    tolerance: points of the sanity set that may be lost.
    """
    run = now.run
    if before is None or run is None:
        return AccuracyComparison(warnings=now.notes if before else ())
    old, new = before.tasks.get(SANITY), run.tasks.get(SANITY)
    if old and new and old.answered and not new.answered:
        return AccuracyComparison(unanswered="; ".join(now.notes))
    verdict = judge_deployment("", run, before, AccuracyRules(tolerance, now.limits))
    less, found, warnings = [], [], list(now.notes)
    unanswered = [task.unanswered for task in verdict.tasks if task.unanswered]
    if any(run.passages.values()):
        unanswered += unscored_passages(run, before)
    elif any(
        before.passages.values()
    ):  # an engine may refuse them because of its options, and still serve well
        warnings.append("it gives no log likelihoods of prompts, but the old release did")
    for task in verdict.tasks:
        against = task.against
        if against is None:
            warnings.append(f"the sanity set was not compared: {task.why}")
            continue
        found.append(f"sanity set {against.change}")
        if against.p <= LEVEL and against.loss > tolerance:
            less.append(found[-1])
        elif against.kind == FAIL:
            warnings.append(f"worth a run of accuracy.yml, but not enough to stop the release: {found[-1]}")
        elif against.high < tolerance <= against.bound:
            warnings.append(f"sanity set {against.text}")
    change = verdict.change
    if change:
        found.append(change.text)
        if change.state in (SUSPICIOUS, BROKEN_NLL):
            (less if change.change > 0 else warnings).append(change.text)
    if less and not same_weights(before, run):
        what = "less accurate, but ignored, because the model, its commit or its quantization changed"
        warnings.append(f"{what}: {'; '.join(less)}")
        less = []
    warnings += [line for line in verdict.differences if line.startswith("quantization")]
    return AccuracyComparison(
        tuple(less),
        "; ".join(unanswered),
        tuple(found),
        tuple(warnings),
        verdict,
        (_score(old), _score(new)),
        _lost(before, run, now),
    )


def _score(task: TaskRun | None) -> tuple[int, int]:
    return (task.right, task.answered) if task else (0, 0)


def _lost(before: DeploymentRun, run: DeploymentRun, now: AccuracyEvidence) -> tuple[LostItem, ...]:
    old, new = (side.tasks[SANITY].outcomes if SANITY in side.tasks else {} for side in (before, run))
    return tuple(
        LostItem(item, text)
        for doc, (item, text) in now.answers.items()
        if doc in old and old[doc].correct and new[doc].correct is False
    )
