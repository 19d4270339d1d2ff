# SPDX-License-Identifier: Apache-2.0
"""What a run of a playbook asks for, from the options of fleet_plan: checked, as batches, and as text. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ....module_utils.benchmarks.bench_results import KINDS as KINDS_OF_BENCHMARK
from ....module_utils.common.errors import FleetError, Problem
from ....module_utils.service.generations import (
    DEPLOY,
    MEASUREMENTS,
    OPERATIONS,
    RESTART,
    ROLLBACK,
    STOP,
    UPGRADE,
    OperationRequest,
)
from ...base.text import plural
from ..endpoint.foreign_secrets import KINDS
from ..endpoint.plan import EndpointInputs
from ..inventory.public_variables import public_variables
from ..plan.host_plan import FleetPlan
from ..rollout.canary_tolerances import CanaryTolerances
from ..rollout.measurement import NewInstances, explain_new, new_instances
from ..rollout.policy import DEFAULT_SERIAL, parse_policy, parse_serial
from ..rollout.stopping import HostStops, partitioned_hosts
from .live import LiveTarget, explain_live, live_targets, parse_rate

if TYPE_CHECKING:
    from ..rollout.plan import RolloutPlan

Options = Mapping[str, Any]

MEASURED = 3600
"""Seconds that a canary's measurements, a change of partition modes or a reboot may take."""
CANARY_SETTINGS = (
    "canary_tolerance", "canary_latency_tolerance", "canary_runs", "canary_max_runs", "canary_accuracy_tolerance",
)  # fmt: skip
VARIABLES = {
    **{name: name for name in ("offline", "explain", "refresh", "plan_file", "at_once", "take_over")},
    "remove_load_balancer": "remove_load_balancer",
    **{name: name for name in ("deployment", "instance", "generation", "reason", "retry", "canary")},
    "serial": "rollout_serial",
    "min_available": "rollout_min_available",
    "soak": "rollout_soak",
    "drain_timeout": "load_balancer_drain_timeout",
    "measure_timeout": "benchmark_timeout",
    "live": "live",
    "rate": "rate",
}
"""Options that receive a variable of the operator, which defines their type and default."""
OPTIONS: dict[str, dict[str, Any]] = {
    "hosts": {"type": "list", "elements": "str"},
    "again": {"type": "list", "elements": "str"},
    "check_pushes": {"type": "bool", "default": False},
    "lock_file": {"type": "path"},
    "apply": {"type": "bool", "default": False},
    "operation": {"type": "str", "choices": list(OPERATIONS)},
    "canary_terms": {
        "type": "dict",
        "default": {},
        "options": {name: public_variables()[name].option for name in CANARY_SETTINGS},
    },
    **{option: public_variables()[name].option for option, name in VARIABLES.items()},
    "new_secrets": {"type": "list", "elements": "str", "choices": list(KINDS), "default": []},
    "partition_serial": public_variables()["gpu_partition_serial"].option,
    "only": {"type": "list", "elements": "str"},
    "reboots": {"type": "list", "elements": "str", "default": []},
    "stops": {"type": "list", "elements": "str", "default": []},
    "reboot_serial": public_variables()["host_prep_serial"].option,
    "measure": {"type": "bool", "default": False},
    "kinds": {"type": "list", "elements": "str", "choices": list(KINDS_OF_BENCHMARK), "default": []},
}


def parse_request(options: Options) -> OperationRequest:
    """Return what the run is about."""
    deployment = options["deployment"]
    return OperationRequest(
        operation=options["operation"] or DEPLOY,
        deployments=frozenset([deployment]) if deployment else None,
        generation=options["generation"],
        retry=options["retry"],
        reason=options["reason"] or "",
    )


def canary_rules(options: Options) -> CanaryTolerances:
    """Return the operator's rules for canaries."""
    given = options.get("canary_terms") or {}
    return CanaryTolerances(*(given.get(name, public_variables()[name].default) for name in CANARY_SETTINGS))


def check_request(options: Options) -> tuple[Problem, ...]:
    """Return what makes no sense in a request."""
    _unused, problems = parse_policy(rollout_variables(options))
    found = list(problems)
    operation = options.get("operation")
    if options.get("instance") and operation in (UPGRADE, ROLLBACK):
        what = f"{UPGRADE}.yml and {ROLLBACK}.yml work on whole deployments, not on single instances."
        found.append(Problem(("instance",), what, "Leave it out; rollout_serial=1 changes one at a time."))
    if options.get("generation") is not None and operation in (UPGRADE, RESTART, STOP, *MEASUREMENTS):
        what = "only rollback.yml can choose a generation."
        found.append(Problem(("generation",), what, "Leave it out, or run rollback.yml."))
    if options.get("offline") and operation in (UPGRADE, ROLLBACK, RESTART, STOP, *MEASUREMENTS):
        what = f"{operation}.yml needs the current state of the hosts, so it cannot run offline."
        found.append(Problem(("offline",), what, "Leave it out and add --check; plan.yml plans offline."))
    elif options.get("offline") and options.get("apply"):
        what = "an offline plan cannot be applied: what the hosts have is unknown."
        found.append(Problem(("offline",), what, "Leave it out, or run plan.yml, which plans offline."))
    found += parse_rate(bool(options.get("live")), options.get("rate"))[1]
    if options.get("remove_load_balancer") and operation in (STOP, *MEASUREMENTS):
        what = f"{operation}.yml changes no load balancer."
        found.append(Problem(("remove_load_balancer",), what, "Leave it out here, and run site.yml with it."))
    if options.get("live") and operation not in MEASUREMENTS:
        found.append(Problem(("live",), "is an option of benchmark.yml.", "Leave it out."))
    if options.get("live") and offline_kinds(options):
        what = "the offline benchmarks send no requests, so they cannot be measured through a load balancer."
        fix = "Leave out live=true, or the tags latency and throughput and a suite of those."
        found.append(Problem(("live",), what, fix))
    return (*found, *_wrong_canary(options))


