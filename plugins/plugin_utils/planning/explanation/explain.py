# SPDX-License-Identifier: Apache-2.0
"""Format a plan as text. Hosts with equal plans appear once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ...base.text import join_names, plural, wrap
from ..desired.actions import Action
from ..endpoint.backends import Backend, Subset, deployments_of
from ..endpoint.balancer_plan import BalancerPlan
from ..fetching.transfers import transfer_lines
from ..plan.host_plan import FleetPlan, HostPlan
from .explain_deployments import group_deployments, shared_warnings
from .explain_downloads import download_lines
from .explain_generations import kept_lines, stored_lines, updated_lines
from .text import WIDTH, gpus_text, noun_with_numbers, titled_paragraph

TITLES = {
    "docker_engine": "install the Docker engine",
    "build_tools": "install for building images:",
    "numa_balancing": "automatic NUMA balancing",
    "compute_partition": "compute partition",
    "memory_partition": "memory partition",
    "partition_change": "change of partition modes",
    "gpu_clean": "clean",
    "instance_key": "key",
    "stop_server": "stop",
    "transfer": "share",
    "image": "image",
    "push": "push",
    "model": "download",
    "verify_model": "verify",
    "generation": "record",
    "hold": "hold",
    "remove_server": "remove",
    "server": "serve",
    "restart_policy": "restart policy",
    "haproxy": "install",
    "keepalived": "install",
    "drain": "drain",
    "balancer": "configure",
    "undrain": "return to service",
    "remove_balancer": "take down the load balancer of",
}


def explain(plan: FleetPlan, full: bool = False) -> str:
    """Return the plan's text: each host's changes with reasons; `full` adds every rendered setting with its source."""
    busy = [host for host in plan.hosts if host.actions]
    lines = [line for text in plan.ignored for line in wrap(text, WIDTH, "Held: ", "      ")]
    lines += [*([""] if lines else []), _summary(plan, len(busy))]
    for names, host in _alike(busy):
        lines += ["", f"{names}: {_gpus(host)}", *_actions(host)]
    lines += download_lines(plan.downloads, full)
    for balancer in plan.balancers:
        lines += _balancer(balancer, full)
    lines += _not_managed(plan)
    lines += updated_lines(plan)
    groups = group_deployments(plan.hosts, full)
    once = shared_warnings(groups)
    lines += transfer_lines(plan.transfers)
    for item in groups:
        lines += ["", *item.lines(full, once)]
    lines += stored_lines(plan, full)
    if full:
        lines += [*_sources(plan), *kept_lines(plan)]
    if plan.partial:
        lines += ["", *_partial(plan.partial)]
    lines += _assumed(plan)
    warnings = [(warning, host.host.name) for host in plan.hosts for warning in host.warnings]
    warnings += [(warning, item.host.name) for item in plan.balancers for warning in item.warnings]
    notes = [*plan.warnings, *(f"{join_names(hosts)}: {text}" for text, hosts in _by_text(warnings))]
    notes += [f"deployments {', '.join(names)}: {text}" for text, names in once.items()]
    if notes:
        lines += ["", "Warnings", *(f"  {note}" for note in notes)]
    absent = {**dict(plan.unreachable), **dict(plan.excluded)}
    if absent:
        lines += ["", "Excluded hosts"]
        lines += [
            f"  {join_names(hosts)}: {text}"
            for text, hosts in _by_text((absent[name], name) for name in absent)
        ]
    return "\n".join(lines)


def _summary(plan: FleetPlan, busy: int) -> str:
    hosts = plural(len(plan.hosts), "host")
    head = f"Plan: {hosts},"
    if plan.hosts and not any(host.host.state for host in plan.hosts):
        head = f"Offline plan for {hosts} (not contacted; assumed empty; device names predicted):"
    running = sum(len(host.instances) for host in plan.hosts)
    count = sum(len(host.actions) for host in plan.hosts)
    extra = [f"{plural(len(item.actions), 'action')} on load balancer {item.host.name}"
             for item in plan.balancers if item.actions]  # fmt: skip
    extra += [f"load balancer {item.host} is taken down" for item in plan.former if item.actions]
    rest = f"{plural(running, 'instance')} up to date"
    if not busy:
        return f"{head} nothing to do{' there' if extra else ''}; {'; '.join([rest, *extra])}."
    work = f"{plural(count, 'action')} on {busy} of them"
    return f"{head} {'; '.join([work, *extra])}."


def _assumed(plan: FleetPlan) -> list[str]:
    """Return what is assumed of hosts that were not contacted; all hosts are named only where they differ."""
    facts = _by_text((item.fact, host.host.name) for host in plan.hosts for item in host.assumed)
    if not facts:
        return []
    declared = [host.host.name for host in plan.hosts if host.assumed]
    lines = ["", "Assumed until the hosts are contacted; where it does not hold, an online plan differs"]
    for fact, hosts in facts:
        text = fact if hosts == declared else f"{join_names(hosts)}: {fact}"
        lines += wrap(text, WIDTH, "  - ", "    ")
    return lines


def _balancer(plan: BalancerPlan, full: bool) -> list[str]:
    """Return a load balancer's deployments and changes; empty if it is up to date."""
    if not (plan.actions or full):
        return []
    lines = ["", f"Load balancer {plan.host.name}, {plan.url}"]
    for number, action in enumerate(plan.actions, 1):
        target = "" if action.target == plan.url else f" {action.target}"
        lines.append(f"  {number:2d}. {TITLES[action.kind]}{target}: {action.before} → {action.after}")
        lines.append(f"      because {action.reason}")
    for backend in plan.backends:
        hosts = Counter(host for host, _unused in dict.fromkeys(member.of for member in backend.members))
        where = ", ".join(f"{host} ({count})" if count > 1 else host for host, count in hosts.items())
        how = ", routed by prefix (vllm-router)" if backend.prefix else ""
        lines += titled_paragraph(
            "model", f"{', '.join(backend.models)}: {_deployments(backend)} on {where}{how}"
        )
        for subset in backend.subsets:
            where = join_names(list(dict.fromkeys(member.host for member in subset.members)))
            lines += titled_paragraph(
                "model", f"{', '.join(subset.models)}: {_deployments(subset)} on {where}"
            )
    return lines


