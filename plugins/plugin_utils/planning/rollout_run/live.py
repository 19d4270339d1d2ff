# SPDX-License-Identifier: Apache-2.0
"""A measurement through the load balancer, next to requests of users: where its client runs, what it asks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ....module_utils.common.errors import Problem
from ..endpoint.backends import deployments_of, names_of
from ..endpoint.servers import BackendServer
from ..explanation.text import titled_paragraph
from ..instances.planned import Serving
from ..plan.host_plan import FleetPlan


@dataclass(frozen=True)
class LiveTarget:
    """A model name that is measured at its endpoint, and the instance whose image and tokenizer the client uses.

    deployments: those that answer.
    """

    model: str
    deployments: tuple[str, ...]
    host: str
    instance: str
    balancer: str
    url: str

    def endpoint(self) -> dict[str, str]:
        """Return the endpoint, for the target of vllm_bench; its rows name every deployment that answers."""
        found = {"balancer": self.balancer, "url": self.url}
        return {**found, "deployments": ":".join(self.deployments)} if len(self.deployments) > 1 else found


def parse_rate(live: bool, given: object) -> tuple[float, tuple[Problem, ...]]:
    """Return the requests per second of a live measurement, and what is wrong with them; 0 for other measurements.

    There is no default: only the operator knows how much load a fleet can bear in addition to its users' requests.
    """
    if not live:
        if given is None:
            return 0.0, ()
        what = "is the load of a measurement through the load balancer, which this run does not make."
        return 0.0, (Problem(("rate",), what, "Add -e live=true, or leave it out."),)
    if given is None:
        what = "is required with live: the requests per second that are sent in addition to those of users."
        return 0.0, (Problem(("rate",), what, "Begin with a small one: -e rate=1."),)
    try:
        rate = float(str(given))
    except ValueError:
        rate = 0.0
    if 0 < rate < float("inf"):
        return rate, ()
    return 0.0, (
        Problem(("rate",), f"{given!r} is not a number of requests per second.", "Use for example 2 or 0.5."),
    )


def live_targets(
    plan: FleetPlan, deployment: str | None = None
) -> tuple[tuple[LiveTarget, ...], tuple[Problem, ...]]:
    """Return one target for each model name behind a load balancer, and the problem where there is none.

    Of several names of a deployment, the first one is asked; deployments that share it are measured together. The
    client runs next to the first instance that is ready; the load balancer decides where its requests go.
    """
    running = [item for item in plan.balancers if item.host.observed and item.host.observed.running]
    if not running:
        what = "this run includes no load balancer, so nothing can be measured through one."
        return (), (
            Problem(("live",), what, "Without live=true, benchmark.yml measures the instances themselves."),
        )
    balancer = running[0]
    behind: dict[str, list[BackendServer]] = {}
    for server in names_of(balancer.backends).values():
        for model in server.models:
            behind.setdefault(model, []).append(server)
    found: dict[str, LiveTarget] = {}
    for host, item in _ready(plan):
        model = next(iter(item.backend.models), "")
        if deployment in (None, item.deployment_name) and model in behind:
            names = deployments_of(behind[model])
            target = LiveTarget(model, names, host, item.name, balancer.host.name, balancer.url)
            found.setdefault(model, target)
    if not found:
        meant = f"of {deployment} " if deployment else ""
        what = f"no instance {meant}behind load balancer {balancer.host.name} is ready."
        return (), (Problem(("live",), what, "status.yml shows what serves."),)
    return tuple(found[model] for model in sorted(found)), ()


def _ready(plan: FleetPlan) -> Iterable[tuple[str, Serving]]:
    """Yield the instances behind load balancers, with their hosts, that run as planned and are ready."""
    for host in plan.hosts:
        state = host.host.state
        ready = (
            {item.name for item in state.instances if item.state == "running" and item.ready}
            if state
            else set()
        )
        for item in host.instances:
            if item.name in ready and item.backend.endpoint and not item.member.headless:
                yield host.host.name, item


def live_todo(data: Mapping[str, Any], targets: Iterable[LiveTarget]) -> list[dict[str, Any]]:
    """Return the hosts of the clients for add_host, each with the instances of the plan (`data`) that it uses."""
    found: dict[str, list[dict[str, Any]]] = {}
    for target in targets:
        for item in data["hosts"][target.host]["instances"]:
            if item["name"] == target.instance:
                found.setdefault(target.host, []).append({**item, "endpoint": target.endpoint()})
    return [
        {"name": name, "groups": ["todo_benchmark"], "plan": {"measure": items}}
        for name, items in found.items()
    ]


def _measured(target: LiveTarget) -> str:
    """Return what is measured: a deployment, or a name that several of them serve."""
    if len(target.deployments) == 1:
        return target.deployments[0]
    return f"{target.model} ({' and '.join(target.deployments)} together)"


def explain_live(targets: Iterable[LiveTarget], rate: float) -> list[str]:
    """Return the lines of the plan."""
    lines = []
    for item in targets:
        text = (
            f"{_measured(item)} through load balancer {item.balancer} ({item.url}), at {rate:g} requests per second "
            f"in addition to those of users, by a client on {item.host}; nothing is drained"
        )
        lines += titled_paragraph("measures", text)
    return ["", *lines]
