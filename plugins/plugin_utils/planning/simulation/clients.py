# SPDX-License-Identifier: Apache-2.0
"""List which clients must change because of a run, and when. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ....module_utils.common.errors import natural
from ....module_utils.common.hashing import text_hash
from ....module_utils.content.urls import with_brackets
from ....module_utils.credentials.api_keys import key_marks
from ....module_utils.service.endpoint import ADDRESS_FILE
from ...base.text import join_names, plural
from ..endpoint.backends import names_of
from ..endpoint.balancer_plan import BalancerPlan
from ..endpoint.servers import seen_servers
from ..instances.planned import running_member
from ..plan.host_plan import FleetPlan, HostPlan


def client_changes(plan: FleetPlan) -> list[str]:
    """Return what clients must change; nothing for what stays as it is."""
    found: dict[str, None] = {}
    for balancer in plan.balancers:
        for line in (*_names(balancer), *_addresses(balancer), *_keys(balancer)):
            found[line] = None
    for host in plan.hosts:
        for line in _direct(host, bool(plan.balancers)):
            found[line] = None
    return list(found)


def _names(plan: BalancerPlan) -> Iterable[str]:
    """Yield model names that end, and the ones that the same deployments serve instead."""
    observed = plan.host.observed
    before: dict[str, set[str]] = {}
    for server in seen_servers(observed.config if observed else {}).values():
        for model in server.models:
            before.setdefault(model, set()).add(server.deployment)
    after: dict[str, set[str]] = {}
    for server in names_of(plan.backends).values():
        for model in server.models:
            after.setdefault(model, set()).add(server.deployment)
    new = [model for model in after if model not in before]
    for model in sorted(before.keys() - after.keys(), key=natural):
        others = [name for name in new if after[name] & before[model]] or new
        if others:
            since = (
                "is served from its first instance"
                if len(others) == 1
                else "are served from their first instances"
            )
            yield (
                f"model {model} ends with its last instance; clients ask for {join_names(sorted(others))} instead, "
                f"which {since} on"
            )
        else:
            yield f"model {model} ends with its last instance: no deployment serves it any longer"


def _addresses(plan: BalancerPlan) -> Iterable[str]:
    """Yield the address of a load balancer that changes."""
    observed, settings = plan.host.observed, plan.host.settings
    if observed is None or not observed.config:
        return
    config, files = observed.config, observed.files
    old = (config.get("listen"), config.get("port"), config.get("tls"))
    if old != (with_brackets(settings.listen), settings.port, settings.tls):
        scheme = "https" if config.get("tls") else "http"
        yield (
            f"clients of load balancer {plan.host.name} use {plan.url} instead of {scheme}://…:{config.get('port')} "
            "from the moment when it is configured"
        )
    if ADDRESS_FILE in files:
        wanted = plan.files.get(ADDRESS_FILE)
        if wanted is None:
            yield f"the virtual address ends; clients use {plan.url}"
        elif files[ADDRESS_FILE] != text_hash(wanted):
            yield f"how the virtual address is held changes; clients use {plan.url}"


def _keys(plan: BalancerPlan) -> Iterable[str]:
    """Yield how many API keys end."""
    observed, keys = plan.host.observed, plan.material.keys_map
    if observed is None or keys is None or not plan.host.settings.auth:
        return
    gone = set(observed.keys) - set(key_marks(keys))
    if gone:
        yield f"{plural(len(gone), 'API key')} of clients {'ends' if len(gone) == 1 else 'end'} when it is configured"


def _direct(host: HostPlan, balanced: bool) -> Iterable[str]:
    """Yield where instances listen that clients ask without a load balancer."""
    state = host.host.state
    if state is None:
        return
    wanted = {item.name: item for item in host.instances}
    moved: dict[str, list[tuple[int, int]]] = {}
    for running in state.instances:
        old, new = running_member(state, running), wanted.get(running.name)
        if old is None or new is None or old.member.headless or (balanced and new.backend.endpoint):
            continue
        if (old.backend.listen, old.member.port) != (new.backend.listen, new.member.port):
            moved.setdefault(new.deployment_name, []).append((old.member.port, new.member.port))
    yield from _moved(host.host.name, moved)


def _moved(host: str, moved: Mapping[str, Sequence[tuple[int, int]]]) -> Iterable[str]:
    for deployment, ports in moved.items():
        old, new = (", ".join(str(pair[at]) for pair in ports) for at in (0, 1))
        where = f"at port {new} instead of {old}" if old != new else "at another address"
        yield f"clients that ask {deployment} on {host} directly find it {where} once it has changed"
