# SPDX-License-Identifier: Apache-2.0
"""Plan engines of several servers: what applies to one of them applies to all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.common.errors import Problem
from ..desired.actions import ALIVE, Action
from ..tuning.parallel import launcher_since, uses_ray
from .stages import HostStages

Key = tuple[Any, ...]


@dataclass(frozen=True)
class EngineServer:
    """A server of an engine: the index of its host, and its name."""

    host: int
    name: str


def engine_servers(hosts: Sequence[HostStages]) -> dict[Key, list[EngineServer]]:
    """Return the servers of each engine that has several, with hosts in the plan's order."""
    found: dict[Key, list[EngineServer]] = {}
    for number, plan in enumerate(hosts):
        for item in plan.serve.instances:
            key = _engine(plan.host.name, item)
            if key is not None:
                found.setdefault(key, []).append(EngineServer(number, item.name))
    return {key: parts for key, parts in found.items() if len(parts) > 1}


def _engine(host: str, item: Any) -> Key | None:
    """Return what the servers of an engine have in common; None for a single server, and for one that is not changed.

    Of a stored server, only the hosts are known; its engine has one server on each.
    """
    instance = getattr(item, "instance", None)
    if instance is None:
        return (
            (item.deployment_name, item.member.hosts, item.name)
            if item.member.hosts and item.managed
            else None
        )
    rank = instance.slot.rank
    if rank is None or rank.servers == 1:
        return None
    per_host = rank.servers // rank.nodes
    return (instance.deployment.name, rank.hosts or (host,), instance.slot.index - rank.number % per_host)


def peer_starts(hosts: Sequence[HostStages]) -> Mapping[str, list[Action]]:
    """Return, by host, actions for running peers of servers that are started or replaced.

    Peers stop and start together, as their supervisors ensure. With an action, they are also drained first, and the run
    waits for them.
    """
    found: dict[str, list[Action]] = {stages.host.name: [] for stages in hosts}
    for parts in engine_servers(hosts).values():
        touched = [part for part in parts if part.name in hosts[part.host].serve.start]
        for part in parts if touched else ():
            if part in touched or not _alive(hosts[part.host], part.name):
                continue
            first = touched[0]
            host = hosts[first.host].host.name
            text = first.name if first.host == part.host else f"{first.name} on {host}"
            reason = f"{text} is started, and the servers of an engine start together"
            found[hosts[part.host].host.name].append(
                Action(
                    "server",
                    "vllm_serve",
                    part.name,
                    "running",
                    "running, with its engine",
                    reason,
                    "vllm_deployments",
                )
            )
    return found


def _alive(plan: HostStages, name: str) -> bool:
    state = plan.host.state
    return bool(state and any(item.name == name and item.state in ALIVE for item in state.instances))


def engine_mismatches(hosts: Sequence[HostStages]) -> Iterable[Problem]:
    """Yield problems of servers that cannot form one engine: different images, vLLMs, or variables that Ray shares."""
    for parts in engine_servers(hosts).values():
        made = {
            part: instance
            for part in parts
            for item in hosts[part.host].serve.instances
            if item.name == part.name and (instance := getattr(item, "instance", None))
        }
        if len(made) < len(parts):
            continue
        first, *others = made.items()
        for part, instance in others:
            host, head = hosts[part.host].host.name, hosts[first[0].host].host.name
            deployment = instance.deployment
            mine, theirs = ((one.image, one.tuned.release.requested) for one in (instance, first[1]))
            if _bytes_of(mine) != _bytes_of(theirs):
                path = (*deployment.path, "build" if deployment.build else "image")
                text = " with vLLM "
                what = f"{first[1].name} would run {text.join(theirs)} on {head} and {text.join(mine)} on {host}."
                yield Problem(path, what, "Use the same image on all hosts of a group.", (host,))
            if uses_ray(deployment, instance.tuned.table):
                yield from _ray_mixes(host, head, instance, first[1])


def _bytes_of(image: tuple[str, str]) -> tuple[str, str]:
    """Return an image by its digest, which is the same at a mirror, and its vLLM."""
    return image[0].rpartition("@")[2], image[1]


def _ray_mixes(host: str, head: str, mine: Any, theirs: Any) -> Iterable[Problem]:
    """Yield variables that begin with NCCL_ and differ: vLLM passes the head's to the workers that Ray starts."""
    own, given = dict(mine.env), dict(theirs.env)
    names = sorted(
        name for name in {*own, *given} if name.startswith("NCCL_") and own.get(name) != given.get(name)
    )
    for name in names:
        each = f"{own.get(name, 'not set')} on {host} and {given.get(name, 'not set')} on {head}"
        what = f"{name} is {each}, but with Ray all hosts get the head's value."
        fix = (
            f"Use vLLM's own launcher (vLLM {launcher_since(mine.tuned.table)} or newer, no executor), or give "
            "interfaces and devices the same names on all hosts."
        )
        yield Problem((*mine.deployment.path, "nodes"), what, fix, (host,))
