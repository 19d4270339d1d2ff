# SPDX-License-Identifier: Apache-2.0
"""Order the changes of serving instances, and limit how many change at a time. Pure.

A group consists of instances that can only change together: the servers of one engine, and instances of a host if one
takes over GPUs or ports of another. Groups change in batches. The first group of a deployment is its canary and changes
alone; deployments change one after the other. No batch reduces the engines in service below the configured minimum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from ...module_utils.common.errors import Problem, natural
from ..desired.public_variables import public_variables
from ..text import plural

Count = Union[int, str]
"""A number, or a share of something ("20%")."""

SERIAL: tuple[Count, ...] = (1, "20%")
KEEP: Count = "50%"


@dataclass(frozen=True)
class Place:
    """The ports of an instance, and its GPUs by their render nodes; share: of each GPU."""

    ports: frozenset[int]
    gpus: frozenset[str]
    share: float = 1.0


@dataclass(frozen=True)
class Member:
    """An instance as it is (old) and as it will be (new); None if it does not exist then.

    Attributes:
        known: False if it exists, but its GPUs and ports are unknown.
        engine, old_engine: instances with the same value work together.
        changes: this run changes it.
        serves: it is in service, as far as the load balancer shows.
        headless: it works for another server, and receives no requests.
    """

    host: str
    name: str
    deployment: str
    old: Place | None
    new: Place | None
    engine: str = ""
    old_engine: str = ""
    changes: bool = True
    serves: bool = True
    headless: bool = False
    known: bool = True

    @property
    def id(self) -> str:
        """Return its name in the fleet."""
        return f"{self.host}/{self.name}"

    @property
    def there(self) -> bool:
        """Return whether it currently exists on its host."""
        return self.old is not None or not self.known


@dataclass(frozen=True)
class Unit:
    """Instances that change together. loses: engines out of service during the change, by deployment."""

    members: tuple[Member, ...]
    loses: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def deployment(self) -> str:
        """Return the deployment with which the group changes: that of its new instances, or else of its old ones."""
        return next((item for item in self.members if item.new is not None), self.members[0]).deployment

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return its hosts."""
        return tuple(dict.fromkeys(item.host for item in self.members))

    @property
    def rank(self) -> int:
        """Return the order of the group: replacements first, then additions, then removals."""
        if any(item.there and item.new is not None for item in self.members):
            return 0
        return 1 if any(item.new is not None for item in self.members) else 2

    @property
    def name(self) -> str:
        """Return the name for texts."""
        return ", ".join(
            f"{host} {' + '.join(item.name for item in self.members if item.host == host)}"
            for host in self.hosts
        )


@dataclass(frozen=True)
class Trial:
    """An interrupted upgrade.

    canary: "host/instance", "" if none was started. judged: whether it was judged.
    """

    canary: str = ""
    judged: bool = False


@dataclass(frozen=True)
class Terms:
    """The limits of a rollout.

    serial, keep: None for the defaults. canary: compare the first group with the state before.
    """

    serial: tuple[Count, ...] | None = None
    keep: Count | None = None
    soak: int = 0
    canary: bool = True


@dataclass(frozen=True)
class Capacity:
    """Engines of a deployment: existing ones, those in service, and the minimum in service."""

    there: int
    serving: int
    keep: int


