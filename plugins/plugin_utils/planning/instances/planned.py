# SPDX-License-Identifier: Apache-2.0
"""Represent what a host will run: instances composed from the inventory, and stored ones of a generation."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Union

from ....module_utils.common.hashing import text_hash
from ....module_utils.common.redact import MASK, is_secret_name
from ....module_utils.service.generations import BackendInstance, Generation, GenerationMember
from ..observed.node_state import NodeState, ObservedInstance
from .backend_instance import backend_instance
from .compose import Instance, server


@dataclass(frozen=True)
class PlannedInstance:
    """An instance with its rendered files.

    weights: (repository, commit) of everything that it loads. toolkit: the release that composed it. definition: a hash
    of what the inventory and the host gave it.
    """

    instance: Instance
    files: Mapping[str, str]
    spec_hash: str
    weights: tuple[tuple[str, str], ...] = ()
    toolkit: str = ""
    definition: str = ""

    @cached_property
    def name(self) -> str:
        """Return <deployment>-<index>."""
        return self.instance.name

    @cached_property
    def deployment_name(self) -> str:
        """Return the name of its deployment."""
        return self.instance.deployment.name

    @cached_property
    def server(self) -> dict[str, Any]:
        """Return the plan's SERVER of this instance."""
        return server(self.instance, self.files, self.spec_hash)

    @cached_property
    def backend(self) -> BackendInstance:
        """Return the description for load balancers."""
        return backend_instance(self.instance)

    @cached_property
    def described(self) -> dict[str, Any]:
        """Return the plan's INSTANCE without its host."""
        return {**self.instance.to_json(self.spec_hash), "server": self.server}

    @cached_property
    def member(self) -> GenerationMember:
        """Return the instance as a member of a generation."""
        slot = self.instance.slot
        return GenerationMember(
            name=self.name,
            spec_hash=self.spec_hash,
            port=slot.port,
            ports=slot.ports,
            render_nodes=tuple(gpu.render_node for gpu in slot.gpus),
            share=slot.share,
            hosts=slot.rank.hosts if slot.rank else (),
            headless=self.instance.headless,
            limit=self.backend.limit,
        )

    @cached_property
    def generation_header(self) -> Generation:
        """Return the generation's common part, taken from this as its first instance; its number is not yet set."""
        instance, deployment = self.instance, self.instance.deployment
        env = (f"{name}={MASK if is_secret_name(name) else value}" for name, value in instance.env)
        return Generation(
            deployment=deployment.name,
            generation=0,
            image=instance.image,
            image_ref=deployment.image_ref,
            vllm=instance.tuned.release.requested,
            model=deployment.model,
            commit=instance.commit,
            weights=self.weights,
            command=shlex.join(word for group in instance.argv for word in group),
            env=shlex.join(env),
            models=self.backend.models,
            listen=instance.listen,
            endpoint=deployment.endpoint,
            stop_timeout=deployment.runtime.stop_timeout,
            toolkit=self.toolkit,
            definition=self.definition,
        )

    @cached_property
    def _file_hashes(self) -> Mapping[str, str]:
        return {name: text_hash(text) for name, text in self.files.items()}

    def file_hashes(self) -> Mapping[str, str]:
        """Return the sha256 of each file."""
        return self._file_hashes


@dataclass(frozen=True)
class RecordedInstance:
    """An instance as recorded in a generation of the node's store.

    managed: False if the instance is only present, and no action applies to it.
    """

    generation: Generation
    member: GenerationMember
    path: tuple[str | int, ...] = field(default=("vllm_deployments",), compare=False)
    managed: bool = True

    @property
    def name(self) -> str:
        """Return <deployment>-<index>."""
        return self.member.name

    @property
    def deployment_name(self) -> str:
        """Return the name of its deployment."""
        return self.generation.deployment

    @property
    def spec_hash(self) -> str:
        """Return the hash of its files."""
        return self.member.spec_hash

    @property
    def server(self) -> dict[str, Any]:
        """Return the plan's SERVER of this instance; files and container are read from the node's store."""
        return self.generation.server(self.member)

    @property
    def backend(self) -> BackendInstance:
        """Return the description for load balancers."""
        return self.generation.backend(self.member, self.path)

    @property
    def described(self) -> dict[str, Any]:
        """Return the plan's INSTANCE without its host, from the store."""
        made, member = self.generation, self.member
        return {
            "name": member.name,
            "deployment": made.deployment,
            "generation": made.generation,
            "model": made.model,
            "commit": made.commit or None,
            "served_model": made.models[0] if made.models else made.model,
            "image": made.image,
            "vllm": made.vllm,
            "port": member.port,
            "ports": list(member.ports),
            "render_nodes": list(member.render_nodes),
            "argv": shlex.split(made.command),
            "spec_hash": member.spec_hash,
            "server": self.server,
        }

    def file_hashes(self) -> Mapping[str, str]:
        """Return nothing: the files are in the node's store."""
        return {}


Serving = Union[PlannedInstance, RecordedInstance]


def recorded_instance(generation: Generation, name: str) -> RecordedInstance:
    """Return an instance of a generation. Raise StopIteration if there is none of this name."""
    return RecordedInstance(generation, next(item for item in generation.members if item.name == name))


def running_member(state: NodeState, running: ObservedInstance) -> RecordedInstance | None:
    """Return a container as recorded in the newest generation that contains it, or None; no action applies to it."""
    for history in state.generations:
        if history.deployment == running.deployment:
            found = history.of_spec(running.name, running.spec_hash)
            if found:
                return replace(recorded_instance(found, running.name), managed=False)
    return None


def compose_generation(deployment: str, instances: Sequence[PlannedInstance], modes: str) -> Generation:
    """Return the generation of these instances of a deployment on a host; its number is 0."""
    if not instances:
        return Generation(deployment, 0)
    members = tuple(item.member for item in instances)
    return replace(instances[0].generation_header, modes=modes, members=members)
