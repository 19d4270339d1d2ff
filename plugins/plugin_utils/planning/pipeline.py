# SPDX-License-Identifier: Apache-2.0
"""The plan of a run, pass by pass: from what the operator said and what was observed to what playbooks carry out. Pure.

Two things are read between the passes: what a checked run needs of registries, hubs and vaults (Resources), and whether
hosts may fetch what they need.
"""

from __future__ import annotations

from collections.abc import Collection

from ..base.passes import extend, run_passes
from .endpoint.plan import EndpointInputs
from .instances.factory import InstanceFactory
from .plan import passes as fleet
from .plan.check import CheckedFleet, check_fleet
from .plan.host_plan import FleetPlan
from .rollout_run import passes as run
from .rollout_run.inputs import CheckedRun, Resources, RunInputs

CHECKS = (
    run.refuse_other_runs,
    run.read_fleet,
    run.refuse_request,
    run.place_instances,
)
"""From RunInputs to CheckedRun: the inventory and the request make sense."""
DRAFT = (
    fleet.review_held_deployments,
    fleet.draft_hosts,
    fleet.judge_terms,
    fleet.refuse_problems,
    fleet.sift_hosts,
)
"""From FleetInputs to SiftedFleet: what each host would do, and which hosts cannot."""
PLAN = (
    fleet.number_generations,
    fleet.share_content,
    fleet.finish_hosts,
    fleet.connect_balancers,
    fleet.limit_downloads,
    fleet.assemble_plan,
)
"""From a SiftedFleet without such hosts to the FleetPlan: what the fleet does together."""
LIMITS = (
    run.take_down_former_balancers,
    run.keep_fetch_window,
    run.warn_of_other_runs,
)
"""From PlannedRun to PlannedRun, before the check whether hosts may fetch."""
RUN = (
    run.report_hosts,
    run.batch_changes,
    run.choose_measured,
    run.distribute_steps,
    run.prove,
    run.explain_run,
)
"""From PlannedRun to RunPlan: what this run does of the plan, and in which order."""


def check_run(inputs: RunInputs) -> CheckedRun:
    """Return the run, checked as far as that is possible without registries and hubs. Raise FleetError."""
    checked: CheckedRun = run_passes(CHECKS, inputs)
    return checked


def plan_fleet(
    checked: CheckedFleet,
    factory: InstanceFactory,
    endpoint: EndpointInputs | None = None,
    again: Collection[str] | None = None,
) -> FleetPlan:
    """Plan every host. again: see FleetInputs.

    What the lock does not pin is planned as written (the tag, the revision): that is for plans made without network;
    what is applied is resolved first. Hosts that cannot carry out their part are excluded, and the others planned
    without them. Raise FleetError with the problems of all hosts.
    """
    factory.use_starts(checked.fleet.hosts)
    while True:
        inputs = fleet.FleetInputs(checked=checked, factory=factory, endpoint=endpoint, again=again)
        draft: fleet.SiftedFleet = run_passes(DRAFT, inputs)
        if not draft.unable:
            break
        checked = check_fleet(draft.checked.fleet.without(draft.unable), checked.request, checked.now)
    plan: FleetPlan = run_passes(PLAN, draft)
    return plan


def plan_run(checked: CheckedRun, resources: Resources) -> run.PlannedRun:
    """Return the run with the plan of its fleet. Raise FleetError."""
    plan = plan_fleet(checked.checked, resources.factory, resources.endpoint, checked.options["again"])
    planned = extend(run.PlannedRun, checked, resources=resources, plan=plan)
    limited: run.PlannedRun = run_passes(LIMITS, planned)
    return limited


def finish_run(planned: run.PlannedRun, warnings: tuple[str, ...] = ()) -> run.RunPlan:
    """Return the plan of the run, with further warnings. Raise FleetError where it would break a rule."""
    finished: run.RunPlan = run_passes(RUN, run.with_warnings(planned, warnings))
    return finished
