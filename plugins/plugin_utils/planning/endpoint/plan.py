# SPDX-License-Identifier: Apache-2.0
"""Plan the changes of load balancers: desired minus observed, with reasons. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable

from ....module_utils.common.errors import Problem
from ....module_utils.common.hashing import canonical
from ....module_utils.credentials.instance_key import NO_KEY, InstanceKey
from ....module_utils.service.endpoint import OPERATOR
from ...base.text import join_names
from ..desired.endpoint_settings import NOT_IN_RUN, BalancerHost, BalancerSettings, ObservedBalancer
from ..desired.fleet import ANY, LOCAL, Host
from .backends import (
    Backend,
    deployments_of,
    group_servers,
    names_of,
    routing_warnings,
    unprintable_model_names,
)
from .balancer_actions import BalancerChange, balancer_actions, missing_packages, package_problems
from .balancer_plan import (
    BalancerPlan,
    BalancerSecrets,
    ServerNames,
    answered_servers,
    places_of,
    same_place_server,
    server_names,
)
from .config import config_data, port_conflicts, router_ports
from .gone import departures, gone_servers
from .servers import (
    BackendServer,
    HostBackends,
    Instance,
    changing_servers,
    present_servers,
    routable_instances,
    running_servers,
    seen_servers,
    wanted_servers,
)
from .virtual_address import address_files, address_problems, address_warnings, interface_of

CONFIG_FILE = "haproxy.cfg"
DATA_FILE = "balancer.json"
AGENT_FILE = "agent.py"
ROUTER_FILE = "router.py"
KEYS_FILE = "keys.map"
CERTIFICATE_FILE = "endpoint.pem"
INSTANCE_MAP = "instance.map"


Renderer = Callable[[Mapping[str, Any]], str]
"""Renders a file from its data."""


@dataclass(frozen=True)
class EndpointAssets:
    """What every load balancer is built from.

    These are templates, the programs of agent, routers and check, each host's secrets, and one key.
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

    def with_present_names(self, gpu_hosts: Iterable[Host]) -> EndpointInputs:
        """Return the same, with the present names of hosts that were renamed, as their addresses show."""
        names: dict[str, set[str]] = {}
        for host in gpu_hosts:
            for address in (host.address, *(item.listen for item in host.deployments)):
                names.setdefault(address, set()).add(host.name)
        owners = {
            address: min(found)
            for address, found in names.items()
            if len(found) == 1 and address not in (*ANY, *LOCAL)
        }
        hosts = []
        for item in self.hosts:
            here = dict.fromkeys(LOCAL, item.name) if item.name in self.fleet else {}
            observed = item.observed and item.observed.on_hosts(self.fleet, owners | here)
            hosts.append(replace(item, observed=observed))
        return replace(self, hosts=tuple(hosts))


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
    if unprintable:  # no configuration can be rendered with them
        return (), unprintable, ()
    problems = address_problems(hosts)
    warnings = [
        f"load balancer {host.name} keeps its configuration, and instances stop without being drained from it: "
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
            "balancer and its API keys: set listen, or let a firewall admit only the load balancer "
            "(docs/runbooks/endpoint.md)"
        )
    in_clear = _reached_in_clear(hosts, gpu_hosts)
    if in_clear:
        warnings.append(
            f"prompts, answers and the instances' key go unencrypted from load balancers to {join_names(in_clear)}: "
            "make sure that nobody else can read that network (docs/security.md)"
        )
    plans = []
    for host in hosts:
        if not host.absent:
            plan, found, unreached = _plan(host, gpu_hosts, endpoint, routing)
            plans.append(plan)
            problems += found
            if unreached:
                warnings.append(
                    f"load balancer {host.name} cannot reach the running instances of {join_names(unreached)}: it "
                    "serves without them until upgrade.yml or site.yml changes them"
                )
    warnings += departures([(plan.host, names_of(plan.backends).values()) for plan in plans], endpoint.fleet)
    return tuple(plans), tuple(problems), tuple(warnings)


