# SPDX-License-Identifier: Apache-2.0
"""Prove a run before it begins: simulate its steps, and say what stays in service and which clients must change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....module_utils.common.errors import Problem
from ....module_utils.service.generations import DEPLOY
from ..endpoint.plan import EndpointInputs
from ..explanation.text import titled_paragraph
from ..plan.host_plan import FleetPlan
from ..rollout.policy import DEFAULT_SERIAL, parse_policy, parse_serial
from ..rollout.stopping import partitioned_hosts
from .leaving import leaving_problems
from .request import Options, planned_deploy, rollout_variables
from .todo import todo_hosts

if TYPE_CHECKING:
    from ..rollout.plan import RolloutPlan

Todo = Sequence[Mapping[str, Any]]


def proof_and_refusals(
    options: Options,
    plan: FleetPlan,
    todo: Todo,
    rollout: RolloutPlan | None,
    endpoint: EndpointInputs | None,
) -> tuple[list[str], tuple[Problem, ...]]:
    """Return the lines of the plan, and why the run is refused; a run that only plans is proved as if it deployed.

    Nothing can be said without the states of hosts, and of steps only once the software of all images is known.
    """
    if options["offline"] or options["live"] or options["reboots"] or options["stops"]:
        return [], ()
    if not (plan.changes or rollout):
        return [], ()
    # Imported here, as most runs change nothing, and every run would wait for these imports.
    from ..simulation.clients import client_changes
    from ..simulation.plays import PARTITION, PLAYS
    from ..simulation.simulate import RunLimits, simulate
    from ..simulation.text import problems, proof_lines

    operation = options["operation"]
    policy, _unused = parse_policy(rollout_variables(options))
    forgets = "balancers_after" in PLAYS[operation or DEPLOY] and not options["at_once"]
    leaving = leaving_problems(plan, policy.min_available) if forgets else ()
    if plan.partial:
        return [], leaving
    if operation is None and options["apply"]:
        operation = PARTITION if partitioned_hosts(plan) else None
    elif operation is None:
        deploy = planned_deploy(options, plan, endpoint)
        if deploy is None:
            return [], leaving
        operation, todo = DEPLOY, todo_hosts(plan, plan.balancers, plan.to_json(), deploy)
    if operation is None:
        return [], leaving
    serial, _unused = parse_serial(options["partition_serial"], "gpu_partition_serial")
    allowed = RunLimits(policy.min_available, bool(options["at_once"]), serial or DEFAULT_SERIAL)
    found = simulate(plan, todo, operation, allowed)
    lines = [line for text in proof_lines(found) for line in titled_paragraph("proved", text)]
    lines += [line for text in client_changes(plan) for line in titled_paragraph("clients", text)]
    return ["", *lines] if lines else [], (*problems(found, plan), *leaving)
