# SPDX-License-Identifier: Apache-2.0
"""Put the groups of all deployments in turns that never leave a service with too few engines. Pure.

A turn has as many groups of a deployment as rollout_serial says, and as capacity allows (_fitting).

Deployments change one after another. One that must wait until another one serves more gives way to it: a deployment
that gives up a model name waits for the one that gets it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ....module_utils.common.errors import Problem
from ....module_utils.service.minimum import Count, resolve_count
from ...base.text import plural
from .capacity import Capacity
from .groups import ChangeGroup
from .policy import DEFAULT_SERIAL


@dataclass(frozen=True)
class ScheduledGroups:
    """Groups of a deployment that change at the same time. left: engines that each service can then still spare."""

    deployment: str
    groups: tuple[ChangeGroup, ...]
    canary: bool = False
    left: Mapping[str, int] = field(default_factory=dict)


NOTHING: Mapping[str, int] = {}


class Room:
    """Counts how many engines of each service are in service, from turn to turn."""

    def __init__(self, capacity: Mapping[str, Capacity]) -> None:
        self.capacity = capacity
        self.serving = {name: room.serving for name, room in capacity.items()}

    def left(self, groups: Iterable[ChangeGroup]) -> dict[str, int]:
        """Return how many engines of each service stay while these groups change; only services that lose some."""
        return {name: self.serving[name] - count for name, count in lost_together(groups).items()}

    def fits(self, groups: Iterable[ChangeGroup], lost: Mapping[str, int] = NOTHING) -> bool:
        """Return whether enough of each service stays. lost: engines of groups that change at the same time."""
        return all(
            left - lost.get(name, 0) >= self.capacity[name].min_available
            for name, left in self.left(groups).items()
        )

    def spare(self, groups: Iterable[ChangeGroup]) -> dict[str, int]:
        """Return how many more engines of each service may be out of service while these groups change."""
        lost = lost_together(groups)
        return {
            name: count - lost.get(name, 0) - self.capacity[name].min_available
            for name, count in self.serving.items()
        }

    def change(self, groups: Iterable[ChangeGroup]) -> None:
        """Count what is in service after these groups have changed."""
        for group in groups:
            for name, count in group.engines_lost.items():
                self.serving[name] -= count
            for name, count in group.engines_gained.items():
                self.serving[name] += count


class Queue:
    """The groups of a deployment that are yet to change, in their order.

    serial: groups at a time, as the operator sets it. canary: the first one changes alone. begun: an earlier run began
    the canary, but did not judge it.
    """

    def __init__(
        self,
        deployment: str,
        groups: Sequence[ChangeGroup],
        serial: tuple[Count, ...] | None,
        canary: bool,
        begun: bool = False,
    ) -> None:
        self.deployment, self.rest, self.serial = deployment, list(groups), serial
        self.canary, self.begun = canary, begun
        self.total = len(groups)
        self.sizes = list(serial or DEFAULT_SERIAL)
        if canary and len(self.sizes) > 1:
            self.sizes = self.sizes[1:]  # the canary is the first batch

    def next(self, room: Room, waiting: Collection[str]) -> ScheduledGroups | None:
        """Take the groups that change next; None if none can now. waiting: keys of the groups of all deployments."""
        able = self.able(waiting)
        candidates = able[:1] if self.canary else able
        first = next((group for group in candidates if room.fits([group])), None)
        return self._turn(first, able, room) if first else None

    def forced(self, room: Room, waiting: Collection[str]) -> ScheduledGroups:
        """Take a group that can be the canary instead, or else the next one, although it does not fit."""
        able = self.able(waiting)
        return self._turn(next(iter(self.instead(room, waiting)), able[0]), able, room)

    def instead(self, room: Room, waiting: Collection[str]) -> list[ChangeGroup]:
        """Return groups that can be the canary in place of one that does not fit: first those that are only added."""
        fitting = [group for group in self.able(waiting) if room.fits([group])]
        return sorted(fitting, key=lambda group: group.exists)

    def able(self, waiting: Collection[str]) -> list[ChangeGroup]:
        """Return the groups that do not wait for another."""
        return [group for group in self.rest if group.after.isdisjoint(waiting)]

    def _turn(self, first: ChangeGroup, able: Sequence[ChangeGroup], room: Room) -> ScheduledGroups:
        groups = [first]
        if not self.canary:
            size = max(1, int(resolve_count(self.sizes[0], self.total)))
            self.sizes = self.sizes[1:] or self.sizes
            groups = self._fitting(first, able, size, room)
        turn = ScheduledGroups(self.deployment, tuple(groups), self.canary, room.spare(groups))
        self.canary = False
        taken = {group.key for group in groups}
        self.rest = [group for group in self.rest if group.key not in taken]
        return turn

    def _fitting(
        self, first: ChangeGroup, able: Sequence[ChangeGroup], size: int, room: Room
    ) -> list[ChangeGroup]:
        """Return the first group and those that change with it: as many as requested, or by default as many as fit."""
        found, lost = [first], dict(first.engines_lost)
        for group in able:
            if len(found) == size:
                break
            if group is first or not (self.serial is not None or room.fits([group], lost)):
                continue
            found.append(group)
            for name, count in group.engines_lost.items():
                lost[name] = lost.get(name, 0) + count
        return found


def schedule(
    queues: Sequence[Queue], removals: Sequence[ScheduledGroups], room: Room
) -> tuple[tuple[ScheduledGroups, ...], tuple[Problem, ...], tuple[str, ...]]:
    """Return the turns of all deployments, the problems that prevent them, and warnings.

    removals: groups that are only removed, at the end.
    """
    turns: list[ScheduledGroups] = []
    problems: list[Problem] = []
    warnings: dict[str, None] = {}

    def take(turn: ScheduledGroups) -> None:
        problems.extend(_serial_problems(turn, queue_serial.get(turn.deployment), room))
        warnings.update(dict.fromkeys(_outages(turn, room)))
        room.change(turn.groups)
        turns.append(turn)

    queue_serial = {queue.deployment: queue.serial for queue in queues}
    reported: set[str] = set()
    while waiting := {group.key for queue in queues for group in queue.rest}:
        before = len(turns)
        for queue in queues:
            while queue.rest and (turn := queue.next(room, waiting)):
                take(turn)
                waiting -= {group.key for group in turn.groups}
        if len(turns) == before:
            able = [queue for queue in queues if queue.able(waiting)]
            queue = next((queue for queue in able if queue.instead(room, waiting)), able[0])
            turn = queue.forced(room, waiting)
            problems.extend(_oversized(turn.groups[0], room, reported))
            take(turn)
    for turn in removals:
        take(turn)
    return tuple(turns), tuple(problems), tuple(warnings)


def lost_together(groups: Iterable[ChangeGroup]) -> dict[str, int]:
    """Return the number of engines that are out of service while these groups change, by service."""
    found: dict[str, int] = {}
    for group in groups:
        for name, count in group.engines_lost.items():
            found[name] = found.get(name, 0) + count
    return found


# ---- what prevents it --------------------------------------------------------------------------------


def _oversized(group: ChangeGroup, room: Room, reported: set[str]) -> Iterable[Problem]:
    """Yield why a group cannot change at all. reported: services that have been named already."""
    for name, left in room.left([group]).items():
        there, count, serving = room.capacity[name], group.engines_lost[name], room.serving[name]
        if left >= there.min_available or name in reported:
            continue
        reported.add(name)
        engines = plural(there.total, "engine")
        kept = f"rollout_min_available requires {there.min_available} of {engines} of {name} in service"
        less = f"-e rollout_min_available={max(left, 0)}."
        if count > 1:
            what = (
                f"{group.name} must change together, because one takes over GPUs or ports of another; that leaves "
                f"{left}, but {kept}."
            )
            fix = f"Keep their GPUs and ports, or accept less capacity: {less}"
        elif serving < there.total:
            what = f"only {serving} of {engines} of {name} serve, but {kept}."
            fix = f"Repair the others first (see status.yml, undrain.yml), or accept less capacity: {less}"
        else:
            what = f"changing {group.name} leaves {left}, but {kept}."
            fix = f"Capacity does not allow even one change at a time. To accept that: {less}"
        yield Problem(("rollout_min_available",), what, fix, group.hosts)


def _serial_problems(
    turn: ScheduledGroups, serial: tuple[Count, ...] | None, room: Room
) -> Iterable[Problem]:
    """Yield why a turn is too large because of the configured serial, though its first group fits."""
    if serial is None or len(turn.groups) == 1 or not room.fits(turn.groups[:1]):
        return
    for name, left in room.left(turn.groups).items():
        there = room.capacity[name]
        if left < there.min_available:
            engines, kept = plural(there.total, "engine"), there.min_available
            what = (
                f"[{', '.join(map(str, serial))}] lets {len(turn.groups)} groups change at a time, which leaves {left} "
                f"of {engines} of {name} in service, but rollout_min_available requires {kept}."
            )
            fit = sum(room.fits(turn.groups[: number + 1]) for number in range(len(turn.groups)))
            yield Problem(("rollout_serial",), what, f"At most {fit} fit: -e rollout_serial={fit}.")
            return


def _outages(turn: ScheduledGroups, room: Room) -> Iterable[str]:
    for name, left in room.left(turn.groups).items():
        there = room.capacity[name]
        if there.stays and room.serving[name] and left <= 0:
            who = "its only engine is" if there.total == 1 else "all its engines are"
            yield f"{name} is unavailable while {who} out of service: clients get 503"
