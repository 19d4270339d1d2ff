# SPDX-License-Identifier: Apache-2.0
"""Validate the variables of a load balancer's host, and read what was observed on it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_interface
from typing import Any

from ....module_utils.common.errors import Problem
from ....module_utils.credentials.api_keys import HASHED
from ....module_utils.service.endpoint import AGENT_PORT
from ...base.checker import Checker
from ..inventory.public_variables import HostVariables
from ..observed.node_state import MALFORMED, unreadable_state
from .host_settings import ADDRESS, parse_address

VARIABLES = (
    "load_balancer_listen",
    "load_balancer_port",
    "load_balancer_tls",
    "load_balancer_certificate_file",
    "load_balancer_auth",
    "load_balancer_api_keys",
    "load_balancer_instance_auth",
    "load_balancer_metrics_listen",
    "load_balancer_metrics_port",
    "load_balancer_timeout",
    "load_balancer_queue_timeout",
    "load_balancer_hang_timeout",
    "load_balancer_repeat_unanswered",
    "load_balancer_source_connections",
    "load_balancer_key_share",
    "load_balancer_key_rate",
    "load_balancer_body_limit",
    "load_balancer_routes",
    "load_balancer_virtual_address",
    "load_balancer_virtual_router_id",
    *ADDRESS,
)
KEY_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
MIN_KEY = 20  # characters
VIRTUAL, ROUTER_ID = "load_balancer_virtual_address", "load_balancer_virtual_router_id"


@dataclass(frozen=True)
class VirtualAddress:
    """An address that load balancers share.

    text: with the prefix length. router_id: its VRRP virtual router id, 1 to 255.
    """

    text: str
    router_id: int

    @property
    def address(self) -> str:
        """Return the address without the prefix length."""
        return str(ip_interface(self.text).ip)

    @property
    def network(self) -> IPv4Network | IPv6Network:
        """Return the network that contains the address."""
        return ip_interface(self.text).network


@dataclass(frozen=True)
class BalancerSettings:
    """The validated variables of a load balancer; times in seconds.

    Attributes:
        certificate_file: "" to create a self-signed certificate.
        api_keys: name and key of each client; empty to create one key.
        timeout: how long a request may stay without any data.
        queue_timeout: how long a request may wait for an instance.
        hang_timeout: how long an instance may leave everything unanswered before its streams are closed.
        repeat_unanswered: a request whose instance ends or hangs before the first byte is sent to another one.
        instance_auth: instances accept only requests with the load balancers' key.
        source_connections: connections that one client address may have; 0 for half of all.
        key_share: percent of a deployment's running and waiting requests that one key may have.
        key_rate: requests per second of one key; 0 for no limit.
        body_limit: the largest body of a request, in MiB.
        routes: paths that clients reach in addition to the usual ones.
        virtual: the address that moves between the load balancers.
    """

    listen: str
    port: int
    tls: bool
    certificate_file: str
    auth: bool
    api_keys: tuple[tuple[str, str], ...] = field(repr=False)
    instance_auth: bool
    metrics_listen: str
    metrics_port: int
    timeout: int
    queue_timeout: int
    hang_timeout: int
    repeat_unanswered: bool
    source_connections: int
    key_share: int
    key_rate: int
    body_limit: int
    routes: tuple[str, ...]
    virtual: VirtualAddress | None

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the ports that the load balancer uses on its host."""
        return (self.port, self.metrics_port, AGENT_PORT)


