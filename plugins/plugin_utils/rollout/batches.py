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
from typing import Any

from ...module_utils.common.errors import Problem, natural
from ...module_utils.common.minimum import DEFAULT_MIN_AVAILABLE, Count, parse_count, resolve_count
from ..desired.public_variables import public_variables
from ..text import plural

DEFAULT_SERIAL: tuple[Count, ...] = (1, "20%")


@dataclass(frozen=True)
class InstanceResources:
    """The ports of an instance, and its GPUs by their render nodes; share: of each GPU."""

    ports: frozenset[int]
    gpus: frozenset[str]
    share: float = 1.0


@dataclass(frozen=True)
class RolloutInstance:
    """An instance as it is (old) and as it will be (new); None if it does not exist then.

    Attributes:
        resources_known: False if it exists, but its GPUs and ports are unknown.
        engine, old_engine: instances with the same value work together.
        changes: this run changes it.
        in_service: it is in service, as far as the load balancer shows.
        headless: it works for another server, and receives no requests.
        starts: it starts before the first batch, and serves from then on.
    """

    host: str
    name: str
    deployment: str
    old: InstanceResources | None
    new: InstanceResources | None
    engine: str = ""
    old_engine: str = ""
    changes: bool = True
    in_service: bool = True
    headless: bool = False
    resources_known: bool = True
    starts: bool = False

    @property
    def id(self) -> str:
        """Return its name in the fleet."""
        return f"{self.host}/{self.name}"

    @property
    def exists(self) -> bool:
        """Return whether it currently exists on its host."""
        return self.old is not None or not self.resources_known


@dataclass(frozen=True)
class ChangeGroup:
    """Instances that change together. engines_lost: engines out of service during the change, by deployment."""

    members: tuple[RolloutInstance, ...]
    engines_lost: Mapping[str, int] = field(default_factory=dict, compare=False)

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
        if any(item.exists and item.new is not None for item in self.members):
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
class CanaryProgress:
    """An interrupted upgrade.

    canary: "host/instance", "" if none was started. judged: whether it was judged.
    """

    canary: str = ""
    judged: bool = False


@dataclass(frozen=True)
class RolloutPolicy:
    """The limits of a rollout.

    serial, min_available: None for the defaults. canary: compare the first group with the state before.
    """

    serial: tuple[Count, ...] | None = None
    min_available: Count | None = None
    soak: int = 0
    canary: bool = True


@dataclass(frozen=True)
class Capacity:
    """Engines of a deployment: existing ones, those in service, and the minimum in service.

    starting: how many of those in service have yet to start, before the first batch.
    """

    total: int
    serving: int
    min_available: int
    starting: int = 0


@dataclass(frozen=True)
class Batch:
    """Groups that change at the same time.

    canary: the instance to measure. reference: an unchanged instance next to it.
    """

    number: int
    deployment: str
    groups: tuple[ChangeGroup, ...]
    canary: RolloutInstance | None = None
    reference: RolloutInstance | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts that take part."""
        return tuple(dict.fromkeys(host for group in self.groups for host in group.hosts))


@dataclass(frozen=True)
class Rollout:
    """All batches, in order, and the capacity of each deployment."""

    batches: tuple[Batch, ...]
    capacity: Mapping[str, Capacity]
    warnings: tuple[str, ...] = ()


# ---- groups ------------------------------------------------------------------------------------------


def change_groups(members: Sequence[RolloutInstance]) -> tuple[ChangeGroup, ...]:
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
        for left, right in _conflicting_pairs([(index, changing[index]) for index in indexes]):
            parent[root(right)] = root(left)
    groups: dict[int, list[RolloutInstance]] = {}
    for index, item in enumerate(changing):
        groups.setdefault(root(index), []).append(item)
    return tuple(ChangeGroup(tuple(group), _engines_lost(group)) for group in groups.values())


def _conflicting_pairs(items: Sequence[tuple[int, RolloutInstance]]) -> Iterable[tuple[int, int]]:
    """Yield pairs of a host's instances of which one takes over ports or GPUs of the other."""
    users: dict[str, list[tuple[int, RolloutInstance]]] = defaultdict(list)
    for index, item in items:
        for gpu in item.old.gpus if item.old else ():
            users[gpu].append((index, item))
    ports = {port: index for index, item in items for port in (item.old.ports if item.old else ())}
    unknown = [index for index, item in items if not item.resources_known]
    for index, item in items:
        if item.new is None:
            continue
        yield from ((index, other) for other in unknown)
        yield from ((index, ports[port]) for port in item.new.ports if port in ports)
        for gpu in item.new.gpus:
            there = users[gpu]
            # An instance that stays on a shared GPU, and leaves the others what they have, conflicts with no other one.
            stays = item.old is not None and gpu in item.old.gpus
            others = sum(one.old.share for other, one in there if other != index and one.old)
            if not stays or min(item.new.share * len(there), item.new.share + others) > 1 + 1e-9:
                yield from ((index, other) for other, _unused in there)


