# SPDX-License-Identifier: Apache-2.0
"""Find the trials of upgrades: those that an earlier run began or this run begins, and what ends them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ....module_utils.service.generations import UPGRADE
from ..generations.revisions import RevisionChange
from ..generations.sources import INVENTORY
from .batches import CanaryProgress
from .host_rollout import HostRollout, engine_id
from .steps import BatchChange, no_trial, trial_record


def open_trials(
    hosts: Iterable[HostRollout], revisions: Mapping[str, RevisionChange]
) -> dict[str, CanaryProgress]:
    """Return the open trials of the generations that are wanted now."""
    wanted = {name: revision.generation for name, revision in revisions.items()}
    found: dict[str, CanaryProgress] = {}
    for host in hosts:
        for name, history in host.histories.items():
            trial = history.trial
            if trial is None or trial.generation != wanted.get(name):
                continue
            canary = str(trial.baseline.get("canary") or "")
            before = found.get(name, CanaryProgress())
            groups = set(trial.units)
            judged = before.judged or bool(canary and canary in groups)
            found[name] = CanaryProgress(before.canary or canary, judged)
    return found


def unjudged_engines(hosts: Mapping[str, HostRollout], trials: Mapping[str, CanaryProgress]) -> set[str]:
    """Return the engines of canaries that are yet to be judged; all servers of an engine change with its canary."""
    found = set()
    for canary in (trial.canary for trial in trials.values() if trial.canary and not trial.judged):
        host, _, name = canary.partition("/")
        there = hosts.get(host)
        found.add((engine_id(host, there.wanted.get(name)) if there else "") or canary)
    return found


def upgrades_by_host(
    hosts: Mapping[str, HostRollout], batches: Sequence[Mapping[str, Any]]
) -> dict[str, list[Mapping[str, Any]]]:
    """Return the last batch of each upgraded deployment, for the hosts that keep its generations."""
    last = {batch["deployment"]: batch for batch in batches if batch["operation"] == UPGRADE}
    taking_part = {name: frozenset(batch["all_hosts"]) for name, batch in last.items()}
    return {
        host: [batch for name, batch in last.items() if host in taking_part[name] and name in rollout.keeps]
        for host, rollout in hosts.items()
    }


def begun_trials(
    upgrades: Iterable[Mapping[str, Any]], changes: Mapping[int, BatchChange], trials: Collection[str]
) -> list[dict[str, Any]]:
    """Return the records of the trials that this run begins on a host. trials: those that are open already."""
    return [trial_record(changes[batch["number"]]) for batch in upgrades if batch["deployment"] not in trials]


def ended_trials(
    host: HostRollout,
    upgrades: Iterable[Mapping[str, Any]],
    revisions: Mapping[str, RevisionChange],
    continued: bool,
) -> dict[str, Any] | None:
    """Return what ends the trials of a host; None if it has none. continued: including those of an earlier run."""
    ends = [batch["deployment"] for batch in upgrades]
    if continued:
        ends += [
            deployment
            for deployment, history in host.histories.items()
            if history.trial and revisions[deployment].source.kind == INVENTORY
        ]
    return no_trial(ends) if ends else None
