# SPDX-License-Identifier: Apache-2.0
"""Run a plan through the model of its fleet, and check after every step what must hold. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ....module_utils.service.generations import DEPLOY, UPGRADE
from ....module_utils.service.minimum import Count
from ..changes.actions import PARTITION_KINDS
from ..endpoint.backends import names_of
from ..endpoint.servers import BackendServer
from ..plan.host_plan import FleetPlan
from .before import first_model, templates
from .calls import SimulatedRun
from .model import Asked, FleetModel
from .plays import DEFAULT_PARTITION_SERIAL, Playbook, Todo
from .rules import CAPACITY, END, Requirement, Violation, requirements

Watch = Callable[[str, FleetModel], None]


@dataclass(frozen=True)
class RunLimits:
    """What an operator allows: the minimum in service, and that too few may serve."""

    min_available: Count | None = None
    at_once: bool = False
    partition_serial: Sequence[Count] = DEFAULT_PARTITION_SERIAL


@dataclass(frozen=True)
class Simulation:
    """What a simulated run showed.

    least: the fewest engines in service, by load balancer and model name that is asked before and after the run. gone,
    new: model names that load balancers are asked for before the run only, and afterwards only.
    """

    violations: tuple[Violation, ...]
    required: Mapping[Asked, Requirement] = field(default_factory=dict)
    least: Mapping[Asked, int] = field(default_factory=dict)


class _Checks:
    """The checks between two steps."""

    def __init__(
        self, context: SimulatedRun, required: Mapping[Asked, Requirement], watch: Watch | None
    ) -> None:
        self.context, self.required, self.watch = context, required, watch
        self.least = {asked: item.first for asked, item in required.items()}
        self.reported: set[Asked] = set()

    def __call__(self) -> None:
        model = self.context.model
        for asked in sorted(model.changed & self.required.keys()):
            count, item = model.counts.get(asked, 0), self.required[asked]
            self.least[asked] = min(self.least[asked], count)
            if count < item.least and asked not in self.reported and not self.context.at_once:
                self.reported.add(asked)
                self._short(asked, count, item)
        model.changed.clear()
        if self.watch:
            self.watch(self.context.step, model)

    def _short(self, asked: Asked, count: int, item: Requirement) -> None:
        balancer, name = asked
        what = (
            f"load balancer {balancer} would have {count} of {item.total} engines of {' and '.join(item.deployments)} "
            f"({name}) in service, and {item.least} must stay"
        )
        self.context.violate(CAPACITY, what)


def _check_end(
    context: SimulatedRun, plan: FleetPlan, afterwards: Mapping[str, Sequence[BackendServer]]
) -> None:
    """Check that the run ends as it should."""
    model = context.model
    for host in plan.hosts:
        name = host.host.name
        wanted = {item.name: item.spec_hash for item in host.instances if item.name not in host.untouched}
        there = {item.name: item.spec for item in model.on(name) if item.name not in host.untouched}
        if host.host.state and wanted != there:
            names = sorted({*wanted, *there} - {one for one in wanted if wanted[one] == there.get(one)})
            context.violate(END, f"{', '.join(names)} would not be as the inventory defines them", name)
    for former in plan.former:
        if former.phase and model.balancers[former.host].exists:
            context.violate(END, "its load balancer would not be taken down", former.host)
    for balancer, servers in afterwards.items():
        found = model.balancers[balancer]
        if {server.place for server in found.servers.values()} != {server.place for server in servers}:
            context.violate(END, f"load balancer {balancer} would not have the instances of the inventory")
        left = sorted(name for name in found.drained if found.servers[name].of not in found.by_operator)
        if left:
            context.violate(END, f"load balancer {balancer} would be left with {', '.join(left)} drained")


def simulate(
    plan: FleetPlan, todo: Todo, operation: str, terms: RunLimits = RunLimits(), watch: Watch | None = None
) -> Simulation:
    """Run the plays of an operation through the model of a fleet, and return what that showed.

    watch: called after every step, with what the run does then.
    """
    known = templates(plan)
    model = first_model(plan, known)
    afterwards = {item.host.name: tuple(names_of(item.backends).values()) for item in plan.balancers}
    lost = {name for name, _unused in (*plan.unreachable, *plan.excluded)}
    able = {
        name: [server for server in servers if server.host not in lost]
        for name, servers in afterwards.items()
    }
    required = requirements(model, able, terms.min_available, lost)
    context = SimulatedRun(
        model,
        known,
        {
            host.host.name: {step.pull or step.ref for step in host.images}
            for host in plan.hosts
            if host.images
        },
        {
            (host.host.name, item.name, item.spec_hash): str(item.server.get("image") or "")
            for host in plan.hosts
            if host.images
            for item in host.instances
        },
        {host.host.name for host in plan.hosts if any(a.kind in PARTITION_KINDS for a in host.actions)},
        terms.at_once,
        [],
    )
    checks = _Checks(context, required, watch)
    if watch:
        watch("before the run", model)
    Playbook(context, todo, plan.balancers, checks, terms.partition_serial).run(operation)
    if operation in (DEPLOY, UPGRADE):
        _check_end(context, plan, afterwards)
    return Simulation(tuple(context.found), required, checks.least)
