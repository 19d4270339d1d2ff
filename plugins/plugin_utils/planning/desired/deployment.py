# SPDX-License-Identifier: Apache-2.0
"""Validate `vllm_deployments`, the deployments of an operator, strictly into frozen dataclasses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ....module_utils.common.errors import Path, Problem
from ....module_utils.common.hashing import text_hash
from ...base.checker import Checker, KeyReader
from ...knowledge.catalog.recipes import OBJECTIVES
from .deployment_parts import (
    Build,
    Runtime,
    container_runtime,
    environment,
    gpu_list,
    image_or_build,
    secret_variables,
)
from .engine_options import Flag, engine_args
from .engine_options import settings as engine_settings

NAME = r"[a-z0-9][a-z0-9-]{0,40}"
REPO = r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*"
LOCAL = r"/[^\x00-\x1f:]*"

KEYS = (
    "name", "model", "revision", "model_config", "image", "vllm_version", "build", "hosts", "port", "listen",
    "endpoint", "routing", "instances_per_host", "instances_per_gpu", "gpus", "nodes", "tensor_parallel_size",
    "pipeline_parallel_size", "data_parallel_size", "data_parallel_balancing", "served_model_name", "weight",
    "mixed_models", "objective", "workload", "recipes", "settings", "engine_args", "env", "secrets", "exclude",
    "include", "weights_formats", "runtime",
)  # fmt: skip
ROUTING = ("least-requests", "prefix")
BALANCING = ("internal", "hybrid", "external")
WORKLOADS = ("synthetic", "short-input")
FORMATS = ("safe", "any")
MAX = "max"
VERSION_EXAMPLE = '"0.11.1"'
MAX_WEIGHT = 256  # HAProxy's


@dataclass(frozen=True)
class Deployment:
    """A deployment as the operator wrote it: one entry of vllm_deployments.

    Attributes:
        index: its position in the list, for messages.
        instances_per_host: 0 for as many as the host's GPUs allow ("max").
        nodes: number of hosts of one instance.
        objective: "" for none; then only settings that serve every purpose are tuned.
        vllm_version: "" for the version that the image is known to contain.
        model_config: a config.json, or a directory with one, on the control node.
        listen: "" for the address that own_listen chooses.
        endpoint: the load balancer serves the deployment.
        other_names: further model names that clients may request.
        weight: an instance's share of the requests in progress, relative to that of other deployments of the same name.
        mixed_models: another deployment may serve one of its names with another model.
        weights_formats: "any" if weights may be pickles, which can run code when they are loaded.
        definition: a hash of what the operator wrote, without the values of secrets.
        secrets: variables like env, whose values appear in no plan, and only in a file of root's on the node.
    """

    index: int
    name: str
    model: str
    revision: str = "main"
    model_config: str = ""
    image: str = ""
    vllm_version: str = ""
    build: Build | None = None
    hosts: tuple[str, ...] | None = None
    port: int = 8000
    listen: str = ""
    endpoint: bool = True
    routing: str = ROUTING[0]
    instances_per_host: int = 1
    instances_per_gpu: int = 1
    gpus: tuple[int, ...] | None = None
    nodes: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_balancing: str = "internal"
    served_model_name: str = ""
    other_names: tuple[str, ...] = ()
    weight: int = 1
    mixed_models: bool = False
    objective: str = ""
    workload: tuple[str, ...] = ()
    recipes: bool = True
    settings: tuple[tuple[str, Flag], ...] = ()
    engine_args: tuple[tuple[str, Flag], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    weights_formats: str = FORMATS[0]
    runtime: Runtime = field(default_factory=Runtime)
    definition: str = field(default="", repr=False, compare=False)

    @property
    def path(self) -> Path:
        """Return the path of this deployment in the inventory's data."""
        return ("vllm_deployments", self.index)

    @property
    def local_model(self) -> bool:
        """Return whether the model is a directory on the node instead of a repository of the hub."""
        return self.model.startswith("/")

    @property
    def gpus_per_node(self) -> int:
        """Return the number of logical GPUs that one instance uses on each of its hosts."""
        return -(-self.world_size // self.nodes)

    @property
    def world_size(self) -> int:
        """Return the number of logical GPUs of one instance over all its hosts."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def image_ref(self) -> str:
        """Return the image's reference as configured, or the tag of the built image."""
        return self.build.tag if self.build else self.image


def parse_deployments(value: Any) -> tuple[tuple[Deployment, ...], tuple[Problem, ...]]:
    """Validate a whole vllm_deployments; the result omits deployments with problems."""
    check = Checker()
    deployments = []
    names: dict[str, int] = {}
    for index, item in enumerate(check.listing(value, ("vllm_deployments",))):
        before = len(check.problems)
        found = _deployment(check, item, index)
        if found.name in names:
            check.wrong(
                (*found.path, "name"),
                f"{found.name!r} is already the name of vllm_deployments[{names[found.name]}].",
                "Names must be unique.",
            )
        elif found.name:
            names[found.name] = index
        if len(check.problems) == before:
            deployments.append(replace(found, definition=_definition(item)))
    return tuple(deployments), tuple(check.problems)


def _definition(item: Mapping[str, Any]) -> str:
    """Return a hash of a deployment as it is written, which is the same in every release of the toolkit."""
    written = {key: value if key != "secrets" else sorted(value or ()) for key, value in item.items()}
    return text_hash(json.dumps(written, default=str, skipkeys=True))[:16]


def _deployment(check: Checker, item: Any, index: int) -> Deployment:
    path: Path = ("vllm_deployments", index)
    given = check.mapping(item, path, KEYS)
    if not isinstance(item, Mapping):
        return Deployment(index, "", "")
    KeyReader(check, given, path).require("name", "model")
    # A key without a value ("gpus:") means the default, as in the rest of Ansible's YAML.
    keys = KeyReader(check, {key: value for key, value in given.items() if value is not None}, path)
    name = keys.text(
        "name", NAME, "lower-case letters, digits and hyphens, at most 41, not beginning with a hyphen"
    )
    model = _model(keys)
    image, build = image_or_build(keys, name)
    _refuse_hub_keys(keys, model)
    served, *others = _served_names(keys) or [_own_name(model)]
    found = Deployment(
        index=index,
        name=name,
        model=model,
        revision=keys.text("revision", r"[^\s:]+", "a ref", "main"),
        model_config=keys.text("model_config"),
        image=image,
        vllm_version=keys.text("vllm_version", r"\d+\.\d+.*", f"a version in quotes: {VERSION_EXAMPLE}"),
        build=build,
        hosts=keys.texts("hosts") if "hosts" in keys else None,
        port=keys.integer("port", 8000, 1, 65535),
        listen=keys.text("listen", r"[0-9a-zA-Z.:_-]+", "an address"),
        endpoint=keys.boolean("endpoint", True),
        routing=keys.choice("routing", ROUTING[0], ROUTING),
        instances_per_host=keys.parse("instances_per_host", 1, partial(_instances, check)),
        instances_per_gpu=keys.integer("instances_per_gpu", 1, 1, 8),
        gpus=keys.parse("gpus", None, partial(gpu_list, check)),
        nodes=keys.integer("nodes", 1, 1, 1024),
        tensor_parallel_size=keys.integer("tensor_parallel_size", 1, 1, 512),
        pipeline_parallel_size=keys.integer("pipeline_parallel_size", 1, 1, 1024),
        data_parallel_size=keys.integer("data_parallel_size", 1, 1, 1024),
        data_parallel_balancing=keys.choice("data_parallel_balancing", BALANCING[0], BALANCING),
        served_model_name=served,
        other_names=tuple(others),
        weight=keys.integer("weight", 1, 1, MAX_WEIGHT),
        mixed_models=keys.boolean("mixed_models", False),
        objective=keys.choice("objective", "", OBJECTIVES),
        workload=tuple(
            check.choice(word, (*path, "workload", number), "", WORKLOADS)
            for number, word in enumerate(keys.texts("workload"))
        ),
        recipes=keys.boolean("recipes", True),
        settings=keys.parse("settings", (), partial(engine_settings, check)),
        engine_args=keys.parse("engine_args", (), partial(engine_args, check)),
        env=keys.parse("env", (), partial(environment, check)),
        secrets=keys.parse("secrets", (), partial(secret_variables, check)),
        exclude=keys.texts("exclude"),
        include=keys.texts("include"),
        weights_formats=keys.choice("weights_formats", FORMATS[0], FORMATS),
        runtime=keys.parse("runtime", Runtime(), partial(container_runtime, check)),
    )
    _shape(check, found)
    return found


def _model(keys: KeyReader) -> str:
    meaning = "organisation/name, as on the hub, or an absolute path on the node, without :"
    model = keys.text("model", f"{REPO}/?|{LOCAL}", meaning)
    return model if model.startswith("/") else model.removesuffix("/")  # as a directory is often written


def _own_name(model: str) -> str:
    """Return the name under which a model is served unless the operator gives it another."""
    return model.rstrip("/").rpartition("/")[2] if model.startswith("/") else model


def _refuse_hub_keys(keys: KeyReader, model: str) -> None:
    for key in ("revision", "exclude", "include"):
        if model.startswith("/") and key in keys:
            what = "has no meaning for a model that is a path on the node."
            keys.check.wrong((*keys.path, key), what, f"Remove {key}.")


def _shape(check: Checker, found: Deployment) -> None:
    """Check that the sizes of a deployment fit each other; the layout compares them with the hosts."""
    if found.world_size % found.nodes:
        check.wrong(
            (*found.path, "nodes"),
            f"{found.world_size} GPUs of an instance cannot be divided over {found.nodes} nodes.",
            "tensor x pipeline x data parallel size must be a multiple of nodes.",
        )
    for name in sorted({name for name, _value in found.env} & {name for name, _value in found.secrets}):
        check.wrong((*found.path, "secrets", name), "is also in env.", "Remove it there.")
    if found.instances_per_gpu > 1 and found.world_size > 1:
        check.wrong(
            (*found.path, "instances_per_gpu"),
            f"{found.instances_per_gpu} instances cannot share GPUs when each of them has {found.world_size}.",
            "Use it with one GPU per instance only.",
        )


def _served_names(keys: KeyReader) -> list[str]:
    """Return the model names that clients may request; none where the model's own is the only one."""
    check, where = keys.check, (*keys.path, "served_model_name")
    given = keys.values.get("served_model_name")
    if not isinstance(given, (list, tuple)):
        return [keys.text("served_model_name")] if "served_model_name" in keys else []
    names = keys.texts("served_model_name")
    if not names:
        check.wrong(where, "lists no name.", "Name one, or leave it out for the model's own.")
    for at, name in enumerate(names):
        if name in names[:at]:
            check.wrong((*where, at), f"{name!r} is listed twice.", "Remove one.")
    return list(names)


def _instances(check: Checker, value: Any, path: Path) -> int:
    """Return the number of instances per host, 0 for "max"."""
    if value == MAX:
        return 0
    if isinstance(value, str):
        check.wrong(
            path, f"{value!r} is not valid.", f"It must be a whole number, or {MAX} for as many as fit."
        )
        return 1
    return check.integer(value, path, 1, 1, 512)
