# SPDX-License-Identifier: Apache-2.0
"""Count what serves each model name, and how much of it must stay in service. Pure.

Deployments that share a model name are one service: a deployment that is renamed, split or joined with another one
keeps serving while it changes. A load balancer that reaches only some of the engines must keep enough of these: it may
reach only those on its own host, if instances listen on loopback, or be without what the operator has drained in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ....module_utils.common.errors import natural
from ....module_utils.service.minimum import DEFAULT_MIN_AVAILABLE, Count, resolve_count
from .members import RolloutInstance

Name = tuple[str, str]
"""A model name ("", name); or a deployment (name, "") that clients do not reach through load balancers."""


@dataclass(frozen=True)
class ModelService:
    """Engines behind the same model names.

    label: the deployments, for texts. engines: by RolloutInstance.present_engine; afterwards: those at the end of the
    run; out: those that are out of service here, but serve elsewhere.
    """

    label: str
    names: tuple[Name, ...]
    engines: frozenset[str]
    afterwards: frozenset[str]
    out: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Capacity:
    """Engines of a service: existing ones, those in service, and the minimum in service.

    starting: how many of those in service are yet to start, before the first batch. stays: clients may also request its
    names after the run.
    """

    total: int
    serving: int
    min_available: int
    starting: int = 0
    stays: bool = True


def services(members: Sequence[RolloutInstance]) -> tuple[ModelService, ...]:
    """Return what serves each model name before the first batch; names of the same engines are one service.

    A load balancer's part of it is a further service, if it does not reach all engines, or not all are in service.
    """
    before: dict[Name, dict[str, str]] = {}
    after: dict[Name, set[str]] = {}
    # Instances that go, and that no load balancer has.
    unasked = {item.present_engine for item in members if item.new is None and item.balancers == frozenset()}
    for item in members:
        # What starts before the first batch also counts for the names that it gives up: it is out of service there.
        asked = item.exists and item.present_engine not in unasked
        for models in ([item.models] if item.starts else []) + ([item.old_models] if asked else []):
            for name in names_of(item.deployment, models):
                before.setdefault(name, {})[item.present_engine] = item.deployment
        for name in (
            names_of(item.deployment, item.models) if item.new is not None and not item.drained else ()
        ):
            after.setdefault(name, set()).add(item.wanted_engine)
    sets: dict[tuple[frozenset[str], frozenset[str]], list[Name]] = {}
    for name, there in before.items():
        sets.setdefault((frozenset(there), frozenset(after.get(name, ()))), []).append(name)
    found: dict[str, ModelService] = {}
    for (engines, afterwards), names in sets.items():
        label = " and ".join(sorted(set(before[names[0]].values()), key=natural))
        if label in found:
            label = f"{label} ({', '.join(filter(None, names[0]))})"
        found[label] = ModelService(label, tuple(names), engines, afterwards)
    views = _views(members)
    return (*found.values(), *(part for whole in found.values() for part in _parts(whole, views)))


@dataclass(frozen=True)
class _View:
    """The fleet's engines that a load balancer cannot use: before the first batch, and at the end (after).

    beyond: those that it does not reach. out: those that the operator has drained in it, but not everywhere.
    """

    beyond: frozenset[str]
    beyond_after: frozenset[str]
    out: frozenset[str]
    out_after: frozenset[str]


def _views(members: Sequence[RolloutInstance]) -> dict[str, _View]:
    """Return the engines that load balancers cannot use, for those load balancers that cannot use all."""
    before = [(item, item.balancers_after if item.starts else item.balancers) for item in members]
    after = [(item, item.balancers_after) for item in members]
    reached = [some for _unused, some in (*before, *after) if some is not None]
    names = frozenset[str]().union(*reached, *(item.kept_out for item in members))
    found = {}
    for name in sorted(names, key=natural):
        beyond = [item for item, some in before if some is not None and name not in some]
        beyond_after = [item for item, some in after if some is not None and name not in some]
        out = [item for item in members if name in item.kept_out]
        if beyond or beyond_after or out:
            found[name] = _View(
                frozenset(item.present_engine for item in beyond),
                frozenset(item.wanted_engine for item in beyond_after),
                frozenset(item.present_engine for item in out),
                frozenset(item.wanted_engine for item in out),
            )
    return found


def _parts(whole: ModelService, views: Mapping[str, _View]) -> Iterable[ModelService]:
    """Yield the parts of a service behind load balancers that have some of its engines in service, but not all."""
    sets: dict[tuple[frozenset[str], frozenset[str], frozenset[str]], list[str]] = {}
    for balancer, view in views.items():
        engines = whole.engines - view.beyond
        out = engines & view.out
        afterwards = whole.afterwards - view.beyond_after - view.out_after
        if engines and (out or engines != whole.engines or afterwards != whole.afterwards):
            sets.setdefault((engines, afterwards, out), []).append(balancer)
    for (engines, afterwards, out), names in sets.items():
        yield ModelService(
            f"{whole.label} behind {' and '.join(names)}", whole.names, engines, afterwards, out
        )


def services_by_deployment(members: Sequence[RolloutInstance]) -> dict[str, tuple[str, ...]]:
    """Return the services to which each deployment belongs, as it is or as it will be."""
    labels: dict[Name, list[str]] = {}
    for one in services(members):
        for name in one.names:
            labels.setdefault(name, []).append(one.label)
    found: dict[str, dict[str, None]] = {}
    for item in members:
        for name in names_of(item.deployment, (*item.old_models, *item.models)):
            if name in labels:
                found.setdefault(item.deployment, {}).update(dict.fromkeys(labels[name]))
    return {deployment: tuple(names) for deployment, names in found.items()}


def names_of(deployment: str, models: Iterable[str]) -> list[Name]:
    """Return the names that an instance serves, for counting."""
    return [("", model) for model in models] or [(deployment, "")]


def capacities(members: Sequence[RolloutInstance], keep: Count | None) -> dict[str, Capacity]:
    """Return the capacity by service; by default, a service with a single engine keeps none in service."""
    engines: dict[str, list[RolloutInstance]] = {}
    for item in members:
        if item.exists or item.starts:
            engines.setdefault(item.present_engine, []).append(item)
    found = {}
    for service in services(members):
        there = len(service.engines)
        groups = [engines[name] for name in service.engines - service.out]
        whole = [
            group
            for group in groups
            if all(
                item.wanted_engine in service.afterwards if item.starts else item.in_service for item in group
            )
        ]
        starting = sum(any(item.starts for item in group) for group in whole)
        kept = math.ceil(resolve_count(DEFAULT_MIN_AVAILABLE if keep is None else keep, there))
        if keep is None and there == 1:
            kept = 0
        kept = min(kept, there, len(service.afterwards))
        found[service.label] = Capacity(there, len(whole), kept, starting, bool(service.afterwards))
    return found


@dataclass(frozen=True)
class Shifts:
    """The services of each engine, by RolloutInstance.present_engine and wanted_engine.

    lost: of engines that are in service before the first batch. gained: of those at the end of the run.
    """

    lost: Mapping[str, Sequence[str]]
    gained: Mapping[str, Sequence[str]]

    def losses(self, members: Iterable[RolloutInstance]) -> dict[str, int]:
        """Return how many engines each service loses while these members change."""
        there = (item.present_engine for item in members if item.exists and item.in_service)
        return _count(there, self.lost)

    def gains(self, members: Iterable[RolloutInstance]) -> dict[str, int]:
        """Return how many engines each service gets when these members have changed."""
        return _count((item.wanted_engine for item in members if item.new is not None), self.gained)


def shifts(members: Sequence[RolloutInstance]) -> Shifts:
    """Return which services lose and get engines when members change."""
    there = {item.present_engine for item in members if item.exists}
    serving = there - {item.present_engine for item in members if item.exists and not item.in_service}
    lost: dict[str, list[str]] = {}
    gained: dict[str, list[str]] = {}
    for service in services(members):
        for engine in (service.engines & serving) - service.out:
            lost.setdefault(engine, []).append(service.label)
        for engine in service.afterwards:
            gained.setdefault(engine, []).append(service.label)
    return Shifts(lost, gained)


def _count(engines: Iterable[str], labels: Mapping[str, Sequence[str]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for engine in dict.fromkeys(engines):
        for label in labels.get(engine, ()):
            found[label] = found.get(label, 0) + 1
    return found