def _reached_in_clear(hosts: Sequence[BalancerHost], gpu_hosts: Sequence[HostBackends]) -> list[str]:
    """Return the GPU hosts that a load balancer on another host reaches over the network."""
    return [
        gpu_host.host
        for gpu_host in gpu_hosts
        if any(host.name != gpu_host.host for host in hosts)
        and any(item.listen not in LOCAL for item in routable_instances(gpu_host))
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
) -> tuple[BalancerPlan, list[Problem], tuple[str, ...]]:
    """Return the plan of a load balancer, its problems, and deployments with instances that it cannot reach yet."""
    assets, observed = endpoint.assets, host.observed
    servers, problems, unreached = wanted_servers(host, gpu_hosts, endpoint.fleet)
    prefix = _routed(_config(host), servers, routing or {})
    backends = group_servers(servers, prefix=prefix)
    during = _during(host, gpu_hosts, servers, prefix)
    problems += port_conflicts(host, gpu_hosts, any(backend.prefix for backend in backends))
    problems += (*interface_of(host)[1], *package_problems(host))
    material = assets.material.get(host.name, BalancerSecrets())
    files = _files(host, backends, endpoint)
    names = server_names(observed, during, backends)
    answered = answered_servers(during, gpu_hosts)
    drained_for = _drains(observed, gpu_hosts, names, answered)
    drain = tuple(dict.fromkeys(name for some in drained_for.values() for name in some))
    abandoned = _abandoned(observed, during)
    pairs = [item for some in names.values() for item in some]
    stay, back = {item.during for item in pairs if item.after}, {item.during: item.after for item in pairs}
    left = tuple(name for name in abandoned if name in stay)
    all_during = names_of(during)
    gone = gone_servers(all_during, servers, gpu_hosts, endpoint.fleet, observed)
    change = BalancerChange(
        host=host,
        backends=backends,
        files=wanted_files(files, host.settings, material, assets.instance_key),
        drain=[item.during for item in pairs if item.before and item.during in drain],
        left=left,
        gone={name: all_during[name] for name in gone if observed and name not in observed.drained},
        fleet=endpoint.fleet,
    )
    planned = BalancerPlan(
        host=host,
        backends=backends,
        during=during,
        files=files,
        files_before=_files(host, during, endpoint) if observed else files,
        material=material,
        instance_key=assets.instance_key,
        actions=balancer_actions(change),
        packages=tuple(name for name, _purpose in missing_packages(host)),
        servers=names,
        drain=drained_for,
        undrain=tuple(dict.fromkeys(back[name] for name in (*drain, *left) if back[name])),
        warnings=(
            *_warnings(host),
            *routing_warnings(backends, prefix),
            *material.warnings,
            *address_warnings(host, endpoint.hosts),
        ),
        left=left,
        abandoned=frozenset(abandoned),
        answered=answered,
        gone=gone,
    )
    return planned, problems, unreached


def _config(host: BalancerHost) -> Mapping[str, Any]:
    """Return the data of a load balancer's present configuration."""
    return host.observed.config if host.observed else {}


def _during(
    host: BalancerHost,
    gpu_hosts: Sequence[HostBackends],
    servers: Sequence[BackendServer],
    prefix: frozenset[str],
) -> tuple[Backend, ...]:
    """Return the backends while instances change: those of its present servers, and those that are to come."""
    present, running = present_servers(host, gpu_hosts), running_servers(host, gpu_hosts)
    return group_servers(changing_servers(servers, present, running), _known_backends(_config(host)), prefix)


def _routed(
    config: Mapping[str, Any], servers: Iterable[BackendServer], routing: Mapping[str, bool]
) -> frozenset[str]:
    """Return the deployments that are routed by prefix; outside this run, those that have a router now."""
    routers = config.get("routers") or {}
    now = {
        server.deployment
        for name, server in seen_servers(config).items()
        if name.partition("/")[0] in routers
    }
    return frozenset(name for name in {*now, *deployments_of(servers)} if routing.get(name, name in now))


def _known_backends(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the backend of each server in a configuration."""
    return {server.name: name.partition("/")[0] for name, server in seen_servers(config).items()}


def _abandoned(observed: ObservedBalancer | None, during: Iterable[Backend]) -> tuple[str, ...]:
    """Return the servers that an earlier run left drained, by their names during the change."""
    if observed is None:
        return ()
    seen = seen_servers(observed.config)
    drained = places_of(
        {
            name: seen[name]
            for name, item in observed.drained.items()
            if name in seen and item.get("by") != OPERATOR and item.get("run") not in observed.going
        }
    )
    return tuple(
        sorted(name for name, server in names_of(during).items() if same_place_server(server, drained))
    )


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


def _files(host: BalancerHost, backends: Sequence[Backend], endpoint: EndpointInputs) -> dict[str, str]:
    """Return the files that a load balancer has with these backends, apart from its secrets."""
    assets = endpoint.assets
    routers = router_ports(backends, _config(host))
    data = config_data(host.settings, backends, assets.instance_key.sent, routers)
    found = {CONFIG_FILE: assets.draw(data), DATA_FILE: canonical(data) + "\n", AGENT_FILE: assets.agent}
    if routers:
        found[ROUTER_FILE] = assets.router
    if assets.draw_address:
        found |= address_files(host, endpoint.hosts, assets.draw_address, assets.check)
    return found


def _drains(
    observed: ObservedBalancer | None,
    gpu_hosts: Sequence[HostBackends],
    names: Mapping[Instance, Sequence[ServerNames]],
    answered: Mapping[Instance, Sequence[str]],
) -> dict[Instance, tuple[str, ...]]:
    """Return the servers to drain before an instance stops, by that instance: its own, and others for which it answers.

    They include those of running instances that this run adds to the load balancer: it may send them requests as soon
    as it is configured.
    """
    if observed is None:
        return {}
    found = {}
    for gpu_host in gpu_hosts:
        for instance in ((gpu_host.host, name) for name in gpu_host.stopping):
            own = (item.during for item in names.get(instance, ()))
            servers = tuple(dict.fromkeys((*own, *answered.get(instance, ()))))
            if servers:
                found[instance] = servers
    return found


def _warnings(host: BalancerHost) -> Iterable[str]:
    settings = host.settings
    if not settings.auth:
        yield "load_balancer_auth is false: anyone who reaches the load balancer can use the models"
    if not settings.tls:
        yield "load_balancer_tls is false: prompts, answers and API keys can be read on the network"
    if settings.metrics_listen not in LOCAL:
        yield "the load balancer's metrics can be read by anyone who reaches its host"
    for name, item in sorted((host.observed.drained if host.observed else {}).items()):
        if item.get("by") == OPERATOR:
            since = item.get("since") or "an unknown time"
            yield f"{name} has been drained since {since}: run playbooks/undrain.yml to return it to service"