def _engines_lost(members: Iterable[RolloutInstance]) -> dict[str, int]:
    engines = {
        (item.deployment, item.old_engine or item.id) for item in members if item.exists and item.in_service
    }
    found: dict[str, int] = {}
    for deployment, _unused in engines:
        found[deployment] = found.get(deployment, 0) + 1
    return found


# ---- capacity ----------------------------------------------------------------------------------------


def capacities(members: Sequence[RolloutInstance], keep: Count | None) -> dict[str, Capacity]:
    """Return the capacity by deployment; by default, a deployment with a single engine keeps none in service."""
    engines: dict[str, dict[str, list[RolloutInstance]]] = {}
    for item in members:
        if item.exists or item.starts:
            key = (item.engine if item.starts else item.old_engine) or item.id
            engines.setdefault(item.deployment, {}).setdefault(key, []).append(item)
    wanted = {item.deployment for item in members if item.new is not None}
    found = {}
    for name, groups in engines.items():
        there = len(groups)
        whole = [group for group in groups.values() if all(item.in_service or item.starts for item in group)]
        starting = sum(any(item.starts for item in group) for group in whole)
        kept = math.ceil(resolve_count(DEFAULT_MIN_AVAILABLE if keep is None else keep, there))
        if (keep is None and there == 1) or name not in wanted:
            kept = 0
        found[name] = Capacity(there, len(whole), min(kept, there), starting)
    return found


def parse_policy(values: Mapping[str, Any]) -> tuple[RolloutPolicy, tuple[Problem, ...]]:
    """Parse upgrade_serial, upgrade_min_in and upgrade_soak, from -e or the inventory, and return problems.

    None counts as not set.
    """
    serial, found = parse_serial(values.get("upgrade_serial"), "upgrade_serial")
    problems = [*found]
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
    return RolloutPolicy(serial, keep, soak), tuple(problems)


def parse_serial(given: Any, name: str) -> tuple[tuple[Count, ...] | None, tuple[Problem, ...]]:
    """Parse how many go at a time, as Ansible's serial, and return problems; None counts as not set."""
    if given is None:
        return None, ()
    parts = given if isinstance(given, (list, tuple)) else str(given).strip("[] ").split(",")
    counts = [parse_count(part.strip("\"' ") if isinstance(part, str) else part) for part in parts]
    if not counts or any(not count or count == "0%" for count in counts):
        what = f"{given!r} is not a number, a percentage, or a list of these."
        return None, (Problem((name,), what, 'Use for example 2, "25%" or [1, "25%"].'),)
    return tuple(count for count in counts if count), ()


# ---- batches -----------------------------------------------------------------------------------------


