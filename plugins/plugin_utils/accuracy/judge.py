# SPDX-License-Identifier: Apache-2.0
"""Judge a deployment's run: against its previous one, between its replicas, and beside published scores. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .expectations import ExpectationNote, ScoreKey, compare
from .nll import (
    BROKEN,
    OUTLIER,
    SUSPECT,
    UNMEASURED,
    NllChange,
    NllLimits,
    Passages,
    ReplicaNll,
    judge_change,
    judge_replicas,
    mean_nll,
    typical,
)
from .paired import FAIL, AccuracyError, PairedVerdict, judge_pair, pair, wilson
from .results import IDENTITY, DeploymentRun, TaskRun


@dataclass(frozen=True)
class AccuracyRules:
    """tolerance: points that a release may lose; limits: of log likelihoods; expectations: published scores."""

    tolerance: float
    limits: NllLimits
    expectations: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class TaskVerdict:
    """A task's score (None if nothing was answered) with its interval, and the verdict against the previous run.

    why: the reason if there is no verdict. groups: (right, answered) by category.
    """

    task: str
    run: TaskRun
    against: PairedVerdict | None
    why: str
    groups: Mapping[str, tuple[int, int]]
    published: tuple[ExpectationNote, ...] = ()

    @property
    def score(self) -> float | None:
        """Return the share of right answers among the answered items."""
        return self.run.right / self.run.answered if self.run.answered else None

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
class DeploymentVerdict:
    """The verdicts on a deployment. problems: what makes the run fail; notes: what is worth knowing."""

    name: str
    run: DeploymentRun
    tasks: tuple[TaskVerdict, ...]
    replicas: tuple[ReplicaNll, ...]
    change: NllChange | None
    differences: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the deployment as accuracy.json has it."""
        change = self.change
        return {
            "tasks": {task.task: task.to_json() for task in self.tasks},
            "nll": mean_nll(_of_deployment(self.run, self.replicas)),
            "replicas": [replica.to_json() for replica in self.replicas],
            "nll_change": {"state": change.state, "change": change.change} if change else None,
            "differences": list(self.differences),
            "problems": list(self.problems),
            "notes": list(self.notes),
            "run": self.run.to_json(),
        }


def judge_deployment(
    name: str, run: DeploymentRun, before: DeploymentRun | None, rules: AccuracyRules
) -> DeploymentVerdict:
    """Judge a deployment's run; `before` is its previous one, None if there is none.

    Another model is compared for information only: it is meant to answer differently.
    """
    same_model = before is None or before.identity.get("model") == run.identity.get("model")
    tasks = tuple(_task(task, found, before, rules, run.identity) for task, found in run.tasks.items())
    replicas = judge_replicas(
        run.passages, rules.limits, before.passages if before and same_weights(before, run) else None
    )
    change = None
    if before is not None and same_model:
        old, new = typical(list(before.passages.values())), _of_deployment(run, replicas)
        change = judge_change(old, new, rules.limits)
    problems, notes = list(run.errors), list(run.notes)
    for verdict in tasks:
        if verdict.against and verdict.against.kind == FAIL:
            (problems if same_model else notes).append(f"{verdict.task}: {verdict.against.text}")
        if verdict.run.failed:
            notes.append(_failed_requests(verdict))
    problems += [
        f"{replica.name}: {replica.why}" for replica in replicas if replica.state in (OUTLIER, SUSPECT)
    ]
    silent = {error.partition(":")[0] for error in run.errors}
    missing = [r.name for r in replicas if r.state == UNMEASURED and r.name not in silent]
    if missing and len(missing) < len(replicas):
        problems.append(f"{', '.join(missing)}: gave no log likelihoods, and the other replicas did")
    if change and change.state == BROKEN and before:
        (problems if same_weights(before, run) else notes).append(change.text)
    return DeploymentVerdict(
        name, run, tasks, replicas, change, _differences(before, run), tuple(problems), tuple(notes)
    )


def _task(
    name: str,
    found: TaskRun,
    before: DeploymentRun | None,
    rules: AccuracyRules,
    identity: Mapping[str, str],
) -> TaskVerdict:
    against, why = None, ""
    old = before.tasks.get(name) if before else None
    if old is None:
        why = "no earlier run to compare with"
    else:
        try:
            against = judge_pair(pair(old.outcomes, found.outcomes), rules.tolerance)
        except AccuracyError as error:
            why = str(error)
    published: Iterable[ExpectationNote] = ()
    if found.answered:
        about = {key: found.about.get(key) for key in ("task_hash", "shots", "template")}
        key = ScoreKey(identity.get("model", ""), name, identity.get("commit") or None, **about)
        published = compare(rules.expectations, key, found.right, found.answered)
    return TaskVerdict(name, found, against, why, _groups(found), tuple(published))


def _of_deployment(run: DeploymentRun, replicas: Iterable[ReplicaNll]) -> Passages:
    """Return the typical scores without the wrong replicas, which say nothing of the release."""
    return typical([run.passages[one.name] for one in replicas if one.state not in (OUTLIER, UNMEASURED)])


def _groups(found: TaskRun) -> dict[str, tuple[int, int]]:
    """Return (right, answered) by category, in the order in which categories appear."""
    right, answered = Counter[str](), Counter[str]()
    for doc, group in found.groups.items():
        correct = found.outcomes[doc].correct
        answered[group] += correct is not None
        right[group] += bool(correct)
    return {group: (right[group], count) for group, count in answered.items()}


def _failed_requests(verdict: TaskVerdict) -> str:
    failed = verdict.run.failed
    shown = ", ".join(failed[:5]) + (" …" if len(failed) > 5 else "")
    return f"{verdict.task}: {len(failed)} requests failed and are not scored: {shown}"


def same_weights(before: DeploymentRun, run: DeploymentRun) -> bool:
    """Return whether both releases compute with the same numbers: model, commit and quantization."""
    return not any(_differ(before, run, key) for key in ("model", "commit", "quantization"))


def _differ(before: DeploymentRun, run: DeploymentRun, key: str) -> bool:
    old, new = before.identity.get(key), run.identity.get(key)
    # Not every measurement names it.
    return old != new and (key != "quantization" or bool(old and new))


def _differences(before: DeploymentRun | None, run: DeploymentRun) -> tuple[str, ...]:
    """Return what the release changes, for the report."""
    if before is None:
        return ()
    old, new = before.identity, run.identity
    return tuple(
        f"{key}: {old.get(key) or 'unknown'} → {new.get(key) or 'unknown'}"
        for key in IDENTITY
        if _differ(before, run, key)
    )
