# SPDX-License-Identifier: Apache-2.0
"""Give the hosts of engines that span several hosts the names that the inventory has for them now. Pure.

A generation records the hosts of its engine by the names that they had then. If a host keeps a generation that does not
name it, it is one of the recorded hosts whose names no longer exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from ....module_utils.common.errors import natural
from ....module_utils.service.generations import Generation, GenerationMember
from ..observed.node_state import NodeState

_Engine = tuple[str, int, str, tuple[str, ...]]
"""Deployment, generation, instance and recorded hosts: what the records of an engine's hosts have in common."""


def with_present_hosts(states: Mapping[str, NodeState], names: Collection[str]) -> dict[str, NodeState]:
    """Return the states of hosts, with the present names of the hosts that engines of their generations span.

    Return {} if no name changes. names: all hosts of the inventory, including those outside this run, which keep their
    names.
    """
    keepers: dict[_Engine, dict[str, GenerationMember]] = {}
    for host, state in states.items():
        for made, member in _spanning(state, names):
            keepers.setdefault(_engine(made, member), {})[host] = member
    present = {engine: _present(engine[3], found, names) for engine, found in keepers.items()}
    return {host: _renamed(state, present) for host, state in states.items()} if present else {}


def _spanning(state: NodeState, names: Collection[str]) -> Iterator[tuple[Generation, GenerationMember]]:
    """Yield the members of generations whose engine spanned a host whose name no longer exists."""
    for history in state.generations:
        for made in history.kept:
            for member in made.members:
                if len(member.hosts) > 1 and not all(name in names for name in member.hosts):
                    yield made, member


def _engine(made: Generation, member: GenerationMember) -> _Engine:
    return made.deployment, made.generation, member.name, member.hosts


def _present(
    recorded: tuple[str, ...], keepers: Mapping[str, GenerationMember], names: Collection[str]
) -> tuple[str, ...]:
    """Return an engine's hosts by their present names; a host whose present name is unknown keeps its former one.

    The first of them has the server that gets requests. The order of the others does not matter.
    """
    new = sorted(keepers.keys() - set(recorded), key=natural)
    heads = [name for name in new if not keepers[name].headless]
    workers = iter([name for name in new if keepers[name].headless])
    found = []
    for rank, name in enumerate(recorded):
        if name in names:
            found.append(name)
        elif rank == 0:
            found.append(heads[0] if len(heads) == 1 else name)
        else:
            found.append(next(workers, name))
    return tuple(found)


def _renamed(state: NodeState, present: Mapping[_Engine, tuple[str, ...]]) -> NodeState:
    def generation(made: Generation) -> Generation:
        return replace(made, members=tuple(_members(made, present)))

    histories = tuple(
        replace(history, kept=tuple(map(generation, history.kept))) for history in state.generations
    )
    return replace(state, generations=histories)


def _members(made: Generation, present: Mapping[_Engine, tuple[str, ...]]) -> Iterator[GenerationMember]:
    for member in made.members:
        yield member._replace(hosts=present.get(_engine(made, member), member.hosts))
