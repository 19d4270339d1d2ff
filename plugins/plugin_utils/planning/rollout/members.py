# SPDX-License-Identifier: Apache-2.0
"""Describe the instances of a rollout, as they are and as they will be. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ....module_utils.common.errors import natural


@dataclass(frozen=True)
class InstanceResources:
    """The ports of an instance, and its GPUs by their render nodes; share: of each GPU."""

    ports: frozenset[int]
    gpus: frozenset[str]
    share: float = 1.0


@dataclass(frozen=True)
class RolloutInstance:
    """An instance as it is (old) and as it will be (new); None if it does not exist then.

    Attributes:
        resources_known: False if it exists, but its GPUs and ports are unknown.
        engine, old_engine: instances with the same value work together.
        models, old_models: the names that clients may request from its engine; () if no load balancer serves it.
        changes: this run changes it.
        in_service: it is in service, as far as the load balancers show.
        drained: the operator has drained its engine wherever it is reached: it does not return to service by itself.
        left: an earlier run left it drained; it returns after it has changed.
        headless: it works for another server, and receives no requests.
        starts: it starts before the first batch, and serves from then on.
        balancers, balancers_after: the load balancers that reach it where it listens now, and at the end; None: all.
        kept_out: the load balancers in which the operator has drained it, while it is in service in others.
    """

    host: str
    name: str
    deployment: str
    old: InstanceResources | None
    new: InstanceResources | None
    engine: str = ""
    old_engine: str = ""
    models: tuple[str, ...] = ()
    old_models: tuple[str, ...] = ()
    changes: bool = True
    in_service: bool = True
    drained: bool = False
    left: bool = False
    headless: bool = False
    resources_known: bool = True
    starts: bool = False
    balancers: frozenset[str] | None = None
    balancers_after: frozenset[str] | None = None
    kept_out: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """Return its name in the fleet."""
        return f"{self.host}/{self.name}"

    @property
    def exists(self) -> bool:
        """Return whether it currently exists on its host."""
        return self.old is not None or not self.resources_known

    @property
    def wanted_engine(self) -> str:
        """Return the key of the engine to which it will belong."""
        return self.engine or self.id

    @property
    def present_engine(self) -> str:
        """Return the key of the engine to which it belongs before the first batch."""
        return (self.engine if self.starts else self.old_engine) or self.id


def as_drained(members: Sequence[RolloutInstance]) -> list[RolloutInstance]:
    """Return the members; those that work for a server that the operator has drained are also drained."""
    drained = {item.wanted_engine for item in members if item.drained and not item.headless}
    return [
        item if item.drained == (item.wanted_engine in drained) else replace(item, drained=not item.drained)
        for item in members
    ]


def sorted_members(members: Iterable[RolloutInstance]) -> tuple[RolloutInstance, ...]:
    """Return the members in the order of hosts and names."""
    return tuple(sorted(members, key=lambda item: (natural(item.host), natural(item.name))))
