# SPDX-License-Identifier: Apache-2.0
"""Build the planner's input: every host with its desired and its observed state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any

from ....module_utils.common.errors import FleetError, Problem, natural, suggest
from ....module_utils.common.hashing import canonical
from ...knowledge.catalog.gpus import GpuCatalog
from ..inventory.groups import BALANCERS
from ..observed.node_state import MALFORMED, NodeState, unreadable_state
from ..pins.registry_override import add_own_names
from .deployment import Deployment, parse_deployments
from .host_settings import ADDRESS, HostSettings, parse_address, parse_settings
from .renamed_hosts import with_present_hosts

LOOPBACK = "127.0.0.1"
ANY, LOCAL = ("0.0.0.0", "::"), (LOOPBACK, "::1", "localhost")
"""Addresses that stand for all of a host's addresses, and those that only the host itself reaches."""


@dataclass(frozen=True)
class HostInput:
    """The raw data of a host: its variables, its node_state, or None and the reason."""

    variables: Mapping[str, Any]
    state: Mapping[str, Any] | None = None
    unreachable: str = ""


@dataclass(frozen=True)
class Host:
    """A host to plan; if state is None, only the inventory's declarations are known.

    address: where other hosts reach it. listen: the address for instances that configure none; "" if each must
    configure one.
    """

    name: str
    settings: HostSettings
    deployments: tuple[Deployment, ...]
    deployments_defined: bool
    state: NodeState | None = None
    address: str = ""
    listen: str = LOOPBACK


@dataclass(frozen=True)
class Fleet:
    """All hosts of a run, in natural order of their names.

    unreachable, excluded: hosts without an answer, and those that cannot be planned, with the reasons. spans: for each
    deployment whose instances span hosts, all its hosts, including those outside this run; None if they cannot be
    determined.
    """

    hosts: tuple[Host, ...]
    unreachable: tuple[tuple[str, str], ...]
    catalog: GpuCatalog
    spans: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    excluded: tuple[tuple[str, str], ...] = ()

    @property
    def absent(self) -> dict[str, str]:
        """Return the hosts of the run that take no part in it, each with the reason."""
        return {**dict(self.unreachable), **dict(self.excluded)}

    def without(self, reasons: Mapping[str, str]) -> Fleet:
        """Return the fleet with these hosts excluded."""
        hosts = tuple(host for host in self.hosts if host.name not in reasons)
        known = dict(self.excluded)
        left = ((name, why) for name, why in reasons.items() if name not in known)
        return replace(self, hosts=hosts, excluded=(*self.excluded, *left)) if reasons else self


def build_fleet(
    inputs: Mapping[str, HostInput],
    groups: Mapping[str, Iterable[str]],
    catalog: GpuCatalog,
    offline: bool = False,
    known: Iterable[Problem] = (),
) -> Fleet:
    """Validate the inventory's data of every host.

    groups: every group and host name that exists. known: problems that were found before. Variables that are equal on
    many hosts are checked once. A host whose state cannot be read is excluded. Raise FleetError with all problems.
    """
    members = {name: frozenset(hosts) for name, hosts in groups.items()}
    inventory = _Inventory(members, catalog)
    problems: list[Problem] = list(known)
    hosts: list[Host] = []
    unreachable: list[tuple[str, str]] = []
    excluded: list[tuple[str, str]] = []
    spanning: dict[str, list[tuple[Deployment, str]]] = {}
    for name in sorted(inputs, key=natural):
        given = inputs[name]
        deployments, found = inventory.deployments(given.variables)
        settings, more = inventory.settings(given.variables)
        address, odd = parse_address(given.variables, name)
        problems.extend(replace(problem, hosts=(name,)) for problem in (*found, *more, *odd))
        selected = inventory.selected(deployments, name)
        for item in selected:
            if item.nodes > 1:
                spanning.setdefault(item.name, []).append((item, name))
        if given.unreachable and not offline:
            unreachable.append((name, given.unreachable))
            continue
        try:
            state = None if offline else _state(given, settings)
        except MALFORMED as error:
            excluded.append((name, unreadable_state(error)))
            continue
        listen = own_listen(name, address, members.get(BALANCERS, ()))
        defined = given.variables.get("vllm_deployments") is not None
        hosts.append(Host(name, settings, selected, defined, state, address, listen))
    if problems:
        raise FleetError(problems)
    spans = {name: _span(found, inputs, members) for name, found in spanning.items()}
    present = frozenset().union(*members.values(), inputs)
    return Fleet(_renamed(hosts, present), tuple(unreachable), catalog, spans, tuple(excluded))


