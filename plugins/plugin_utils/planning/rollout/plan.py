# SPDX-License-Identifier: Apache-2.0
"""A fleet's plan as batches of units: who takes part in each, and what every host has to do in it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ....module_utils.common.errors import Problem, natural
from ....module_utils.service.generations import (
    DEPLOY,
    MEASUREMENTS,
    RESTART,
    ROLLBACK,
    STOP,
    UPGRADE,
    History,
)
from ....module_utils.service.minimum import WORD, refusals
from ...base.text import plural
from ..changes.actions import PARTITION_KINDS
from ..desired.actions import ALIVE
from ..desired.endpoint_settings import NOT_IN_RUN
from ..endpoint.balancer_plan import BalancerPlan
from ..endpoint.servers import Instance
from ..generations.revisions import RevisionChange
from ..generations.sources import INVENTORY
from ..instances.planned import Planned, RecordedInstance, Serving, recorded_instance
from ..observed.node_state import NodeState, ObservedInstance
from ..plan.host_plan import FleetPlan, HostPlan, host_backends
from .batches import Batch, CanaryProgress, Rollout, plan_rollout
from .deploy import awaited_hosts, operation_of, serving_changes
from .measurement import grouped, interrupted, shorten, why_unmeasured, with_head
from .members import InstanceResources, RolloutInstance, as_drained, sorted_members
from .policy import RolloutPolicy, parse_policy
from .steps import (
    COMING_BACK,
    FORWARD,
    MEASURING,
    PASSED,
    WAY_BACK,
    BatchChange,
    Canary,
    Step,
    Work,
    hold_steps,
    no_trial,
    phases,
    steps_of,
    trial_record,
)
from .stopping import (
    HostStops,
    known_engines,
    outside_members,
    partitioned_hosts,
    stop_problems,
    undrained_problems,
)
from .turning_back import Holds, earlier_generations, holds_of

Data = Mapping[str, Any]
Absent = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class RolloutRequest:
    """What a run is to do: the operation, the terms (raw variables), and of what; None: of all.

    offline: leave out engines over several hosts, which an offline benchmark cannot load. hosts: those of which
    instances stop; None: all.
    """

    operation: str
    values: Mapping[str, Any] = field(default_factory=dict)
    deployment: str | None = None
    instance: str | None = None
    canary: bool = True
    absent: tuple[tuple[str, str], ...] = ()  # load balancers that this run cannot tell of changes, and why
    at_once: bool = False  # too few may stay in service
    blind: bool = False  # nothing is known of the fleet's other hosts
    offline: bool = False
    hosts: Collection[str] | None = None


@dataclass(frozen=True)
class RolloutPlan:
    """The rollout, and by host: its steps by batch and phase, the trials that it begins, and what ends them.

    unmeasured: the instances ("host/name") that a measurement leaves out, and why. holds: by host and deployment, the
    steps that record what is held when it is turned back. ignored: what the run does not do because of earlier holds.
    """

    operation: str
    rollout: Rollout
    policy: RolloutPolicy
    batches: tuple[dict[str, Any], ...]
    steps: Mapping[str, Mapping[int, Mapping[str, Step]]]
    trials: Mapping[str, list[dict[str, Any]]]
    finish: Mapping[str, dict[str, Any]]
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    holds: Mapping[str, Mapping[str, Mapping[str, Step]]] = field(default_factory=dict)
    ignored: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """What the playbook needs of all hosts; steps are with the hosts."""
        return {
            "operation": self.operation,
            "batches": list(self.batches),
            "ignored": list(self.ignored),
            "soak": self.policy.soak,
            "measured_hosts": self.measured_hosts,
            "returned": self.returned,
        }

    @cached_property
    def measured_hosts(self) -> list[str]:
        """Hosts with an instance that answers to the client of a measurement."""
        return [
            name
            for name, batches in self.steps.items()
            if self.operation in MEASUREMENTS and any("measure" in found for found in batches.values())
        ]

    @cached_property
    def returned(self) -> list[dict[str, Any]]:
        """The servers in each load balancer that a measurement takes out, and returns."""
        found: dict[str, dict[str, None]] = {}
        for batches in self.steps.values() if self.operation in MEASUREMENTS else ():
            for steps in batches.values():
                for entry in steps["return"].args["servers"] if "return" in steps else ():
                    found.setdefault(entry["balancer"], {}).update(dict.fromkeys(entry["servers"]))
        return [{"balancer": name, "servers": list(servers)} for name, servers in found.items()]

    def batched(self, host: str) -> tuple[str, ...]:
        """Return a host's instances that change in batches."""
        return tuple(item.name for batch in self.rollout.batches for item in batch.members.get(host, ()))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that take part."""
        return tuple(dict.fromkeys((*self.steps, *self.finish)))

    def host(self, name: str) -> dict[str, Any]:
        """A host's part; all of it, as hosts that were planned twice have another result than the others."""
        steps = {
            str(number): {phase: step.to_json() for phase, step in found.items()}
            for number, found in self.steps.get(name, {}).items()
        }
        holds = {
            deployment: {phase: step.to_json() for phase, step in found.items()}
            for deployment, found in self.holds.get(name, {}).items()
        }
        return {**self.to_json(), "steps": steps, "holds": holds, "finish": self.finish.get(name)}