@dataclass(frozen=True)
class Batch:
    """Groups that change at the same time.

    canary: the instance to measure. reference: an unchanged instance next to it.
    """

    number: int
    deployment: str
    units: tuple[Unit, ...]
    canary: Member | None = None
    reference: Member | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts that take part."""
        return tuple(dict.fromkeys(host for unit in self.units for host in unit.hosts))


@dataclass(frozen=True)
class Rollout:
    """All batches, in order, and the capacity of each deployment."""

    batches: tuple[Batch, ...]
    capacity: Mapping[str, Capacity]
    warnings: tuple[str, ...] = ()


# ---- groups ------------------------------------------------------------------------------------------


def units_of(members: Sequence[Member]) -> tuple[Unit, ...]:
    """Return the groups of all members that change, in the order of the members."""
    changing = [item for item in members if item.changes]
    parent = list(range(len(changing)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[tuple[str, ...], int] = {}
    for index, item in enumerate(changing):
        keys = {("engine", key) for key in (item.engine, item.old_engine) if key}
        for key in keys:
            parent[root(index)] = root(first.setdefault(key, index))
    by_host: dict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(changing):
        by_host[item.host].append(index)
    for indexes in by_host.values():
        for left, right in _in_the_way([(index, changing[index]) for index in indexes]):
            parent[root(right)] = root(left)
    groups: dict[int, list[Member]] = {}
    for index, item in enumerate(changing):
        groups.setdefault(root(index), []).append(item)
    return tuple(Unit(tuple(group), _loses(group)) for group in groups.values())


def _in_the_way(items: Sequence[tuple[int, Member]]) -> Iterable[tuple[int, int]]:
    """Yield pairs of a host's instances of which one takes over ports or GPUs of the other."""
    users: dict[str, list[tuple[int, Member]]] = defaultdict(list)
    for index, item in items:
        for gpu in item.old.gpus if item.old else ():
            users[gpu].append((index, item))
    ports = {port: index for index, item in items for port in (item.old.ports if item.old else ())}
    unknown = [index for index, item in items if not item.known]
    for index, item in items:
        if item.new is None:
            continue
        yield from ((index, other) for other in unknown)
        yield from ((index, ports[port]) for port in item.new.ports if port in ports)
        for gpu in item.new.gpus:
            there = users[gpu]
            # An instance that stays on a shared GPU, with no larger share than before, conflicts with no other one.
            stays = item.old is not None and gpu in item.old.gpus
            if not stays or item.new.share * len(there) > 1 + 1e-9:
                yield from ((index, other) for other, _ in there)


def _loses(members: Iterable[Member]) -> dict[str, int]:
    engines = {
        (item.deployment, item.old_engine or item.id) for item in members if item.there and item.serves
    }
    found: dict[str, int] = {}
    for deployment, _ in engines:
        found[deployment] = found.get(deployment, 0) + 1
    return found


# ---- capacity ----------------------------------------------------------------------------------------


def capacity_of(members: Sequence[Member], keep: Count | None) -> dict[str, Capacity]:
    """Return the capacity by deployment; by default, a deployment with a single engine keeps none in service."""
    engines: dict[str, dict[str, list[Member]]] = {}
    for item in members:
        if item.there:
            engines.setdefault(item.deployment, {}).setdefault(item.old_engine or item.id, []).append(item)
    wanted = {item.deployment for item in members if item.new is not None}
    found = {}
    for name, groups in engines.items():
        there = len(groups)
        serving = sum(all(item.serves for item in group) for group in groups.values())
        kept = math.ceil(count_of(KEEP if keep is None else keep, there))
        if (keep is None and there == 1) or name not in wanted:
            kept = 0
        found[name] = Capacity(there, serving, min(kept, there))
    return found


def count_of(value: Count, total: int) -> float:
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


def parse_terms(values: Mapping[str, Any]) -> tuple[Terms, tuple[Problem, ...]]:
    """Parse upgrade_serial, upgrade_min_in and upgrade_soak, from -e or the inventory, and return problems.

    None counts as not set.
    """
    problems = []
    serial: tuple[Count, ...] | None = None
    given = values.get("upgrade_serial")
    if given is not None:
        parts = given if isinstance(given, (list, tuple)) else str(given).strip("[] ").split(",")
        counts = [parse_count(part.strip("\"' ") if isinstance(part, str) else part) for part in parts]
        if not counts or any(not count or count == "0%" for count in counts):
            what = f"{given!r} is not a number of groups, a percentage of them, or a list of these."
            problems.append(Problem(("upgrade_serial",), what, 'Use for example 2, "25%" or [1, "25%"].'))
        else:
            serial = tuple(count for count in counts if count)
    keep = None
    if values.get("upgrade_min_in") is not None:
        keep = parse_count(values["upgrade_min_in"])
        if keep is None:
            what = f"{values['upgrade_min_in']!r} is not a number of engines or a percentage of them."
            problems.append(Problem(("upgrade_min_in",), what, 'Use for example 1 or "75%".'))
    given = values.get("upgrade_soak")
    soak = parse_count(public_variables()["upgrade_soak"].default if given is None else given)
    if not isinstance(soak, int):
        problems.append(
            Problem(
                ("upgrade_soak",), f"{given!r} is not a whole number of seconds.", "Use for example 30, or 0."
            )
        )
        soak = 0
    return Terms(serial, keep, soak), tuple(problems)


