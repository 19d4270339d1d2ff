# SPDX-License-Identifier: Apache-2.0
"""Number generations: which hosts record one before they change, with which number, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ....module_utils.service.generations import Generation, History
from ..desired.actions import Action
from ..desired.fleet import Host
from ..instances.planned import PlannedInstance, compose_generation
from .diff import describe_changes
from .sources import HELD, INVENTORY, DeploymentSource, SourceSelection, histories_of, running_numbers
from .toolkit import ToolkitChange, toolkit_change

FIRST = "first deployment"
GONE = "no deployment defines it here any more"
ROLE: Final = "vllm_serve"
SOURCE = "the node's record of generations"


@dataclass(frozen=True)
class ComposedHost:
    """A host with its desired instances of the deployments composed from the inventory.

    undetermined: deployments whose desired instances are not known yet; None if that applies to all.
    """

    host: Host
    modes: str
    instances: Mapping[str, Sequence[PlannedInstance]] = field(default_factory=dict)
    undetermined: frozenset[str] | None = frozenset()


@dataclass(frozen=True)
class HostRevision:
    """A deployment on one host.

    runs: the lowest generation of its running containers. wanted: the generation that they will have. toolkit: the
    update of the toolkit, if only that changes them.
    """

    runs: int | None
    wanted: int | None
    record: Generation | None = None
    toolkit: ToolkitChange | None = None


@dataclass(frozen=True)
class RevisionChange:
    """The change of a deployment's generation.

    before: the newest generation that runs on any host. new: the number is not in use yet. already_recorded: the
    desired generation is the newest record of every host.
    """

    deployment: str
    source: DeploymentSource
    generation: int | None
    before: int | None
    new: bool
    already_recorded: bool
    why: str
    hosts: Mapping[str, HostRevision] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the change's entry in plan.json."""
        held, trial = self.source.held, self.source.trial
        return {
            "deployment": self.deployment,
            "choice": self.source.kind,
            "generation": self.generation,
            "before": self.before,
            "new": self.new,
            "known": self.already_recorded,
            "why": self.why,
            "held": held.to_json() if held else None,
            "ignored": self.source.ignored,
            "trial": trial.to_json() if trial else None,
            "hosts": {
                name: {"from": step.runs, "to": step.wanted, "record": step.record is not None}
                for name, step in self.hosts.items()
            },
        }


def revision_changes(
    selection: SourceSelection, composed_hosts: Sequence[ComposedHost]
) -> tuple[RevisionChange, ...]:
    """Return the change of every deployment. composed_hosts: in the order of the fleet."""
    histories = histories_of(selection.fleet)
    found = []
    for name, source in selection.sources.items():
        mine = histories.get(name, {})
        if source.kind == INVENTORY:
            found.append(_composed(name, source, mine, composed_hosts))
        else:
            found.append(_stored(name, source, mine, composed_hosts))
    return tuple(found)


def _composed(
    name: str,
    source: DeploymentSource,
    histories: Mapping[str, History],
    composed_hosts: Sequence[ComposedHost],
) -> RevisionChange:
    """Return the change of a deployment that is composed from the inventory."""
    newest = {host: history.newest for host, history in histories.items()}
    wanted = _wanted(name, newest, composed_hosts)
    lacking = {host for host, item in wanted.items() if item}
    highest = max((item.generation for item in newest.values() if item), default=0)
    joins = _joins(source, newest, highest, lacking)
    number = highest if joins or not lacking else highest + 1
    numbered: dict[tuple[str, int], Generation] = {}
    steps: dict[str, HostRevision] = {}
    why, before = "", 0
    for item in composed_hosts:
        host = item.host.name
        runs = running_numbers(item.host, name) if host in histories else set()
        before = max(before, *runs) if runs else before
        if host not in wanted:
            continue
        record = wanted[host]
        updated = None
        if record is not None:
            old = _newest(histories.get(host), runs)
            updated = toolkit_change(old, record)
            reason = _why(histories.get(host), old, record, updated)
            key = (reason, id(record))
            if key not in numbered:
                numbered[key] = replace(record, generation=number, why=reason)
            record = numbered[key]
            why = why or reason
        there = newest.get(host)
        kept = there.generation if there else None
        steps[host] = HostRevision(min(runs, default=None), number if record else kept, record, updated)
    return RevisionChange(
        deployment=name,
        source=source,
        generation=number or None,
        before=before or None,
        new=bool(lacking) and not joins,
        already_recorded=bool(steps) and not lacking,
        why=why,
        hosts=steps,
    )


