# SPDX-License-Identifier: Apache-2.0
"""What a simulated run showed, as problems and as lines of a plan. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ....module_utils.common.errors import Problem
from ....module_utils.service.minimum import WORD
from ...base.text import join_names
from ..endpoint.servers import Instance
from ..plan.host_plan import FleetPlan
from .rules import CAPACITY, IN_USE, TAKEN, Violation
from .simulate import Simulation

SHOWN = 4
"""Violations that are reported; the others follow from them in most cases."""
FAULT = (
    "Nothing was changed. Make the edits of the inventory one at a time, each with a run of its own, and report this "
    "plan: its steps should be in another order."
)


def problems(found: Simulation, plan: FleetPlan) -> tuple[Problem, ...]:
    """Return why a run is refused: the step, what it would break, the edit that causes it, and the way out."""
    reasons = _reasons(plan)
    return tuple(_problem(item, reasons) for item in dict.fromkeys(found.violations[:SHOWN]))


def _problem(item: Violation, reasons: Mapping[Instance, str]) -> Problem:
    edits = dict.fromkeys(reasons[one] for one in item.changing if one in reasons)
    because = f" The change: {'; '.join(edits)}." if edits else ""
    fix = FAULT
    if item.rule == TAKEN:
        fix = (
            "This run does not stop what uses it, such as an engine whose other hosts do not answer. Bring these back "
            "first, or leave the edit out until then."
        )
    if item.rule in (CAPACITY, IN_USE):
        fix = f"Make the edits one at a time, or accept that clients get 503 in the meantime: {WORD}."
    return Problem((), f"{item.step}: {item.what}.{because}", fix, item.hosts)


def _reasons(plan: FleetPlan) -> dict[Instance, str]:
    """Return why each instance changes."""
    return {
        (host.host.name, action.target): f"{action.target}: {action.reason}"
        for host in plan.hosts
        for action in host.actions
        if action.kind in ("server", "remove_server", "stop_server")
    }


def proof_lines(found: Simulation) -> list[str]:
    """Return what stays in service throughout, for each service; what nothing touches is not named."""
    lines: dict[str, list[str]] = {}
    for (balancer, _unused), item in found.required.items():
        least = found.least[balancer, _unused]
        if least == item.first == item.last == item.total:
            continue
        now = "" if item.first == item.total else f" ({item.first} serve now)"
        text = f"{' and '.join(item.deployments)}: never fewer than {least} of {item.total} in service{now}"
        if least == item.first:
            text = f"{' and '.join(item.deployments)}: all {item.first} that serve stay in service"
        lines.setdefault(text, []).append(balancer)
    everyone = {balancer for balancer, _unused in found.required}
    return [_at(text, balancers, everyone) for text, balancers in lines.items()]


def _at(text: str, balancers: Iterable[str], everyone: set[str]) -> str:
    names = list(dict.fromkeys(balancers))
    return text if set(names) == everyone else f"{text} at load balancer {join_names(names)}"
