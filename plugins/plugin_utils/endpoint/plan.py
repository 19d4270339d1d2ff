# SPDX-License-Identifier: Apache-2.0
"""Plan the changes of load balancers: desired minus observed, with reasons. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

from ...module_utils.common.endpoint import OPERATOR
from ...module_utils.common.errors import Problem, natural
from ...module_utils.common.hashing import canonical, spec_hash, text_hash
from ...module_utils.common.instance_key import NO_KEY, InstanceKey
from ..desired.actions import DEBIAN, Action
from ..desired.endpoint_settings import BalancerHost, BalancerSettings, SeenBalancer
from ..text import plural
from .backends import (
    ANY,
    LOOPBACK,
    Backend,
    Offer,
    backend_json,
    backends_of,
    before_it_goes,
    bracketed,
    config_data,
    conflicts,
    names_twice,
    router_ports,
    served,
)
from .virtual_address import address_files, address_problems, address_warnings, interface_of

ROLE = "load_balancer"
CONFIG_FILE = "haproxy.cfg"
DATA_FILE = "balancer.json"
AGENT_FILE = "agent.py"
ROUTER_FILE = "router.py"
KEYS_FILE = "keys.map"
CERTIFICATE_FILE = "endpoint.pem"
INSTANCE_MAP = "instance.map"


@dataclass(frozen=True)
class Material:
    """The control node's secrets for a load balancer: texts of its files, None if they do not exist yet."""

    keys_map: str | None = None
    certificate: str | None = None
    keys_file: str = ""
    certificate_file: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class BalancerPlan:
    """The desired state of one load balancer, and the changes to get there.

    files_before: the files during the change, with the old servers still present. drain: servers to drain before they
    stop, and their hosts. undrain: servers to return to service afterwards, including those that an earlier run left
    drained.
    """

    host: BalancerHost
    backends: tuple[Backend, ...]
    files: Mapping[str, str]
    files_before: Mapping[str, str]
    material: Material
    instance_key: InstanceKey
    actions: tuple[Action, ...]
    packages: tuple[str, ...]
    drain: Mapping[str, str]
    undrain: tuple[str, ...]
    warnings: tuple[str, ...]

    def out(self, gpu_host: str) -> dict[str, list[str]]:
        """Return the servers of one GPU host to drain before it changes, and to return to service afterwards."""
        drain = [name for name, host in self.drain.items() if host == gpu_host]
        return {"drain": drain, "undrain": [name for name in self.undrain if name in drain]}

    @property
    def url(self) -> str:
        """Return the URL for clients."""
        return url_of(self.host)

    def to_json(self) -> dict[str, Any]:
        """Return the load balancer's part of plan.json, which contains no key."""
        return {
            "status": "observed" if self.host.seen else "declared",
            "url": self.url,
            "backends": [backend_json(item) for item in self.backends],
            "actions": [action.to_json() for action in self.actions],
            "packages": list(self.packages),
            "files": dict(self.files),
            "files_before": dict(self.files_before),
            "keys_file": self.material.keys_file or None,
            "certificate_file": self.material.certificate_file or None,
            "instance_key_file": self.instance_key.file if self.instance_key.sent else None,
            "drain": list(self.drain),
            "undrain": list(self.undrain),
            "warnings": list(self.warnings),
        }


def url_of(host: BalancerHost) -> str:
    """Return the URL of a host's load balancer for clients."""
    settings = host.settings
    address = host.address if settings.listen in ANY else settings.listen
    address = settings.virtual.address if settings.virtual else address
    return f"{'https' if settings.tls else 'http'}://{bracketed(address)}:{settings.port}"


Draw = Callable[[Mapping[str, Any]], str]
"""Renders a file from its data."""


@dataclass(frozen=True)
class Kit:
    """What every load balancer is built from.

    It consists of templates, the programs of agent, routers and check, each host's secrets, and one key.
    """

    draw: Draw
    agent: str
    material: Mapping[str, Material] = field(default_factory=dict)
    instance_key: InstanceKey = NO_KEY
    router: str = ""
    draw_address: Draw | None = None
    check: str = ""


@dataclass(frozen=True)
class Endpoint:
    """The inventory's load balancers; fleet: all its GPU hosts, including those outside this run."""

    hosts: tuple[BalancerHost, ...]
    fleet: frozenset[str]
    kit: Kit