@dataclass(frozen=True)
class ObservedBalancer:
    """What was observed of a load balancer on its host.

    keys: fingerprints of the clients' keys. config: its balancer.json. drained: drained servers, by "backend/server".
    applied: the hash of the configuration that the running HAProxy loaded last. going: runs that may still put back in
    service what they drained.
    """

    installed: bool = False
    keepalived: bool = False
    running: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    applied: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    drained: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    going: frozenset[str] = frozenset()

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> ObservedBalancer:
        """Build from a node_state result. Raise KeyError or TypeError if the result is malformed."""
        found = state["balancer"]
        _check_config(found["config"] or {})
        return cls(
            installed=bool(found["installed"]),
            keepalived=bool(found.get("keepalived")),
            running=bool(found["running"]),
            files=dict(found["files"]),
            keys=tuple(map(str, found.get("keys") or ())),
            applied=str(found["applied"] or ""),
            config=dict(found["config"] or {}),
            drained=dict(found["out"] or {}),
        )

    def on_hosts(self, known: Collection[str], owners: Mapping[str, str]) -> ObservedBalancer:
        """Return the same, with each server on the host to which its address belongs.

        known: hosts that keep their servers. owners: hosts by their addresses.
        """
        backends = [
            {
                **backend,
                "servers": [
                    server
                    if server["host"] in known
                    else {**server, "host": owners.get(server["address"], server["host"])}
                    for server in backend["servers"]
                ],
            }
            for backend in self.config.get("backends") or ()
        ]
        return replace(self, config={**self.config, "backends": backends}) if backends else self

    @cached_property
    def asked_at(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """Return the addresses at which it reaches each instance, by the instance's host and name."""
        found: dict[tuple[str, str], set[str]] = {}
        for backend in self.config.get("backends") or ():
            for server in backend["servers"]:
                instance = str(server["host"]), str(server["instance"])
                found.setdefault(instance, set()).add(str(server["address"]))
        return {instance: frozenset(addresses) for instance, addresses in found.items()}


NOT_IN_RUN = "it is not part of this run (add it to --limit)"
"""The reason why a load balancer is absent if --limit leaves it out; any other reason: it cannot be reached."""


def _check_config(config: Mapping[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError for a balancer.json that the planner cannot read."""
    for backend in config.get("backends") or ():
        tuple(map(str, (backend["name"], *backend["models"])))
        for server in backend["servers"]:
            tuple(map(str, (server["name"], server["host"], server["instance"], server["address"])))
            tuple(map(int, (server["port"], server["limit"])))
    tuple(map(int, (config.get("routers") or {}).values()))


@dataclass(frozen=True)
class BalancerHost:
    """A host of the group load_balancer.

    observed: None if the host was not observed. absent: why the host is not part of this run. excluded: whether that is
    because its observed state cannot be read. interfaces: names of its network interfaces, each with its addresses.
    """

    name: str
    address: str
    settings: BalancerSettings
    observed: ObservedBalancer | None = None
    os_id: str = ""
    absent: str = ""
    interfaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    excluded: bool = False

    def with_runs(self, runs: Collection[str]) -> BalancerHost:
        """Return it with the runs that are in progress."""
        return (
            replace(self, observed=replace(self.observed, going=frozenset(runs))) if self.observed else self
        )


def parse_balancer(
    variables: Mapping[str, Any], name: str
) -> tuple[BalancerSettings, str, tuple[Problem, ...]]:
    """Return the settings and the address of a host, and problems; a variable that is None counts as not set."""
    own = HostVariables(variables)
    address = r"[0-9A-Za-z.:_-]+", "an address"
    settings = BalancerSettings(
        listen=own.text("load_balancer_listen", *address),
        port=own.integer("load_balancer_port", 1, 65535),
        tls=own.boolean("load_balancer_tls"),
        certificate_file=own.text("load_balancer_certificate_file"),
        auth=own.boolean("load_balancer_auth"),
        api_keys=_api_keys(own.check, own["load_balancer_api_keys"]),
        instance_auth=own.boolean("load_balancer_instance_auth"),
        metrics_listen=own.text("load_balancer_metrics_listen", *address),
        metrics_port=own.integer("load_balancer_metrics_port", 1, 65535),
        timeout=own.integer("load_balancer_timeout", 10, 86400),
        queue_timeout=own.integer("load_balancer_queue_timeout", 1, 3600),
        # HAProxy's own checks need 12 s to take a hung instance out of service.
        hang_timeout=own.integer("load_balancer_hang_timeout", 15, 86400),
        repeat_unanswered=own.boolean("load_balancer_repeat_unanswered"),
        source_connections=own.integer("load_balancer_source_connections", 0, 8192),
        key_share=own.integer("load_balancer_key_share", 1, 100),
        key_rate=own.integer("load_balancer_key_rate", 0, 1_000_000),
        body_limit=own.integer("load_balancer_body_limit", 1, 1024),
        routes=_routes(own),
        virtual=_virtual(own),
    )
    if len(set(settings.ports)) < len(settings.ports):
        ports = ", ".join(map(str, settings.ports))
        what = f"the load balancer cannot use one port twice: requests, metrics and its agent use {ports}."
        own.check.wrong(("load_balancer_port",), what, "Choose another one.")
    where, odd = parse_address(variables, name)
    return settings, where, (*own.check.problems, *odd)


def _routes(own: HostVariables) -> tuple[str, ...]:
    """Return the paths that clients reach in addition to the usual ones."""
    name, pattern = "load_balancer_routes", r"(/[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)+"
    items = enumerate(own.check.listing(own[name], (name,)))
    found = (
        own.check.text(item, (name, at), "", pattern, "a path such as /v1/realtime, without encoding")
        for at, item in items
    )
    return tuple(route for route in found if route)


def _virtual(own: HostVariables) -> VirtualAddress | None:
    """Return the address that moves between load balancers; None for ""."""
    text = own[VIRTUAL]
    number = own.integer(ROUTER_ID, 0, 255)
    if text == "":
        return None
    fix = "Write an address with its prefix length, such as 10.0.0.100/24."
    try:
        found = ip_interface(text if isinstance(text, str) and "/" in text else "")
    except ValueError:
        own.check.wrong((VIRTUAL,), f"{text!r} is not an address with a prefix length.", fix)
        return None
    network = found.network
    if network.num_addresses > 2 and found.ip in (network.network_address, network.broadcast_address):
        own.check.wrong(
            (VIRTUAL,), f"{found.ip} stands for all of {network}.", "Choose an address of a host in it."
        )
        return None
    return VirtualAddress(str(found), number or found.ip.packed[-1] or 255)


def _api_keys(check: Checker, value: Any) -> tuple[tuple[str, str], ...]:
    """Return names and keys; messages never contain a key."""
    found = []
    for name, key in check.mapping(value, ("load_balancer_api_keys",)).items():
        wrong = key_problem(name, key)
        if wrong:
            check.wrong(("load_balancer_api_keys", name), wrong)
        else:
            found.append((name, str(key)))
    return tuple(sorted(found))


def key_problem(name: Any, key: Any) -> str:
    """Return what is wrong with an API key and its name, without the key; "" if both are valid."""
    if not isinstance(name, str) or not re.fullmatch(KEY_NAME, name):
        return "is not a valid name of a key: use letters, digits, dots, hyphens and underscores, at most 64."
    if not isinstance(key, str) or not re.fullmatch(rf"[!-~]{{{MIN_KEY},512}}", key):
        return f"its key must be text of at least {MIN_KEY} visible ASCII characters, without spaces."
    if key.startswith(HASHED) and not re.fullmatch(r"[0-9A-Fa-f]{64}", key[len(HASHED) :]):
        return f"its key begins with {HASHED}, but no SHA-256 of 64 hexadecimal digits follows."
    return ""


def balancer_host(
    name: str, variables: Mapping[str, Any], state: Mapping[str, Any] | None, absent: str
) -> tuple[BalancerHost, tuple[Problem, ...]]:
    """Return a host of the group from its raw data, and its problems."""
    settings, address, problems = parse_balancer(variables, name)
    observed, os_id, interfaces, damage = None, "", {}, ""
    if state is not None:
        try:
            observed, os_id = ObservedBalancer.from_json(state), str(state["os"].get("id") or "")
            interfaces = {
                str(item["name"]): tuple(map(str, item.get("addresses") or ()))
                for item in state.get("interfaces") or ()
            }
            damage = unread_balancer(state.get("problems") or ())
        except MALFORMED as error:
            damage = unreadable_state(error)
    if damage:
        observed = None
    named = tuple(replace(problem, hosts=(name,)) for problem in problems)
    return BalancerHost(
        name, address, settings, observed, os_id, absent or damage, interfaces, bool(damage)
    ), named


def unread_balancer(problems: Iterable[Mapping[str, Any]]) -> str:
    """Return the reason if the node could not read its load balancer, which then looks as if it had none; else ""."""
    errors = [str(item["error"]) for item in problems if item["what"] == "balancer"]
    fix = "See /etc/instinct-fleet/balancer and journalctl -p err there, and run again."
    return f"its load balancer's state cannot be read ({'; '.join(errors)}). {fix}" if errors else ""