def _wrong_canary(options: Options) -> Iterable[Problem]:
    for name, what in canary_rules(options).wrong():
        yield Problem((name,), what, "See docs/canary.md.")


def offline_kinds(options: Options) -> list[str]:
    """Return the benchmarks of a run that load models themselves, so that instances stop for them."""
    return [kind for kind in options.get("kinds") or () if kind != "serve"]


def requested_live(options: Options, plan: FleetPlan) -> tuple[LiveTarget, ...]:
    """Return what is measured through a load balancer, () for other runs. Raise FleetError if nothing can be."""
    if not options["live"] or plan.partial:
        return ()
    found, problems = live_targets(plan, options["deployment"])
    if problems:
        raise FleetError(problems)
    return found


def requested_rollout(
    options: Options, plan: FleetPlan, endpoint: EndpointInputs | None, others: Collection[str] = ()
) -> RolloutPlan | None:
    """Return the batches of a run that changes instances a few at a time; None for other runs. Raise FleetError.

    A run without an operation only shows what a deploy would do, or needs the plan for something else. others: the
    fleet's GPU hosts that are not in this run.
    """
    operation = options["operation"]
    if options["apply"] or options["reboots"] or options["stops"]:
        stops = _refused_stops(options, plan, endpoint, others)
        if stops:
            raise FleetError(stops)
    if options["offline"] or plan.partial or operation is None or not plan.hosts or options["live"]:
        return None
    if operation == DEPLOY and not any(host.start or host.remove for host in plan.hosts):
        unfinished = any(
            item.trial for host in plan.hosts if host.host.state for item in host.host.state.generations
        )
        if not unfinished:
            return None
    planned, problems = _rollout(options, plan, endpoint, operation, _blind(plan, others))
    if problems:
        raise FleetError((*problems, *_ways_out(operation)))
    return planned if operation != DEPLOY or planned.hosts else None


def _ways_out(operation: str) -> tuple[Problem, ...]:
    """Return what an operator can do when a deploy is refused for the sake of what serves."""
    if operation != DEPLOY:
        return ()
    what = "instances that serve would be replaced; this run does that in batches, as upgrade.yml does."
    return (
        Problem((), what, "To replace them all at once, and lose the requests in progress: -e at_once=true."),
    )


def explain_request(
    options: Options,
    plan: FleetPlan,
    data: Mapping[str, Any],
    rollout: RolloutPlan | None,
    endpoint: EndpointInputs | None = None,
    others: Collection[str] = (),
) -> list[str]:
    """Return the lines about the batches; of a run that only plans, about those of a deploy."""
    found = [f"partition.yml, site.yml and deploy.yml refuse this: {problem.text()}"
             for problem in _refused_stops(options, plan, endpoint, others)]  # fmt: skip
    new = requested_measurement(options, plan, rollout, endpoint)
    live = requested_live(options, plan)
    return [
        *([""] if found else []),
        *found,
        *_explain_rollout(options, plan, data, rollout, endpoint),
        *(explain_new(new) if new else ()),
        *(explain_live(live, options["rate"]) if live else ()),
    ]


def requested_measurement(
    options: Options, plan: FleetPlan, rollout: RolloutPlan | None, endpoint: EndpointInputs | None = None
) -> NewInstances | None:
    """Return what a deploy measures of what it starts; None for a run that measures nothing by itself."""
    if not options["measure"] or options["offline"] or plan.partial:
        return None
    batched = (
        {f"{host}.{name}" for host in rollout.hosts for name in rollout.batched(host)} if rollout else ()
    )
    return new_instances(plan, _absent(endpoint), batched)


def planned_deploy(options: Options, plan: FleetPlan, endpoint: EndpointInputs | None) -> RolloutPlan | None:
    """Return the batches of a deploy, for a run that only plans; None if it would be refused."""
    planned, problems = _rollout(options, plan, endpoint, DEPLOY)
    return None if problems else planned


def _absent(endpoint: EndpointInputs | None) -> tuple[tuple[str, str], ...]:
    """Return the load balancers that this run cannot ask, and why."""
    return tuple((host.name, host.absent) for host in endpoint.hosts if host.absent) if endpoint else ()