def plan_balancers(
    endpoint: Endpoint, offers: Sequence[Offer], routing: Mapping[str, bool] | None = None
) -> tuple[tuple[BalancerPlan, ...], tuple[Problem, ...], tuple[str, ...]]:
    """Return the plans of the load balancers in this run, the problems, and the warnings.

    A load balancer keeps its servers on GPU hosts that this run does not plan. routing: for each deployment of this
    run, whether it is routed by prefix.
    """
    hosts = endpoint.hosts
    if not hosts:
        return (), (), ()
    problems = [*names_twice(offers), *address_problems(hosts)]
    warnings = [
        f"load balancer {host.name} keeps its configuration, and instances are stopped without being drained: "
        f"{host.absent}"
        for host in hosts
        if host.absent
    ]
    open_to_all = sorted(
        {item.deployment for offer in offers for item in served(offer) if item.listen in ANY}
    )
    if open_to_all:
        warnings.append(
            f"instances of {', '.join(open_to_all)} listen on all addresses and can be reached without the load "
            "balancer "
            "and its API keys: set listen, or let a firewall admit only the balancer (docs/runbooks/endpoint.md)"
        )
    plans = []
    for host in hosts:
        if not host.absent:
            plan, found = _plan(host, offers, endpoint, routing)
            plans.append(plan)
            problems += found
    return tuple(plans), tuple(problems), tuple(warnings)


def _plan(
    host: BalancerHost, offers: Sequence[Offer], endpoint: Endpoint, routing: Mapping[str, bool] | None
) -> tuple[BalancerPlan, list[Problem]]:
    kit = endpoint.kit
    backends, problems = backends_of(host, offers, endpoint.fleet, routing)
    problems += conflicts(host, offers, any(backend.prefix for backend in backends))
    material = kit.material.get(host.name, Material())
    seen, present = host.seen, names_of(backends)
    config = seen.config if seen else {}
    draw = kit.draw_address
    shared = address_files(host, endpoint.hosts, draw, kit.check) if draw else {}
    files = {**_files(host.settings, backends, kit, config), **shared}
    before = {**_files(host.settings, before_it_goes(backends, config), kit, config), **shared}
    drain = _drains(seen, offers)
    left = [name for name, item in sorted(seen.out.items()) if item.get("by") != OPERATOR] if seen else []
    left = [name for name in left if name in present]
    problems += interface_of(host)[1]
    packages = tuple(name for name, _ in _missing(host))
    if seen and host.os_id not in DEBIAN and packages:
        system = host.os_id or "its system"
        what = f"has no {' and '.join(packages)}, and the toolkit cannot install packages on {system}."
        fix = "Install them (HAProxy 2.4, keepalived 2.0 or newer), and run again."
        problems.append(Problem((), what, fix, (host.name,)))
    planned = BalancerPlan(
        host=host,
        backends=backends,
        files=files,
        files_before=before if seen else files,
        material=material,
        instance_key=kit.instance_key,
        actions=_actions(
            host, backends, wanted_files(files, host.settings, material, kit.instance_key), drain, left
        ),
        packages=packages,
        drain=drain,
        undrain=tuple(dict.fromkeys(name for name in (*drain, *left) if name in present)),
        warnings=(*_warnings(host), *material.warnings, *address_warnings(host, endpoint.hosts)),
    )
    return planned, problems


def wanted_files(
    files: Mapping[str, str], settings: BalancerSettings, material: Material, key: InstanceKey = NO_KEY
) -> dict[str, str] | None:
    """Return all files of the load balancer's directory, or None if keys or certificate do not exist yet."""
    found = dict(files)
    for name, wanted, text in (
        (KEYS_FILE, settings.auth, material.keys_map),
        (CERTIFICATE_FILE, settings.tls, material.certificate),
        (INSTANCE_MAP, key.sent, key.map),
    ):
        if wanted and text is None:
            return None
        if wanted and text is not None:
            found[name] = text
    return found


def _files(
    settings: BalancerSettings, backends: Sequence[Backend], kit: Kit, seen: Mapping[str, Any]
) -> dict[str, str]:
    routers = router_ports(backends, seen)
    data = config_data(settings, backends, kit.instance_key.sent, routers)
    found = {CONFIG_FILE: kit.draw(data), DATA_FILE: canonical(data) + "\n", AGENT_FILE: kit.agent}
    return {**found, ROUTER_FILE: kit.router} if routers else found


