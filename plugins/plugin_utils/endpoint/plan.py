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
from ..desired.endpoint_settings import NOT_IN_RUN, BalancerHost, BalancerSettings, ObservedBalancer
from ..text import listed, plural
from .backends import (
    ANY,
    LOOPBACK,
    Backend,
    HostBackends,
    backend_json,
    backends_of,
    bracketed,
    config_data,
    duplicate_model_names,
    port_conflicts,
    routable_instances,
    router_ports,
    transitional_backends,
    unprintable_model_names,
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
class BalancerSecrets:
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
    drained (left).
    """

    host: BalancerHost
    backends: tuple[Backend, ...]
    files: Mapping[str, str]
    files_before: Mapping[str, str]
    material: BalancerSecrets
    instance_key: InstanceKey
    actions: tuple[Action, ...]
    packages: tuple[str, ...]
    drain: Mapping[str, str]
    undrain: tuple[str, ...]
    warnings: tuple[str, ...]
    left: tuple[str, ...] = ()

    def drain_steps(self, gpu_host: str, without: Collection[str] = ()) -> dict[str, list[str]]:
        """Return the servers of one GPU host to drain before it changes, and to return to service afterwards.

        without: names of instances whose servers are left out.
        """
        drain = [
            name
            for name, host in self.drain.items()
            if host == gpu_host and instance_of(name).rpartition(".")[2] not in without
        ]
        return {"drain": drain, "undrain": [name for name in self.undrain if name in drain]}

    def returned_first(self, changing: Collection[str]) -> list[str]:
        """Return what an earlier run left drained and this one does not stop, so that it serves while others change.

        changing: instances ("n1.llama-0") that this run changes in batches, each of which returns with its batch.
        """
        return [name for name in self.left if name not in self.drain and instance_of(name) not in changing]

    @property
    def url(self) -> str:
        """Return the URL for clients."""
        return url_of(self.host)

    def to_json(self) -> dict[str, Any]:
        """Return the load balancer's part of plan.json, which contains no key."""
        return {
            "status": "observed" if self.host.observed else "declared",
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


def instance_of(server: str) -> str:
    """Return the host and instance of a server: llama/n1.llama-0:8000 → n1.llama-0."""
    return server.partition("/")[2].rpartition(":")[0]


def url_of(host: BalancerHost) -> str:
    """Return the URL of a host's load balancer for clients."""
    settings = host.settings
    address = host.address if settings.listen in ANY else settings.listen
    address = settings.virtual.address if settings.virtual else address
    return f"{'https' if settings.tls else 'http'}://{bracketed(address)}:{settings.port}"


Renderer = Callable[[Mapping[str, Any]], str]
"""Renders a file from its data."""


@dataclass(frozen=True)
class EndpointAssets:
    """What every load balancer is built from.

    It consists of templates, the programs of agent, routers and check, each host's secrets, and one key.
    """

    draw: Renderer
    agent: str
    material: Mapping[str, BalancerSecrets] = field(default_factory=dict)
    instance_key: InstanceKey = NO_KEY
    router: str = ""
    draw_address: Renderer | None = None
    check: str = ""


@dataclass(frozen=True)
class EndpointInputs:
    """The inventory's load balancers; fleet: all its GPU hosts, including those outside this run."""

    hosts: tuple[BalancerHost, ...]
    fleet: frozenset[str]
    assets: EndpointAssets


def excluded_balancers(endpoint: EndpointInputs | None) -> tuple[tuple[str, str], ...]:
    """Return the load balancers whose state cannot be read, with the reasons."""
    return tuple((host.name, host.absent) for host in endpoint.hosts if host.excluded) if endpoint else ()


def plan_balancers(
    endpoint: EndpointInputs, gpu_hosts: Sequence[HostBackends], routing: Mapping[str, bool] | None = None
) -> tuple[tuple[BalancerPlan, ...], tuple[Problem, ...], tuple[str, ...]]:
    """Return the plans of the load balancers in this run, the problems, and the warnings.

    A load balancer keeps its servers on GPU hosts that this run does not plan. routing: for each deployment of this
    run, whether it is routed by prefix.
    """
    hosts = endpoint.hosts
    if not hosts:
        return (), (), ()
    unprintable = tuple(unprintable_model_names(gpu_hosts))
    if unprintable:  # no configuration can be drawn with them
        return (), unprintable, ()
    problems = [
        *duplicate_model_names(gpu_hosts),
        *address_problems(hosts),
    ]
    warnings = [
        f"load balancer {host.name} keeps its configuration, and instances are stopped without being drained from it: "
        f"{host.absent}{_at_return(host)}"
        for host in hosts
        if host.absent
    ]
    open_to_all = sorted(
        {
            item.deployment
            for gpu_host in gpu_hosts
            for item in routable_instances(gpu_host)
            if item.listen in ANY
        }
    )
    if open_to_all:
        warnings.append(
            f"instances of {', '.join(open_to_all)} listen on all addresses and can be reached without the load "
            "balancer "
            "and its API keys: set listen, or let a firewall admit only the balancer (docs/runbooks/endpoint.md)"
        )
    in_clear = _reached_in_clear(hosts, gpu_hosts)
    if in_clear:
        warnings.append(
            f"prompts, answers and the instances' key go unencrypted from load balancers to {listed(in_clear)}: "
            "nobody else may read that network (docs/security.md)"
        )
    plans = []
    for host in hosts:
        if not host.absent:
            plan, found = _plan(host, gpu_hosts, endpoint, routing)
            plans.append(plan)
            problems += found
    return tuple(plans), tuple(problems), tuple(warnings)


def _reached_in_clear(hosts: Sequence[BalancerHost], gpu_hosts: Sequence[HostBackends]) -> list[str]:
    """Return the GPU hosts that a load balancer on another host reaches over the network."""
    return [
        gpu_host.host
        for gpu_host in gpu_hosts
        if any(host.name != gpu_host.host for host in hosts)
        and any(item.listen not in LOOPBACK for item in routable_instances(gpu_host))
    ]


def _at_return(host: BalancerHost) -> str:
    """Return what to do for a load balancer that cannot be reached."""
    if host.absent == NOT_IN_RUN:
        return ""
    return f". When it is back, run site.yml: it writes {host.name}'s configuration"


def _plan(
    host: BalancerHost,
    gpu_hosts: Sequence[HostBackends],
    endpoint: EndpointInputs,
    routing: Mapping[str, bool] | None,
) -> tuple[BalancerPlan, list[Problem]]:
    assets = endpoint.assets
    backends, problems = backends_of(host, gpu_hosts, endpoint.fleet, routing)
    problems += port_conflicts(host, gpu_hosts, any(backend.prefix for backend in backends))
    material = assets.material.get(host.name, BalancerSecrets())
    observed, present = host.observed, names_of(backends)
    config = observed.config if observed else {}
    draw = assets.draw_address
    shared = address_files(host, endpoint.hosts, draw, assets.check) if draw else {}
    files = {**_files(host.settings, backends, assets, config), **shared}
    before = {**_files(host.settings, transitional_backends(backends, config), assets, config), **shared}
    drain = _drains(observed, gpu_hosts)
    left = (
        [
            name
            for name, item in sorted(observed.drained.items())
            if item.get("by") != OPERATOR and item.get("run") not in observed.going
        ]
        if observed
        else []
    )
    left = [name for name in left if name in present]
    problems += interface_of(host)[1]
    packages = tuple(name for name, _unused in _missing(host))
    if observed and host.os_id not in DEBIAN and packages:
        system = host.os_id or "its system"
        what = f"has no {' and '.join(packages)}, and the toolkit cannot install packages on {system}."
        fix = "Install them (HAProxy 2.4, keepalived 2.0 or newer), and run again."
        problems.append(Problem((), what, fix, (host.name,)))
    planned = BalancerPlan(
        host=host,
        backends=backends,
        files=files,
        files_before=before if observed else files,
        material=material,
        instance_key=assets.instance_key,
        actions=_actions(
            host, backends, wanted_files(files, host.settings, material, assets.instance_key), drain, left
        ),
        packages=packages,
        drain=drain,
        undrain=tuple(dict.fromkeys(name for name in (*drain, *left) if name in present)),
        warnings=(*_warnings(host), *material.warnings, *address_warnings(host, endpoint.hosts)),
        left=tuple(left),
    )
    return planned, problems


def wanted_files(
    files: Mapping[str, str], settings: BalancerSettings, material: BalancerSecrets, key: InstanceKey = NO_KEY
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
    settings: BalancerSettings, backends: Sequence[Backend], assets: EndpointAssets, seen: Mapping[str, Any]
) -> dict[str, str]:
    routers = router_ports(backends, seen)
    data = config_data(settings, backends, assets.instance_key.sent, routers)
    found = {CONFIG_FILE: assets.draw(data), DATA_FILE: canonical(data) + "\n", AGENT_FILE: assets.agent}
    return {**found, ROUTER_FILE: assets.router} if routers else found


def _drains(observed: ObservedBalancer | None, gpu_hosts: Sequence[HostBackends]) -> dict[str, str]:
    """Return the servers to drain before they stop, each with its host."""
    if observed is None or not observed.running:
        return {}
    stopping = {(gpu_host.host, name) for gpu_host in gpu_hosts for name in gpu_host.stopping}
    return {
        f"{backend['name']}/{server['name']}": str(server["host"])
        for backend in observed.config.get("backends") or ()
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
    observed = host.observed
    before, source = "absent" if observed else "unknown", "the distribution's package"
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
            plural(len(_names(observed)), "instance")
            if observed and observed.running
            else "absent"
            if observed
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
    observed, found = host.observed or ObservedBalancer(), []
    if not observed.installed:
        found.append(("haproxy", "it spreads requests over the instances"))
    if host.settings.virtual and not observed.keepalived:
        found.append(("keepalived", f"it moves {host.settings.virtual.address} between the load balancers"))
    return found


def names_of(backends: Iterable[Backend]) -> set[str]:
    """Return the servers of these backends, as "backend/server"."""
    return {f"{backend.name}/{member.name}" for backend in backends for member in backend.members}


def _names(observed: ObservedBalancer) -> set[str]:
    return {
        f"{backend['name']}/{server['name']}"
        for backend in observed.config.get("backends") or ()
        for server in backend["servers"]
    }


def _difference(host: BalancerHost, backends: Sequence[Backend], wanted: Mapping[str, str] | None) -> str:
    """Return why the load balancer must be changed; "" if it is up to date."""
    observed = host.observed
    if observed is None or not observed.files:
        return "the host is in the group load_balancer and has no load balancer yet"
    if wanted is None:
        return "an API key or the certificate has not been generated yet"
    names = names_of(backends)
    gone, new = sorted(_names(observed) - names, key=natural), sorted(names - _names(observed), key=natural)
    if gone or new:
        return "; ".join(
            f"{word} {_shorten(some)}" for word, some in (("new:", new), ("gone:", gone)) if some
        )
    other = sorted(
        name
        for name in {*wanted, *observed.files}
        if observed.files.get(name) != (text_hash(wanted[name]) if name in wanted else None)
    )
    if other:
        return f"other content of {', '.join(other)}"
    if observed.applied != spec_hash(wanted):
        return "its files are current, but the running HAProxy has not loaded them"
    return "" if observed.running else "it does not run"


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])}, … ({len(names)})"


def _warnings(host: BalancerHost) -> Iterable[str]:
    settings = host.settings
    if not settings.auth:
        yield "load_balancer_auth is false: anyone who reaches the load balancer can use the models"
    if not settings.tls:
        yield "load_balancer_tls is false: prompts, answers and API keys can be read on the network"
    if settings.metrics_listen not in LOOPBACK:
        yield "the load balancer's metrics can be read by anyone who reaches its host"
    for name, item in sorted((host.observed.drained if host.observed else {}).items()):
        if item.get("by") == OPERATOR:
            since = item.get("since") or "an unknown time"
            yield f"{name} has been drained since {since}; run playbooks/undrain.yml to return it to service"
