# SPDX-License-Identifier: Apache-2.0
"""Describe one host of a rollout: its instances as they are, as they will be, and what they go back to. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ....module_utils.service.generations import MEASUREMENTS, RESTART, STOP, History
from ..desired.actions import ALIVE
from ..endpoint.balancer_plan import BalancerPlan
from ..endpoint.servers import Instance
from ..generations.revisions import RevisionChange
from ..instances.planned import PlannedInstance, RecordedInstance, Serving, recorded_instance
from ..observed.node_state import NodeState, ObservedInstance
from ..plan.host_plan import HostPlan, host_backends
from .measurement import was_interrupted, why_unmeasured
from .members import InstanceResources, RolloutInstance
from .policy import RolloutRequest


class HostRollout:
    """One host's part of the plan, and its present state."""

    def __init__(
        self,
        plan: HostPlan,
        revisions: Mapping[str, RevisionChange],
        balancers: Sequence[BalancerPlan],
        earlier: Mapping[str, int] | None = None,
        here: frozenset[str] = frozenset(),
    ) -> None:
        """earlier: the generation to which each deployment goes back. here: the hosts of the run."""
        self.plan = plan
        self.earlier = earlier or {}
        self.here = here
        self.revisions = {name: revision.hosts.get(plan.host.name) for name, revision in revisions.items()}
        self.name = plan.host.name
        self.balancers = balancers
        self.drained = {item.host.name: item.drained_by_operator for item in balancers}
        state = plan.host.state
        self.running: dict[str, ObservedInstance] = (
            {item.name: item for item in state.instances} if state else {}
        )
        self.histories = _histories(state)
        self.wanted: dict[str, Serving] = {item.name: item for item in plan.instances}

    def is_ready(self, name: str) -> bool:
        """Return whether an instance runs and answers."""
        found = self.running.get(name)
        return found is not None and found.state == "running" and bool(found.ready)

    def is_routed(self, name: str) -> bool:
        """Return whether an instance serves now and belongs in load balancers."""
        item = self.known(name) or self.wanted.get(name)
        if not self.is_ready(name):
            return False
        return item is None or (item.backend.endpoint and not item.backend.headless)

    def meant(self, name: str, wanted: RolloutRequest) -> bool:
        """Return whether the request's choice of hosts, deployment or instance includes it."""
        if wanted.hosts is not None and self.name not in wanted.hosts:
            return False
        deployment = deployment_of(name, self.running.get(name), self.wanted.get(name))
        return wanted.deployment in (None, deployment) and wanted.instance in (None, name)

    def why_unmeasured(self, name: str, wanted: RolloutRequest) -> str:
        """Return why a measurement leaves an instance out; "" if it does not."""
        stopped = was_interrupted(self.name, name, wanted.operation, self.balancers)
        return why_unmeasured(self.running.get(name), self.known(name), stopped, wanted.offline)

    def known(self, name: str) -> RecordedInstance | None:
        """Return the generation that an instance runs; None if it is not known."""
        found = self.running.get(name)
        history = self.histories.get(deployment_of(name, found, None))
        if history is None:
            return None
        made = history.of_spec(name, found.spec_hash) if found else None
        return recorded_instance(made, name) if made else None

    def before(self, name: str) -> RecordedInstance | None:
        """Return what an instance goes back to: what it runs or, if that is the wanted generation, the one before.

        None if that belongs to an engine that also needs a host which does not take part.
        """
        found = self._before(name)
        return found if found and self.here.issuperset(found.member.hosts) else None

    def _before(self, name: str) -> RecordedInstance | None:
        item, found = self.wanted.get(name), self.running.get(name)
        known = self.known(name)
        if known and not self.runs_as_wanted(name):
            return known
        deployment = deployment_of(name, found, item)
        history, number = self.histories.get(deployment), self.earlier.get(deployment)
        older = history.as_of(number) if history and number else None
        if older and name in older.specs:
            return recorded_instance(older, name)
        return known if known and not item else None

    @property
    def keeps(self) -> set[str]:
        """Return the deployments of which the host keeps generations, or will after this run."""
        return {*self.histories, *(name for name, step in self.revisions.items() if step and step.record)}

    def runs_as_wanted(self, name: str) -> bool:
        """Return whether an instance runs exactly as wanted."""
        found, item = self.running.get(name), self.wanted.get(name)
        return bool(found and item and found.spec_hash == item.spec_hash)


def deployment_of(name: str, found: ObservedInstance | None, item: Serving | None) -> str:
    """Return the deployment of an instance: as it runs, as it will run, or by its name."""
    return (found.deployment if found else "") or (item.deployment_name if item else name.rpartition("-")[0])


def _histories(state: NodeState | None) -> dict[str, History]:
    return {item.deployment: item for item in state.generations} if state else {}