def _wanted(
    name: str, newest: Mapping[str, Generation | None], composed_hosts: Sequence[ComposedHost]
) -> dict[str, Generation | None]:
    """Return the desired generation of each host, without its number; None if it is the newest record."""
    drafts: dict[tuple[object, ...], Generation] = {}  # hosts of one kind have equal instances, made once
    wanted: dict[str, Generation | None] = {}
    for item in composed_hosts:
        host = item.host.name
        instances = item.instances.get(name, ())
        there = newest.get(host)
        known = item.undetermined is not None and name not in item.undetermined
        if not known or (not instances and (there is None or not there.members)):
            continue
        if there and there.specs == {one.name: one.spec_hash for one in instances}:
            wanted[host] = None
            continue
        key = (item.modes, *map(id, instances))
        if key not in drafts:
            drafts[key] = compose_generation(name, instances, item.modes)
        wanted[host] = drafts[key]
    return wanted


def _joins(
    source: DeploymentSource,
    newest: Mapping[str, Generation | None],
    highest: int,
    lacking: Iterable[str],
) -> bool:
    """Return whether hosts use the highest number, like others in a run that was interrupted or had --limit.

    A removal cannot be joined: hosts that leave or join later return to it only where it was recorded.
    """
    if not highest or any((there := newest.get(host)) and there.generation >= highest for host in lacking):
        return False
    return source.trial is not None or any(
        item.members for item in newest.values() if item and item.generation == highest
    )


def _stored(
    name: str,
    source: DeploymentSource,
    histories: Mapping[str, History],
    composed_hosts: Sequence[ComposedHost],
) -> RevisionChange:
    """Return the change of a deployment that uses a stored generation, or keeps running as it is."""
    steps: dict[str, HostRevision] = {}
    before = 0
    for item in composed_hosts:
        history = histories.get(item.host.name)
        if history is None:
            continue
        runs = running_numbers(item.host, name)
        before = max(before, *runs) if runs else before
        lowest = min(runs, default=None)
        record = history.as_of(source.generation) if source.generation is not None else None
        steps[item.host.name] = HostRevision(
            lowest, record.generation if record else lowest if source.generation is None else None
        )
    why = source.held.why if source.kind == HELD and source.held else ""
    return RevisionChange(name, source, source.generation, before or None, False, False, why, steps)


def _newest(history: History | None, runs: Iterable[int]) -> Generation | None:
    """Return the generation that runs on a host, or its newest record; None without one."""
    if history is None or history.newest is None:
        return None
    return history.as_of(max(runs, default=history.newest.generation)) or history.newest


def _why(
    history: History | None, old: Generation | None, new: Generation, updated: ToolkitChange | None
) -> str:
    """Return the description of what changes on a host."""
    if not new.members:
        return GONE
    if history is None or old is None:
        return FIRST
    again = next((item for item in reversed(history.kept) if item.specs == new.specs), None)
    if again:
        return f"generation {again.generation} again"
    if updated:
        return f"{updated.text}: {describe_changes(old, new)}"
    return describe_changes(old, new) if old.members else "deployed again"


# ---- actions of a host -------------------------------------------------------------------------------


def record_actions(host: str, revisions: Iterable[RevisionChange]) -> tuple[Action, ...]:
    """Return the actions that record generations on a host."""
    found = []
    for revision in revisions:
        step = revision.hosts.get(host)
        if step and step.record:
            before = "none" if step.runs is None else str(step.runs)
            after = str(step.record.generation)
            found.append(
                Action("generation", ROLE, revision.deployment, before, after, step.record.why, SOURCE)
            )
    return tuple(found)


def records(host: str, revisions: Iterable[RevisionChange]) -> list[dict[str, Any]]:
    """Return the generations to record on a host, as arguments of the module serving_generation.

    needed: the generations of running containers, which must not be pruned.
    """
    return [
        {**step.record.to_json(), "needed": [step.runs] if step.runs else []}
        for step in (revision.hosts.get(host) for revision in revisions)
        if step and step.record
    ]
