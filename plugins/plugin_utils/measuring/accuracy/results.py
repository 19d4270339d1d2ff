# SPDX-License-Identifier: Apache-2.0
"""Gather what the nodes measured into one run per deployment, and read such a run from an earlier report. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .nll import Passages, PassageScore
from .pairing import ItemOutcome, Outcomes
from .scoring import SanityItem, outcome

SCHEMA = 1
SANITY = "sanity"
IDENTITY = ("model", "commit", "image", "vllm", "quantization")
"""A release, as the plan names it. quantization: options that choose number formats, "" if none do."""


@dataclass(frozen=True)
class TaskRun:
    """The outcomes of a task. names: what people call an item, and groups: its category, both by its document.

    about: what is known of the task: task_hash, shots, template, and items, the number of all of them.
    """

    outcomes: Outcomes
    names: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answered(self) -> int:
        """Return how many items were answered and therefore scored."""
        return sum(item.correct is not None for item in self.outcomes.values())

    @property
    def right(self) -> int:
        """Return how many items were answered rightly."""
        return sum(bool(item.correct) for item in self.outcomes.values())

    @property
    def failed(self) -> tuple[str, ...]:
        """Return the names of the items whose request failed."""
        return tuple(self.name(doc) for doc, item in self.outcomes.items() if item.correct is None)

    def name(self, doc: str) -> str:
        """Return what people call an item."""
        return self.names.get(doc, doc)


@dataclass(frozen=True)
class DeploymentRun:
    """What was measured of a deployment: its tasks, and the passages of each replica (by host/instance).

    failed_passages: those of each replica whose request failed; a later run does not know them.
    """

    identity: Mapping[str, str]
    tasks: Mapping[str, TaskRun] = field(default_factory=dict)
    passages: Mapping[str, Passages] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    failed_passages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the part of accuracy.json from which a later run compares."""
        return {
            "identity": dict(self.identity),
            "tasks": {
                name: {
                    "outcomes": {doc: [item.prompt, item.correct] for doc, item in task.outcomes.items()},
                    "about": dict(task.about),
                }
                for name, task in self.tasks.items()
            },
            "passages": {
                replica: {name: [score.total, score.tokens] for name, score in passages.items()}
                for replica, passages in self.passages.items()
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeploymentRun:
        """Read what to_json wrote. Raise KeyError, TypeError or ValueError for other data."""
        return cls(
            dict(data["identity"]),
            {
                name: TaskRun(
                    {
                        doc: ItemOutcome(prompt, correct)
                        for doc, (prompt, correct) in task["outcomes"].items()
                    },
                    about=task["about"],
                )
                for name, task in data["tasks"].items()
            },
            {
                replica: {name: PassageScore(total, tokens) for name, (total, tokens) in passages.items()}
                for replica, passages in data["passages"].items()
            },
        )


def gather(
    hosts: Mapping[str, Iterable[Mapping[str, Any]]], items: Iterable[SanityItem]
) -> dict[str, DeploymentRun]:
    """Return the run of each deployment, from the entries of vllm_accuracy and lm_eval of each host."""
    known = {item.id: item for item in items}
    found: dict[str, _Gathered] = {}
    for host, entries in hosts.items():
        for entry in entries:
            found.setdefault(entry["deployment"], _Gathered()).add(host, entry, known)
    return {name: gathered.run() for name, gathered in sorted(found.items())}


class _Gathered:
    """A deployment's run, while the entries of its replicas are added."""

    def __init__(self) -> None:
        self.identity: dict[str, str] = {}
        self.outcomes: dict[str, dict[str, ItemOutcome]] = {}
        self.names: dict[str, str] = {}
        self.groups: dict[str, str] = {}
        self.about: dict[str, Mapping[str, Any]] = {}
        self.passages: dict[str, Passages] = {}
        self.failed_passages: dict[str, tuple[str, ...]] = {}
        self.errors: list[str] = []
        self.notes: list[str] = []

    def add(self, host: str, entry: Mapping[str, Any], known: Mapping[str, SanityItem]) -> None:
        replica = f"{host}/{entry['name']}"
        self.identity = self.identity or {key: str(entry.get(key) or "") for key in IDENTITY}
        if entry.get("note"):
            self.notes.append(f"{replica}: {entry['note']}")
        self._answers(replica, entry, known)
        self._passages(replica, entry)
        for name, task in (entry.get("tasks") or {}).items():
            own = self.outcomes.setdefault(name, {})
            own.update({row["doc"]: ItemOutcome(row["prompt"], row["correct"]) for row in task["samples"]})
            own.update(_failed(name, item) for item in task["failed"])
            self.about[name] = task["about"] or self.about.get(name, {})
            if task["error"]:
                self.errors.append(f"{replica}: {name}: {task['error']}")

    def _answers(self, replica: str, entry: Mapping[str, Any], known: Mapping[str, SanityItem]) -> None:
        answers = [row for row in entry.get("answers") or () if row["id"] in known]
        for row in answers:
            item = known[row["id"]]
            self.names[item.doc], self.groups[item.doc] = item.id, item.category
            own = self.outcomes.setdefault(SANITY, {})
            own[item.doc] = outcome(item, entry["endpoint"], row["text"], row["error"])
        if answers and all(row["error"] for row in answers):
            self.errors.append(f"{replica}: no item was answered: {answers[0]['error']}")

    def _passages(self, replica: str, entry: Mapping[str, Any]) -> None:
        rows = entry.get("passages") or ()
        if not rows:
            return
        self.passages[replica] = {
            row["id"]: PassageScore(row["nll"], row["tokens"]) for row in rows if not row["error"]
        }
        failed = [row for row in rows if row["error"]]
        self.failed_passages[replica] = tuple(row["id"] for row in failed)
        if failed:
            what = f"{len(failed)} of {len(rows)} passages gave no log likelihoods: {failed[0]['error']}"
            self.notes.append(f"{replica}: {what}")

    def run(self) -> DeploymentRun:
        tasks = {}
        for name, outcomes in self.outcomes.items():
            own = name == SANITY
            tasks[name] = TaskRun(
                outcomes, self.names if own else {}, self.groups if own else {}, self.about.get(name, {})
            )
        return DeploymentRun(
            self.identity,
            tasks,
            self.passages,
            tuple(self.errors),
            tuple(self.notes),
            self.failed_passages,
        )


def _failed(task: str, item: Mapping[str, Any]) -> tuple[str, ItemOutcome]:
    """Return an item of lm-eval whose request failed, by the hash of its document if that is known."""
    return item["doc"] or f"item {item['item']} of {task}", ItemOutcome(item["prompt"], None)
