# SPDX-License-Identifier: Apache-2.0
"""How many engines stay in service for each model name, whatever a command does. Pure.

Upgrades, deploys, rollbacks and restarts keep to it by their batches. Every other command that takes engines out of
service is refused here if it would leave too few, unless the operator says in that very command that it may.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

from ..common.errors import Problem, natural

Count = Union[int, str]
"""A number, or a share of something ("20%")."""

Key = tuple[str, tuple[str, ...]]
Name = tuple[str, str]
"""A model name ("", name); or a deployment (name, "") that clients do not reach through load balancers."""

DEFAULT_MIN_AVAILABLE: Count = "50%"
SHOWN = 4
"""Engines out of service that a refusal names."""
WORD = "-e at_once=true"
"""What an operator adds to a command to let it leave too few."""


@dataclass(frozen=True)
class ServingEngine:
    """An engine of a deployment: its instance and hosts, whether it serves now, and whether a command takes it out.

    models: the names that clients may ask it for. A load balancer may have it twice, for other names or at another
    address.
    """

    deployment: str
    instance: str
    hosts: tuple[str, ...]
    serves: bool
    taken: bool
    models: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """Return what is the same of the engine's entries."""
        return self.instance, self.hosts

    @property
    def names(self) -> list[Name]:
        """Return the names for which it counts."""
        return [("", model) for model in self.models] or [(self.deployment, "")]


def refusals(
    engines: Iterable[ServingEngine],
    min_available: Count | None = None,
    limit_also: Sequence[str] = (),
    whole_hosts: bool = False,
) -> tuple[Problem, ...]:
    """Return why a command may not take these engines out, for each model name that it would leave too few of.

    engines: all with the model names that the command touches. Those that do not serve do not count as capacity, and
    may always be taken. min_available: as in minimum(). limit_also: hosts that a smaller --limit must name too.
    whole_hosts:
    the command takes all instances of a host.
    """
    every = tuple(engines)
    short = _short(every, min_available)
    way = _way(every, min_available, limit_also, whole_hosts) if short else ""
    fix = f"{way} To do it anyway, with 503 for clients: {WORD}."
    return tuple(
        Problem(
            (),
            f"{name}: {serving} of {total} serve; this would leave {left}, and {_rule(kept, min_available)}.",
            fix,
        )
        for name, (total, serving, left, kept) in sorted(short.items(), key=lambda item: natural(item[0]))
    )


def minimum(total: int, min_available: Count | None = None) -> int:
    """Return how many of a deployment's engines stay in service: rollout_min_available, and never none."""
    share = resolve_count(DEFAULT_MIN_AVAILABLE if min_available is None else min_available, total)
    return max(1, min(math.ceil(share), total))


def services(engines: Iterable[ServingEngine]) -> dict[str, list[ServingEngine]]:
    """Return the engines behind each model name, each once, by the deployments that serve it.

    Names of the same engines are one. An engine without names counts with those of its deployment.
    """
    return {label: list(there.values()) for label, (_unused, there) in _services(engines).items()}


def _services(engines: Iterable[ServingEngine]) -> dict[str, tuple[Name, dict[Key, ServingEngine]]]:
    """Return the engines of each service, with the first of its names."""
    by_name: dict[Name, dict[Key, ServingEngine]] = {}
    for item in engines:
        for name in item.names:
            there = by_name.setdefault(name, {})
            known = there.get(item.key, item)
            there[item.key] = replace(
                item, serves=known.serves or item.serves, taken=known.taken or item.taken, models=()
            )
    found: dict[str, tuple[Name, dict[Key, ServingEngine]]] = {}
    sets: set[frozenset[Key]] = set()
    for name, there in by_name.items():
        keys = frozenset(there)
        if keys not in sets:
            sets.add(keys)
            label = " and ".join(sorted({item.deployment for item in there.values()}, key=natural))
            found[label if label not in found else f"{label} ({name[1]})"] = name, there
    return found