def plan_rollout_steps(plan: FleetPlan, wanted: RolloutRequest) -> tuple[RolloutPlan, tuple[Problem, ...]]:
    """The batches of a run, and why it cannot be."""
    policy, problems = parse_policy(wanted.values)
    revisions = {revision.deployment: revision for revision in plan.revisions}
    earlier = earlier_generations(revisions, [host.host for host in plan.hosts])
    names = {host.host.name for host in plan.hosts}
    hosts = {
        host.host.name: _HostRollout(host, revisions, plan.balancers, earlier, names) for host in plan.hosts
    }
    continued = wanted.operation in (DEPLOY, UPGRADE)
    trials = _trials(hosts.values(), revisions) if continued else {}
    unjudged = _unjudged(hosts, trials)
    here = [member for host in hosts.values() for member in host.members(wanted, unjudged)]
    members = sorted_members(as_drained([*here, *outside_members(plan, _spanning(hosts.values()))]))
    if wanted.operation in MEASUREMENTS:
        members = with_head(members)
    operations = {name: operation_of(wanted.operation, revision) for name, revision in revisions.items()}
    judged = trials
    if wanted.operation == DEPLOY:
        members = serving_changes(members, partitioned_hosts(plan), wanted.at_once)
    if continued:
        # What returns to a generation that served before is not measured.
        back = {name: CanaryProgress(judged=True) for name, kind in operations.items() if kind == ROLLBACK}
        judged = {**trials, **back}
    if wanted.operation == STOP and not (wanted.at_once or wanted.blind):
        also = [balancer.host.name for balancer in plan.balancers]
        problems = (*problems, *refusals(known_engines(members), policy.min_available, also))
    if wanted.operation == STOP and not wanted.at_once:
        routed = any(hosts[item.host].is_routed(item.name) for item in members if item.changes)
        problems = (*problems, *(undrained_problems(wanted.absent, WORD) if routed else ()))
    canary = continued and wanted.canary
    policy = (
        RolloutPolicy(("100%",), 0, 0, False) if wanted.operation == STOP else replace(policy, canary=canary)
    )
    if wanted.operation in MEASUREMENTS and wanted.at_once:
        policy = replace(policy, serial=policy.serial or ("100%",), min_available=0)
    rollout, wrong = plan_rollout(members, policy, judged if canary else {})
    omitted = _unmeasured(hosts.values(), wanted) if wanted.operation in MEASUREMENTS else {}
    problems = (*problems, *wrong, *_refusals(plan, wanted, rollout, omitted))
    batches = _at_once(rollout.batches) if wanted.operation == STOP else rollout.batches
    # Where one engine is all there is, as with a restart, no load balancer has to keep one.
    kept = {
        name
        for name, labels in rollout.services.items()
        if not wanted.at_once and any(rollout.capacity[label].min_available for label in labels)
    }
    firsts = {item.deployment: item.number for item in reversed(batches)}
    holds = holds_of(batches, revisions, [host.host for host in plan.hosts], earlier) if continued else {}
    changes = {
        item.number: replace(
            _change(item, wanted, revisions, policy),
            keep=item.deployment in kept,
            first=firsts[item.deployment] == item.number,
            before=earlier.get(item.deployment),
            together=_others(item.deployment, holds),
        )
        for item in batches
    }
    work = {
        item.number: {
            name: hosts[name].work(
                item, trials.get(item.deployment), _changed_before(item, batches) if item.reference else ()
            )
            for name in item.hosts
        }
        for item in batches
    }
    steps: dict[str, dict[int, dict[str, Step]]] = {}
    for number, parts in work.items():
        for name, part in parts.items():
            steps.setdefault(name, {})[number] = steps_of(part, changes[number])
    awaited = {item.number: awaited_hosts(item, members, rollout.capacity) for item in batches}
    holding = {name: host.holds(holds) for name, host in hosts.items()}
    listed = tuple(
        {
            **_batch(item, batches, changes[item.number], work, steps, holds.get(item.deployment, {})),
            "all_hosts": _all_hosts(item, batches, holding),
            "awaits": awaited[item.number],
        }
        for item in batches
    )
    upgraded = {item["deployment"]: item for item in listed if item["operation"] == UPGRADE}
    for name in dict.fromkeys(name for names in awaited.values() for name in names):
        steps.setdefault(name, {})  # what fails there is seen only where it takes part
    for name in (name for item in listed if item["holds"] for name in item["all_hosts"]):
        steps.setdefault(name, {})  # nothing changes there, and a hold is recorded all the same
    begun: dict[str, list[dict[str, Any]]] = {}
    finish: dict[str, dict[str, Any]] = {}
    for name, host in hosts.items():
        mine = [
            item
            for item in upgraded.values()
            if name in item["all_hosts"] and item["deployment"] in host.keeps
        ]
        begun[name] = [
            trial_record(changes[item["number"]]) for item in mine if item["deployment"] not in trials
        ]
        ends = [item["deployment"] for item in mine]
        if continued:  # also what an earlier run began here, whatever it was
            ends += [
                deployment
                for deployment, history in host.histories.items()
                if history.trial and revisions[deployment].source.kind == INVENTORY
            ]
        if ends:
            finish[name] = no_trial(ends)
    return RolloutPlan(
        wanted.operation, rollout, policy, listed, steps, begun, finish, omitted, holding, plan.ignored
    ), problems