def _explain_rollout(
    options: Options,
    plan: FleetPlan,
    data: Mapping[str, Any],
    rollout: RolloutPlan | None,
    endpoint: EndpointInputs | None,
) -> list[str]:
    if not rollout and (options["offline"] or plan.partial or not plan.changes):
        return []
    from ..rollout.deploy import count_replaced  # as below
    from .text import explain_rollout

    if rollout and rollout.batches:
        return explain_rollout(rollout, timeouts(options, data))
    count = count_replaced(plan)
    if not count or options["operation"] not in (None, DEPLOY):
        return []
    if options["at_once"]:
        return ["", f"{plural(count, 'instance')} that serve change at the same time (at_once)."]
    rollout, problems = _rollout(options, plan, endpoint, DEPLOY)
    refused = [f"site.yml and deploy.yml refuse this: {problem.text()}" for problem in problems]
    return ["", *refused] if refused else explain_rollout(rollout, timeouts(options, data))


def timeouts(options: Options, data: Mapping[str, Any]) -> dict[str, int]:
    """Return the seconds that a unit's requests, its stop and its start may take at most."""
    servers = [item["server"] for host in data["hosts"].values() for item in host["instances"]]
    longest = {
        key: max((int(server.get(f"{key}_timeout") or 0) for server in servers), default=0)
        for key in ("stop", "ready")
    }
    return {
        "drain": options["drain_timeout"],
        "stop": longest["stop"] or 120,
        "start": longest["ready"] or 1800,
    }


def hold_seconds(options: Options, data: Mapping[str, Any]) -> int:
    """Return how long a batch may take at most, while no call changes the load balancers that drain it."""
    measured = MEASURED
    if options["operation"] in MEASUREMENTS:
        measured = max(measured, len(KINDS_OF_BENCHMARK) * int(options["measure_timeout"]))
    return sum(timeouts(options, data).values()) + int(options["soak"] or 0) + measured


def _rollout(
    options: Options, plan: FleetPlan, endpoint: EndpointInputs | None, operation: str, blind: bool = False
) -> tuple[RolloutPlan, tuple[Problem, ...]]:
    # Here, as most runs plan no rollout, and every run would wait for these imports.
    from ..rollout.plan import plan_rollout_steps
    from ..rollout.policy import RolloutRequest

    wanted = RolloutRequest(
        operation=operation,
        values=rollout_variables(options),
        deployment=options["deployment"],
        instance=options["instance"],
        canary=options["canary"],
        absent=_absent(endpoint),
        at_once=options["at_once"],
        blind=blind,
        offline=bool(offline_kinds(options)),
        hosts=options.get("only"),
    )
    return plan_rollout_steps(plan, wanted)


def _refused_stops(
    options: Options, plan: FleetPlan, endpoint: EndpointInputs | None, others: Collection[str]
) -> tuple[Problem, ...]:
    """Return why hosts may not stop what they run, as they do for reboots, burn-ins and other partition modes."""
    if options["offline"] or options["at_once"] or options["operation"] not in (None, DEPLOY):
        return ()
    stops, problems = _host_stops(options, plan)
    # A load balancer that goes down is known, whatever else is not.
    blind = bool(plan.partial) or _blind(plan, others)
    if not stops.hosts:
        return ()
    from ..rollout.preconditions import refused_stops, undrained_hosts  # as below

    # Reboots and burn-ins ask the load balancers themselves, also those that --limit leaves out.
    changed = partitioned_hosts(plan) if not (options["reboots"] or options["stops"]) else ()
    undrained = undrained_hosts(plan, changed, _absent(endpoint))
    if blind and not stops.balancers:
        return undrained
    return (*problems, *undrained, *refused_stops(plan, rollout_variables(options), stops, blind))


def _host_stops(options: Options, plan: FleetPlan) -> tuple[HostStops, tuple[Problem, ...]]:
    """Return the hosts whose instances this run stops, and what is wrong with the number of them at a time."""
    if options["stops"]:  # all of them at the same time
        return HostStops(options["stops"], ("100%",)), ()
    hosts, balancers = tuple(options["reboots"]), frozenset[str]()
    name, given = "host_prep_serial", options["reboot_serial"]
    if hosts:
        running = {
            item.host.name for item in plan.balancers if item.host.observed and item.host.observed.running
        }
        balancers = frozenset(running if running & set(hosts) else ())
    else:
        hosts, name, given = partitioned_hosts(plan), "gpu_partition_serial", options["partition_serial"]
    serial, problems = parse_serial(given, name)
    return HostStops(hosts, serial or DEFAULT_SERIAL, name, balancers=balancers), problems


def _blind(plan: FleetPlan, others: Collection[str]) -> bool:
    """Return whether nothing is known of the fleet's other hosts, as no load balancer is in this run."""
    return bool(others) and not plan.balancers


def rollout_variables(options: Options) -> dict[str, Any]:
    """Return the variables of the operator that limit a rollout."""
    return {f"rollout_{key}": options[key] for key in ("serial", "min_available", "soak")}
