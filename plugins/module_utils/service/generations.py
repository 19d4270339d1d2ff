# SPDX-License-Identifier: Apache-2.0
"""Generations: what a deployment ran, and runs, on a host. Pure; generation_store/store.py keeps them on the node.

A generation is a numbered record of all instances that a deployment has on a host. It is recorded before anything
changes, so that a rollback is always possible. Numbers belong to the deployment and are the same on all hosts; a host
records only changes of its own, so the newest record of a host "as of generation 5" may be 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from .generation_schema import SCHEMA


@dataclass(frozen=True)
class BackendInstance:
    """The facts about an instance that a load balancer needs.

    Attributes:
        limit: requests that it gets at once
        headless: it works for another server and is never queried
        endpoint: its deployment is served through the load balancer
        path: the deployment's position in the inventory, for problems
        weight: its share of the requests, relative to others that serve the same model name
        recorded: it is as a node has recorded it, not as the inventory defines it
    """

    name: str
    deployment: str
    models: tuple[str, ...]
    listen: str
    port: int
    ports: tuple[int, ...]
    limit: int
    headless: bool = False
    endpoint: bool = True
    path: tuple[str | int, ...] = field(default=("vllm_deployments",), compare=False)
    weight: int = 1
    recorded: bool = False


class GenerationMember(NamedTuple):
    """An instance of a generation; its files and its container are in the node's store.

    A fleet of 1,000 hosts keeps 40,000 of them, which every run reads: a tuple is cheap to create.

    Attributes:
        ports: the ports on which it listens
        share: the fraction of each of its GPUs that it uses
        hosts: the hosts of its engine, if it spans several
        limit: requests that it gets at once
    """

    name: str
    spec_hash: str
    port: int
    ports: tuple[int, ...] = ()
    render_nodes: tuple[str, ...] = ()
    share: float = 1.0
    hosts: tuple[str, ...] = ()
    headless: bool = False
    limit: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it in the form of the store and of node_state."""
        return {
            "name": self.name,
            "spec_hash": self.spec_hash,
            "port": self.port,
            "ports": list(self.ports),
            "render_nodes": list(self.render_nodes),
            "share": self.share,
            "hosts": list(self.hosts),
            "headless": self.headless,
            "limit": self.limit,
        }

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> GenerationMember:
        """Build it from what to_json returned. Raise KeyError, TypeError or ValueError for other data."""
        return cls(
            item["name"],
            item["spec_hash"],
            int(item["port"]),
            tuple(item["ports"]),
            tuple(item["render_nodes"]),
            item["share"],
            tuple(item["hosts"]),
            item["headless"],
            item["limit"],
        )


