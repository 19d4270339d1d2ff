# SPDX-License-Identifier: Apache-2.0
"""Format deployments that run a stored generation, and what is kept for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ...base.text import join_names, plural, wrap
from ..generations.restore import rollback_resources
from ..generations.sources import INVENTORY, RUNNING
from ..instances.planned import RecordedInstance
from ..plan.host_plan import FleetPlan
from .text import WIDTH, titled_paragraph

MEANING = {
    "held": "held",
    "rollback": "rollback requested",
}


def stored_lines(plan: FleetPlan, full: bool) -> list[str]:
    """Return a block for each deployment from the nodes' stores; `full` includes those without an action."""
    started = {name.rpartition("-")[0] for host in plan.hosts for name in host.start}
    lines: list[str] = []
    for revision in plan.revisions:
        kind = revision.source.kind
        if kind in (INVENTORY, RUNNING) or not (full or revision.deployment in started):
            continue
        found: dict[RecordedInstance, list[str]] = {}
        for host in plan.hosts:
            mine = [item for item in host.instances if item.deployment_name == revision.deployment]
            first = next((item for item in mine if isinstance(item, RecordedInstance)), None)
            if first:
                found.setdefault(first, []).append(host.host.name)
        where = (
            join_names(list(dict.fromkeys(name for names in found.values() for name in names))) or "no host"
        )
        number = "as it runs" if revision.generation is None else f"generation {revision.generation}"
        lines += ["", f"Deployment {revision.deployment} on {where}: {number}, from the nodes' own records"]
        lines += titled_paragraph("because", f"{MEANING[kind]}{f' ({revision.why})' if revision.why else ''}")
        made = (item.generation for item in found)
        shown = dict.fromkeys((item.recorded_at, item.image_ref, item.vllm, item.why) for item in made)
        for when, image, vllm, why in shown:
            lines += titled_paragraph("record", f"{when}: image {image}, vLLM {vllm}; {why}")
    return lines


def updated_lines(plan: FleetPlan) -> list[str]:
    """Return what restarts because of an update of the toolkit, not of the inventory; a line for each update."""
    counts, names = Counter[str](), dict[str, dict[str, None]]()
    for revision in plan.revisions:
        for host in plan.hosts:
            step = revision.hosts.get(host.host.name)
            mine = {item.name for item in host.instances if item.deployment_name == revision.deployment}
            count = len(mine.intersection(host.start))
            if step and step.toolkit and count:
                counts[step.toolkit.text] += count
                names.setdefault(step.toolkit.text, {}).update(dict.fromkeys(step.toolkit.names))
    lines: list[str] = []
    for text, count in counts.items():
        what = ", ".join(names[text]) or "files of the containers"
        lines += wrap(f"{text} changes {plural(count, 'instance')}: {what}", WIDTH, "", "  ")
    return ["", *lines] if lines else []


def kept_lines(plan: FleetPlan) -> list[str]:
    """Return the images and weights that only kept generations need."""
    hosts: dict[str, list[str]] = {}
    for host in plan.hosts:
        for item in rollback_resources(host.host, host.instances):
            text = f"{item['kind']} {item['name']}: {_numbers(item['generations'])}"
            hosts.setdefault(text, []).append(host.host.name)
    if not hosts:
        return []
    lines = ["", "Kept for a rollback only (without them these generations cannot be restored)"]
    return [*lines, *(f"  {join_names(names)}: {text}" for text, names in hosts.items())]


def _numbers(users: Sequence[str]) -> str:
    """Return generations grouped by deployment: ["llama 2", "llama 3"] → "generations 2, 3 of llama"."""
    found: dict[str, list[str]] = {}
    for user in users:
        name, _unused, number = user.rpartition(" ")
        found.setdefault(name, []).append(number)
    return "; ".join(_of(name, numbers) for name, numbers in found.items())


def _of(name: str, numbers: Iterable[str]) -> str:
    some = list(numbers)
    return f"generation{'s' if len(some) > 1 else ''} {', '.join(some)} of {name}"
