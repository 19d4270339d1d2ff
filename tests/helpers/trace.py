# SPDX-License-Identifier: Apache-2.0
"""Whether a fleet, looked at from outside while it changed, had only states that the simulation of its run contains.

A task changes several hosts at the same time, so between its begin and its end each of them is as it was before, or as
it is afterwards. The looks, in their order, are matched with the tasks in theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Place = tuple[str, int]
"""Where something listens: address and port."""
ANYWHERE = ("0.0.0.0", "::", "*")
LISTENS, STARTING = "listens", "starting"
IN, OUT = "in", "drained"
UP, DOWN = "up", "down"


@dataclass(frozen=True)
class Look:
    """What was seen on one host. servers: of its load balancer, by "backend/server", whether drained and whether up;
    None: it has none, or did not answer.
    """

    at: float
    host: str
    listening: frozenset[Place]
    servers: Mapping[str, tuple[str, str]] | None = None


@dataclass(frozen=True)
class State:
    """What the simulation has between two steps.

    listening: by host, and by port the addresses and whether the instance listens already or may still be starting.
    inner: ports by host with which the servers of an engine reach one another. servers: by load balancer and name,
    whether drained and whether requests are answered; None where the load balancer may have yet to find out.
    """

    step: str
    listening: Mapping[str, Mapping[Place, str]]
    inner: Mapping[str, frozenset[int]]
    servers: Mapping[str, Mapping[str, tuple[str, bool | None]]]

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> State:
        """Read what the recorder wrote."""
        listening: dict[str, dict[Place, str]] = {host: {} for host in raw["hosts"]}
        inner: dict[str, set[int]] = {host: set() for host in raw["hosts"]}
        for item in raw["instances"]:
            if item["host"] not in listening:
                continue
            if item["port"]:
                address = "0.0.0.0" if item["listen"] in ANYWHERE else item["listen"]
                listening[item["host"]][address, item["port"]] = LISTENS if item["ready"] else STARTING
            inner[item["host"]] |= set(item["ports"]) - {item["port"]}
        servers = {
            name: {server: (OUT if drained else IN, serves) for server, drained, serves in found}
            for name, found in raw["balancers"].items()
        }
        return cls(raw["step"], listening, {host: frozenset(ports) for host, ports in inner.items()}, servers)


@dataclass
class Task:
    """The states between the begin and the end of a task."""

    name: str
    states: list[State] = field(default_factory=list)

    def unlike(self, look: Look) -> str:
        """What a look has that no state of this task has; nothing if it fits."""
        return self._unlike_listening(look) or self._unlike_servers(look)

    def _unlike_listening(self, look: Look) -> str:
        states = [state.listening[look.host] for state in self.states if look.host in state.listening]
        if not states:
            return ""
        inner = set().union(*(state.inner.get(look.host, frozenset()) for state in self.states))
        known = set().union(*states)
        for place in sorted(look.listening):
            if place not in known and place[1] not in inner:
                return f"{look.host} listens at {place[0]}:{place[1]}"
        for place in sorted(known - look.listening):
            if all(state.get(place) == LISTENS for state in states):
                return f"{look.host} does not listen at {place[0]}:{place[1]}"
        return ""

    def _unlike_servers(self, look: Look) -> str:
        states = [state.servers.get(look.host) for state in self.states]
        if look.servers is None:
            there = [state for state in states if state is not None]
            return f"load balancer {look.host} does not answer" if len(there) == len(states) else ""
        fitting = [state for state in states if state is not None and state.keys() == look.servers.keys()]
        if not fitting:
            return f"load balancer {look.host} has the servers {', '.join(sorted(look.servers)) or 'none'}"
        for name, (drained, up) in sorted(look.servers.items()):
            found = {state[name] for state in fitting}
            if drained not in {one for one, _serves in found}:
                return f"load balancer {look.host} has {name} {drained}"
            served = {serves for one, serves in found if one == IN}
            if drained == IN and up == UP and served == {False}:
                return f"load balancer {look.host} has {name} up, and nothing answers there"
            if drained == IN and up == DOWN and served == {True}:
                return f"load balancer {look.host} has {name} down, and its instance serves"
        return ""


def tasks(states: Iterable[State]) -> list[Task]:
    """The tasks of a simulation, each with the state in which it begins."""
    found: list[Task] = []
    for state in states:
        if not found:
            found.append(Task(state.step, [state]))
        elif found[-1].name == state.step:
            found[-1].states.append(state)
        else:
            found.append(Task(state.step, [found[-1].states[-1], state]))
    return found


def not_contained(looks: Sequence[Look], states: Iterable[State]) -> str:
    """What was seen that the simulation does not contain, and where; nothing if all of it is contained."""
    there = tasks(states)
    first = 0
    for look in sorted(looks, key=lambda item: item.at):
        fits = next((number for number in range(first, len(there)) if not there[number].unlike(look)), None)
        if fits is None:
            reasons = [f"  {task.name}: {task.unlike(look)}" for task in there[first : first + 4]]
            return "\n".join((f"{look}", "fits none of the tasks from here on:", *reasons))
        first = fits
    end = Task("end", [there[-1].states[-1]])
    last = "; ".join(filter(None, map(end.unlike, _last(looks))))
    return f"the last looks are not the end of the simulation: {last}" if last else ""


def _last(looks: Iterable[Look]) -> list[Look]:
    """The last look at each host."""
    found = {look.host: look for look in sorted(looks, key=lambda item: item.at)}
    return list(found.values())