@dataclass(frozen=True)
class Generation:
    """A deployment on one host as it was recorded, without its files. Without members, it had no instances on the host.

    Attributes:
        recorded_at: UTC; "" for a generation not yet recorded
        image: its name for the Docker engine
        image_ref: its name in the inventory
        weights: (repository, commit) of everything that its instances load
        modes: of their GPUs, "SPX NPS1"
        command, env: of its first instance, in shell syntax, secrets masked
        stop_timeout: seconds
        toolkit: the release that composed it; "" if unknown
        definition: a hash of what the inventory and the host gave it
    """

    deployment: str
    generation: int
    recorded_at: str = ""
    why: str = ""
    image: str = ""
    image_ref: str = ""
    vllm: str = ""
    model: str = ""
    commit: str = ""
    weights: tuple[tuple[str, str], ...] = ()
    modes: str = ""
    command: str = ""
    env: str = ""
    models: tuple[str, ...] = ()
    listen: str = ""
    endpoint: bool = True
    stop_timeout: int = 120
    members: tuple[GenerationMember, ...] = ()
    toolkit: str = ""
    definition: str = ""

    @cached_property
    def specs(self) -> dict[str, str]:
        """Return spec hashes by instance name: two generations with equal ones run the same."""
        return {member.name: member.spec_hash for member in self.members}

    def backend(
        self, member: GenerationMember, path: tuple[str | int, ...] = ("vllm_deployments",)
    ) -> BackendInstance:
        """Return the facts about a member that a load balancer needs."""
        return BackendInstance(
            name=member.name,
            deployment=self.deployment,
            models=self.models,
            listen=self.listen,
            port=member.port,
            ports=member.ports,
            limit=member.limit,
            headless=member.headless,
            endpoint=self.endpoint,
            path=path,
            recorded=True,
        )

    def server(self, member: GenerationMember) -> dict[str, Any]:
        """Return the SERVER item of a stored member: the module vllm_server reads the rest from the node's store."""
        return {
            "name": member.name,
            "deployment": self.deployment,
            "generation": self.generation,
            "spec_hash": member.spec_hash,
            "image": self.image,
            "port": member.port,
            "served_model": self.models[0] if self.models else "",
            "headless": member.headless,
            "stop_timeout": self.stop_timeout,
        }

    def to_json(self) -> dict[str, Any]:
        """Return it in the form of the plan and of node_state; the store adds each member's server and description."""
        return dict(self._json)

    @cached_property
    def _json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "deployment": self.deployment,
            "generation": self.generation,
            "made": self.recorded_at,
            "why": self.why,
            "image": self.image,
            "image_ref": self.image_ref,
            "vllm": self.vllm,
            "model": self.model,
            "commit": self.commit,
            "weights": [list(item) for item in self.weights],
            "modes": self.modes,
            "command": self.command,
            "env": self.env,
            "models": list(self.models),
            "listen": self.listen,
            "endpoint": self.endpoint,
            "stop_timeout": self.stop_timeout,
            "members": [member.to_json() for member in self.members],
            **({"toolkit": self.toolkit, "definition": self.definition} if self.toolkit else {}),
        }

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Generation:
        """Build it from what to_json returned. Raise KeyError, TypeError or ValueError for other data."""
        if item["schema"] != SCHEMA:
            raise ValueError(f"schema {item['schema']}")
        return cls(
            deployment=str(item["deployment"]),
            generation=int(item["generation"]),
            recorded_at=str(item["made"]),
            why=str(item["why"]),
            image=str(item["image"]),
            image_ref=str(item["image_ref"]),
            vllm=str(item["vllm"]),
            model=str(item["model"]),
            commit=str(item["commit"]),
            weights=tuple((str(repo), str(commit)) for repo, commit in item["weights"]),
            modes=str(item["modes"]),
            command=str(item["command"]),
            env=str(item["env"]),
            models=tuple(str(name) for name in item["models"]),
            listen=str(item["listen"]),
            endpoint=bool(item["endpoint"]),
            stop_timeout=int(item["stop_timeout"]),
            members=tuple(map(GenerationMember.from_json, item["members"])),
            toolkit=str(item.get("toolkit") or ""),
            definition=str(item.get("definition") or ""),
        )


