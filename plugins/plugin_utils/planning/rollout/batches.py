# SPDX-License-Identifier: Apache-2.0
"""Order the changes of serving instances: the canary, then turns, whose size schedule.py decides. Pure.

Groups of instances change in batches. The first group of a deployment is its canary and changes alone; deployments
change one after another, those that give up a model name last, and removals come at the end. No batch reduces the
engines in service below the configured minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ....module_utils.common.errors import Problem
from .capacity import Capacity, capacities, services_by_deployment, shifts
from .groups import REMOVAL, ChangeGroup, change_groups
from .members import RolloutInstance
from .policy import RolloutPolicy
from .schedule import Queue, Room, ScheduledGroups, schedule


@dataclass(frozen=True)
class CanaryProgress:
    """An interrupted upgrade.

    canary: "host/instance", "" if none was started. judged: whether it was judged.
    """

    canary: str = ""
    judged: bool = False


@dataclass(frozen=True)
class Batch:
    """Groups that change at the same time.

    canary: the instance to measure. reference: an unchanged instance next to it.
    """

    number: int
    deployment: str
    groups: tuple[ChangeGroup, ...]
    canary: RolloutInstance | None = None
    reference: RolloutInstance | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts that take part."""
        return tuple(self.members)

    @cached_property
    def members(self) -> Mapping[str, Sequence[RolloutInstance]]:
        """Return the instances that change, by host."""
        found: dict[str, list[RolloutInstance]] = {}
        for group in self.groups:
            for item in group.members:
                found.setdefault(item.host, []).append(item)
        return found

    @cached_property
    def spanning(self) -> frozenset[str]:
        """Return the instances that change together with others on other hosts."""
        return frozenset(item.id for group in self.groups if len(group.hosts) > 1 for item in group.members)


@dataclass(frozen=True)
class Rollout:
    """All batches, in order, the capacity of each service, and the services of each deployment that changes."""

    batches: tuple[Batch, ...]
    capacity: Mapping[str, Capacity]
    services: Mapping[str, tuple[str, ...]]
    warnings: tuple[str, ...] = ()


# ---- batches -----------------------------------------------------------------------------------------


def plan_rollout(
    members: Sequence[RolloutInstance],
    policy: RolloutPolicy,
    trials: Mapping[str, CanaryProgress] | None = None,
) -> tuple[Rollout, tuple[Problem, ...]]:
    """Return the batches, and the problems that prevent the rollout."""
    trials = trials or {}
    capacity = capacities(members, policy.min_available)
    by_deployment: dict[str, list[ChangeGroup]] = {}
    for group in change_groups(members):
        by_deployment.setdefault(group.deployment, []).append(group)
    queues, removals = [], []
    for name, groups in by_deployment.items():
        trial = trials.get(name, CanaryProgress())
        coming = _ordered([group for group in groups if group.rank < REMOVAL], members, trial, capacity)
        canary = policy.canary and not trial.judged
        queues.append(Queue(name, coming, policy.serial, canary, canary and bool(trial.canary)))
        # At the end, as new instances of another deployment may serve the same model name.
        going = tuple(group for group in groups if group.rank == REMOVAL)
        removals += [ScheduledGroups(name, going)] if going else []
    # The canary that an earlier run has begun is judged first.
    queues.sort(key=lambda queue: (not queue.begun, _gives_up(queue.rest, capacity)))
    turns, problems, warnings = schedule(queues, removals, Room(capacity))
    batches = tuple(_batch(number, turns, members) for number in range(1, len(turns) + 1))
    return Rollout(batches, capacity, services_by_deployment(members), warnings), problems


def _batch(number: int, turns: Sequence[ScheduledGroups], members: Sequence[RolloutInstance]) -> Batch:
    """Return a batch; the first one of a deployment measures its canary, and a reference if one can be spared."""
    turn = turns[number - 1]
    if not turn.canary:
        return Batch(number, turn.deployment, turn.groups)
    (group,) = turn.groups
    reference = _reference(group, _references(members))
    if reference:
        shifted = shifts(members)
        changed = any(
            item.id == reference.id
            for earlier in turns[: number - 1]
            for one in earlier.groups
            for item in one.members
        )
        labels = (shifted.gains if changed else shifted.losses)([reference])
        if any(turn.left.get(label, 0) < count for label, count in labels.items()):
            reference = None  # else one engine more than allowed would be out of service
    return Batch(number, turn.deployment, turn.groups, _canary_instance(group), reference)


def _gives_up(groups: Iterable[ChangeGroup], capacity: Mapping[str, Capacity]) -> bool:
    """Return whether a model name that stays has fewer engines afterwards; then others that serve it change first."""
    return any(
        capacity[name].stays and count > group.engines_gained.get(name, 0)
        for group in groups
        for name, count in group.engines_lost.items()
    )


def _ordered(
    groups: Sequence[ChangeGroup],
    members: Sequence[RolloutInstance],
    trial: CanaryProgress,
    capacity: Mapping[str, Capacity],
) -> list[ChangeGroup]:
    """Return the canary, then one group of each host in turn; the schedule delays those that come after others.

    Additions come after replacements, and groups that leave fewer engines for good come last.
    """
    if not groups:
        return []

    def left(group: ChangeGroup) -> bool:
        """Return whether an earlier run left it drained: changing it takes nothing out of service, and it returns."""
        return any(item.left for item in group.members) and not group.engines_lost

    fewer = {group.key: _gives_up([group], capacity) for group in groups}
    references = _references(members)

    def suits(group: ChangeGroup) -> tuple[bool, bool, bool, bool, int, bool, bool]:
        """Rank groups as canaries, the best last: interrupted ones, replacements, in service, with a reference."""
        mine = not trial.judged and any(item.id == trial.canary for item in group.members)
        serves = any(item.in_service for item in group.members)
        referred = _reference(group, references) is not None
        return not group.after, mine, left(group), not fewer[group.key], -group.rank, serves, referred

    canary = max(groups, key=suits)  # the first of equal ones
    turns: dict[tuple[str, ...], int] = {}
    order: list[tuple[bool, bool, bool, int, int, int, ChangeGroup]] = []
    for group in groups:
        turn = turns[group.hosts] = turns.get(group.hosts, -1) + 1
        first = group is not canary, not left(group), fewer[group.key]
        order.append((*first, group.rank, turn, len(order), group))
    return [item[6] for item in sorted(order, key=lambda item: item[:6])]


def _canary_instance(group: ChangeGroup) -> RolloutInstance | None:
    """Return the instance of a group to measure: one that answers requests, preferably one that did so before."""
    able = [item for item in group.members if item.new is not None and not item.headless]
    return max(able, key=lambda item: item.in_service, default=None)


References = Mapping[tuple[str, str], Sequence[RolloutInstance]]
"""The instances that answer requests, by host and deployment."""


def _references(members: Iterable[RolloutInstance]) -> References:
    found: dict[tuple[str, str], list[RolloutInstance]] = {}
    for item in members:
        if item.in_service and not item.headless and not item.starts:
            found.setdefault((item.host, item.deployment), []).append(item)
    return found


def _reference(group: ChangeGroup, references: References) -> RolloutInstance | None:
    """Return an unchanged instance of the same deployment on the canary's host, or None."""
    measured, inside = _canary_instance(group), {item.id for item in group.members}
    if measured is None:
        return None
    there = references.get((measured.host, measured.deployment), ())
    return next((item for item in there if item.id not in inside), None)
