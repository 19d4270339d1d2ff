# SPDX-License-Identifier: Apache-2.0
"""List what a run does to a load balancer, and why: desired minus observed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ....module_utils.common.errors import Problem, natural
from ....module_utils.common.hashing import spec_hash, text_hash
from ...base.text import plural
from ..desired.actions import DEBIAN, Action, Kind
from ..desired.endpoint_settings import BalancerHost, ObservedBalancer
from .backends import Backend, names_of
from .balancer_plan import BALANCER, url_of
from .servers import BackendServer, seen_servers

ROLE: Final = "load_balancer"


@dataclass(frozen=True)
class BalancerChange:
    """What changes at a load balancer.

    files: those that it should have; None if keys or the certificate do not exist yet. drain: servers of instances that
    stop. left: servers that an interrupted run left drained. gone: servers that nothing needs any more. fleet: all GPU
    hosts.
    """

    host: BalancerHost
    backends: Sequence[Backend]
    files: Mapping[str, str] | None
    drain: Sequence[str]
    left: Sequence[str]
    gone: Mapping[str, BackendServer]
    fleet: Collection[str]

    @property
    def serves(self) -> bool:
        """Return whether the load balancer runs, so that its servers can be drained."""
        return bool(self.host.observed and self.host.observed.running)


def balancer_actions(change: BalancerChange) -> tuple[Action, ...]:
    """Return what a run does, in order."""
    before = "absent" if change.host.observed else "unknown"
    source = "the distribution's package"
    packages = [
        Action(name, ROLE, name, before, "installed", reason, source)
        for name, reason in missing_packages(change.host)
    ]
    drains = _drains(change) if change.serves else ()
    return (*packages, *drains, *_configuration(change), *_returns(change))


def _drains(change: BalancerChange) -> Iterator[Action]:
    """Yield what is drained: servers of instances that stop, of hosts that left, and of instances that moved."""
    reason = "this run stops it; it is drained first, so running requests can finish"
    for name in change.drain:
        yield Action("drain", ROLE, name, "in service", "drained", reason, "vllm_deployments")
    reason = "the host left the inventory; running requests finish before the load balancer removes it"
    leaving: dict[str, list[BackendServer]] = {}
    for server in change.gone.values():
        if server.host not in change.fleet:
            leaving.setdefault(server.host, []).append(server)
    for host, servers in leaving.items():
        target = f"{plural(_count(servers), 'instance')} of {host}"
        yield Action("drain", ROLE, target, "in service", "drained", reason, "the group instinct")
    reason = "another server replaces it for its instance; running requests finish before the load balancer removes it"
    for name, server in change.gone.items():
        if server.host in change.fleet:
            yield Action("drain", ROLE, name, "in service", "drained", reason, "vllm_deployments")


def _configuration(change: BalancerChange) -> Iterator[Action]:
    reason = _difference(change.host, change.backends, change.files)
    if reason:
        after = plural(_count(names_of(change.backends).values()), "instance")
        before = _present(change.host.observed)
        yield Action(BALANCER, ROLE, url_of(change.host), before, after, reason, "vllm_deployments")


def _present(observed: ObservedBalancer | None) -> str:
    if observed is None:
        return "unknown"
    return (
        plural(_count(seen_servers(observed.config).values()), "instance") if observed.running else "absent"
    )


def _returns(change: BalancerChange) -> Iterator[Action]:
    reason = "an interrupted run left it drained"
    for name in change.left:
        if not (change.serves and name in change.drain):
            yield Action("undrain", ROLE, name, "drained", "in service", reason, "the load balancer's record")


def package_problems(host: BalancerHost) -> Iterator[Problem]:
    """Yield a problem for packages that a load balancer needs and the toolkit cannot install."""
    packages = [name for name, _purpose in missing_packages(host)]
    if host.observed and host.os_id not in DEBIAN and packages:
        system = host.os_id or "its system"
        what = f"has no {' and '.join(packages)}, and the toolkit cannot install packages on {system}."
        fix = "Install them (HAProxy 2.4, keepalived 2.0 or newer), and run again."
        yield Problem((), what, fix, (host.name,))


def missing_packages(host: BalancerHost) -> list[tuple[Kind, str]]:
    """Return the packages that are known to be missing on the host, each with its purpose."""
    observed = host.observed or ObservedBalancer()
    found: list[tuple[Kind, str]] = []
    if not observed.installed:
        found.append(("haproxy", "it distributes requests among the instances"))
    if host.settings.virtual and not observed.keepalived:
        found.append(("keepalived", f"it moves {host.settings.virtual.address} between the load balancers"))
    return found


def _count(servers: Iterable[BackendServer]) -> int:
    return len({server.of for server in servers})


def _difference(host: BalancerHost, backends: Sequence[Backend], wanted: Mapping[str, str] | None) -> str:
    """Return why the load balancer must be changed; "" if it is up to date."""
    observed = host.observed
    if observed is None or not observed.files:
        return "the host is in the group load_balancer and has no load balancer yet"
    if wanted is None:
        return "an API key or the certificate has not been generated yet"
    change = _changed_servers(seen_servers(observed.config).values(), names_of(backends).values())
    if change:
        return change
    other = sorted(
        name
        for name in {*wanted, *observed.files}
        if observed.files.get(name) != (text_hash(wanted[name]) if name in wanted else None)
    )
    if other:
        return f"the content of {', '.join(other)} changes"
    if not observed.applied:
        return "its files are current, but the run that wrote them did not finish"
    if observed.applied != spec_hash(wanted):
        return "its files are current, but the running HAProxy has not loaded them"
    return "" if observed.running else "it is not running"


def _changed_servers(before: Iterable[BackendServer], after: Iterable[BackendServer]) -> str:
    """Return which servers are new, go, serve other models, or are renamed with their host."""
    old, new = {item.place: item for item in before}, {item.place: item for item in after}
    come = [new[place] for place in new if place not in old]
    gone = [old[place] for place in old if place not in new]
    asked = [new[place] for place in new if place in old and set(new[place].models) != set(old[place].models)]
    renamed = [new[place] for place in new if place in old and new[place].host != old[place].host]
    parts = (
        ("new", come),
        ("gone", gone),
        ("serving other models", asked),
        ("renamed with its host", renamed),
    )
    return "; ".join(
        f"{word}: {_shorten(sorted((f'{item.deployment}/{item.name}' for item in some), key=natural))}"
        for word, some in parts
        if some
    )


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])}, … ({len(names)})"