def _not_managed(plan: FleetPlan) -> list[str]:
    """Return what the toolkit made earlier and the inventory does not have; a removal that was asked for is a step."""
    lines = ["", "Not managed"] if plan.former else []
    for item in plan.former:
        lines += wrap(item.text, WIDTH, "  ", "  ")
        for action in item.actions:
            lines.append(f"   1. {TITLES[action.kind]} {action.target}: {action.before} → {action.after}")
            lines.append(f"      because {action.reason}")
    return lines


def _deployments(pool: Backend | Subset) -> str:
    names = deployments_of(pool.members)
    return f"deployment{'' if len(names) == 1 else 's'} {' and '.join(names)}"


def _alike(hosts: Iterable[HostPlan]) -> list[tuple[str, HostPlan]]:
    groups: dict[tuple[object, ...], list[HostPlan]] = {}
    for host in hosts:
        # Spec hashes differ between nodes whose group numbers differ, which does not matter to the reader.
        shape = tuple((item.kind, item.target, _bare(item.before), item.reason) for item in host.actions)
        groups.setdefault((shape, _gpus(host)), []).append(host)
    return [(join_names([item.host.name for item in group]), group[0]) for group in groups.values()]


def _by_text(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for text, name in pairs:
        groups.setdefault(text, []).append(name)
    return list(groups.items())


def _gpus(host: HostPlan) -> str:
    gpus = host.layout.gpus
    physical = len({gpu.gpu for gpu in gpus})
    if not gpus:
        return "no GPUs planned"
    text = f"{physical} x {host.gpu_model or 'GPU'}"
    if host.host.settings.compute:
        text += f" in {host.host.settings.compute}"
    if len(gpus) != physical:
        text += f", {len(gpus)} logical GPUs"
    used = {node for item in host.instances for node in item.member.render_nodes}
    free = [gpu.index for gpu in gpus if gpu.render_node not in used]
    if host.instances and free:
        text += f", {noun_with_numbers('GPU', free)} free"
    return text


def _bare(state: str) -> str:
    """Return a state without its spec hash."""
    return state.partition(", spec ")[0]


def _actions(host: HostPlan) -> list[str]:
    lines = []
    members = {item.name: item.member for item in host.instances}
    numbers = {gpu.render_node: gpu.index for gpu in host.layout.gpus}
    for number, group in enumerate(_groups(host.actions), 1):
        first = group[0]
        names = [action.target for action in group]
        target = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)} instances)"
        if first.kind == "numa_balancing":
            target = ""
        if first.kind == "server":
            ports = [members[name].port for name in names]
            gpus = [numbers[node] for name in names for node in members[name].render_nodes if node in numbers]
            target += f", {noun_with_numbers('port', ports)}, {gpus_text(gpus)}"
        head = f"{TITLES[first.kind]} {target}".rstrip()
        change, why = f": {_bare(first.before)} → {_bare(first.after)}", "because"
        if first.kind == "generation":
            now = "" if first.before == "none" else f" (now {first.before})"
            change, why = f" as generation {first.after}{now}, so it can be rolled back to", "change:"
        lines.append(f"  {number:2d}. {head}{change}")
        lines.append(f"      {why} {first.reason}")
    return lines


def _groups(actions: Iterable[Action]) -> list[list[Action]]:
    """Return the actions in order; consecutive ones that do the same to instances of one deployment are grouped."""
    groups: dict[tuple[str, ...], list[Action]] = {}
    for number, action in enumerate(actions):
        key: tuple[str, ...] = (str(number),)
        if action.kind in ("server", "stop_server", "remove_server", "restart_policy"):
            deployment = action.target.rpartition("-")[0]
            key = (action.kind, deployment, _bare(action.before), action.reason)
        groups.setdefault(key, []).append(action)
    return list(groups.values())


def _sources(plan: FleetPlan) -> list[str]:
    width = max((len(name) for name in plan.sources), default=0)
    found = [
        f"  {name:{width}}  {item['title']}, {item['url']}" for name, item in sorted(plan.sources.items())
    ]
    return ["", "Sources", *found] if found else []


def _partial(images: Sequence[str]) -> list[str]:
    names = ", ".join(images)
    return [
        f"The vLLM version in {names} is unknown. site.yml pulls the image, probes it and plans the rest in the "
        "same run.",
        'To plan everything now, set vllm_version: "…" in the deployment.',
    ]
