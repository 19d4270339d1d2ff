# SPDX-License-Identifier: Apache-2.0
"""Command lines that plans of one vLLM release may consist of, made by the functions that make a run's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import yaml
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.facts import (
    ModelFacts,
    model_facts,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.images import ImageFacts
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.models import named_model
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.recipes import OBJECTIVES
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.env_vars import check_env
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.deployment import (
    Deployment,
    parse_deployments,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.feasibility.feasibility import (
    Feasibility,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.compose import (
    Pins,
    Surroundings,
    compose,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.topology import LogicalGpu
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import Lock
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.placement.ranks import (
    HostGroup,
    rank_of,
    servers_per_host,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.placement.slots import Slot
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.companion_args import with_pins
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.parallel import parallel_problems
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.tune import TargetGpu, tune

from tests import ROOT
from tests.commands import entries, instances
from tests.worlds.catalogue import knowledge
from tests.worlds.plan_world import fleet, workshop
from tests.worlds.recipe_models import MODELS
from tests.worlds.setting_values import values

Line = tuple[str, ...]
"""What stands behind `vllm serve`."""
GIB = 1 << 30
EAGLE = {"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 2}
SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"tensor_parallel_size": 8},
    {"instances_per_gpu": 2},
    {"nodes": 2, "tensor_parallel_size": 8, "pipeline_parallel_size": 2},
    {"nodes": 2, "tensor_parallel_size": 4, "data_parallel_size": 4, "settings": {"expert_parallel": True}},
    {"tensor_parallel_size": 2, "data_parallel_size": 2, "data_parallel_balancing": "external"},
    {"settings": {"speculative": EAGLE}},
    {"settings": {"kv_cache_dtype": "fp8"}, "workload": ["synthetic", "short-input"]},
)
"""Keys of deployments that change a command line."""
MACHINES = (
    (TargetGpu("gfx942", "MI300X", "SPX", "NPS1", 192 * GIB, 192 * GIB), len(SHAPES)),
    (TargetGpu("gfx942", "MI300X", "CPX", "NPS4", 24 * GIB, 192 * GIB), 2),
    (TargetGpu("gfx950", "MI355X", "SPX", "NPS1", 288 * GIB, 288 * GIB), 3),
)
"""Sorts of GPUs, and how many of SHAPES are tried on them."""
HOSTS = ("host-1", "host-2")


def deployment(**keys: Any) -> Deployment:
    """A deployment with these keys."""
    image = {} if "build" in keys else {"image": "rocm/vllm:x"}
    found, wrong = parse_deployments([{"name": "m", "model": "org/m", **image, **keys}])
    assert not wrong, wrong
    return found[0]


@cache
def shaped(repository: str, objective: str, shape: int) -> Deployment:
    """A deployment of one of SHAPES."""
    given = {"objective": objective} if objective else {}
    return deployment(model=repository, **given, **SHAPES[shape])


def lines_of(wanted: Deployment, machine: TargetGpu, model: ModelFacts, version: str) -> Iterator[Line]:
    """The command line of every server of an engine; nothing when the release cannot serve it.

    AssertionError when a variable has a text that stops vLLM.
    """
    software = ImageFacts(wanted.image, "declared", vllm=version, platform="rocm")
    tuned = tune(wanted, machine, software, model, knowledge())
    if tuned.problems or parallel_problems(wanted, tuned.table):
        return
    env = knowledge().env(version)
    assert not [item for item in tuned.env.items() if check_env(env, *item).is_error]
    gpus = tuple(
        LogicalGpu(index, index, 0, 128 + 8 * index, machine.memory_bytes)
        for index in range(wanted.gpus_per_node)
    )
    group = HostGroup(0, HOSTS[: wanted.nodes], "192.0.2.1", ()) if wanted.nodes > 1 else None
    for host in HOSTS[: wanted.nodes]:
        for index in range(servers_per_host(wanted)):
            slot = Slot(wanted, index, gpus, rank=rank_of(wanted, index, group, host))
            pinned = with_pins(tuned, wanted, lambda _: "c" * 40)
            made = compose(slot, Surroundings("127.0.0.1", "/hf"), Pins(), pinned, Feasibility())
            words = tuple(word for part in made.argv for word in part)
            if words[:2] == ("vllm", "serve"):  # a Ray worker runs something else
                yield words[2:]


def recommended(version: str) -> set[Line]:
    """Every recipe's models, on every sort of GPU, with every objective, in every shape."""
    found: set[Line] = set()
    for machine, shapes in MACHINES:
        for model, objective, shape in product(MODELS, ("", *OBJECTIVES), range(shapes)):
            wanted = shaped(model.repository, objective, shape)
            found.update(lines_of(wanted, machine, model, version))
    return found


def settled(version: str) -> set[Line]:
    """Every neutral setting with every value, decided by the operator."""
    found: set[Line] = set()
    for name in knowledge().settings:
        for value in values(name):
            wanted = deployment(settings={name: value}, recipes=False)
            found.update(lines_of(wanted, MACHINES[0][0], ModelFacts("org/m"), version))
    return found


def documented(version: str) -> set[Line]:
    """The deployments of AMD's documents, on this release."""
    found: set[Line] = set()
    for entry in {str(item.deployments): item for item in entries()}.values():
        number = 1 if entry.host.get("gpu_partition_compute") == "CPX" else 0
        for keys in entry.deployments:
            wanted = deployment(**keys)
            facts = model_facts(wanted.model, named_model(knowledge().models, wanted.model).config)
            found.update(lines_of(wanted, MACHINES[number][0], facts, version))
    return found


def example(version: str) -> set[Line]:
    """The plan of inventory/example, made as `plan.yml -e offline=true` does."""
    there = ROOT / "inventory/example"
    variables: dict[str, Any] = {}
    for path in sorted((there / "group_vars/instinct").glob("*.yml")):
        variables.update(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    hosts = yaml.safe_load((there / "hosts.yml").read_text(encoding="utf-8"))["instinct"]["hosts"]
    wanted = [{**item, "vllm_version": version} for item in variables.pop("vllm_deployments")]
    checked = check_fleet(fleet(dict.fromkeys(hosts), wanted, offline=True, **variables))
    made = plan_fleet(checked, workshop(Lock({}, {})))
    return {tuple(item["argv"][2:]) for item in instances(made)}


def rendered(version: str) -> list[Line]:
    """All of them, each once."""
    found = recommended(version) | settled(version) | documented(version) | example(version)
    return sorted(found)