class SpareEngines:
    """How many engines of each service may be taken out, counted once however many choices are tried.

    short: what was taken leaves too few of one.
    """

    def __init__(self, engines: Iterable[ServingEngine], min_available: Count | None = None) -> None:
        found = _services(engines)
        self._label = {name: label for label, (name, _unused) in found.items()}
        self._serving = {
            label: {key for key, item in there.items() if item.serves}
            for label, (_unused, there) in found.items()
        }
        self._kept = {label: minimum(len(there), min_available) for label, (_unused, there) in found.items()}
        self.short = False

    def fits(self, engines: Iterable[ServingEngine]) -> bool:
        """Return whether enough stay, after what was taken, if these go as well."""
        lost = self._lost(engines)
        return not self.short and all(
            len(self._serving[label]) - len(keys) >= self._kept[label] for label, keys in lost.items()
        )

    def take(self, engines: Sequence[ServingEngine]) -> None:
        """Take engines out."""
        self.short = not self.fits(engines)
        for label, keys in self._lost(engines).items():
            self._serving[label] -= keys

    def _lost(self, engines: Iterable[ServingEngine]) -> dict[str, set[Key]]:
        """Return which of these engines serve, by service; only services that lose some."""
        found: dict[str, set[Key]] = {}
        for item in engines:
            for label in filter(None, map(self._label.get, item.names)):
                if item.key in self._serving[label]:
                    found.setdefault(label, set()).add(item.key)
        return found


def _short(
    engines: Iterable[ServingEngine], min_available: Count | None
) -> Mapping[str, tuple[int, int, int, int]]:
    """Return the services with too few left: how many there are, serve, would be left, and must stay."""
    found = {}
    for name, items in services(engines).items():
        serving = [item for item in items if item.serves]
        left, kept = sum(not item.taken for item in serving), minimum(len(items), min_available)
        if left < kept and left < len(serving):
            found[name] = len(items), len(serving), left, kept
    return found


def _rule(kept: int, min_available: Count | None) -> str:
    if kept == 1:
        return "the last one must stay in service"
    given = DEFAULT_MIN_AVAILABLE if min_available is None else min_available
    return f"{kept} must stay in service (rollout_min_available: {given})"


def _way(
    engines: Sequence[ServingEngine],
    min_available: Count | None,
    limit_also: Sequence[str],
    whole_hosts: bool,
) -> str:
    """Return which part of a refused command would be allowed: as many hosts as may go, or one engine."""
    taken = [item for item in engines if item.taken]
    on: dict[str, list[ServingEngine]] = {}
    for item in taken:
        for host in item.hosts:
            on.setdefault(host, []).append(item)
    room = SpareEngines(engines, min_available)
    hosts: list[str] = []
    for host in sorted(on, key=natural):
        if room.fits(on[host]):
            room.take(on[host])
            hosts.append(host)
    if hosts:
        return f"Take fewer at a time: {_limit(hosts, limit_also)}."
    for item in () if whole_hosts else taken:
        if item.serves and room.fits([item]):
            return f"Take fewer at a time: {_limit(item.hosts, limit_also)} -e instance={item.instance}."
    short, behind = _short(engines, min_available), services(engines)
    lost = sorted(
        {
            f"{item.instance} on {', '.join(item.hosts)}"
            for name in short
            for item in behind[name]
            if not item.serves
        },
        key=natural,
    )
    others = [f"{len(lost) - SHOWN} more"] if len(lost) > SHOWN else []
    which = f": {', '.join([*lost[:SHOWN], *others])}" if lost else ""
    return f"First return others to service{which} (undrain.yml; status.yml shows them)."


def _limit(hosts: Sequence[str], also: Sequence[str]) -> str:
    """Return --limit with each host once: a load balancer may run on one that stops."""
    return f"--limit {','.join(dict.fromkeys((*hosts, *also)))}"


# ---- numbers and shares ------------------------------------------------------------------------------


def resolve_count(value: Count, total: int) -> float:
    """Return a number as it is, or a percentage as that share of the total."""
    return total * int(str(value)[:-1]) / 100 if str(value).endswith("%") else int(value)


def parse_count(value: Any) -> Count | None:
    """Return an integer or a percentage, also if given as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    text = str(value).strip()
    if text.isdecimal():
        return int(text)
    return text if text.endswith("%") and text[:-1].isdecimal() and int(text[:-1]) <= 100 else None
