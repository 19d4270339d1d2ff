# SPDX-License-Identifier: Apache-2.0
"""Order the changes of serving instances, and limit how many change at a time. Pure.

Groups of instances change in batches. The first group of a deployment is its canary and changes alone; deployments
change one after the other, and what only goes does so in the end. No batch reduces the engines in service below the
configured minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...module_utils.common.errors import Problem
from ...module_utils.common.minimum import resolve_count
from ..text import plural
from .capacity import Capacity, capacities, losses, services_by_deployment
from .groups import REMOVAL, ChangeGroup, change_groups
from .members import RolloutInstance
from .policy import DEFAULT_SERIAL, RolloutPolicy


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
        return tuple(dict.fromkeys(host for group in self.groups for host in group.hosts))


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
    batches: list[Batch] = []
    removals: list[Batch] = []
    problems: list[Problem] = []
    for name, groups in by_deployment.items():
        problems += _oversized_groups(groups, capacity)
        trial = trials.get(name, CanaryProgress())
        coming = _ordered([group for group in groups if group.rank < REMOVAL], members, trial)
        made = _batches(name, coming, members, policy, capacity, trial)
        problems += _oversized_batches(made, policy, capacity)
        batches += made
        # In the end, as what comes of another deployment may serve the same model name.
        going = tuple(group for group in groups if group.rank == REMOVAL)
        removals += [Batch(0, name, going)] if going else []
    batches += removals
    numbered = (
        Batch(number, item.deployment, item.groups, item.canary, item.reference)
        for number, item in enumerate(batches, 1)
    )
    warnings = dict.fromkeys(_outage_warnings(batches, capacity))
    behind = services_by_deployment(members)
    return Rollout(tuple(numbered), capacity, behind, tuple(warnings)), tuple(problems)


def _ordered(
    groups: Sequence[ChangeGroup], members: Sequence[RolloutInstance], trial: CanaryProgress
) -> list[ChangeGroup]:
    """Return the canary, then one group of each host in turn, each after those it waits for; additions come last."""
    if not groups:
        return []

    def suits(group: ChangeGroup) -> tuple[bool, bool, int, bool, bool]:
        """Rank groups as canaries, the best last: the interrupted one, replacements, in service, with a reference."""
        mine = not trial.judged and any(item.id == trial.canary for item in group.members)
        serves = any(item.in_service and item.exists for item in group.members)
        return not group.after, mine, -group.rank, serves, _reference(group, members) is not None

    canary = max(groups, key=lambda group: (*suits(group), -groups.index(group)))
    turns: dict[tuple[str, ...], int] = {}
    order: list[tuple[bool, int, int, int, ChangeGroup]] = []
    for group in groups:
        turn = turns[group.hosts] = turns.get(group.hosts, -1) + 1
        order.append((group is not canary, group.rank, turn, len(order), group))
    return _after_each_other([item[4] for item in sorted(order, key=lambda item: item[:4])])


def _after_each_other(groups: Sequence[ChangeGroup]) -> list[ChangeGroup]:
    """Return the groups in this order, but each after those that have to change before."""
    if not any(group.after for group in groups):
        return list(groups)
    found: dict[str, ChangeGroup] = {}
    rest, keys = list(groups), {group.key for group in groups}
    while rest:
        group = next(item for item in rest if found.keys() >= item.after & keys)
        found[group.key] = group
        rest.remove(group)
    return list(found.values())


def _canary_instance(group: ChangeGroup) -> RolloutInstance | None:
    """Return the instance of a group to measure: one that answers requests, if possible one that did before too."""
    able = [item for item in group.members if item.new is not None and not item.headless]
    return max(able, key=lambda item: item.exists and item.in_service, default=None)


def _reference(group: ChangeGroup, members: Sequence[RolloutInstance]) -> RolloutInstance | None:
    """Return an unchanged instance of the same deployment on the canary's host, or None."""
    measured, inside = _canary_instance(group), {item.id for item in group.members}
    if measured is None:
        return None
    return next(
        (
            item
            for item in members
            if (item.host, item.deployment) == (measured.host, measured.deployment)
            and item.id not in inside
            and item.exists
            and item.in_service
            and not item.headless
            and not item.starts
        ),
        None,
    )


