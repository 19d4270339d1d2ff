# SPDX-License-Identifier: Apache-2.0
"""What serves each model name, and how much of it has to stay in service. Pure.

Deployments that share a model name are one service: a deployment that is renamed, split or joined with another one
keeps serving while it changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...module_utils.common.errors import natural
from ...module_utils.common.minimum import DEFAULT_MIN_AVAILABLE, Count, resolve_count
from .members import RolloutInstance

Name = tuple[str, str]
"""A model name ("", name); or a deployment (name, "") that clients do not reach through load balancers."""


@dataclass(frozen=True)
class Service:
    """Engines behind the same model names.

    label: the deployments, for texts. engines: as RolloutInstance.present_engine names them. stays: clients may ask for
    one of the names after the run, too.
    """

    label: str
    names: tuple[Name, ...]
    engines: frozenset[str]
    stays: bool


@dataclass(frozen=True)
class Capacity:
    """Engines of a service: existing ones, those in service, and the minimum in service.

    starting: how many of those in service have yet to start, before the first batch. stays: it serves after the run,
    too.
    """

    total: int
    serving: int
    min_available: int
    starting: int = 0
    stays: bool = True


def services(members: Sequence[RolloutInstance]) -> tuple[Service, ...]:
    """Return what serves each model name before the first batch; names of the same engines are one service."""
    behind: dict[Name, dict[str, str]] = {}
    for item in members:
        if item.exists or item.starts:
            models = item.models if item.starts else item.old_models
            for name in names_of(item.deployment, models):
                behind.setdefault(name, {})[item.present_engine] = item.deployment
    afterwards = {
        name for item in members if item.new is not None for name in names_of(item.deployment, item.models)
    }
    sets: dict[frozenset[str], list[Name]] = {}
    for name, there in behind.items():
        sets.setdefault(frozenset(there), []).append(name)
    found: dict[str, Service] = {}
    for engines, names in sets.items():
        label = " and ".join(sorted(set(behind[names[0]].values()), key=natural))
        if label in found:
            label = f"{label} ({', '.join(filter(None, names[0]))})"
        found[label] = Service(label, tuple(names), engines, not afterwards.isdisjoint(names))
    return tuple(found.values())


def services_by_deployment(members: Sequence[RolloutInstance]) -> dict[str, tuple[str, ...]]:
    """Return the services to which each deployment belongs, as it is or as it will be."""
    labels: dict[Name, str] = {name: one.label for one in services(members) for name in one.names}
    found: dict[str, dict[str, None]] = {}
    for item in members:
        for name in names_of(item.deployment, (*item.old_models, *item.models)):
            if name in labels:
                found.setdefault(item.deployment, {})[labels[name]] = None
    return {deployment: tuple(names) for deployment, names in found.items()}


def names_of(deployment: str, models: Iterable[str]) -> list[Name]:
    """Return the names for which an instance counts."""
    return [("", model) for model in models] or [(deployment, "")]


def capacities(members: Sequence[RolloutInstance], keep: Count | None) -> dict[str, Capacity]:
    """Return the capacity by service; by default, a service with a single engine keeps none in service."""
    engines: dict[str, list[RolloutInstance]] = {}
    for item in members:
        if item.exists or item.starts:
            engines.setdefault(item.present_engine, []).append(item)
    found = {}
    for service in services(members):
        groups = [engines[name] for name in service.engines]
        there = len(groups)
        whole = [group for group in groups if all(item.in_service or item.starts for item in group)]
        starting = sum(any(item.starts for item in group) for group in whole)
        kept = math.ceil(resolve_count(DEFAULT_MIN_AVAILABLE if keep is None else keep, there))
        if (keep is None and there == 1) or not service.stays:
            kept = 0
        found[service.label] = Capacity(there, len(whole), min(kept, there), starting, service.stays)
    return found


def losses(members: Sequence[RolloutInstance]) -> dict[str, tuple[str, ...]]:
    """Return for each engine that is in service the services that lose it while it changes."""
    serving = {item.present_engine for item in members if item.exists and item.in_service}
    found: dict[str, tuple[str, ...]] = {}
    for service in services(members):
        for engine in service.engines & serving:
            found[engine] = (*found.get(engine, ()), service.label)
    return found


def engines_lost(members: Iterable[RolloutInstance], lost: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return how many engines each service loses while these members change. lost: as losses() returns it."""
    found: dict[str, int] = {}
    for engine in dict.fromkeys(item.present_engine for item in members if item.exists and item.in_service):
        for label in lost.get(engine, ()):
            found[label] = found.get(label, 0) + 1
    return found
