# SPDX-License-Identifier: Apache-2.0
"""Check whether stored instances can be restored on a host, and list what kept generations still need. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....module_utils.common.errors import Problem
from ....module_utils.service.generations import Generation
from ..desired.actions import has_image
from ..desired.fleet import ANY, LOCAL, Host
from ..instances.planned import PlannedInstance, RecordedInstance, Serving
from ..observed.node_state import NodeState
from ..placement.layout import Layout
from .sources import HELD, DeploymentSource, StoredSelection


def partition_modes(host: Host, layout: Layout) -> str:
    """Return the partition modes of a host's GPUs after the run, such as "SPX NPS1"; "" if unknown."""
    gpus = host.state.gpus if host.state else ()
    settings = host.settings
    compute = settings.compute or next((gpu.compute for gpu in gpus if gpu.compute), "")
    memory = settings.memory or next((gpu.memory for gpu in gpus if gpu.memory), "")
    return f"{compute} {memory}".strip()


def restore_obstacles(
    host: Host,
    layout: Layout,
    stored: StoredSelection,
    sources: Mapping[str, DeploymentSource],
    starting: Iterable[str],
) -> tuple[Problem, ...]:
    """Return what prevents a host's stored instances from running as they did.

    starting: names of instances that this run starts.
    """
    start = set(starting)
    found: dict[Problem, None] = {}
    if host.state is None:
        return ()
    for item in stored.stored:
        if item.managed and item.name in start:
            for what, fix in _missing(host.state, host, layout, item):
                number = item.generation.generation
                verb = "is held, but cannot run" if _held(item, sources) else "cannot be restored"
                text = f"generation {number} of {item.deployment_name} {verb}: {what}."
                found[Problem((), text, fix, (host.name,))] = None
    return tuple(found)


def _held(item: Serving, sources: Mapping[str, DeploymentSource]) -> bool:
    source = sources.get(item.deployment_name)
    return source is not None and source.kind == HELD


def _missing(
    state: NodeState, host: Host, layout: Layout, item: RecordedInstance
) -> Iterable[tuple[str, str]]:
    """Yield what is missing on the host for an instance, and what to do about it."""
    made, other = item.generation, "or choose another generation."
    own = {*ANY, *LOCAL, host.address or host.name, *(one.listen for one in host.deployments)}
    if made.endpoint and not item.member.headless and made.listen not in own:
        yield (
            f"it listens on {made.listen}, where load balancers no longer reach this host",
            f"Give the host that address again (instinct_address), {other}",
        )
    if not has_image(state, made.image):
        yield f"its image {_name(made)} is no longer on the host", f"docker pull {made.image} there, {other}"
    for repo, commit in made.weights:
        if not _has_weights(state, host, repo, commit):
            yield (
                f"the weights of {repo} at {commit[:12]} are incomplete in {host.settings.cache_dir}",
                f"Download them again (a deployment with that revision, site.yml --tags hf_model), {other}",
            )
    modes = partition_modes(host, layout)
    if made.modes and modes and made.modes != modes:
        yield (
            f"it ran on GPUs in {made.modes}, but they are now in {modes}",
            f"Set gpu_partition_compute and gpu_partition_memory to those modes and run partition.yml, {other}",
        )
        return
    there = {gpu.render_node for gpu in layout.gpus}
    gone = [name for name in item.member.render_nodes if name not in there]
    if gone:
        yield f"its GPU {', '.join(gone)} is missing", f"Check the node's GPUs (audit.yml), {other}"


def _name(made: Generation) -> str:
    return made.image_ref or made.image


def _has_weights(state: NodeState, host: Host, repo: str, commit: str) -> bool:
    return any(
        (item.cache_dir.rstrip("/"), item.repo, item.commit) == (host.settings.cache_dir, repo, commit)
        and item.complete
        for item in state.models
    )


def clashes(
    host: Host, instances: Sequence[Serving], sources: Mapping[str, DeploymentSource]
) -> Iterable[Problem]:
    """Yield a problem for ports and GPUs that a stored instance shares with one of another deployment."""
    ports: dict[int, Serving] = {}
    users: dict[str, list[Serving]] = {}
    reported = set()
    for item in instances:
        for port in item.member.ports:
            other = ports.setdefault(port, item)
            if _clash(item, other) and ("port", other.deployment_name, item.deployment_name) not in reported:
                reported.add(("port", other.deployment_name, item.deployment_name))
                yield _clash_problem(host, other, item, f"listen on port {port}", sources)
        for node in item.member.render_nodes:
            there = users.setdefault(node, [])
            there.append(item)
            others = [one for one in there[:-1] if _clash(item, one)]
            if others and sum(one.member.share for one in there) > 1 + 1e-9:
                key = ("gpu", others[0].deployment_name, item.deployment_name)
                if key not in reported:
                    reported.add(key)
                    yield _clash_problem(host, others[0], item, f"use {node}", sources)


def _clash(one: Serving, other: Serving) -> bool:
    """Return whether a resource that two instances share is a conflict to report.

    The layout has checked composed ones, and instances that only keep running do not concern this run.
    """
    if one.deployment_name == other.deployment_name:
        return False
    return any(isinstance(item, RecordedInstance) and item.managed for item in (one, other))


def _clash_problem(
    host: Host, one: Serving, other: Serving, what: str, sources: Mapping[str, DeploymentSource]
) -> Problem:
    text = f"{_describe(one)} and {_describe(other)} would both {what}."
    fix = "Choose another generation, or change the other deployment first."
    held = [item.deployment_name for item in (one, other) if _held(item, sources)]
    if held:
        fix = (
            f"{' and '.join(held)} {'is' if len(held) == 1 else 'are'} held. To retry what the inventory defines: "
            "upgrade.yml -e retry=true; or change the other deployment first."
        )
    return Problem((), text, fix, (host.name,))


def _describe(item: Serving) -> str:
    if isinstance(item, RecordedInstance):
        return f"instance {item.name} of generation {item.generation.generation}"
    return f"instance {item.name}"


def rollback_resources(host: Host, instances: Iterable[Serving]) -> list[dict[str, Any]]:
    """Return images and weights that only kept generations need, which neither the toolkit nor operators may delete."""
    if not (host.state and host.state.generations):
        return []
    wanted = set()
    for item in instances:
        head = item.generation_header if isinstance(item, PlannedInstance) else item.generation
        wanted |= {("image", head.image), *(("weights", _weights(*pair)) for pair in head.weights)}
    found: dict[tuple[str, str], list[str]] = {}
    for history in host.state.generations:
        for made in history.kept:
            things = [("image", made.image), *(("weights", _weights(*pair)) for pair in made.weights)]
            for thing in things if made.members else ():
                if thing not in wanted:
                    found.setdefault(thing, []).append(f"{made.deployment} {made.generation}")
    return [{"kind": kind, "name": name, "generations": users} for (kind, name), users in found.items()]


def _weights(repo: str, commit: str) -> str:
    return f"{repo}@{commit}"
