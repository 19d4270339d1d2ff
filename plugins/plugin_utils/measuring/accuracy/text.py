# SPDX-License-Identifier: Apache-2.0
"""Format the verdicts of an accuracy run for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...base.text import plural
from ..statistics.wilson import wilson
from .judge import DeploymentVerdict
from .nll import OK
from .task_verdicts import TaskVerdict


def report_text(
    run: str,
    live: bool,
    verdicts: Sequence[DeploymentVerdict],
    against: Mapping[str, str],
    failures: Mapping[str, str],
) -> str:
    """Return the content of accuracy.txt.

    live: whether the instances served at the same time. against: the run that each deployment was compared with, "" for
    none.
    failures: why hosts have no answers.
    """
    lines = [f"Accuracy {run}" + (" (live: the instances served at the same time)" if live else "")]
    lines += [f"PROBLEM  {host}: {why}" for host, why in failures.items()]
    for verdict in verdicts:
        lines += ["", *_deployment(verdict, against[verdict.name])]
    return "\n".join(lines) + "\n"


def _deployment(verdict: DeploymentVerdict, against: str) -> Iterator[str]:
    identity = verdict.run.identity
    what = ", ".join(identity[key] for key in ("model", "commit", "image") if identity.get(key))
    yield f"{verdict.name}: {'PROBLEM' if verdict.problems else 'ok'}"
    yield f"  {what}"
    yield f"  compared with {against}" if against else "  compared with no earlier run"
    yield from (f"  changed  {line}" for line in verdict.differences)
    yield from (f"  PROBLEM  {line}" for line in verdict.problems)
    for task in verdict.tasks:
        yield from _task(task)
    if verdict.replicas:
        yield from _replicas(verdict)
    yield from (f"  note     {line}" for line in verdict.notes)


def _task(task: TaskVerdict) -> Iterator[str]:
    if not task.run.answered:
        yield f"  {task.task}: not measured, no item was answered"
        return
    low, high = wilson(task.run.right, task.run.answered)
    yield (
        f"  {task.task}: {100 * (task.score or 0):.1f} % of {task.run.answered} (95 %: {100 * low:.1f} to "
        f"{100 * high:.1f} %)"
    )
    yield f"    {task.against.text if task.against else f'no verdict: {task.why}'}"
    weak = [f"{name} {right}/{count}" for name, (right, count) in task.groups.items() if right < count]
    if weak:
        yield f"    not all right: {', '.join(weak)}"
    yield from (f"    {note.text}" for note in task.published)


def _replicas(verdict: DeploymentVerdict) -> Iterator[str]:
    odd = [replica for replica in verdict.replicas if replica.state != OK]
    values = [replica.nll for replica in verdict.replicas if replica.nll is not None]
    count = len(verdict.replicas)
    if values:
        spread = f"{min(values):.4f} to {max(values):.4f} nat per token"
        yield f"  nll: {spread} over {plural(count, 'replica')}, {count - len(odd)} ok"
    if verdict.change:
        yield f"    {verdict.change.text}"
    yield from (f"    {replica.name}: {replica.state}: {replica.why}" for replica in odd)