def plan_rollout(
    members: Sequence[RolloutInstance],
    policy: RolloutPolicy,
    trials: Mapping[str, CanaryProgress] | None = None,
) -> tuple[Rollout, tuple[Problem, ...]]:
    """Return the batches, and the problems that prevent the rollout."""
    trials = trials or {}
    capacity = capacities(members, policy.min_available)
    by_deployment: dict[str, list[ChangeGroup]] = {}
    for group in change_groups(members):
        by_deployment.setdefault(group.deployment, []).append(group)
    batches: list[Batch] = []
    problems: list[Problem] = []
    warnings: list[str] = []
    for name, groups in by_deployment.items():
        problems += _oversized_groups(groups, capacity)
        going = [group for group in groups if group.rank == 2]
        coming = _ordered(
            [group for group in groups if group.rank < 2], members, trials.get(name, CanaryProgress())
        )
        made = _batches(name, coming, members, policy, capacity, trials.get(name, CanaryProgress()))
        problems += _oversized_batches(made, policy, capacity)
        if going:
            made.append(Batch(0, name, tuple(going)))
        batches += made
        warnings += _outage_warnings(made, capacity)
    numbered = (
        Batch(number, item.deployment, item.groups, item.canary, item.reference)
        for number, item in enumerate(batches, 1)
    )
    return Rollout(tuple(numbered), capacity, tuple(dict.fromkeys(warnings))), tuple(problems)


def _ordered(
    groups: Sequence[ChangeGroup], members: Sequence[RolloutInstance], trial: CanaryProgress
) -> list[ChangeGroup]:
    """Return the canary, then one group of each host in turn; additions come last."""
    if not groups:
        return []

    def suits(group: ChangeGroup) -> tuple[bool, int, bool, bool]:
        """Rank groups as canaries, the best last: the interrupted one, replacements, in service, with a reference."""
        mine = not trial.judged and any(item.id == trial.canary for item in group.members)
        serves = any(item.in_service and item.exists for item in group.members)
        return mine, -group.rank, serves, _reference(group, members) is not None

    canary = max(groups, key=lambda group: (*suits(group), -groups.index(group)))
    turns: dict[tuple[str, ...], int] = {}
    order: list[tuple[bool, int, int, int, ChangeGroup]] = []
    for group in groups:
        turn = turns[group.hosts] = turns.get(group.hosts, -1) + 1
        order.append((group is not canary, group.rank, turn, len(order), group))
    return [item[4] for item in sorted(order, key=lambda item: item[:4])]


def _canary_instance(group: ChangeGroup) -> RolloutInstance | None:
    """Return the instance of a group to measure: one that answers requests, if possible one that did before too."""
    able = [item for item in group.members if item.new is not None and not item.headless]
    return max(able, key=lambda item: item.exists and item.in_service, default=None)


def _reference(group: ChangeGroup, members: Sequence[RolloutInstance]) -> RolloutInstance | None:
    """Return an unchanged instance of the same deployment on the canary's host, or None."""
    measured, inside = _canary_instance(group), {item.id for item in group.members}
    if measured is None:
        return None
    return next(
        (
            item
            for item in members
            if (item.host, item.deployment) == (measured.host, measured.deployment)
            and item.id not in inside
            and item.exists
            and item.in_service
            and not item.headless
            and not item.starts
        ),
        None,
    )


def _batches(
    name: str,
    groups: Sequence[ChangeGroup],
    members: Sequence[RolloutInstance],
    policy: RolloutPolicy,
    capacity: Mapping[str, Capacity],
    trial: CanaryProgress,
) -> list[Batch]:
    found: list[Batch] = []
    rest = list(groups)
    if rest and policy.canary and not trial.judged:
        first = rest.pop(0)
        reference = _reference(first, members)
        room = capacity.get(name, Capacity(0, 0, 0))
        if reference and room.serving - first.engines_lost.get(name, 0) - 1 < room.min_available:
            reference = None  # measuring it would take one more engine out of service than allowed
        found.append(Batch(0, name, (first,), _canary_instance(first), reference))
    total, sizes = len(groups), list(policy.serial or DEFAULT_SERIAL)
    if found and len(sizes) > 1:
        sizes = sizes[1:]  # the canary was the first batch
    while rest:
        size = max(1, int(resolve_count(sizes[0], total)))
        sizes = sizes[1:] or sizes
        batch = rest[:1]
        for group in rest[1:size]:
            if policy.serial is None and not _fits([*batch, group], capacity):
                break
            batch.append(group)
        del rest[: len(batch)]
        found.append(Batch(0, name, tuple(batch)))
    return found


