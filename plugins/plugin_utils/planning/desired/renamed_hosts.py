# SPDX-License-Identifier: Apache-2.0
"""Hosts of engines over several hosts, as the inventory names them now. Pure.

A generation records the hosts of its engine by the names that they had. A host that keeps it under a name that it does
not have was one of those whose names no host has any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ....module_utils.common.errors import natural
from ....module_utils.service.generations import Generation, GenerationMember

if TYPE_CHECKING:
    from .fleet import Host

_Engine = tuple[str, int, str, tuple[str, ...]]
"""Deployment, generation, instance and recorded hosts: what the records of an engine's hosts have in common."""


def with_present_hosts(hosts: Sequence[Host], names: Collection[str]) -> list[Host]:
    """Return the hosts, with the present names of those that engines of their generations span.

    names: all hosts of the inventory, including those outside this run, which have no other name.
    """
    keepers: dict[_Engine, dict[str, GenerationMember]] = {}
    for host in hosts:
        for made, member in _spanning(host, names):
            keepers.setdefault(_engine(made, member), {})[host.name] = member
    present = {engine: _present(engine[3], found, names) for engine, found in keepers.items()}
    return [_renamed(host, present) for host in hosts] if present else list(hosts)


def _spanning(host: Host, names: Collection[str]) -> Iterator[tuple[Generation, GenerationMember]]:
    """Yield the generations' members whose engine had a host that has another name now, or none."""
    for history in host.state.generations if host.state else ():
        for made in history.kept:
            for member in made.members:
                if len(member.hosts) > 1 and not all(name in names for name in member.hosts):
                    yield made, member


def _engine(made: Generation, member: GenerationMember) -> _Engine:
    return made.deployment, made.generation, member.name, member.hosts


def _present(
    recorded: tuple[str, ...], keepers: Mapping[str, GenerationMember], names: Collection[str]
) -> tuple[str, ...]:
    """Return an engine's hosts by their present names; one that is not known keeps its former name.

    The first of them has the server that gets requests. The order of the others says nothing to anybody.
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


def _renamed(host: Host, present: Mapping[_Engine, tuple[str, ...]]) -> Host:
    if host.state is None:
        return host

    def generation(made: Generation) -> Generation:
        return replace(made, members=tuple(_members(made, present)))

    histories = tuple(
        replace(history, kept=tuple(map(generation, history.kept))) for history in host.state.generations
    )
    return replace(host, state=replace(host.state, generations=histories))


def _members(made: Generation, present: Mapping[_Engine, tuple[str, ...]]) -> Iterator[GenerationMember]:
    for member in made.members:
        yield member._replace(hosts=present.get(_engine(made, member), member.hosts))