# ---- batches -----------------------------------------------------------------------------------------


def plan_rollout(
    members: Sequence[Member], terms: Terms, trials: Mapping[str, Trial] | None = None
) -> tuple[Rollout, tuple[Problem, ...]]:
    """Return the batches, and the problems that prevent the rollout."""
    trials = trials or {}
    capacity = capacity_of(members, terms.keep)
    by_deployment: dict[str, list[Unit]] = {}
    for unit in units_of(members):
        by_deployment.setdefault(unit.deployment, []).append(unit)
    batches: list[Batch] = []
    problems: list[Problem] = []
    warnings: list[str] = []
    for name, units in by_deployment.items():
        problems += _too_big(units, capacity)
        going = [unit for unit in units if unit.rank == 2]
        coming = _ordered([unit for unit in units if unit.rank < 2], members, trials.get(name, Trial()))
        made = _batches(name, coming, members, terms, capacity, trials.get(name, Trial()))
        problems += _too_many(made, terms, capacity)
        if going:
            made.append(Batch(0, name, tuple(going)))
        batches += made
        warnings += _gaps(made, capacity)
    numbered = (
        Batch(number, item.deployment, item.units, item.canary, item.reference)
        for number, item in enumerate(batches, 1)
    )
    return Rollout(tuple(numbered), capacity, tuple(dict.fromkeys(warnings))), tuple(problems)


def _ordered(units: Sequence[Unit], members: Sequence[Member], trial: Trial) -> list[Unit]:
    """Return the canary, then one group of each host in turn; additions come last."""
    if not units:
        return []

    def suits(unit: Unit) -> tuple[bool, int, bool, bool]:
        """Rank groups as canaries, the best last: the interrupted one, replacements, in service, with a reference."""
        mine = not trial.judged and any(item.id == trial.canary for item in unit.members)
        serves = any(item.serves and item.there for item in unit.members)
        return mine, -unit.rank, serves, _reference(unit, members) is not None

    canary = max(units, key=lambda unit: (*suits(unit), -units.index(unit)))
    turns: dict[tuple[str, ...], int] = {}
    order: list[tuple[bool, int, int, int, Unit]] = []
    for unit in units:
        turn = turns[unit.hosts] = turns.get(unit.hosts, -1) + 1
        order.append((unit is not canary, unit.rank, turn, len(order), unit))
    return [item[4] for item in sorted(order, key=lambda item: item[:4])]


def _measured(unit: Unit) -> Member | None:
    """Return the instance of a group to measure: one that answers requests, if possible one that did before too."""
    able = [item for item in unit.members if item.new is not None and not item.headless]
    return max(able, key=lambda item: item.there and item.serves, default=None)


def _reference(unit: Unit, members: Sequence[Member]) -> Member | None:
    """Return an unchanged instance of the same deployment on the canary's host, or None."""
    measured, inside = _measured(unit), {item.id for item in unit.members}
    if measured is None:
        return None
    return next(
        (
            item
            for item in members
            if (item.host, item.deployment) == (measured.host, measured.deployment)
            and item.id not in inside
            and item.there
            and item.serves
            and not item.headless
        ),
        None,
    )


