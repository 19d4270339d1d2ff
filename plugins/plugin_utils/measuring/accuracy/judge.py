# SPDX-License-Identifier: Apache-2.0
"""Judge the deployments of a run: their tasks, and the log likelihoods of their replicas. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..measurement.rows import MOST_FAILED
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
from .results import IDENTITY, DeploymentRun
from .task_verdicts import TaskVerdict, compare_tasks, judge_tasks


@dataclass(frozen=True)
class AccuracyRules:
    """tolerance: points that a release may lose; limits: of log likelihoods; expectations: published scores."""

    tolerance: float
    limits: NllLimits
    expectations: tuple[Mapping[str, Any], ...] = ()


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


def judge_run(
    runs: Mapping[str, tuple[DeploymentRun, DeploymentRun | None]], rules: AccuracyRules
) -> tuple[DeploymentVerdict, ...]:
    """Judge the deployments of a run, each with its previous one, None if there is none.

    All comparisons together make one verdict, so they are corrected for their number. Another model is compared
    for information only: it is meant to answer differently, and does not count towards that number.
    """
    tasks: dict[str, list[TaskVerdict]] = {name: [] for name in runs}
    for informs in (False, True):
        family = [
            (name, task)
            for name, (run, before) in runs.items()
            if _another_model(run, before) is informs
            for task in compare_tasks(run, before)
        ]
        verdicts = judge_tasks(
            [(task, runs[name][0].identity) for name, task in family], rules.tolerance, rules.expectations
        )
        for (name, _task), verdict in zip(family, verdicts, strict=True):
            tasks[name].append(verdict)
    return tuple(_deployment(name, *both, tuple(tasks[name]), rules) for name, both in runs.items())


def judge_deployment(
    name: str, run: DeploymentRun, before: DeploymentRun | None, rules: AccuracyRules
) -> DeploymentVerdict:
    """Judge a deployment that is the only one of its run, as judge_run does."""
    (found,) = judge_run({name: (run, before)}, rules)
    return found


def _deployment(
    name: str,
    run: DeploymentRun,
    before: DeploymentRun | None,
    tasks: tuple[TaskVerdict, ...],
    rules: AccuracyRules,
) -> DeploymentVerdict:
    informs = _another_model(run, before)
    replicas = judge_replicas(
        run.passages, rules.limits, before.passages if before and same_weights(before, run) else None
    )
    change: NllChange | None = None
    problems, notes = list(run.errors), list(run.notes)
    if before is not None and not informs:
        old, new = typical(list(before.passages.values())), _of_deployment(run, replicas)
        change = judge_change(old, new, rules.limits)
        notes += _split_otherwise(old, new)
    for verdict in tasks:
        (notes if informs else problems).extend(filter(None, [verdict.problem]))
        problems += filter(None, [verdict.unanswered])
        notes += filter(None, [verdict.note])
    problems += [
        f"{replica.name}: {replica.why}" for replica in replicas if replica.state in (OUTLIER, SUSPECT)
    ]
    problems += unscored_passages(run, None if informs else before)
    if change and change.state == BROKEN and before:
        (problems if same_weights(before, run) else notes).append(change.text)
    return DeploymentVerdict(
        name, run, tasks, replicas, change, _differences(before, run), tuple(problems), tuple(notes)
    )


def _another_model(run: DeploymentRun, before: DeploymentRun | None) -> bool:
    return before is not None and before.identity.get("model") != run.identity.get("model")


def unscored_passages(run: DeploymentRun, before: DeploymentRun | None) -> list[str]:
    """Return which replicas failed on passages that others, or the previous release, scored.

    Such passages are left out of all comparisons, which would show the replicas as alike.
    """
    silent = {error.partition(":")[0] for error in run.errors}
    earlier = {item for passages in (before.passages.values() if before else ()) for item in passages}
    found = []
    for name, failed in run.failed_passages.items():
        others = {item for other, passages in run.passages.items() if other != name for item in passages}
        lost = [item for item in failed if item in others or item in earlier]
        asked = len(failed) + len(run.passages[name])
        if name not in silent and len(lost) > MOST_FAILED * asked:
            who = "the other replicas" if others else "the previous release"
            found.append(f"{name}: gave no log likelihoods of {len(lost)} of {asked} passages, and {who} did")
    return found


def _split_otherwise(before: Passages, now: Passages) -> list[str]:
    """Return that passages have a different number of tokens than before, and were not compared."""
    shared = [item for item in now if item in before]
    other = [item for item in shared if now[item].tokens != before[item].tokens]
    what = "have a different number of tokens than in the previous run, and were not compared: the tokenizer changed"
    return [f"{len(other)} of {len(shared)} passages {what}"] if other else []


def _of_deployment(run: DeploymentRun, replicas: Iterable[ReplicaNll]) -> Passages:
    """Return the typical scores without the wrong replicas, which say nothing of the release."""
    return typical([run.passages[one.name] for one in replicas if one.state not in (OUTLIER, UNMEASURED)])


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
