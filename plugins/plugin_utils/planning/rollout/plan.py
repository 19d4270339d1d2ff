# SPDX-License-Identifier: Apache-2.0
"""Turn a fleet's plan into batches: which hosts take part in each, and what every host does in it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ....module_utils.common.errors import Problem
from ....module_utils.service.generations import DEPLOY, MEASUREMENTS, ROLLBACK, STOP, UPGRADE
from ..generations.revisions import RevisionChange
from ..plan.host_plan import FleetPlan
from .batch_work import all_hosts, playbook_batch, work_of_host
from .batches import Batch, CanaryProgress, Rollout, plan_rollout
from .deploy import awaited_hosts, operation_of, serving_changes
from .host_rollout import HostRollout, host_members, spanning_engines
from .measurement import with_head
from .members import RolloutInstance, as_drained, sorted_members
from .policy import RolloutPolicy, RolloutRequest, parse_policy
from .preconditions import rollout_refusals, stop_refusals
from .steps import BatchChange, Step, Work, hold_steps, steps_of
from .stopping import outside_members, partitioned_hosts
from .trials import begun_trials, ended_trials, open_trials, unjudged_engines, upgrades_by_host
from .turning_back import Holds, earlier_generations, holds_of


@dataclass(frozen=True)
class RolloutPlan:
    """The rollout, and by host: its steps by batch and phase, the trials that it begins, and what ends them.

    unmeasured: the instances ("host/name") that a measurement leaves out, and why. holds: by host and deployment, the
    steps that record a hold if it is turned back. ignored: what the run does not do because of earlier holds.
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
        """Return what the playbook needs for all hosts; steps are with the hosts."""
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
        """Return the hosts with an instance that answers the client of a measurement."""
        return [
            name
            for name, batches in self.steps.items()
            if self.operation in MEASUREMENTS and any("measure" in found for found in batches.values())
        ]

    @cached_property
    def returned(self) -> list[dict[str, Any]]:
        """Return the servers in each load balancer that a measurement takes out of service and returns."""
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
        """Return the hosts that take part."""
        return tuple(dict.fromkeys((*self.steps, *self.finish)))

    def host(self, name: str) -> dict[str, Any]:
        """Return a host's part, with the part for all hosts, which differs for hosts that were planned twice."""
        steps = {
            str(number): {phase: step.to_json() for phase, step in found.items()}
            for number, found in self.steps.get(name, {}).items()
        }
        holds = {
            deployment: {phase: step.to_json() for phase, step in found.items()}
            for deployment, found in self.holds.get(name, {}).items()
        }
        return {**self.to_json(), "steps": steps, "holds": holds, "finish": self.finish.get(name)}


@dataclass(frozen=True)
class _Run:
    """What a rollout is planned from: the plan, the request, each host's part of it, and open trials of canaries.

    earlier: the generation to which each deployment goes back.
    """

    plan: FleetPlan
    wanted: RolloutRequest
    revisions: Mapping[str, RevisionChange]
    earlier: Mapping[str, int]
    hosts: Mapping[str, HostRollout]
    trials: Mapping[str, CanaryProgress]

    @property
    def continued(self) -> bool:
        """Return whether this run continues upgrades that an earlier one began."""
        return self.wanted.operation in (DEPLOY, UPGRADE)

    @property
    def judged(self) -> Mapping[str, CanaryProgress]:
        """Return the progress of canaries; what returns to a generation that served before is not measured."""
        kinds = {name: operation_of(self.wanted.operation, one) for name, one in self.revisions.items()}
        back = {name: CanaryProgress(judged=True) for name, kind in kinds.items() if kind == ROLLBACK}
        return {**self.trials, **back}


def plan_rollout_steps(plan: FleetPlan, wanted: RolloutRequest) -> tuple[RolloutPlan, tuple[Problem, ...]]:
    """Return the batches of a run, and the problems that prevent it."""
    asked, problems = parse_policy(wanted.values)
    run = _run(plan, wanted)
    members = _members(run)
    policy = _policy(run, asked)
    rollout, impossible = plan_rollout(members, policy, run.judged if policy.canary else {})
    omitted = _unmeasured(run) if wanted.operation in MEASUREMENTS else {}
    problems = (
        *problems,
        *stop_refusals(plan, wanted, run.hosts, members, asked),
        *impossible,
        *rollout_refusals(plan, wanted, rollout, omitted),
    )
    batches = _at_once(rollout.batches) if wanted.operation == STOP else rollout.batches
    holds = _holds(run, batches)
    holding = {name: _hold_steps(host, holds) for name, host in run.hosts.items()}
    changes = _changes(run, rollout, batches, policy.soak, holds)
    work = {item.number: _work(run, item, batches) for item in batches}
    steps = _steps(work, changes)
    listed = tuple(
        {
            **playbook_batch(item, len(batches), changes[item.number], work[item.number], steps, holds),
            "all_hosts": all_hosts(item, batches, holding),
            "awaits": awaited_hosts(item, members, rollout.capacity),
        }
        for item in batches
    )
    for name in _without_steps(listed):
        steps.setdefault(name, {})
    upgrades = upgrades_by_host(run.hosts, listed)
    begun = {name: begun_trials(some, changes, run.trials) for name, some in upgrades.items()}
    ended = {
        name: ended_trials(host, upgrades[name], run.revisions, run.continued)
        for name, host in run.hosts.items()
    }
    finish = {name: record for name, record in ended.items() if record}
    return RolloutPlan(
        wanted.operation, rollout, policy, listed, steps, begun, finish, omitted, holding, plan.ignored
    ), problems