def _batches(
    name: str,
    units: Sequence[Unit],
    members: Sequence[Member],
    terms: Terms,
    capacity: Mapping[str, Capacity],
    trial: Trial,
) -> list[Batch]:
    found: list[Batch] = []
    rest = list(units)
    if rest and terms.canary and not trial.judged:
        first = rest.pop(0)
        reference = _reference(first, members)
        room = capacity.get(name, Capacity(0, 0, 0))
        if reference and room.serving - first.loses.get(name, 0) - 1 < room.keep:
            reference = None  # measuring it would take one more engine out of service than allowed
        found.append(Batch(0, name, (first,), _measured(first), reference))
    total, sizes = len(units), list(terms.serial or SERIAL)
    if found and len(sizes) > 1:
        sizes = sizes[1:]  # the canary was the first batch
    while rest:
        size = max(1, int(count_of(sizes[0], total)))
        sizes = sizes[1:] or sizes
        batch = rest[:1]
        for unit in rest[1:size]:
            if terms.serial is None and not _fits([*batch, unit], capacity):
                break
            batch.append(unit)
        del rest[: len(batch)]
        found.append(Batch(0, name, tuple(batch)))
    return found


def lost(units: Iterable[Unit]) -> dict[str, int]:
    """Return the number of engines that are out of service while these groups change, by deployment."""
    found: dict[str, int] = {}
    for unit in units:
        for name, count in unit.loses.items():
            found[name] = found.get(name, 0) + count
    return found


def _fits(units: Iterable[Unit], capacity: Mapping[str, Capacity]) -> bool:
    return all(capacity[name].serving - count >= capacity[name].keep for name, count in lost(units).items())


def _too_big(units: Iterable[Unit], capacity: Mapping[str, Capacity]) -> Iterable[Problem]:
    """Yield problems of groups that are too large for the capacity, in whatever batches."""
    told = set()
    for unit in units:
        for name, count in unit.loses.items():
            room = capacity[name]
            left = room.serving - count
            if left >= room.keep or name in told:
                continue
            told.add(name)
            kept = (
                f"upgrade_min_in requires {room.keep} of {plural(room.there, 'engine')} of {name} in service"
            )
            if count > 1:
                what = (
                    f"{unit.name} have to change together, because one takes over GPUs or ports of another; that "
                    "leaves "
                    f"{left}, and {kept}."
                )
                fix = "Keep their GPUs and ports, or accept less capacity: -e upgrade_min_in=" + str(
                    max(left, 0)
                )
            elif room.serving <= room.keep and room.serving < room.there:
                what = f"only {room.serving} of {plural(room.there, 'engine')} of {name} serve, and {kept}."
                fix = (
                    "Repair the others first (see status.yml, undrain.yml), or accept less capacity: -e "
                    "upgrade_min_in="
                )
                fix += str(max(left, 0))
            else:
                what = f"changing {unit.name} leaves {left}, and {kept}."
                fix = (
                    f"Capacity does not allow even one change at a time. To accept that: -e "
                    f"upgrade_min_in={max(left, 0)}"
                )
            yield Problem(("upgrade_min_in",), what, fix + ".", unit.hosts)


def _too_many(batches: Sequence[Batch], terms: Terms, capacity: Mapping[str, Capacity]) -> Iterable[Problem]:
    """Yield problems of batches that are too large because of the configured serial, though single groups fit."""
    for batch in batches:
        if all(_fits([unit], capacity) for unit in batch.units):
            for name, count in lost(batch.units).items():
                room = capacity[name]
                if room.serving - count < room.keep:
                    serial = ", ".join(map(str, terms.serial or SERIAL))
                    what = (
                        f"[{serial}] lets {len(batch.units)} groups change at a time, which leaves "
                        f"{room.serving - count} of {plural(room.there, 'engine')} of {name} in service; "
                        f"upgrade_min_in requires {room.keep}."
                    )
                    fix = f"At most {room.serving - room.keep} fit: -e upgrade_serial={room.serving - room.keep}."
                    yield Problem(("upgrade_serial",), what, fix)
                    return


def _gaps(batches: Iterable[Batch], capacity: Mapping[str, Capacity]) -> Iterable[str]:
    for batch in batches:
        for name, count in lost(batch.units).items():
            room = capacity[name]
            if room.serving and room.serving - count <= 0:
                who = "its only engine is" if room.there == 1 else "all its engines are"
                yield f"deployment {name} is unavailable while {who} replaced: clients get 503"


def sorted_members(members: Iterable[Member]) -> tuple[Member, ...]:
    """Return the members in the order of hosts and names."""
    return tuple(sorted(members, key=lambda item: (natural(item.host), natural(item.name))))
