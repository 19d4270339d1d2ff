# SPDX-License-Identifier: Apache-2.0
"""Decide which holds end: a hold stays only as long as the inventory defines what was turned back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ....module_utils.service.generations import Generation, History, Hold
from ..desired.fleet import Fleet
from ..instances.factory import InstanceFactory
from ..placement.layout import lay_out_fleet
from .sources import HELD, HoldReview, SourceSelection, histories_of

SAME = "the inventory's definition is what runs"
OTHER = "the inventory's definition is no longer the one that was turned back"
GONE = "the inventory no longer defines it"
TURNED_BACK, UNKNOWN = "turned back", "unknown"

Specs = Mapping[str, str]
"""Spec hashes by the names of instances, of a deployment on a host."""


def review_holds(fleet: Fleet, selection: SourceSelection, factory: InstanceFactory) -> HoldReview:
    """Return which of a run's holds end.

    A definition is still the one that was turned back if it is equal to it, or if one of its instances is: a different
    number of instances does not make another definition. Deployments that were turned back together are held together.
    """
    holds = {
        name: source.held
        for name, source in selection.sources.items()
        if source.kind == HELD and source.held is not None
    }
    if not holds:
        return HoldReview()
    histories = histories_of(fleet)
    found = {name: _judge(name, hold, fleet, histories[name], factory) for name, hold in holds.items()}
    released: dict[str, str] = {}
    for group in _together(holds):
        ends = {name: found[name] for name in group if found[name] not in (TURNED_BACK, UNKNOWN)}
        for name in group if ends else ():
            released[name] = ends.get(name) or f"it was turned back with {', '.join(ends)}, which changed"
    ignored = {name for name, kind in found.items() if kind == TURNED_BACK and name not in released}
    return HoldReview(released, frozenset(ignored))


def _together(holds: Mapping[str, Hold]) -> list[list[str]]:
    """Return the deployments in groups of those whose holds name each other."""
    rest, groups = dict.fromkeys(holds), []
    while rest:
        group = [next(iter(rest))]
        del rest[group[0]]
        for name in group:
            others = [one for one in holds[name].together if one in rest and name in holds[one].together]
            group += others
            for one in others:
                del rest[one]
        groups.append(group)
    return groups


def held_together(fleet: Fleet, one: str, other: str) -> bool:
    """Return whether two deployments were turned back together, by the records of every host that has one of them.

    All of them must say so, as a single node may claim anything about its own instances.
    """
    histories = histories_of(fleet)
    for host in fleet.hosts:
        for name, partner in ((one, other), (other, one)):
            history = histories.get(name, {}).get(host.name)
            has = any(item.name == name for item in host.deployments) or bool(history and history.kept)
            if has and not (history and history.held and partner in history.held.together):
                return False
    return True


def _judge(
    name: str, hold: Hold, fleet: Fleet, histories: Mapping[str, History], factory: InstanceFactory
) -> str:
    """Return how the inventory's definition of a held deployment compares, on the hosts that keep generations of it.

    A host that joined later does not count: a held deployment is not started there.
    """
    known = {host: history for host, history in histories.items() if history.kept}
    defined = any(item.name == name for host in fleet.hosts for item in host.deployments)
    composed = _composed(name, fleet, known, factory)
    if not known or composed is None:
        return OTHER if defined else GONE
    if not composed:
        return UNKNOWN
    held = _as_of(hold.generation, known, composed)
    for number in failed_generations(hold, known.values()):
        turned = _as_of(number, known, composed)
        if composed == turned or _has_part(composed, turned, held):
            # A run whose hosts are all alike in both cannot decide.
            return UNKNOWN if composed == held else TURNED_BACK
    if not defined:
        return GONE
    return SAME if composed == held else OTHER


def failed_generations(hold: Hold, histories: Iterable[History]) -> Sequence[int]:
    """Return the generations that were turned back; if the record does not say, all newer than the held one."""
    newer = {item.generation for history in histories for item in history.kept}
    return hold.failed or sorted(number for number in newer if number > hold.generation)


def _as_of(number: int, histories: Mapping[str, History], hosts: Iterable[str]) -> dict[str, Specs]:
    return {host: _specs_of(histories[host].as_of(number)) for host in hosts}


def _specs_of(record: Generation | None) -> Specs:
    return record.specs if record else {}


def _has_part(composed: Mapping[str, Specs], turned: Mapping[str, Specs], held: Mapping[str, Specs]) -> bool:
    """Return whether an instance would run what was turned back instead of what runs now."""
    return any(
        composed[host].get(name) == spec and held[host].get(name) != spec
        for host, specs in turned.items()
        for name, spec in specs.items()
    )


def _composed(
    name: str, fleet: Fleet, histories: Mapping[str, History], factory: InstanceFactory
) -> dict[str, Specs] | None:
    """Return a deployment's instances as the inventory defines them, by host.

    Hosts where that is not known are left out, such as those of an engine whose other hosts do not answer. None for a
    definition that cannot be composed yet: it must be new, as the one that was turned back had been composed.
    """
    hosts = tuple(
        replace(host, deployments=tuple(item for item in host.deployments if item.name == name))
        for host in fleet.hosts
    )
    layouts, wrong = lay_out_fleet(replace(fleet, hosts=hosts))
    if wrong:
        return None
    found: dict[str, Specs] = {}
    for host in hosts:
        layout = layouts[host.name]
        if host.name not in histories or layout.unplaced:
            continue
        instances, odd = factory.instances(host, layout, fleet.catalog)
        if odd:
            return None
        found[host.name] = {item.name: item.spec_hash for item in instances}
    return found
