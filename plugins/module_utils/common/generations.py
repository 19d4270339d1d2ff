# SPDX-License-Identifier: Apache-2.0
"""Generations: what a deployment ran, and runs, on a host. Pure; genstore.py keeps them on the node.

A generation is a numbered record of all instances that a deployment has on a host. It is recorded before anything
changes, so that the way back is always there. Numbers are of the deployment, the same on all hosts; a host records
only what changes there, so that a host "as of generation 5" may have 4 as its newest record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

SCHEMA = 1


@dataclass(frozen=True)
class Offered:
    """What a load balancer needs to know of an instance.

    limit: requests that it gets at once. headless: it works for another server, and is asked nothing. endpoint: its
    deployment is to be had through the load balancer. path: the deployment's place in the inventory, for problems.
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


class Member(NamedTuple):
    """An instance of a generation; its files and its container are in the node's store.

    A fleet of 1,000 hosts keeps 40,000 of them, which are read in every run: a tuple is made quickly.

    ports: where it listens. share: the part of each of its GPUs that it has. hosts: those of its engine, where it spans
    hosts. limit: requests that it gets at once.
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
        """As the store and node_state have it."""
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
    def from_json(cls, item: Mapping[str, Any]) -> Member:
        """The reverse of to_json. Raises KeyError, TypeError, ValueError."""
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
    """A deployment on one host as it was recorded, without its files.

    made: UTC; "" for one that is yet to be recorded. image: by which the engine knows it; image_ref: as the inventory
    had it. weights: (repository, commit) of all that its instances load. modes: of their GPUs, "SPX NPS1". command and
    env are its first instance's, as a shell has them, values of secrets masked. stop_timeout: seconds. No members: the
    deployment had nothing on the host.
    """

    deployment: str
    generation: int
    made: str = ""
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
    members: tuple[Member, ...] = ()

    @cached_property
    def specs(self) -> dict[str, str]:
        """Spec hashes by the instances' names: two generations with equal ones run the same."""
        return {member.name: member.spec_hash for member in self.members}

    def offered(self, member: Member, path: tuple[str | int, ...] = ("vllm_deployments",)) -> Offered:
        """What a load balancer needs of a member."""
        return Offered(
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
        )

    def server(self, member: Member) -> dict[str, Any]:
        """SERVER of a stored member: the module vllm_server reads the rest from the node's store."""
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
        """As the plan and node_state have it; the store adds each member's server and description."""
        return dict(self._json)

    @cached_property
    def _json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "deployment": self.deployment,
            "generation": self.generation,
            "made": self.made,
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
        }

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Generation:
        """The reverse of to_json. Raises KeyError, TypeError, ValueError."""
        if item["schema"] != SCHEMA:
            raise ValueError(f"schema {item['schema']}")
        return cls(
            deployment=str(item["deployment"]),
            generation=int(item["generation"]),
            made=str(item["made"]),
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
            members=tuple(map(Member.from_json, item["members"])),
        )


@dataclass(frozen=True)
class Hold:
    """A deployment stays at a generation until upgrade.yml; since: UTC."""

    generation: int
    why: str
    since: str = ""

    def to_json(self) -> dict[str, Any]:
        """As the store has it."""
        return {"generation": self.generation, "why": self.why, "since": self.since}

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Hold:
        """The reverse of to_json. Raises KeyError, TypeError, ValueError."""
        return cls(int(item["generation"]), str(item["why"]), str(item.get("since") or ""))


@dataclass(frozen=True)
class Trial:
    """A rollout that is under way, or was cut off: units that have the new generation, and the old one's figures."""

    generation: int
    why: str
    since: str = ""
    units: tuple[Any, ...] = ()
    baseline: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        """As the store has it."""
        return {
            "generation": self.generation,
            "why": self.why,
            "since": self.since,
            "units": list(self.units),
            "baseline": dict(self.baseline),
        }

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Trial:
        """The reverse of to_json. Raises KeyError, TypeError, ValueError."""
        return cls(
            int(item["generation"]),
            str(item["why"]),
            str(item.get("since") or ""),
            tuple(item.get("units") or ()),
            dict(item.get("baseline") or {}),
        )


@dataclass(frozen=True)
class History:
    """What a host keeps of a deployment: generations from old to new, and how it is bound.

    lifted, ended: when its last hold and its last trial were taken away (UTC). broken: why its record cannot be read.
    """

    deployment: str
    kept: tuple[Generation, ...] = ()
    held: Hold | None = None
    trial: Trial | None = None
    lifted: str = ""
    ended: str = ""
    broken: str = ""

    @property
    def newest(self) -> Generation | None:
        """The generation that was recorded last."""
        return self.kept[-1] if self.kept else None

    def as_of(self, number: int) -> Generation | None:
        """The host's newest record that is not newer than a number; None: the host had nothing then."""
        return next((item for item in reversed(self.kept) if item.generation <= number), None)

    def of_spec(self, name: str, spec_hash: str | None) -> Generation | None:
        """The newest generation that has this instance with this spec hash: what its container runs."""
        if not spec_hash:
            return None
        return next((item for item in reversed(self.kept) if item.specs.get(name) == spec_hash), None)

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> History:
        """A deployment's entry of node_state. Raises KeyError, TypeError, ValueError."""
        kept = sorted((Generation.from_json(one) for one in item["kept"]), key=lambda one: one.generation)
        held, trial = item.get("held"), item.get("trial")
        return cls(
            str(item["deployment"]),
            tuple(kept),
            Hold.from_json(held) if held else None,
            Trial.from_json(trial) if trial else None,
            *(str(item.get(key) or "") for key in ("lifted", "ended", "broken")),
        )


DEPLOY, UPGRADE, ROLLBACK, RESTART, STOP = "deploy", "upgrade", "rollback", "restart", "stop"
OPERATIONS = (DEPLOY, UPGRADE, ROLLBACK, RESTART, STOP)


@dataclass(frozen=True)
class Wishes:
    """What a run is about, beyond the inventory.

    deployments: those that the run is about, None for all; the others stay as they run. generation: of a rollback, None
    for the one before what runs. retry: an upgrade may try once more what was turned back. why: the operator's reason.
    """

    operation: str = DEPLOY
    deployments: frozenset[str] | None = None
    generation: int | None = None
    retry: bool = False
    why: str = ""

    def about(self, deployment: str) -> bool:
        """Whether the run is about a deployment."""
        return self.deployments is None or deployment in self.deployments