def _batches(
    name: str,
    groups: Sequence[ChangeGroup],
    members: Sequence[RolloutInstance],
    policy: RolloutPolicy,
    capacity: Mapping[str, Capacity],
    trial: CanaryProgress,
) -> list[Batch]:
    found: list[Batch] = []
    rest = list(groups)
    if rest and policy.canary and not trial.judged:
        first = rest.pop(0)
        reference = _reference(first, members)
        if reference and not _spare(reference, first, members, capacity):
            reference = None  # measuring it would take one more engine out of service than allowed
        found.append(Batch(0, name, (first,), _canary_instance(first), reference))
    total, sizes = len(groups), list(policy.serial or DEFAULT_SERIAL)
    if found and len(sizes) > 1:
        sizes = sizes[1:]  # the canary was the first batch
    while rest:
        size = max(1, int(resolve_count(sizes[0], total)))
        sizes = sizes[1:] or sizes
        batch = rest[:1]
        for group in rest[1:size]:
            waits = not group.after.isdisjoint(item.key for item in batch)
            if waits or (policy.serial is None and not _fits([*batch, group], capacity)):
                break
            batch.append(group)
        del rest[: len(batch)]
        found.append(Batch(0, name, tuple(batch)))
    return found


def _spare(
    reference: RolloutInstance,
    group: ChangeGroup,
    members: Sequence[RolloutInstance],
    capacity: Mapping[str, Capacity],
) -> bool:
    """Return whether an instance may be out of service beside a group."""
    return all(
        capacity[name].serving - group.engines_lost.get(name, 0) - 1 >= capacity[name].min_available
        for name in losses(members).get(reference.present_engine, ())
    )


def lost_together(groups: Iterable[ChangeGroup]) -> dict[str, int]:
    """Return the number of engines that are out of service while these groups change, by service."""
    found: dict[str, int] = {}
    for group in groups:
        for name, count in group.engines_lost.items():
            found[name] = found.get(name, 0) + count
    return found


def _fits(groups: Iterable[ChangeGroup], capacity: Mapping[str, Capacity]) -> bool:
    return all(
        capacity[name].serving - count >= capacity[name].min_available
        for name, count in lost_together(groups).items()
    )


def _oversized_groups(groups: Iterable[ChangeGroup], capacity: Mapping[str, Capacity]) -> Iterable[Problem]:
    """Yield problems of groups that are too large for the capacity, in whatever batches."""
    reported = set()
    for group in groups:
        for name, count in group.engines_lost.items():
            room = capacity[name]
            left = room.serving - count
            if left >= room.min_available or name in reported:
                continue
            reported.add(name)
            kept = (
                f"upgrade_min_in requires {room.min_available} of {plural(room.total, 'engine')} "
                f"of {name} in service"
            )
            if count > 1:
                what = (
                    f"{group.name} have to change together, because one takes over GPUs or ports of another; that "
                    "leaves "
                    f"{left}, and {kept}."
                )
                fix = "Keep their GPUs and ports, or accept less capacity: -e upgrade_min_in=" + str(
                    max(left, 0)
                )
            elif room.serving <= room.min_available and room.serving < room.total:
                what = f"only {room.serving} of {plural(room.total, 'engine')} of {name} serve, and {kept}."
                fix = (
                    "Repair the others first (see status.yml, undrain.yml), or accept less capacity: -e "
                    "upgrade_min_in="
                )
                fix += str(max(left, 0))
            else:
                what = f"changing {group.name} leaves {left}, and {kept}."
                fix = (
                    f"Capacity does not allow even one change at a time. To accept that: -e "
                    f"upgrade_min_in={max(left, 0)}"
                )
            yield Problem(("upgrade_min_in",), what, fix + ".", group.hosts)


def _oversized_batches(
    batches: Sequence[Batch], policy: RolloutPolicy, capacity: Mapping[str, Capacity]
) -> Iterable[Problem]:
    """Yield problems of batches that are too large because of the configured serial, though single groups fit."""
    for batch in batches:
        if all(_fits([group], capacity) for group in batch.groups):
            for name, count in lost_together(batch.groups).items():
                room = capacity[name]
                if room.serving - count < room.min_available:
                    serial = ", ".join(map(str, policy.serial or DEFAULT_SERIAL))
                    what = (
                        f"[{serial}] lets {len(batch.groups)} groups change at a time, which leaves "
                        f"{room.serving - count} of {plural(room.total, 'engine')} of {name} in service; "
                        f"upgrade_min_in requires {room.min_available}."
                    )
                    fix = (
                        f"At most {room.serving - room.min_available} fit: -e "
                        f"upgrade_serial={room.serving - room.min_available}."
                    )
                    yield Problem(("upgrade_serial",), what, fix)
                    return


def _outage_warnings(batches: Iterable[Batch], capacity: Mapping[str, Capacity]) -> Iterable[str]:
    for batch in batches:
        for name, count in lost_together(batch.groups).items():
            room = capacity[name]
            if room.stays and room.serving and room.serving - count <= 0:
                who = "its only engine is" if room.total == 1 else "all its engines are"
                yield f"{name} is unavailable while {who} out of service: clients get 503"