class _Inventory:
    """Validates the variables of hosts; those that are equal on many hosts are checked once."""

    def __init__(self, members: Mapping[str, frozenset[str]], catalog: GpuCatalog) -> None:
        self._members = members
        self._names = set(members).union(*members.values())
        self._catalog = catalog
        self._chosen: dict[int, Collection[str] | None] = {}
        self._deployments: dict[str, tuple[tuple[Deployment, ...], tuple[Problem, ...]]] = {}
        self._settings: dict[str, tuple[HostSettings, tuple[Problem, ...]]] = {}

    def deployments(self, variables: Mapping[str, Any]) -> tuple[tuple[Deployment, ...], tuple[Problem, ...]]:
        """Return the deployments that a host's variables define, and their problems."""
        value = variables.get("vllm_deployments")
        key = canonical(value)
        if key not in self._deployments:
            deployments, found = parse_deployments(value if "vllm_deployments" in variables else [])
            self._deployments[key] = (
                deployments,
                (*found, *_unknown_hosts(deployments, self._members, self._names)),
            )
            self._chosen.update((id(item), _chosen(item, self._members)) for item in deployments)
        return self._deployments[key]

    def selected(self, deployments: Iterable[Deployment], host: str) -> tuple[Deployment, ...]:
        """Return those of deployments() that are for a host, in natural order of their names."""
        mine = (item for item in deployments if _selects(self._chosen[id(item)], host))
        return tuple(sorted(mine, key=lambda item: natural(item.name)))

    def settings(self, variables: Mapping[str, Any]) -> tuple[HostSettings, tuple[Problem, ...]]:
        """Return the settings of a host, and their problems."""
        own = ("vllm_deployments", *ADDRESS)
        rest = {key: item for key, item in variables.items() if key not in own}
        key = canonical(rest)
        if key not in self._settings:
            self._settings[key] = parse_settings(rest, self._catalog)
        return self._settings[key]


def _state(given: HostInput, settings: HostSettings) -> NodeState | None:
    """Return a host's state, with images under the names of their own registries. Raise MALFORMED."""
    if given.state is None:
        return None
    return add_own_names(NodeState.from_json(given.state), settings.overrides)


def _renamed(hosts: Sequence[Host], present: frozenset[str]) -> tuple[Host, ...]:
    """Return the hosts, with the present names of hosts that had another name when a generation was recorded."""
    states = {host.name: host.state for host in hosts if host.state}
    renamed = with_present_hosts(states, present)
    return tuple(replace(host, state=renamed.get(host.name)) for host in hosts) if renamed else tuple(hosts)


def own_listen(host: str, address: str, balancers: Iterable[str]) -> str:
    """Return the address where a host's instances listen: loopback, unless a load balancer on another host uses them.

    Return "" if one does but the host's address is loopback, or a name (which may resolve to loopback on the host
    itself).
    """
    if all(name == host for name in balancers):
        return LOOPBACK
    try:
        return "" if ip_address(address).is_loopback else address
    except ValueError:
        return ""


def _span(
    found: Iterable[tuple[Deployment, str]],
    inputs: Iterable[str],
    members: Mapping[str, frozenset[str]],
) -> tuple[str, ...] | None:
    """Return the hosts of a deployment, or None if they cannot be determined.

    They are those of this run and those that the deployment names, as --limit omits hosts.
    """
    here = {name for _unused, name in found}
    chosen = [_chosen(item, members) for item in {id(item): item for item, _unused in found}.values()]
    others = members.get("instinct", frozenset()) - set(inputs)
    if None in chosen:
        return None if others else tuple(sorted(here, key=natural))
    named = (name for name in others if any(_selects(names, name) for names in chosen))
    return tuple(sorted((*here, *named), key=natural))


def _chosen(deployment: Deployment, members: Mapping[str, frozenset[str]]) -> Collection[str] | None:
    """Return the hosts that a deployment names, by themselves or by their groups; None for all."""
    if deployment.hosts is None:
        return None
    return frozenset(deployment.hosts).union(*(members.get(name, ()) for name in deployment.hosts))


def _selects(chosen: Collection[str] | None, host: str) -> bool:
    return chosen is None or host in chosen


def _unknown_hosts(
    deployments: Iterable[Deployment], members: Mapping[str, frozenset[str]], known: Collection[str]
) -> Iterable[Problem]:
    """Yield a problem for each name in a deployment that the inventory does not have. known: its groups and hosts."""
    fleet = members.get("instinct", frozenset())
    for deployment in deployments:
        for index, name in enumerate(deployment.hosts or ()):
            path = (*deployment.path, "hosts", index)
            if name not in known:
                near = suggest(name, {*known} - {"all", "ungrouped"})
                yield Problem(path, f"there is no host or group {name!r} in the inventory.", near)
            elif name not in members and name not in fleet:
                fix = "Put the host into that group, or remove it here."
                yield Problem(path, f"host {name!r} is not in the group instinct.", fix)
