# SPDX-License-Identifier: Apache-2.0
"""Group the servers of a load balancer by the model names that they serve. Pure.

Deployments that share a model name are one backend: its queue, limits and routing are those of the name. Requests for a
name that only some of a backend's servers have go to a subset of it, whose servers follow the states of the backend's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ....module_utils.common.errors import Problem, natural
from .servers import BackendServer, HostBackends, routable_instances

SUBSET = ".names"
"""Follows the name of the backend in the names of its subsets."""


@dataclass(frozen=True)
class Subset:
    """Model names that only some of a backend's servers serve."""

    name: str
    models: tuple[str, ...]
    members: tuple[BackendServer, ...]


@dataclass(frozen=True)
class Backend:
    """Servers that share model names, of one deployment or several. models: the names that all of them have.

    prefix: a router chooses the server.
    """

    name: str
    models: tuple[str, ...]
    members: tuple[BackendServer, ...]
    prefix: bool = False
    subsets: tuple[Subset, ...] = ()

    @property
    def deployments(self) -> tuple[str, ...]:
        """Return the deployments whose instances these are."""
        return deployments_of(self.members)

    @property
    def names(self) -> tuple[str, ...]:
        """Return all model names that it serves."""
        return (*self.models, *(name for subset in self.subsets for name in subset.models))


def deployments_of(servers: Iterable[BackendServer]) -> tuple[str, ...]:
    """Return the deployments of servers, each once, in natural order."""
    return tuple(sorted({server.deployment for server in servers}, key=natural))


def group_servers(
    servers: Sequence[BackendServer],
    known: Mapping[str, str] | None = None,
    prefix: Collection[str] = (),
) -> tuple[Backend, ...]:
    """Return the backends of these servers, in natural order of their names.

    known: for the name of a server, the backend where it is now, and stays. prefix: deployments that are routed by
    prefix; a backend is routed by prefix if all of its deployments are.
    """
    groups = _groups(servers)
    names = _names(groups, known or {})
    found = [
        _backend(name, group, all(one in prefix for one in deployments_of(group)))
        for name, group in zip(names, groups)
    ]
    return tuple(sorted(found, key=lambda backend: natural(backend.name)))


def _groups(servers: Iterable[BackendServer]) -> list[tuple[BackendServer, ...]]:
    """Return the servers that share model names with each other, directly or through others."""
    joined: dict[str, str] = {}

    def root(model: str) -> str:
        while joined[model] != model:
            joined[model] = joined[joined[model]]
            model = joined[model]
        return model

    for server in servers:
        for model in server.models:
            joined.setdefault(model, model)
            joined[root(model)] = root(server.models[0])
    groups: dict[str, list[BackendServer]] = {}
    for server in sorted(servers, key=lambda server: natural(server.name)):
        groups.setdefault(root(server.models[0]), []).append(server)
    return [tuple(group) for group in groups.values()]


def _names(groups: Sequence[Sequence[BackendServer]], known: Mapping[str, str]) -> list[str]:
    """Return a name for each group, and no name twice.

    It is that of the backend which has most of the group, else that of its deployments. A group that stays in a backend
    takes precedence over one that would merely have the same name.
    """
    names: dict[int, str] = {}
    for at, group in enumerate(groups):
        there = [known[server.name] for server in group if server.name in known]
        stays = max(sorted(set(there), key=natural), key=there.count, default="")
        if stays and stays not in names.values():
            names[at] = stays
    for at, group in enumerate(groups):
        if at not in names:
            names[at] = _free(":".join(deployments_of(group)), names.values())
    return [names[at] for at in range(len(groups))]


def _free(name: str, taken: Collection[str]) -> str:
    """Return a name that is not taken: this one, or this one with a number."""
    return next(
        one
        for one in (name, *(f"{name}:{number}" for number in range(2, len(taken) + 3)))
        if one not in taken
    )


def _backend(name: str, members: tuple[BackendServer, ...], prefix: bool) -> Backend:
    users: dict[str, list[BackendServer]] = {}
    for server in members:
        for model in server.models:
            users.setdefault(model, []).append(server)
    sets: dict[tuple[str, ...], list[str]] = {}
    for model, some in users.items():
        sets.setdefault(tuple(server.name for server in some), []).append(model)
    everywhere = tuple(sets.pop(tuple(server.name for server in members), ()))
    subsets = [
        Subset(f"{name}{SUBSET}{number}", tuple(models), tuple(users[models[0]]))
        for number, models in enumerate(sets.values(), 1)
    ]
    return Backend(name, everywhere, members, prefix, tuple(subsets))


def routing_warnings(backends: Iterable[Backend], prefix: Collection[str]) -> Iterator[str]:
    """Yield a warning if a shared name restricts the routing that deployments want. prefix: those routed by prefix."""
    for backend in backends:
        names = ", ".join(backend.models or backend.names)
        asking = [name for name in backend.deployments if name in prefix]
        others = [name for name in backend.deployments if name not in prefix]
        if asking and others:
            yield (
                f"{names}: requests go to the instance with the fewest requests, as {' and '.join(others)} shares a "
                f"name with {' and '.join(asking)} and is not routed by prefix. Set the same routing in all of them"
            )
        some = ", ".join(name for subset in backend.subsets for name in subset.models)
        if backend.prefix and some:
            yield (
                f"{some}: requests go to the instance with the fewest requests, as routing by prefix needs names that "
                f"all instances of {names} have"
            )
        if backend.prefix and len({server.weight for server in backend.members}) > 1:
            yield f"{names}: vllm-router ignores weights; they apply only to requests that it does not route"


def unprintable_model_names(gpu_hosts: Iterable[HostBackends]) -> Iterable[Problem]:
    """Yield a problem for each model name that cannot be written in a line of a configuration."""
    for gpu_host in gpu_hosts:
        for item in routable_instances(gpu_host):
            for model in item.models:
                if not model.isprintable():
                    path = (*item.path, "served_model_name")
                    what = f"{model!r} contains a control character or another invisible character."
                    yield Problem(path, what, "Remove it.", (gpu_host.host,))


def names_of(backends: Iterable[Backend]) -> dict[str, BackendServer]:
    """Return the servers of these backends, by "backend/server"."""
    return {f"{backend.name}/{member.name}": member for backend in backends for member in backend.members}
