# SPDX-License-Identifier: Apache-2.0
"""Build the planner's input: every host with its desired and its observed state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any

from ....module_utils.common.errors import FleetError, Problem, natural, suggest
from ....module_utils.common.hashing import canonical
from ...knowledge.catalog.gpus import GpuCatalog
from ..inventory.groups import BALANCERS
from ..observed.node_state import MALFORMED, NodeState, unreadable_state
from ..pins.registry_override import with_own_names
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
        """Return why hosts that the run is about take no part in it."""
        return {**dict(self.unreachable), **dict(self.excluded)}

    def without(self, reasons: Mapping[str, str]) -> Fleet:
        """Return the fleet with these hosts excluded."""
        hosts = tuple(host for host in self.hosts if host.name not in reasons)
        left = ((name, why) for name, why in reasons.items() if name not in dict(self.excluded))
        return replace(self, hosts=hosts, excluded=(*self.excluded, *left)) if reasons else self


def build_fleet(
    inputs: Mapping[str, HostInput],
    groups: Mapping[str, Iterable[str]],
    catalog: GpuCatalog,
    offline: bool = False,
    known: Iterable[Problem] = (),
) -> Fleet:
    """Validate the inventory's data of every host.

    `groups` has every group and host name that exists. `known`: problems that were found before. Variables that are
    equal on many hosts are checked once. A host whose state cannot be read is excluded. Raise FleetError with all
    problems.
    """
    members = {name: frozenset(hosts) for name, hosts in groups.items()}
    problems: list[Problem] = list(known)
    hosts: list[Host] = []
    unreachable: list[tuple[str, str]] = []
    excluded: list[tuple[str, str]] = []
    parsed: dict[str, tuple[tuple[Deployment, ...], tuple[Problem, ...]]] = {}
    checked: dict[str, tuple[HostSettings, tuple[Problem, ...]]] = {}
    spanning: dict[str, list[tuple[Deployment, str]]] = {}
    for name in sorted(inputs, key=natural):
        given = inputs[name]
        value = given.variables.get("vllm_deployments")
        key = canonical(value)
        if key not in parsed:
            deployments, found = parse_deployments(value if "vllm_deployments" in given.variables else [])
            parsed[key] = deployments, (*found, *_unknown_hosts(deployments, members))
        deployments, found = parsed[key]
        own = ("vllm_deployments", *ADDRESS)
        rest = {key: item for key, item in given.variables.items() if key not in own}
        key = canonical(rest)
        if key not in checked:
            checked[key] = parse_settings(rest, catalog)
        settings, more = checked[key]
        address, odd = parse_address(given.variables, name)
        problems.extend(replace(problem, hosts=(name,)) for problem in (*found, *more, *odd))
        selected = tuple(
            sorted(
                (item for item in deployments if _selects(item, name, members)),
                key=lambda item: natural(item.name),
            )
        )
        for item in selected:
            if item.nodes > 1:
                spanning.setdefault(item.name, []).append((item, name))
        if given.unreachable and not offline:
            unreachable.append((name, given.unreachable))
            continue
        state = None
        if not offline and given.state is not None:
            try:
                state = with_own_names(NodeState.from_json(given.state), settings.overrides)
            except MALFORMED as error:
                excluded.append((name, unreadable_state(error)))
                continue
        listen = own_listen(name, address, members.get(BALANCERS, ()))
        hosts.append(Host(name, settings, selected, value is not None, state, address, listen))
    if problems:
        raise FleetError(problems)
    spans = {name: _span(found, inputs, members) for name, found in spanning.items()}
    states = {host.name: host.state for host in hosts if host.state}
    renamed = with_present_hosts(states, frozenset().union(*members.values(), inputs))
    hosts = [replace(host, state=renamed.get(host.name)) for host in hosts] if renamed else hosts
    return Fleet(tuple(hosts), tuple(unreachable), catalog, spans, tuple(excluded))


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
    others = members.get("instinct", frozenset()) - set(inputs)
    if any(item.hosts is None for item, _unused in found):
        return None if others else tuple(sorted(here, key=natural))
    named = (name for name in others if any(_selects(item, name, members) for item, _unused in found))
    return tuple(sorted((*here, *named), key=natural))


def _selects(deployment: Deployment, host: str, members: Mapping[str, frozenset[str]]) -> bool:
    if deployment.hosts is None:
        return True
    return any(name == host or host in members.get(name, ()) for name in deployment.hosts)


def _unknown_hosts(
    deployments: Iterable[Deployment], members: Mapping[str, frozenset[str]]
) -> Iterable[Problem]:
    known = set(members).union(*members.values())
    fleet = members.get("instinct", frozenset())
    for deployment in deployments:
        for index, name in enumerate(deployment.hosts or ()):
            path = (*deployment.path, "hosts", index)
            if name not in known:
                near = suggest(name, known - {"all", "ungrouped"})
                yield Problem(path, f"there is no host or group {name!r} in the inventory.", near)
            elif name not in members and name not in fleet:
                fix = "Put the host into that group, or remove it here."
                yield Problem(path, f"host {name!r} is not in the group instinct.", fix)