def engines_lost(groups: Iterable[ChangeGroup]) -> dict[str, int]:
    """Return the number of engines that are out of service while these groups change, by deployment."""
    found: dict[str, int] = {}
    for group in groups:
        for name, count in group.engines_lost.items():
            found[name] = found.get(name, 0) + count
    return found


def _fits(groups: Iterable[ChangeGroup], capacity: Mapping[str, Capacity]) -> bool:
    return all(
        capacity[name].serving - count >= capacity[name].min_available
        for name, count in engines_lost(groups).items()
    )


def _oversized_groups(groups: Iterable[ChangeGroup], capacity: Mapping[str, Capacity]) -> Iterable[Problem]:
    """Yield problems of groups that are too large for the capacity, in whatever batches."""
    reported = set()
    for group in groups:
        for name, count in group.engines_lost.items():
            room = capacity[name]
            left = room.serving - count
            if left >= room.min_available or name in reported:
                continue
            reported.add(name)
            kept = (
                f"upgrade_min_in requires {room.min_available} of {plural(room.total, 'engine')} "
                f"of {name} in service"
            )
            if count > 1:
                what = (
                    f"{group.name} have to change together, because one takes over GPUs or ports of another; that "
                    "leaves "
                    f"{left}, and {kept}."
                )
                fix = "Keep their GPUs and ports, or accept less capacity: -e upgrade_min_in=" + str(
                    max(left, 0)
                )
            elif room.serving <= room.min_available and room.serving < room.total:
                what = f"only {room.serving} of {plural(room.total, 'engine')} of {name} serve, and {kept}."
                fix = (
                    "Repair the others first (see status.yml, undrain.yml), or accept less capacity: -e "
                    "upgrade_min_in="
                )
                fix += str(max(left, 0))
            else:
                what = f"changing {group.name} leaves {left}, and {kept}."
                fix = (
                    f"Capacity does not allow even one change at a time. To accept that: -e "
                    f"upgrade_min_in={max(left, 0)}"
                )
            yield Problem(("upgrade_min_in",), what, fix + ".", group.hosts)


def _oversized_batches(
    batches: Sequence[Batch], policy: RolloutPolicy, capacity: Mapping[str, Capacity]
) -> Iterable[Problem]:
    """Yield problems of batches that are too large because of the configured serial, though single groups fit."""
    for batch in batches:
        if all(_fits([group], capacity) for group in batch.groups):
            for name, count in engines_lost(batch.groups).items():
                room = capacity[name]
                if room.serving - count < room.min_available:
                    serial = ", ".join(map(str, policy.serial or DEFAULT_SERIAL))
                    what = (
                        f"[{serial}] lets {len(batch.groups)} groups change at a time, which leaves "
                        f"{room.serving - count} of {plural(room.total, 'engine')} of {name} in service; "
                        f"upgrade_min_in requires {room.min_available}."
                    )
                    fix = (
                        f"At most {room.serving - room.min_available} fit: -e "
                        f"upgrade_serial={room.serving - room.min_available}."
                    )
                    yield Problem(("upgrade_serial",), what, fix)
                    return


def _outage_warnings(batches: Iterable[Batch], capacity: Mapping[str, Capacity]) -> Iterable[str]:
    for batch in batches:
        for name, count in engines_lost(batch.groups).items():
            room = capacity[name]
            if room.serving and room.serving - count <= 0:
                who = "its only engine is" if room.total == 1 else "all its engines are"
                yield f"deployment {name} is unavailable while {who} out of service: clients get 503"


def sorted_members(members: Iterable[RolloutInstance]) -> tuple[RolloutInstance, ...]:
    """Return the members in the order of hosts and names."""
    return tuple(sorted(members, key=lambda item: (natural(item.host), natural(item.name))))
