# SPDX-License-Identifier: Apache-2.0
"""Check that an inventory means what its author thinks: Ansible silently resolves contradictions and reads backups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.utils.vars import load_extra_vars

from ....module_utils.common.errors import Problem
from ..inventory.group_values import group_conflicts
from ..inventory.groups import BALANCERS, CONNECTION, FLEET
from ..inventory.leftovers import leftover_problems
from ..inventory.public_variables import public_variables
from ..inventory.variable_files import VariableFiles

if TYPE_CHECKING:  # importing it would load the planner
    from .variables import InventoryReader


def known_variables() -> frozenset[str]:
    """Return the variables that are checked: the toolkit's, and those that say how hosts are reached."""
    return frozenset((*public_variables(), *CONNECTION))


def file_problems(
    loader: DataLoader, sources: Iterable[str], groups: Mapping[str, Collection[str]], run: Iterable[str]
) -> list[Problem]:
    """Return what is wrong with the files that Ansible reads for this run. run: the hosts that --limit leaves."""
    places, known = list(sources), known_variables()
    balancers = set(groups.get(BALANCERS, ()))
    fleet = balancers.union(groups.get(FLEET, ()))
    here = fleet & balancers.union(run)
    hosts = [name for name in groups.get("all", ()) if name in here]
    own = [name for name, members in groups.items() if not set(members).isdisjoint(hosts)]
    files = VariableFiles(loader, places, loader.get_basedir())
    return [
        *leftover_problems(places, lambda path: _defined(loader, path), {FLEET, BALANCERS, *fleet}),
        *files.problems("group", own, known),
        *files.problems("host", hosts, known),
    ]


def conflict_problems(reader: InventoryReader, hosts: Iterable[str], loader: DataLoader) -> Iterator[Problem]:
    """Yield the variables for which groups of the hosts contradict each other."""
    # Internal to Ansible, which offers no other way to read a group's depth and its own variables.
    inventory: Any = getattr(reader.hostvars, "_inventory", None)
    if inventory is not None:
        known = known_variables() - set(load_extra_vars(loader))
        files = VariableFiles(loader, inventory._sources, loader.get_basedir())
        yield from group_conflicts([inventory.hosts[name] for name in hosts], files, known)


def _defined(loader: DataLoader, path: str) -> set[str]:
    """Return the groups and hosts of an inventory source."""
    found = InventoryManager(loader, sources=[path])
    return {*found.groups, *found.hosts} - {"all", "ungrouped"}