@dataclass(frozen=True)
class Hold:
    """A hold: the deployment stays at a generation, as long as the inventory defines what was rolled back.

    Attributes:
        generation: 0 for a deployment of which nothing served before
        since: UTC
        failed: the generations that were rolled back; () in records that do not say it
        together: the deployments that were rolled back with it, as instances took over from each other
    """

    generation: int
    why: str
    since: str = ""
    failed: tuple[int, ...] = ()
    together: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it in the form of the store."""
        return {
            "generation": self.generation,
            "why": self.why,
            "since": self.since,
            "failed": list(self.failed),
            "together": list(self.together),
        }

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Hold:
        """Build it from what to_json returned. Raise KeyError, TypeError or ValueError for other data."""
        return cls(
            int(item["generation"]),
            str(item["why"]),
            str(item.get("since") or ""),
            tuple(int(number) for number in item.get("failed") or ()),
            tuple(str(name) for name in item.get("together") or ()),
        )


@dataclass(frozen=True)
class OpenRollout:
    """A rollout in progress or interrupted: groups that have the new generation, and the old generation's figures.

    before: the generation to which it goes back when it fails; None in records that do not say it. together: those of
    the deployments that go back with it.
    """

    generation: int
    why: str
    since: str = ""
    units: tuple[Any, ...] = ()
    baseline: Mapping[str, Any] = field(default_factory=dict, hash=False)
    before: int | None = None
    together: Mapping[str, int] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        """Return it in the form of the store."""
        return {
            "generation": self.generation,
            "why": self.why,
            "since": self.since,
            "units": list(self.units),
            "baseline": dict(self.baseline),
            "before": self.before,
            "together": dict(self.together),
        }

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> OpenRollout:
        """Build it from what to_json returned. Raise KeyError, TypeError or ValueError for other data."""
        return cls(
            int(item["generation"]),
            str(item["why"]),
            str(item.get("since") or ""),
            tuple(item.get("units") or ()),
            dict(item.get("baseline") or {}),
            None if item.get("before") is None else int(item["before"]),
            {str(name): int(number) for name, number in (item.get("together") or {}).items()},
        )


@dataclass(frozen=True)
class History:
    """A host's record of a deployment: generations from old to new, and any hold or trial.

    lifted, ended: when its last hold and its last trial were removed (UTC). broken: why its record cannot be read.
    """

    deployment: str
    kept: tuple[Generation, ...] = ()
    held: Hold | None = None
    trial: OpenRollout | None = None
    lifted: str = ""
    ended: str = ""
    broken: str = ""

    @property
    def newest(self) -> Generation | None:
        """Return the generation recorded last."""
        return self.kept[-1] if self.kept else None

    def as_of(self, number: int) -> Generation | None:
        """Return the host's newest record that is not newer than a number; None if the host had nothing then."""
        return next((item for item in reversed(self.kept) if item.generation <= number), None)

    def of_spec(self, name: str, spec_hash: str | None) -> Generation | None:
        """Return the newest generation in which this instance has this spec hash: the one its container runs."""
        if not spec_hash:
            return None
        return next((item for item in reversed(self.kept) if item.specs.get(name) == spec_hash), None)

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> History:
        """Read a deployment's entry of node_state. Raise KeyError, TypeError or ValueError for other data."""
        kept = sorted((Generation.from_json(one) for one in item["kept"]), key=lambda one: one.generation)
        held, trial = item.get("held"), item.get("trial")
        return cls(
            str(item["deployment"]),
            tuple(kept),
            Hold.from_json(held) if held else None,
            OpenRollout.from_json(trial) if trial else None,
            *(str(item.get(key) or "") for key in ("lifted", "ended", "broken")),
        )


DEPLOY, UPGRADE, ROLLBACK, RESTART, STOP = "deploy", "upgrade", "rollback", "restart", "stop"
BENCHMARK = "benchmark"
MEASUREMENTS = (BENCHMARK,)
"""Operations that take instances out of service, measure them, and return them unchanged. Each one is also the name of
the role that measures."""
OPERATIONS = (DEPLOY, UPGRADE, ROLLBACK, RESTART, STOP, *MEASUREMENTS)


@dataclass(frozen=True)
class OperationRequest:
    """The operation that the operator requested, beyond the inventory.

    Attributes:
        deployments: those that the run may change, None for all; the others stay as they are
        generation: the target of a rollback, None for the one before the running one
        retry: an upgrade may retry a generation that was rolled back
        reason: the operator's, for a rollback
    """

    operation: str = DEPLOY
    deployments: frozenset[str] | None = None
    generation: int | None = None
    retry: bool = False
    reason: str = ""

    def about(self, deployment: str) -> bool:
        """Return whether the run may change a deployment."""
        return self.deployments is None or deployment in self.deployments
