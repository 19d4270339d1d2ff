# SPDX-License-Identifier: Apache-2.0
"""What runs before a run, and what its instances are like: the model's input from the plan. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ....module_utils.common.hashing import text_hash
from ..desired.actions import ALIVE
from ..desired.endpoint_settings import ObservedBalancer
from ..desired.fleet import Host
from ..endpoint.balancer_plan import BalancerPlan
from ..endpoint.former import FormerBalancer
from ..endpoint.plan import INSTANCE_MAP
from ..endpoint.servers import BackendServer, Instance, seen_servers
from ..instances.planned import RecordedInstance, Serving, running_member
from ..plan.host_plan import FleetPlan, HostPlan
from .model import FORMER, PRESENT, FleetModel, Running, SimulatedBalancer

BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Templates:
    """What an instance is like with the files of a spec hash, and the servers of each engine.

    recorded, wanted: by host, name and spec hash.
    """

    recorded: Mapping[tuple[str, str, str], Running]
    wanted: Mapping[tuple[str, str, str], Running]
    engines: Mapping[str, Mapping[Instance, str]]

    def present(self, host: str, name: str, spec: str) -> Running:
        """Return an instance that runs with these files. An instance without a record listens nowhere."""
        key = host, name, spec
        unknown = Running(host, name, name.rpartition("-")[0], f"{host}/{name}", (), "", None, spec=spec)
        return self.recorded.get(key) or self.wanted.get(key) or unknown

    def started(self, host: str, name: str, spec: str) -> Running:
        """Return an instance that is started with these files."""
        return self.wanted.get((host, name, spec)) or self.present(host, name, spec)


def templates(plan: FleetPlan, way_back: bool = False) -> Templates:
    """Return what the instances of a plan are like: as they run, and as they will.

    way_back: also as they were in all generations that their hosts keep. An engine that runs has the files of today.
    """
    before: dict[tuple[str, str, str], Running] = {}
    after: dict[tuple[str, str, str], Running] = {}
    engines: dict[str, dict[Instance, str]] = {}
    keyed = any(balancer.instance_key.mark for balancer in plan.balancers)
    for host in plan.hosts:
        name = host.host.name
        keys = {
            BEFORE: FORMER if host.host.state and host.host.state.instance_key else "",
            AFTER: PRESENT if keyed else "",
        }
        recorded = (*(_kept(host) if way_back else ()), *_running_now(host))
        parts = (before, BEFORE, recorded), (after, AFTER, host.instances)
        for found, when, items in parts:
            for item in items:
                made = _running(name, item, when, keys[when])
                found[name, item.name, item.spec_hash] = made
                engines.setdefault(made.engine, {})[made.of] = made.spec
    return Templates(before, after, engines)


def _running_now(host: HostPlan) -> Iterator[RecordedInstance]:
    state = host.host.state
    found = (running_member(state, item) for item in state.instances) if state else ()
    return (item for item in found if item)


def _kept(host: HostPlan) -> Iterator[RecordedInstance]:
    state = host.host.state
    for history in state.generations if state else ():
        for made in history.kept:
            for member in made.members:
                yield RecordedInstance(made, member)


def _running(host: str, item: Serving, when: str, key: str) -> Running:
    member, backend = item.member, item.backend
    return Running(
        host=host,
        name=item.name,
        deployment=item.deployment_name,
        engine=f"{_engine(host, item)} {when}",
        models=backend.models,
        listen=backend.listen,
        port=None if member.headless else member.port,
        ports=frozenset(member.ports),
        gpus=frozenset(member.render_nodes),
        share=member.share,
        key=key if backend.endpoint else "",
        spec=item.spec_hash,
    )


def _engine(host: str, item: Serving) -> str:
    hosts = item.member.hosts
    return (
        f"{item.deployment_name} {','.join(hosts)} {item.name}" if len(hosts) > 1 else f"{host}/{item.name}"
    )


def first_model(plan: FleetPlan, known: Templates) -> FleetModel:
    """Return the fleet before the run.

    Hosts that this run does not plan are known by the load balancers only: what gets requests there counts as serving,
    unless the host did not answer.
    """
    instances = [item for host in plan.hosts for item in _observed(host.host, known)]
    here = {host.host.name for host in plan.hosts}
    lost = {name for name, _unused in (*plan.unreachable, *plan.excluded)}
    balancers = [
        *map(_balancer, plan.balancers),
        *(_former(item, plan.balancers) for item in plan.former),
    ]
    outside: dict[Instance, Running] = {}
    for balancer in balancers:
        for server in balancer.servers.values():
            if server.host not in here and server.host not in lost and not balancer.absent:
                outside.setdefault(server.of, _outside(server))
    addresses = {host.host.name: host.host.address or host.host.name for host in plan.hosts}
    marks = {item.instance_key.sent_mark for item in plan.balancers if item.instance_key.sent}
    keys = {
        host.host.name: PRESENT
        for host in plan.hosts
        if host.host.state and host.host.state.instance_key in marks
    }
    return FleetModel(addresses, known.engines, [*instances, *outside.values()], balancers, keys)


def _observed(host: Host, known: Templates) -> Iterable[Running]:
    state = host.state
    for item in state.instances if state else ():
        if item.state in ALIVE:
            there = known.present(host.name, item.name, item.spec_hash or "")
            yield replace(
                there,
                deployment=item.deployment or there.deployment,
                key=FORMER if there.key and state and state.instance_key else "",
                ready=item.state == "running" and item.ready,
            )


def _outside(server: BackendServer) -> Running:
    """Return an instance of a host outside of the run, as a load balancer has it."""
    return Running(
        server.host,
        server.instance,
        server.deployment,
        f"{server.host}/{server.instance}",
        server.models,
        server.address,
        server.port,
        ready=True,
    )


def _former(former: FormerBalancer, others: Iterable[BalancerPlan]) -> SimulatedBalancer:
    """Return a load balancer that is not in the group: it sends requests, and nobody drains anything in it."""
    found = SimulatedBalancer(former.host, absent=True)
    found.configure(seen_servers(former.config))
    found.unproven.clear()
    if former.observed:
        found.exists = former.observed.running
        found.drained = set(former.observed.drained) & found.servers.keys()
        found.key = _key_sent(former.observed, others)
    return found


def _key_sent(observed: ObservedBalancer, plans: Iterable[BalancerPlan]) -> str:
    """Return which key a load balancer sends at present."""
    there = observed.files.get(INSTANCE_MAP)
    texts = (plan.instance_key.map for plan in plans)
    if there in [text_hash(text) for text in texts if text is not None]:
        return PRESENT
    return FORMER if there else ""


def _balancer(plan: BalancerPlan) -> SimulatedBalancer:
    """Return a load balancer as it was observed."""
    observed = plan.host.observed
    found = SimulatedBalancer(plan.host.name)
    if observed is None or not observed.config:
        return found
    found.configure(plan.present)
    found.unproven.clear()
    found.exists = observed.running
    found.drained = set(observed.drained) & found.servers.keys()
    found.by_operator = plan.drained_by_operator
    found.key = _key_sent(observed, [plan])
    return found
