# SPDX-License-Identifier: Apache-2.0
"""Find variables that two groups of one rank set differently for a host: Ansible then goes by the groups' names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ansible import constants

from ....module_utils.common.errors import Problem
from .origins import origin_tag, place_of
from .variable_files import VariableFiles, order_matters

FIX = (
    "Set it in one of them, or in the host's own variables; or give one of the groups ansible_group_priority: 2, which "
    "Ansible reads in the inventory's file only."
)
Table = Mapping[str, Mapping[str, "GroupValue"]]
"""The value that each group sets, by variable."""


Layer = tuple[tuple[int, int], Mapping[str, Any], Callable[[str], str]]


class InventoryGroup(Protocol):
    """A group of Ansible's inventory; vars: what the inventory's sources themselves say."""

    name: str
    depth: int
    priority: int
    vars: Mapping[str, Any]


class InventoryHost(Protocol):
    """A host of Ansible's inventory."""

    name: str
    vars: Mapping[str, Any]

    def get_groups(self) -> Sequence[InventoryGroup]:
        """Return its groups and their parents."""


@dataclass(frozen=True)
class GroupValue:
    """What a group sets a variable to. rank: of where it says so, as later places replace what earlier ones set."""

    group: str
    depth: int
    priority: int
    rank: tuple[int, int]
    value: Any
    place: str = ""

    @property
    def order(self) -> tuple[tuple[int, int], int, int, str]:
        """Return Ansible's order, of which the last counts: the place first, then the group."""
        return self.rank, self.depth, self.priority, self.group


def winner(values: Iterable[GroupValue]) -> GroupValue:
    """Return the value that Ansible uses."""
    return max(values, key=lambda item: item.order)


def conflict(values: Sequence[GroupValue]) -> tuple[GroupValue, GroupValue] | None:
    """Return the value that Ansible uses and another of equal precedence; None if there is none."""
    taken = winner(values)
    for item in values:
        same = (item.depth, item.priority) == (taken.depth, taken.priority)
        if item.group != taken.group and same and order_matters(item.value, taken.value):
            return taken, item
    return None


def group_conflicts(
    hosts: Iterable[InventoryHost], files: VariableFiles, known: Collection[str]
) -> Iterator[Problem]:
    """Yield the known variables that two groups set with equal precedence, unless a host sets its own."""
    members = {host.name: (host, host.get_groups()) for host in hosts}
    groups = {group.name: group for _host, own in members.values() for group in own}
    table = {
        name: found for name, found in group_table(groups.values(), files, known).items() if len(found) > 1
    }
    pairs: dict[tuple[str, str, str], tuple[GroupValue, GroupValue]] = {}
    affected: dict[tuple[str, str, str], list[str]] = {}
    judged: dict[tuple[str, ...], dict[str, tuple[GroupValue, GroupValue]]] = {}
    for name, (host, own) in members.items() if table else ():
        key = tuple(group.name for group in own)
        if key not in judged:  # most hosts are in the same groups
            judged[key] = conflicts_of(table, key)
        for variable, (taken, other) in judged[key].items():
            if variable not in host.vars and not files.sets("host", name, variable):
                pairs[variable, taken.group, other.group] = taken, other
                affected.setdefault((variable, taken.group, other.group), []).append(name)
    for place, (taken, other) in pairs.items():
        what = (
            f"the groups {taken.group} ({taken.place}) and {other.group} ({other.place}) set it differently; neither "
            f"contains the other. Ansible uses the value of {taken.group}."
        )
        yield Problem((place[0],), what, FIX, tuple(affected[place]))


def conflicts_of(table: Table, groups: Collection[str]) -> dict[str, tuple[GroupValue, GroupValue]]:
    """Return the variables that these groups of a host set differently, with the values."""
    found = {}
    for variable, by_group in table.items():
        values = [by_group[name] for name in groups if name in by_group]
        if both := conflict(values) if len(values) > 1 else None:
            found[variable] = both
    return found


def group_table(groups: Iterable[InventoryGroup], files: VariableFiles, known: Collection[str]) -> Table:
    """Return what groups set known variables to, each in the last place where it does."""
    found: dict[str, dict[str, GroupValue]] = {}
    for group in groups:
        for rank, values, place in _layers(group, files):
            for key, value in values.items():
                if key in known:
                    made = GroupValue(group.name, group.depth, group.priority, rank, value, place(key))
                    by_group = found.setdefault(str(key), {})
                    by_group[group.name] = winner([made, *filter(None, [by_group.get(group.name)])])
    return found


def _layers(group: InventoryGroup, files: VariableFiles) -> Iterator[Layer]:
    """Yield the places where a group sets variables: rank, variables, and what says file and line of one."""
    kind = "all" if group.name == "all" else "groups"
    ranks = {name: number for number, name in enumerate(constants.VARIABLE_PRECEDENCE)}
    if (rank := ranks.get(f"{kind}_inventory")) is not None:
        yield (rank, 0), group.vars, lambda key: place_of(origin_tag(group.vars[key], key)) or "its vars"
    for name, directories in (("inventory", files.sources), ("play", (files.playbook,))):
        if (rank := ranks.get(f"{kind}_plugins_{name}")) is not None:
            for number, directory in enumerate(directories):
                for file in files.read(directory, "group", group.name):
                    yield (rank, number), file.values, file.place