def _run(plan: FleetPlan, wanted: RolloutRequest) -> _Run:
    revisions = {revision.deployment: revision for revision in plan.revisions}
    earlier = earlier_generations(revisions, [host.host for host in plan.hosts])
    names = frozenset(host.host.name for host in plan.hosts)
    hosts = {
        host.host.name: HostRollout(host, revisions, plan.balancers, earlier, names) for host in plan.hosts
    }
    run = _Run(plan, wanted, revisions, earlier, hosts, {})
    return replace(run, trials=open_trials(hosts.values(), revisions)) if run.continued else run


def _members(run: _Run) -> tuple[RolloutInstance, ...]:
    """Return the instances of the run, and those outside it that belong to engines in it."""
    unjudged = unjudged_engines(run.hosts, run.trials)
    here = [item for host in run.hosts.values() for item in host_members(host, run.wanted, unjudged)]
    outside = outside_members(run.plan, spanning_engines(run.hosts.values()))
    members = sorted_members(as_drained([*here, *outside]))
    if run.wanted.operation in MEASUREMENTS:
        return with_head(members)
    if run.wanted.operation == DEPLOY:
        return serving_changes(members, partitioned_hosts(run.plan), run.wanted.at_once)
    return members


def _policy(run: _Run, asked: RolloutPolicy) -> RolloutPolicy:
    """Return the limits that apply to this operation. asked: those that the operator gave."""
    wanted = run.wanted
    if wanted.operation == STOP:
        return RolloutPolicy(("100%",), 0, 0, False)
    policy = replace(asked, canary=run.continued and wanted.canary)
    if wanted.operation in MEASUREMENTS and wanted.at_once:
        policy = replace(policy, serial=policy.serial or ("100%",), min_available=0)
    return policy


def _unmeasured(run: _Run) -> dict[str, str]:
    """Return the instances that a measurement leaves out, and why, apart from those that get no requests."""
    found: dict[str, str] = {}
    for host in run.hosts.values():
        for name in dict.fromkeys((*host.running, *host.wanted)):
            reason = host.why_unmeasured(name, run.wanted)
            item = host.known(name) or host.wanted.get(name)
            if reason and not (item and item.member.headless) and host.meant(name, run.wanted):
                found[f"{host.name}/{name}"] = reason
    return found


def _at_once(batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """Put all groups in one batch, whatever deployment they belong to: none waits for another to stop."""
    names = ", ".join(dict.fromkeys(item.deployment for item in batches))
    groups = tuple(group for item in batches for group in item.groups)
    return (Batch(1, names, groups),) if groups else ()


def _changes(
    run: _Run, rollout: Rollout, batches: Sequence[Batch], soak: int, holds: Mapping[str, Holds]
) -> dict[int, BatchChange]:
    """Return what each batch does, by its number."""
    # If there is only one engine, as with a restart, no load balancer must keep one.
    kept = {
        name
        for name, labels in rollout.services.items()
        if not run.wanted.at_once and any(rollout.capacity[label].min_available for label in labels)
    }
    firsts = {item.deployment: item.number for item in reversed(batches)}
    changes = {}
    for item in batches:
        revision = run.revisions.get(item.deployment)
        changes[item.number] = BatchChange(
            operation=operation_of(run.wanted.operation, revision),
            deployment=item.deployment,
            generation=revision.generation if revision else None,
            why=(revision.why if revision else "") or "again",
            soak=soak,
            keep=item.deployment in kept,
            first=firsts[item.deployment] == item.number,
            before=run.earlier.get(item.deployment),
            together=_others(item.deployment, holds),
        )
    return changes


def _others(deployment: str, holds: Mapping[str, Holds]) -> dict[str, int]:
    """Return the generations of the other deployments that are held if one is turned back."""
    return {name: hold.generation for name, hold in holds.get(deployment, {}).items() if name != deployment}


def _work(run: _Run, batch: Batch, batches: Iterable[Batch]) -> dict[str, Work]:
    """Return what each host does in a batch."""
    changed = _changed_before(batch, batches) if batch.reference else set()
    trial = run.trials.get(batch.deployment)
    return {name: work_of_host(run.hosts[name], batch, trial, changed) for name in batch.hosts}


def _changed_before(batch: Batch, batches: Iterable[Batch]) -> set[str]:
    """Return the instances that earlier batches change, including those of other deployments."""
    return {
        item.id
        for other in batches
        if other.number < batch.number
        for group in other.groups
        for item in group.members
    }


def _steps(
    work: Mapping[int, Mapping[str, Work]], changes: Mapping[int, BatchChange]
) -> dict[str, dict[int, dict[str, Step]]]:
    """Return the steps by host and batch."""
    steps: dict[str, dict[int, dict[str, Step]]] = {}
    for number, parts in work.items():
        for name, part in parts.items():
            steps.setdefault(name, {})[number] = steps_of(part, changes[number])
    return steps


def _holds(run: _Run, batches: Sequence[Batch]) -> dict[str, Holds]:
    """Return what is held if a deployment is turned back."""
    if not run.continued:
        return {}
    return holds_of(batches, run.revisions, [host.host for host in run.plan.hosts], run.earlier)


def _hold_steps(host: HostRollout, holds: Mapping[str, Holds]) -> dict[str, dict[str, Step]]:
    """Return the steps with which a host records holds of what it keeps, by the deployment that is turned back."""
    found = {name: hold_steps(some, host.keeps) for name, some in holds.items()}
    return {name: steps for name, steps in found.items() if steps}


def _without_steps(batches: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yield hosts that take part although nothing may change there: a failure counts, or a hold is recorded."""
    for batch in batches:
        yield from batch["awaits"]
    for batch in batches:
        if batch["holds"]:
            yield from batch["all_hosts"]