def _unmeasured(hosts: Iterable[_HostRollout], wanted: RolloutRequest) -> dict[str, str]:
    """Return the instances that a measurement leaves out, and why; those of a rank without requests are not counted."""
    found: dict[str, str] = {}
    for host in hosts:
        for name in dict.fromkeys((*host.running, *host.wanted)):
            reason = host.why_unmeasured(name, wanted)
            item = host.known(name) or host.wanted.get(name)
            if reason and not (item and item.member.headless) and host.meant(name, wanted):
                found[f"{host.name}/{name}"] = reason
    return found


def refused_stops(
    plan: FleetPlan, values: Mapping[str, Any], stops: HostStops, blind: bool = False
) -> tuple[Problem, ...]:
    """Return why the instances of these hosts may not stop. blind: only for the sake of the load balancers."""
    policy, problems = parse_policy(values)
    revisions = {revision.deployment: revision for revision in plan.revisions}
    hosts = [_HostRollout(host, revisions, plan.balancers) for host in plan.hosts]
    members = [member for host in hosts for member in host.members(RolloutRequest(RESTART), ())]
    members += outside_members(plan, _spanning(hosts))
    also = [balancer.host.name for balancer in plan.balancers]
    stops = replace(stops, min_available=policy.min_available, limit_also=also)
    return (*problems, *stop_problems([] if blind else known_engines(members), stops))