def _drains(seen: SeenBalancer | None, offers: Sequence[Offer]) -> dict[str, str]:
    """Return the servers to drain before they stop, each with its host."""
    if seen is None or not seen.running:
        return {}
    stopping = {(offer.host, name) for offer in offers for name in offer.stopping}
    return {
        f"{backend['name']}/{server['name']}": str(server["host"])
        for backend in seen.config.get("backends") or ()
        for server in backend["servers"]
        if (server["host"], server["instance"]) in stopping
    }


def _actions(
    host: BalancerHost,
    backends: Sequence[Backend],
    wanted: Mapping[str, str] | None,
    drain: Collection[str],
    left: Sequence[str],
) -> tuple[Action, ...]:
    seen = host.seen
    before, source = "absent" if seen else "unknown", "the distribution's package"
    actions = [
        Action(name, ROLE, name, before, "installed", reason, source) for name, reason in _missing(host)
    ]
    reason = "this run stops it; it is drained first, so running requests can finish"
    actions += [
        Action("drain", ROLE, name, "in service", "drained", reason, "vllm_deployments") for name in drain
    ]
    change = _difference(host, backends, wanted)
    if change:
        before = (
            plural(len(_names(seen)), "instance")
            if seen and seen.running
            else "absent"
            if seen
            else "unknown"
        )
        after = plural(len(names_of(backends)), "instance")
        actions.append(Action("balancer", ROLE, url_of(host), before, after, change, "vllm_deployments"))
    reason = "an interrupted run left it drained"
    actions += [
        Action("undrain", ROLE, name, "drained", "in service", reason, "the balancer's record")
        for name in left
        if name not in drain
    ]
    return tuple(actions)


def _missing(host: BalancerHost) -> list[tuple[str, str]]:
    """Return the packages that the host is known to lack, each with its purpose."""
    seen, found = host.seen or SeenBalancer(), []
    if not seen.installed:
        found.append(("haproxy", "it spreads requests over the instances"))
    if host.settings.virtual and not seen.keepalived:
        found.append(("keepalived", f"it moves {host.settings.virtual.address} between the load balancers"))
    return found


def names_of(backends: Iterable[Backend]) -> set[str]:
    """Return the servers of these backends, as "backend/server"."""
    return {f"{backend.name}/{member.name}" for backend in backends for member in backend.members}


def _names(seen: SeenBalancer) -> set[str]:
    return {
        f"{backend['name']}/{server['name']}"
        for backend in seen.config.get("backends") or ()
        for server in backend["servers"]
    }


def _difference(host: BalancerHost, backends: Sequence[Backend], wanted: Mapping[str, str] | None) -> str:
    """Return why the load balancer must be changed; "" if it is up to date."""
    seen = host.seen
    if seen is None or not seen.files:
        return "the host is in the group load_balancer and has no load balancer yet"
    if wanted is None:
        return "an API key or the certificate has not been generated yet"
    names = names_of(backends)
    gone, new = sorted(_names(seen) - names, key=natural), sorted(names - _names(seen), key=natural)
    if gone or new:
        return "; ".join(f"{word} {_few(some)}" for word, some in (("new:", new), ("gone:", gone)) if some)
    other = sorted(
        name
        for name in {*wanted, *seen.files}
        if seen.files.get(name) != (text_hash(wanted[name]) if name in wanted else None)
    )
    if other:
        return f"other content of {', '.join(other)}"
    if seen.applied != spec_hash(wanted):
        return "its files are current, but the running HAProxy has not loaded them"
    return "" if seen.running else "it does not run"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])}, … ({len(names)})"


def _warnings(host: BalancerHost) -> Iterable[str]:
    settings = host.settings
    if not settings.auth:
        yield "load_balancer_auth is false: anyone who reaches the load balancer can use the models"
    if not settings.tls:
        yield "load_balancer_tls is false: prompts, answers and API keys can be read on the network"
    if settings.metrics_listen not in LOOPBACK:
        yield "the load balancer's metrics can be read by anyone who reaches its host"
    for name, item in sorted((host.seen.out if host.seen else {}).items()):
        if item.get("by") == OPERATOR:
            since = item.get("since") or "an unknown time"
            yield f"{name} has been drained since {since}; run playbooks/undrain.yml to return it to service"
