# SPDX-License-Identifier: Apache-2.0
"""Group the instances that can only change together, and find which groups must change before others. Pure.

The servers of one engine change together; so do an instance and the one of another deployment whose GPUs or ports it
takes over. If instances of one deployment take over from each other in a row, the giver changes first; if they do so in
a circle, they change together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .capacity import shifts
from .members import RolloutInstance

REMOVAL = 2
"""The rank of a group that is only removed."""


@dataclass(frozen=True)
class ChangeGroup:
    """Instances that change together.

    engines_lost: engines out of service during the change, by service; engines_gained: in service after it. after: keys
    of the groups that must change before.
    """

    members: tuple[RolloutInstance, ...]
    engines_lost: Mapping[str, int] = field(default_factory=dict, compare=False)
    engines_gained: Mapping[str, int] = field(default_factory=dict, compare=False)
    after: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def key(self) -> str:
        """Return a key that distinguishes it from the other groups of a run."""
        return self.members[0].id

    @property
    def deployment(self) -> str:
        """Return the deployment with which the group changes: that of its new instances, or else of its old ones."""
        return next((item for item in self.members if item.new is not None), self.members[0]).deployment

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return its hosts."""
        return tuple(dict.fromkeys(item.host for item in self.members))

    @property
    def exists(self) -> bool:
        """Return whether any of its instances currently exists on its host."""
        return any(item.exists for item in self.members)

    @property
    def rank(self) -> int:
        """Return the order of the group: replacements first, then additions, then removals."""
        if any(item.exists and item.new is not None for item in self.members):
            return 0
        return 1 if any(item.new is not None for item in self.members) else REMOVAL

    @property
    def name(self) -> str:
        """Return the name for texts."""
        return ", ".join(
            f"{host} {' + '.join(item.name for item in self.members if item.host == host)}"
            for host in self.hosts
        )


def change_groups(members: Sequence[RolloutInstance]) -> tuple[ChangeGroup, ...]:
    """Return the groups of all members that change, in the order of the members."""
    changing = [item for item in members if item.changes]
    sets = _Sets(len(changing))
    first: dict[str, int] = {}
    by_host: dict[str, list[int]] = {}
    for index, item in enumerate(changing):
        by_host.setdefault(item.host, []).append(index)
        for key in filter(None, (item.engine, item.old_engine)):
            sets.join(index, first.setdefault(key, index))
    rows: list[tuple[int, int]] = []
    for indexes in by_host.values():
        for taker, giver, together in _takeovers([(index, changing[index]) for index in indexes]):
            if together or changing[taker].deployment != changing[giver].deployment:
                sets.join(taker, giver)
            elif taker != giver:
                rows.append((taker, giver))
    _join_circles(sets, rows)
    groups: dict[int, list[int]] = {}
    for index in range(len(changing)):
        groups.setdefault(sets.root(index), []).append(index)
    after: dict[int, set[str]] = {}
    for taker, giver in rows:
        if sets.root(taker) != sets.root(giver):
            after.setdefault(sets.root(taker), set()).add(changing[groups[sets.root(giver)][0]].id)
    moves = shifts(members)
    found = []
    for root, indexes in groups.items():
        some = tuple(changing[index] for index in indexes)
        before = frozenset(after.get(root, ()))
        found.append(ChangeGroup(some, moves.losses(some), moves.gains(some), before))
    return tuple(found)


class _Sets:
    """Disjoint sets of numbers."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, index: int) -> int:
        """Return the number that represents a set."""
        parent = self._parent
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    def join(self, one: int, other: int) -> None:
        """Merge two sets."""
        self._parent[self.root(one)] = self.root(other)


def _join_circles(sets: _Sets, rows: Iterable[tuple[int, int]]) -> None:
    """Join instances that take over from each other in a circle; a row is a taker and its giver."""
    givers: dict[int, set[int]] = {}
    for taker, giver in rows:
        givers.setdefault(sets.root(taker), set()).add(sets.root(giver))

    def reached(start: int) -> set[int]:
        seen, rest = set[int](), [start]
        while rest:
            for one in givers.get(rest.pop(), set()) - seen:
                seen.add(one)
                rest.append(one)
        return seen

    circles = [(one, other) for one in givers for other in reached(one) if one in reached(other)]
    for one, other in circles:
        sets.join(one, other)


def _takeovers(items: Sequence[tuple[int, RolloutInstance]]) -> Iterable[tuple[int, int, bool]]:
    """Yield which of a host's instances takes over ports or GPUs from which other, and whether both change together.

    An instance that is removed changes together with its replacement. Shares of a GPU are not handed over one by one.
    """
    users: dict[str, list[tuple[int, RolloutInstance]]] = {}
    for index, item in items:
        for gpu in item.old.gpus if item.old else ():
            users.setdefault(gpu, []).append((index, item))
    ports = {port: (index, item) for index, item in items for port in (item.old.ports if item.old else ())}
    unknown = [index for index, item in items if not item.resources_known]
    for index, item in items:
        if item.new is None:
            continue
        yield from ((index, other, True) for other in unknown)
        for port in item.new.ports:
            if port in ports:
                giver, there = ports[port]
                yield index, giver, there.new is None
        for gpu in item.new.gpus:
            sharing = users.get(gpu, [])
            # An instance that stays on a shared GPU, and leaves the others their shares, conflicts with none of them.
            stays = item.old is not None and gpu in item.old.gpus
            others = sum(one.old.share for other, one in sharing if other != index and one.old)
            if not stays or min(item.new.share * len(sharing), item.new.share + others) > 1 + 1e-9:
                whole = item.new.share == 1 and len(sharing) == 1
                yield from ((index, other, one.new is None or not whole) for other, one in sharing)