def undrained_hosts(plan: FleetPlan, names: Collection[str], absent: Absent) -> tuple[Problem, ...]:
    """Return why the instances of these hosts may not stop: --limit leaves out load balancers that may use them."""
    hosts = (_HostRollout(host, {}, ()) for host in plan.hosts if host.host.name in names)
    routed = any(host.is_routed(name) for host in hosts for name in host.running)
    return tuple(undrained_problems(absent, WORD)) if routed else ()


def _spanning(hosts: Iterable[_HostRollout]) -> dict[Instance, str]:
    """Return the engine of each of its servers, for those that run on several hosts: some may be outside this run."""
    found: dict[Instance, str] = {}
    for host in hosts:
        for known in filter(None, map(host.known, host.running)):
            for other in known.member.hosts if len(known.member.hosts) > 1 else ():
                found[other, known.name] = _engine(host.name, known)
    return found


def _at_once(batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """Put all groups in one batch, whatever deployment they belong to: none waits for another to stop."""
    names = ", ".join(dict.fromkeys(item.deployment for item in batches))
    groups = tuple(group for item in batches for group in item.groups)
    return (Batch(1, names, groups),) if groups else ()


def _change(
    batch: Batch, wanted: RolloutRequest, revisions: Mapping[str, RevisionChange], policy: RolloutPolicy
) -> BatchChange:
    revision = revisions.get(batch.deployment)
    why = (revision.why if revision else "") or "once more"
    operation = operation_of(wanted.operation, revision)
    return BatchChange(
        operation, batch.deployment, revision.generation if revision else None, why, policy.soak
    )


def _others(deployment: str, holds: Mapping[str, Holds]) -> dict[str, int]:
    """Return the generations of the other deployments that are held when one is turned back."""
    return {name: hold.generation for name, hold in holds.get(deployment, {}).items() if name != deployment}


def _changed_before(batch: Batch, batches: Iterable[Batch]) -> set[str]:
    """Return the instances that earlier batches change, as one of another deployment may be in one of its batches."""
    return {
        item.id
        for other in batches
        if other.number < batch.number
        for group in other.groups
        for item in group.members
    }


def count_replaced(plan: FleetPlan) -> int:
    """Instances that serve, and that this plan replaces or removes; 0 where the GPUs' modes change anyway."""
    count = 0
    for host in plan.hosts:
        if host.host.state and not any(action.kind in PARTITION_KINDS for action in host.actions):
            serving = {
                item.name for item in host.host.state.instances if item.state == "running" and item.ready
            }
            count += len(serving & {*host.start, *host.remove})
    return count


class _HostRollout:
    """One host's part of the plan and of what is there."""

    def __init__(
        self,
        plan: HostPlan,
        revisions: Mapping[str, RevisionChange],
        balancers: Sequence[BalancerPlan],
        earlier: Mapping[str, int] | None = None,
        here: Collection[str] = (),
    ) -> None:
        """earlier: the generation to which each deployment goes back. here: the hosts of the run."""
        self.plan = plan
        self.earlier = earlier or {}
        self.here = frozenset(here)
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

    def members(self, wanted: RolloutRequest, unjudged: Collection[str]) -> Iterable[RolloutInstance]:
        """Every instance that is there or will be. unjudged: the engines of canaries that have yet to be judged."""
        alike = wanted.operation in (RESTART, STOP, *MEASUREMENTS)
        for name in dict.fromkeys((*self.running, *self.wanted)):
            found, item = self.running.get(name), self.wanted.get(name)
            known = self.known(name)
            there = found is not None and found.state in ALIVE
            # What an engine over a host without an answer has here is neither in the plan nor removed.
            stays = known if alike or name in self.plan.untouched else None
            place = _place(known or item) if known or self._equal(found, item) else None
            reached, out = self._reached_by(known), self._drained(name)
            drained = bool(out) and (reached is None or reached <= out)
            member = RolloutInstance(
                host=self.name,
                name=name,
                deployment=_deployment(name, found, item),
                old=place if there else None,
                new=_place(item) if item else place if alike or stays else None,
                engine=_engine(self.name, item or stays),
                old_engine=_engine(self.name, known),
                models=_models(item or stays),
                old_models=_models(known or item),
                in_service=self.is_ready(name) and reached != frozenset() and not drained,
                drained=drained,
                headless=any(one.member.headless for one in (item or known,) if one),
                resources_known=not there or place is not None,
                balancers=reached,
                balancers_after=self._reached_after(name, item),
                kept_out=frozenset() if drained else out,
            )
            changes = self._changes(member, wanted, member.wanted_engine in unjudged)
            # What does not change returns before the others do, and so does all that is measured as it is.
            left = changes and wanted.operation not in MEASUREMENTS and self._left(known)
            yield replace(member, changes=changes, left=left, in_service=member.in_service and not left)

    def _changes(self, member: RolloutInstance, wanted: RolloutRequest, unjudged: bool) -> bool:
        if wanted.operation in MEASUREMENTS:
            return self.meant(member.name, wanted) and not self.why_unmeasured(member.name, wanted)
        if wanted.operation in (RESTART, STOP):
            alive = self.running.get(member.name)
            return alive is not None and alive.state in ALIVE and self.meant(member.name, wanted)
        return member.name in self.plan.start or member.name in self.plan.remove or unjudged

    def is_ready(self, name: str) -> bool:
        """Return whether an instance runs and answers."""
        found = self.running.get(name)
        return found is not None and found.state == "running" and bool(found.ready)

    def is_routed(self, name: str) -> bool:
        """Return whether an instance serves now and belongs into load balancers."""
        item = self.known(name) or self.wanted.get(name)
        if not self.is_ready(name):
            return False
        return item is None or (item.backend.endpoint and not item.backend.headless)

    def meant(self, name: str, wanted: RolloutRequest) -> bool:
        """The choice of hosts, of a deployment or of an instance includes it."""
        if wanted.hosts is not None and self.name not in wanted.hosts:
            return False
        deployment = _deployment(name, self.running.get(name), self.wanted.get(name))
        return wanted.deployment in (None, deployment) and wanted.instance in (None, name)

    def why_unmeasured(self, name: str, wanted: RolloutRequest) -> str:
        """Why a measurement leaves an instance out; "" if it does not."""
        stopped = interrupted(self.name, name, wanted.operation, self.balancers)
        return why_unmeasured(self.running.get(name), self.known(name), stopped, wanted.offline)

    def known(self, name: str) -> RecordedInstance | None:
        """The generation that an instance runs; None when none is known."""
        found = self.running.get(name)
        history = self.histories.get(_deployment(name, found, None))
        if history is None:
            return None
        made = history.of_spec(name, found.spec_hash) if found else None
        return recorded_instance(made, name) if made else None

    def before(self, name: str) -> RecordedInstance | None:
        """The way back of an instance: what it runs; of one that has the wanted generation already, the one before.

        None where that belongs to an engine that also needs a host which takes no part.
        """
        found = self._before(name)
        return found if found and self.here.issuperset(found.member.hosts) else None

    def _before(self, name: str) -> RecordedInstance | None:
        item, found = self.wanted.get(name), self.running.get(name)
        known = self.known(name)
        if known and not self._equal(found, item):
            return known
        deployment = _deployment(name, found, item)
        history, number = self.histories.get(deployment), self.earlier.get(deployment)
        older = history.as_of(number) if history and number else None
        if older and name in older.specs:
            return recorded_instance(older, name)
        return known if known and not item else None

    def holds(self, holds: Mapping[str, Holds]) -> dict[str, dict[str, Step]]:
        """Return the steps with which this host holds what it keeps, by the deployment that is turned back."""
        found = {name: hold_steps(some, self.keeps) for name, some in holds.items()}
        return {name: steps for name, steps in found.items() if steps}

    @property
    def keeps(self) -> set[str]:
        """Return the deployments of which the host keeps generations, or will from this run on."""
        return {*self.histories, *(name for name, step in self.revisions.items() if step and step.record)}

    @staticmethod
    def _equal(found: ObservedInstance | None, item: Serving | None) -> bool:
        return bool(found and item and found.spec_hash == item.spec_hash)

    def _drained(self, name: str) -> frozenset[str]:
        """Return the load balancers in which the operator has drained it."""
        return frozenset(one for one, theirs in self.drained.items() if (self.name, name) in theirs)

    def _left(self, known: RecordedInstance | None) -> bool:
        """An earlier run left it drained in a load balancer."""
        here = host_backends(self.plan)
        return known is not None and any(item.was_left(here, known.backend) for item in self.balancers)

    def _reached_by(self, known: RecordedInstance | None) -> frozenset[str] | None:
        """Return the load balancers that run and have it where it listens; None if they are not to have it."""
        there = [item for item in self.balancers if item.host.observed and item.host.observed.running]
        if not there or known is None or known.member.headless or not _models(known):
            return None
        here = host_backends(self.plan)
        return frozenset(item.host.name for item in there if item.has(here, known.backend))

    def _reached_after(self, name: str, item: Serving | None) -> frozenset[str] | None:
        """Return those of them that will have it; None if they are not to."""
        there = [one for one in self.balancers if one.host.observed and one.host.observed.running]
        if not there or item is None or item.member.headless or not _models(item):
            return None
        return frozenset(
            one.host.name for one in there if any(two.after for two in one.servers.get((self.name, name), ()))
        )

    def work(self, batch: Batch, trial: CanaryProgress | None, changed: Collection[str]) -> Work:
        """This host's part of a batch. changed: what has changed in earlier batches."""
        members = batch.members[self.name]
        names = [item.name for item in members]
        beside = batch.reference if batch.reference and batch.reference.host == self.name else None
        reference = [beside.name] if beside else []
        as_new = reference if beside and beside.id in changed else []
        as_old = [name for name in reference if name not in as_new]
        back = {name: self.before(name) for name in names}
        gone = {item.name for item in members if item.new is None}
        comes = [name for name in names if name not in gone]
        return Work(
            servers=[self.server(name) for name in comes],
            remove=[name for name in names if name in gone],
            leave=self._servers(leaving=[*names, *as_old], entering=as_new),
            enter=self._servers(entering=[*comes, *as_new], returning=map(self.known, as_old)),
            old_servers=[known.server for known in back.values() if known],
            old_remove=[name for name, known in back.items() if known is None and name not in self.running],
            enter_old=self._servers(entering=as_new, returning=[*back.values(), *map(self.known, as_old)]),
            lost=[name for name, known in back.items() if known is None and name in self.running],
            spans=any(item.id in batch.spanning for item in members),
            measured=[
                {"host": self.name, **known.described}
                for known in map(self.known, comes)
                if known and not known.member.headless
            ],
            down=any(item.old is None and item.resources_known for item in members),
            canary=self._canary(batch, trial) if batch.canary and batch.canary.host == self.name else None,
        )

    def server(self, name: str) -> Data:
        """SERVER of an instance as it is to run: as it is wanted, or as it does."""
        item, known = self.wanted.get(name), self.known(name)
        if item:
            return item.server
        return known.server if known else {"name": name}

    def _canary(self, batch: Batch, trial: CanaryProgress | None) -> Canary:
        measured, reference_name = batch.canary, batch.reference
        name = measured.name if measured else ""
        item, found, old = self.wanted[name], self.running.get(name), self.before(name)
        reference = self.known(reference_name.name) if reference_name else None
        continued = trial is not None and trial.canary == f"{self.name}/{name}"
        return Canary(
            id=f"{self.name}/{name}",
            old={**old.described, "gpus": item.described.get("gpus")} if old else {},
            new={"host": self.name, **item.described},
            reference=reference.described if reference else {},
            # What is new already was measured by the run that was cut off, or never.
            measure=bool(old and found and self.is_ready(name) and not self._equal(found, item)),
            baseline=dict(self._baseline(batch.deployment)) if continued else {},
        )

    def _baseline(self, deployment: str) -> Mapping[str, Any]:
        history = self.histories.get(deployment)
        return (history.trial.baseline.get("found") or {}) if history and history.trial else {}

    def _servers(
        self,
        leaving: Sequence[str] = (),
        entering: Sequence[str] = (),
        returning: Iterable[RecordedInstance | None] = (),
    ) -> list[dict[str, Any]]:
        """Servers in each load balancer: of instances that leave it, enter as they will be, or return as they are."""
        backends = [item.backend for item in returning if item]
        host = host_backends(self.plan)
        found = []
        for balancer in self.balancers:
            servers = [
                *balancer.leaving(self.name, leaving),
                *balancer.entering(self.name, entering),
                *balancer.returning(host, backends),
            ]
            if servers:
                found.append({"balancer": balancer.host.name, "servers": sorted(servers, key=natural)})
        return found


def _histories(state: NodeState | None) -> dict[str, History]:
    return {item.deployment: item for item in state.generations} if state else {}


def _deployment(name: str, found: ObservedInstance | None, item: Serving | None) -> str:
    """The deployment that an instance is of: as it runs, as it will, or by its name."""
    return (found.deployment if found else "") or (item.deployment_name if item else name.rpartition("-")[0])


def _models(item: Serving | None) -> tuple[str, ...]:
    """The names that clients may ask an instance for, where a load balancer can reach it."""
    return item.backend.models if item and item.backend.endpoint else ()


def _place(item: Serving | None) -> InstanceResources | None:
    if item is None:
        return None
    member = item.member
    return InstanceResources(frozenset(member.ports), frozenset(member.render_nodes), member.share)


def _engine(host: str, item: Serving | None) -> str:
    """What the servers of one engine have in common; "" for one that is alone."""
    rank = item.instance.slot.rank if isinstance(item, Planned) else None
    if item and rank:
        return f"{item.deployment_name}@{','.join(rank.hosts) or host}:{rank.master_port}"
    hosts = item.member.hosts if item else ()
    return f"{item.deployment_name}@{','.join(hosts)}:{item.name}" if item and len(hosts) > 1 else ""


def _trials(
    hosts: Iterable[_HostRollout], revisions: Mapping[str, RevisionChange]
) -> dict[str, CanaryProgress]:
    """Open trials of the generation that is wanted now."""
    wanted = {name: revision.generation for name, revision in revisions.items()}
    found: dict[str, CanaryProgress] = {}
    for host in hosts:
        for name, history in host.histories.items():
            trial = history.trial
            if trial is None or trial.generation != wanted.get(name):
                continue
            canary = str(trial.baseline.get("canary") or "")
            before = found.get(name, CanaryProgress())
            groups = set(trial.units)
            judged = before.judged or bool(canary and canary in groups)
            found[name] = CanaryProgress(before.canary or canary, judged)
    return found


def _unjudged(hosts: Mapping[str, _HostRollout], trials: Mapping[str, CanaryProgress]) -> set[str]:
    """The engines of canaries that have yet to be judged; all servers of an engine change with its canary."""
    found = set()
    for canary in (trial.canary for trial in trials.values() if trial.canary and not trial.judged):
        host, _, name = canary.partition("/")
        there = hosts.get(host)
        found.add((_engine(host, there.wanted.get(name)) if there else "") or canary)
    return found


def _refusals(
    plan: FleetPlan, wanted: RolloutRequest, rollout: Rollout, omitted: Mapping[str, str]
) -> Iterable[Problem]:
    """What a rollout needs beside room. omitted: what a measurement leaves out, and why."""
    if rollout.batches and wanted.operation != STOP:
        yield from _balancer_refusals(plan, wanted)
    if wanted.operation == ROLLBACK and not wanted.deployment:
        names = ", ".join(revision.deployment for revision in plan.revisions)
        yield Problem(("deployment",), "is required.", f"-e deployment=NAME; there are: {names or 'none'}.")
    if wanted.operation in (UPGRADE, ROLLBACK):
        hosts = partitioned_hosts(plan)
        if hosts:
            what = "partition modes have to change first, which stops every instance of a host."
            yield Problem(("gpu_partition_compute",), what, "Run partition.yml first.", hosts)
    if wanted.operation in (RESTART, STOP, *MEASUREMENTS) and not rollout.batches:
        there = sorted({running.deployment for host in plan.hosts if host.host.state for running in
                        host.host.state.instances})  # fmt: skip
        if omitted:
            text = "; ".join(f"{shorten(names)}: {reason}" for reason, names in grouped(omitted).items())
            what = f"no instance runs that this run can measure. {text}."
            yield Problem((), what, "status.yml shows what runs; site.yml starts what is to run.")
        elif wanted.deployment or wanted.instance:
            meant = wanted.instance or wanted.deployment
            what = f"no instance of {meant} runs."
            yield Problem((), what, f"There are: {', '.join(there) or 'no instances'}.")
        elif wanted.operation in MEASUREMENTS:
            what = f"no instance runs on {plural(len(plan.hosts), 'host')} of this run, so there is nothing to measure."
            yield Problem((), what, "Deploy first: site.yml. status.yml shows what is there.")


def _balancer_refusals(plan: FleetPlan, wanted: RolloutRequest) -> Iterable[Problem]:
    """Return why instances cannot be drained: one that answers suffices, as those that do not serve nobody.

    One that --limit leaves out may well serve.
    """
    dead = [(name, why) for name, why in wanted.absent if why != NOT_IN_RUN]
    yield from undrained_problems(wanted.absent)
    # A deploy configures and starts the load balancers before its batches.
    idle = [
        item.host.name
        for item in plan.balancers
        if wanted.operation != DEPLOY and not (item.host.observed and item.host.observed.running)
    ]
    if len(idle) < len(plan.balancers):
        return
    if idle:
        what = "the load balancer does not run, so instances cannot be drained before they change."
        yield Problem((), what, "Run deploy.yml first.", tuple(idle))
    elif dead:
        what = f"no load balancer can be reached, so instances cannot be drained before they change: {_listed(dead)}."
        yield Problem((), what, "Bring one of them back, and run again: one is enough.")


def _listed(items: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {why.rstrip('.')}" for name, why in items)


def _all_hosts(batch: Batch, batches: Iterable[Batch], holding: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the hosts of all batches of a deployment, and those that record it when the deployment is turned back."""
    same = (host for item in batches if item.deployment == batch.deployment for host in item.hosts)
    return list(
        dict.fromkeys((*same, *(name for name, holds in holding.items() if batch.deployment in holds)))
    )


def _batch(
    batch: Batch,
    batches: Sequence[Batch],
    change: BatchChange,
    work: Mapping[int, Mapping[str, Work]],
    steps: Mapping[str, Mapping[int, Mapping[str, Step]]],
    holds: Holds,
) -> dict[str, Any]:
    """A batch for the playbook. holds: what is held when it is turned back."""
    mine = [steps[name][batch.number] for name in batch.hosts]
    measures = change.operation in MEASUREMENTS
    back = phases(mine, COMING_BACK if measures else WAY_BACK)
    if holds and not measures:
        back = ["hold", *back, "confirm_hold"]
    return {
        "number": batch.number,
        "of": len(batches),
        "operation": change.operation,
        "deployment": batch.deployment,
        "generation": change.generation,
        "holds": {name: hold.generation for name, hold in holds.items()},
        "lost": [f"{host}/{name}" for host, part in work[batch.number].items() for name in part.lost],
        "why": change.why,
        "canary": batch.canary.id if batch.canary else "",
        "hosts": list(batch.hosts),
        "units": [[item.id for item in group.members] for group in batch.groups],
        "phases": phases(mine, MEASURING if measures else FORWARD),
        "passed": phases(mine, PASSED),
        "way_back": back if measures or change.operation == UPGRADE else [],
        "text": f"batch {batch.number} of {len(batches)}: " + "; ".join(group.name for group in batch.groups),
    }
