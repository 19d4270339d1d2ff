# SPDX-License-Identifier: Apache-2.0
"""The passes that check a run, and those that decide what it does with the fleet's plan. Pure.

Each is a function from one state to the next, which knows more; `planning/pipeline.py` lists them in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ....module_utils.common.errors import FleetError
from ....module_utils.service.generations import MEASUREMENTS
from ...base.passes import extend
from ..desired.fleet import build_fleet
from ..endpoint.former import former_balancers, with_removal
from ..explanation.explain import explain
from ..inventory.groups import BALANCERS
from ..plan.check import check_fleet
from ..plan.fetch_rules import outside_window
from ..plan.host_plan import FleetPlan
from ..rollout.measurement import NewInstances
from .inputs import CheckedRun, DesiredRun, Resources, RunInputs
from .live import LiveTarget, live_todo
from .proof import proof_and_refusals
from .request import (
    check_request,
    explain_request,
    hold_seconds,
    parse_request,
    requested_live,
    requested_measurement,
    requested_rollout,
)
from .todo import restrict_to, todo_hosts

if TYPE_CHECKING:
    from ..rollout.plan import RolloutPlan

# ---- before anything is asked of registries and hubs -------------------------------------------------


def refuse_other_runs(state: RunInputs) -> RunInputs:
    """Add nothing: raise FleetError where another run changes hosts, unless the operator takes over."""
    if state.changes and state.others.refusals and not state.options["take_over"]:
        raise FleetError(state.others.refusals)
    return state


def read_fleet(state: RunInputs) -> DesiredRun:
    """Add what each host is wanted to have, and what was observed; raise FleetError for unknown variables and keys."""
    offline = state.options["offline"]
    fleet = build_fleet(state.hosts, state.groups, state.gpus, offline, state.problems)
    return extend(DesiredRun, state, fleet=fleet)


def refuse_request(state: DesiredRun) -> DesiredRun:
    """Add nothing: raise FleetError for a request that makes no sense."""
    problems = state.request_problems or check_request(state.options)
    if problems:
        raise FleetError(problems)
    return state


def place_instances(state: DesiredRun) -> CheckedRun:
    """Add where each deployment comes from and which GPUs it runs on; hosts that cannot run anything are left out."""
    now = state.latest.strftime("%Y-%m-%dT%H:%M:%SZ")
    return extend(CheckedRun, state, checked=check_fleet(state.fleet, parse_request(state.options), now))


# ---- what the run does with the plan of the fleet ----------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlannedRun(CheckedRun):
    """resources: what was read for the plan. plan: of the fleet."""

    resources: Resources
    plan: FleetPlan


@dataclass(frozen=True, kw_only=True)
class ReportedRun(PlannedRun):
    """reported: the part of the plan that the run reports; in a second plan, of the hosts that were planned again."""

    reported: FleetPlan


@dataclass(frozen=True, kw_only=True)
class BatchedRun(ReportedRun):
    """rollout: what changes or is measured a few at a time; None if nothing does."""

    rollout: RolloutPlan | None


@dataclass(frozen=True, kw_only=True)
class MeasuringRun(BatchedRun):
    """new: what is measured of what starts. live: what is measured through a load balancer."""

    new: NewInstances | None
    live: tuple[LiveTarget, ...]


@dataclass(frozen=True, kw_only=True)
class DistributedRun(MeasuringRun):
    """data: plan.json. todo: hosts with something to do, as add_host takes them."""

    data: Mapping[str, Any]
    todo: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ProvedRun(DistributedRun):
    """proof: lines about what stays in service, or why the run would be refused."""

    proof: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunPlan(ProvedRun):
    """The plan of a run. text: what the operator reads."""

    text: str

    def to_json(self) -> dict[str, Any]:
        """Return what playbooks register."""
        return {
            "plan": self.data,
            # What was not observed is not acted on.
            "todo": [] if self.options["offline"] else self.todo,
            "rollout": self.rollout.to_json() if self.rollout else None,
            "kinds": list(self.options["kinds"]),
            "measures": self.options["operation"] in MEASUREMENTS or bool(self.new and self.new.measured),
            "partial": list(self.reported.partial),
            "ignored": self.plan.ignored,
            "hold": hold_seconds(self.options, self.data),
            "changes": self.reported.changes,
            "text": self.text,
        }


def take_down_former_balancers(state: PlannedRun) -> PlannedRun:
    """Add load balancers on hosts that are not in their group any more."""
    states = {name: given.state for name, given in state.hosts.items()}
    former = former_balancers(states, state.groups.get(BALANCERS, ()))
    former = with_removal(former, state.resources.balancers, state.options["remove_load_balancer"])
    return replace(state, plan=replace(state.plan, former=former))


def keep_fetch_window(state: PlannedRun) -> PlannedRun:
    """Add a warning where hosts would fetch outside of their hours; raise FleetError in a run that does."""
    if state.options["again"] is not None or state.options["offline"]:
        return state
    late = outside_window(state.plan, state.latest)
    if late and state.applies:
        raise FleetError(late)
    return with_warnings(state, tuple(problem.text() for problem in late))


def warn_of_other_runs(state: PlannedRun) -> PlannedRun:
    """Add a warning for each other run, in the first plan of a run."""
    return with_warnings(state, state.others.warnings) if state.options["again"] is None else state


def report_hosts(state: PlannedRun) -> ReportedRun:
    """Add the hosts that are reported: in a second plan, only those that were planned again."""
    again = state.options["again"]
    reported = state.plan if again is None else restrict_to(state.plan, again)
    return extend(ReportedRun, state, reported=reported)


def batch_changes(state: ReportedRun) -> BatchedRun:
    """Add the batches in which serving instances change; raise FleetError where too few would stay in service."""
    rollout = requested_rollout(state.options, state.plan, state.resources.endpoint, state.elsewhere)
    return extend(BatchedRun, state, rollout=rollout)


def choose_measured(state: BatchedRun) -> MeasuringRun:
    """Add the instances that the run measures, in addition to those of its batches."""
    new = requested_measurement(state.options, state.plan, state.rollout, state.resources.endpoint)
    return extend(MeasuringRun, state, new=new, live=requested_live(state.options, state.plan))


def distribute_steps(state: MeasuringRun) -> DistributedRun:
    """Add plan.json, and each host's part of it as playbooks take it."""
    data, rollout = state.plan.to_json(), state.rollout
    if rollout:
        data["rollout"] = rollout.to_json()
    if state.live:
        return extend(DistributedRun, state, data=data, todo=live_todo(data, state.live))
    leased = state.others.hosts if state.changes else None
    todo = todo_hosts(state.reported, state.plan.balancers, data, rollout, leased, state.new)
    return extend(DistributedRun, state, data=data, todo=todo)


def prove(state: DistributedRun) -> ProvedRun:
    """Add what a simulation of the steps shows; raise FleetError where a rule would be broken."""
    options = state.options
    lines, problems = proof_and_refusals(
        options, state.plan, state.todo, state.rollout, state.resources.endpoint
    )
    if problems and (options["apply"] or options["operation"]):
        raise FleetError(problems)
    refusals = (f"site.yml and deploy.yml refuse this: {problem.text()}" for problem in problems)
    return extend(ProvedRun, state, proof=(*lines, *refusals))


def explain_run(state: ProvedRun) -> RunPlan:
    """Add the text: what is done, why, in which batches, and what stays in service."""
    lines = explain_request(
        state.options, state.plan, state.data, state.rollout, state.resources.endpoint, state.elsewhere
    )
    text = "\n".join([explain(state.reported, state.options["explain"]), *lines, *state.proof])
    return extend(RunPlan, state, text=text)


def with_warnings(state: PlannedRun, warnings: tuple[str, ...]) -> PlannedRun:
    """Return the run with further warnings in its plan."""
    return replace(state, plan=replace(state.plan, warnings=(*state.plan.warnings, *warnings)))