def host_members(
    host: HostRollout, wanted: RolloutRequest, unjudged: Collection[str]
) -> Iterable[RolloutInstance]:
    """Yield every instance that exists or will exist. unjudged: the engines of canaries that are yet to be judged."""
    alike = wanted.operation in (RESTART, STOP, *MEASUREMENTS)
    for name in dict.fromkeys((*host.running, *host.wanted)):
        found, item = host.running.get(name), host.wanted.get(name)
        known = host.known(name)
        there = found is not None and found.state in ALIVE
        # A server of an engine that spans a host without an answer is neither in the plan nor removed.
        stays = known if alike or name in host.plan.untouched else None
        place = _place(known or item) if known or host.runs_as_wanted(name) else None
        reached, out = _reached_by(host, known), _drained(host, name)
        drained = bool(out) and (reached is None or reached <= out)
        member = RolloutInstance(
            host=host.name,
            name=name,
            deployment=deployment_of(name, found, item),
            old=place if there else None,
            new=_place(item) if item else place if alike or stays else None,
            engine=engine_id(host.name, item or stays),
            old_engine=engine_id(host.name, known),
            models=_models(item or stays),
            old_models=_models(known or item),
            in_service=host.is_ready(name) and reached != frozenset() and not drained,
            drained=drained,
            headless=any(one.member.headless for one in (item or known,) if one),
            resources_known=not there or place is not None,
            balancers=reached,
            balancers_after=_reached_after(host, name, item),
            kept_out=frozenset() if drained else out,
        )
        changes = _changes(host, member, wanted, member.wanted_engine in unjudged)
        # What does not change returns before the others change, and so does all that is measured as it is.
        left = changes and wanted.operation not in MEASUREMENTS and _left(host, known)
        if left or not changes:
            member = replace(member, changes=changes, left=left, in_service=member.in_service and not left)
        yield member


def _changes(host: HostRollout, member: RolloutInstance, wanted: RolloutRequest, unjudged: bool) -> bool:
    if wanted.operation in MEASUREMENTS:
        return host.meant(member.name, wanted) and not host.why_unmeasured(member.name, wanted)
    if wanted.operation in (RESTART, STOP):
        alive = host.running.get(member.name)
        return alive is not None and alive.state in ALIVE and host.meant(member.name, wanted)
    return member.name in host.plan.start or member.name in host.plan.remove or unjudged


def _drained(host: HostRollout, name: str) -> frozenset[str]:
    """Return the load balancers in which the operator has drained it."""
    return frozenset(one for one, theirs in host.drained.items() if (host.name, name) in theirs)


def _left(host: HostRollout, known: RecordedInstance | None) -> bool:
    """Return whether an earlier run left it drained in a load balancer."""
    here = host_backends(host.plan)
    return known is not None and any(item.was_left(here, known.backend) for item in host.balancers)


def _reached_by(host: HostRollout, known: RecordedInstance | None) -> frozenset[str] | None:
    """Return the running load balancers that have it where it listens; None if they should not have it."""
    there = [item for item in host.balancers if item.host.observed and item.host.observed.running]
    if not there or known is None or known.member.headless or not _models(known):
        return None
    here = host_backends(host.plan)
    return frozenset(item.host.name for item in there if item.has(here, known.backend))


def _reached_after(host: HostRollout, name: str, item: Serving | None) -> frozenset[str] | None:
    """Return the running load balancers that will have it; None if they should not."""
    there = [one for one in host.balancers if one.host.observed and one.host.observed.running]
    if not there or item is None or item.member.headless or not _models(item):
        return None
    return frozenset(
        one.host.name for one in there if any(two.after for two in one.servers.get((host.name, name), ()))
    )


def _place(item: Serving | None) -> InstanceResources | None:
    if item is None:
        return None
    member = item.member
    return InstanceResources(frozenset(member.ports), frozenset(member.render_nodes), member.share)


def _models(item: Serving | None) -> tuple[str, ...]:
    """Return the names that clients may request from an instance, if load balancers serve it."""
    return item.backend.models if item and item.backend.endpoint else ()


def engine_id(host: str, item: Serving | None) -> str:
    """Return a key that the servers of one engine have in common; "" for a single server."""
    rank = item.instance.slot.rank if isinstance(item, PlannedInstance) else None
    if item and rank:
        return f"{item.deployment_name}@{','.join(rank.hosts) or host}:{rank.master_port}"
    hosts = item.member.hosts if item else ()
    return f"{item.deployment_name}@{','.join(hosts)}:{item.name}" if item and len(hosts) > 1 else ""


def spanning_engines(hosts: Iterable[HostRollout]) -> dict[Instance, str]:
    """Return the engine of each server, for engines that span several hosts, some of which may be outside this run."""
    found: dict[Instance, str] = {}
    for host in hosts:
        for known in filter(None, map(host.known, host.running)):
            for other in known.member.hosts if len(known.member.hosts) > 1 else ():
                found[other, known.name] = engine_id(host.name, known)
    return found
