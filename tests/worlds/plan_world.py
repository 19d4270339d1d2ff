# SPDX-License-Identifier: Apache-2.0
"""A small world for planner tests: nodes as node_state reports them, and what applying a plan does."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Mapping
from functools import cache
from typing import Any

import jsonschema
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.content.image_ref import ImageSoftware
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.gpus import (
    GpuCatalog,
    parse_gpus,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.load import Knowledge
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.fleet import (
    Fleet,
    HostInput,
    build_fleet,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.factory import (
    InstanceFactory,
    ModelSource,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.render import (
    FILES,
    Render,
    renderer,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    ImagePin,
    Lock,
    ModelPin,
    model_key,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pipeline import plan_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.check import check_fleet
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.plan.host_plan import FleetPlan

from tests import ROOT

IMAGE = "registry.lab:5000/lab/vllm:1"
DIGEST = "sha256:" + "1" * 64
PULL = f"registry.lab:5000/lab/vllm@{DIGEST}"
NEXT_IMAGE, NEXT_DIGEST = "registry.lab:5000/lab/vllm:2", "sha256:" + "2" * 64
REPO = "lab/tiny-llama"
OTHER_REPO = "lab/tiny-other"
COMMIT = "c" * 40
GIB = 1 << 30
VRAM = 206141652992
DOCKER = {
    "installed": True,
    "available": True,
    "root_dir": "/var/lib/docker",
    "error": None,
    "version": "20.10.24+dfsg1",
}
COUNTS = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}
WEIGHTS = 5127868416  # bytes of what CONFIG describes
FILES_OF_REPO = (
    ("config.json", 700),
    ("model-1.safetensors", WEIGHTS),
    ("original/params.npz", 12 * GIB - WEIGHTS),
)
SOFTWARE = ImageSoftware("0.11.1", "rocm", "7.0.0", "2.9.0", "3.12", ("gfx942", "gfx950"))
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
LOCK = Lock(
    {IMAGE: ImagePin(DIGEST, 4 * GIB, SOFTWARE)},
    {model_key("", REPO, "main"): ModelPin(COMMIT, FILES_OF_REPO, CONFIG)},
)


@cache
def catalog() -> GpuCatalog:
    """The real GPU catalogue."""
    return parse_gpus(yaml.safe_load((ROOT / "catalog/gpus.yml").read_text(encoding="utf-8")))


@cache
def render() -> Render:
    """The real templates."""
    return renderer({f"{n}.j2": (ROOT / "templates" / f"{n}.j2").read_text(encoding="utf-8") for n in FILES})


@cache
def knowledge() -> Knowledge:
    """The real catalogue."""
    return Knowledge(ROOT / "catalog")


def workshop(lock: Lock = LOCK, models: Mapping[str, ModelSource] | None = None) -> InstanceFactory:
    """What instances are made with."""
    return InstanceFactory(knowledge(), lock, render(), models or {})


def gpus(
    mode: str = "SPX", count: int = 8, device_id: int = 0x74A1, first: int = 128
) -> list[dict[str, Any]]:
    """MI300X GPUs in a compute mode."""
    parts = COUNTS[mode]
    return [
        {
            "index": gpu,
            "bdf": f"0000:{gpu + 5:02x}:00.0",
            "vendor_id": 0x1002,
            "device_id": device_id,
            "gfx": "gfx942",
            "vram_total": VRAM,
            "compute_partition": mode,
            "available_compute_partitions": ["SPX", "DPX", "QPX", "CPX"],
            "memory_partition": "NPS1",
            "numa_node": gpu // 4,
            "partitions": [
                {"id": part, "render_minor": first + 8 * gpu + part, "memory_bytes": VRAM // parts}
                for part in range(parts)
            ],
        }
        for gpu in range(count)
    ]


def state(**changes: Any) -> dict[str, Any]:
    """A bare Debian node with eight MI300X and a Docker engine; keys replace whole parts."""
    base: dict[str, Any] = {
        "schema": 1,
        "hostname": "n1",
        "euid": 0,
        "os": {"id": "debian", "version_id": "12", "pretty_name": "Debian GNU/Linux 12 (bookworm)"},
        "numa_balancing": {"runtime": 1, "persisted": None, "file": None},
        "numa_nodes": [
            {"id": 0, "cpus": "0-95,192-287", "memory_bytes": 1 << 40},
            {"id": 1, "cpus": "96-191,288-383", "memory_bytes": 1 << 40},
        ],
        "virtual_machine": False,
        "driver": {"loaded": True, "version": "6.12.12"},
        "gpus": gpus(),
        "kfd_processes": [],
        "device_gids": {"kfd": 109, "render": 109, "video": 44},
        "docker": DOCKER,
        "images": [],
        "models": [],
        "instances": [],
        "disk": [
            {"path": "/var/lib/docker", "free_bytes": 500 * GIB, "total_bytes": 900 * GIB, "device": 1},
            {
                "path": "/var/lib/instinct-fleet/hf",
                "free_bytes": 800 * GIB,
                "total_bytes": 900 * GIB,
                "device": 2,
            },
        ],
    }
    return {**base, **copy.deepcopy(changes)}


def deployment(**keys: Any) -> dict[str, Any]:
    """A deployment of the test model; a key that is None is left out."""
    base = {"name": "llama", "model": REPO, "image": IMAGE}
    return {key: value for key, value in {**base, **keys}.items() if value is not None}


def fleet(
    states: Mapping[str, Mapping[str, Any] | None],
    deployments: Any,
    *,
    groups: Mapping[str, list[str]] | None = None,
    offline: bool = False,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    **variables: Any,
) -> Fleet:
    """A fleet whose hosts all have these variables, and some their own besides."""
    hosts = list(states)
    known = {"all": hosts, "instinct": hosts, "ungrouped": [], **(groups or {})}
    shared = {**({} if deployments is None else {"vllm_deployments": deployments}), **variables}
    inputs = {
        name: HostInput(
            {**shared, **(own or {}).get(name, {})},
            found,
            "" if found or offline else "it could not be reached",
        )
        for name, found in states.items()
    }
    return build_fleet(inputs, known, catalog(), offline)


def plan(
    states: Mapping[str, Mapping[str, Any] | None], deployments: Any, lock: Lock = LOCK, **keys: Any
) -> FleetPlan:
    """Validate, check and plan, as the action plugin does."""
    return plan_fleet(check_fleet(fleet(states, deployments, **keys)), workshop(lock))


def problems(states: Mapping[str, Mapping[str, Any] | None], deployments: Any, **keys: Any) -> list[str]:
    """The texts of all problems of an input, or of the hosts that it leaves out; empty when it can be planned."""
    try:
        made = plan(states, deployments, **keys)
    except FleetError as error:
        return [problem.text() for problem in error.problems]
    return [f"host {name}: {why}" for name, why in made.excluded]


def actions(host: Mapping[str, Any]) -> list[str]:
    """The actions of a host in plan.json, in short."""
    return [f"{item['kind']} {item['target']}" for item in host["actions"]]


NOW = "2026-11-21T22:00:00Z"


def copied(found: Any) -> Any:
    """A copy of what a host reports, as copy.deepcopy makes it, in a sixth of the time."""
    return pickle.loads(pickle.dumps(found, pickle.HIGHEST_PROTOCOL))


def apply_to_state(found: Mapping[str, Any], todo: Mapping[str, Any], now: str = NOW) -> dict[str, Any]:
    """What node_state reports after a host's part of plan.json was applied; uses nothing but that part."""
    after = copied(dict(found))
    if "git" in todo["packages"]:
        after["git"] = True
    if "docker.io" in todo["packages"]:
        after["docker"] = DOCKER
    if todo["numa_balancing"] is not None:
        value = int(todo["numa_balancing"])
        after["numa_balancing"] = {"runtime": value, "persisted": value, "file": "60-instinct-fleet.conf"}
    if todo["partition"]:
        stopped = {item["name"] for item in todo["partition"]["stop_servers"]}
        for instance in after["instances"]:
            if instance["name"] in stopped:
                instance["state"] = "exited"
        # The driver refuses while any instance runs.
        assert not [item for item in after["instances"] if item["state"] == "running"]
        after["gpus"] = _partitioned(after["gpus"], todo["partition"])
    built = todo.get("builds", {"build": [], "load": []})
    for image in (*built["build"], *built["load"], *todo["images"]):
        by_digest = [image["pull"]] if image["pull"] else []
        after["images"].append({"id": "sha256:x", "tags": [image["ref"]], "digests": by_digest, "bytes": 1})
    for model in todo["models"]:
        same = {"cache_dir": model["cache_dir"], "repo": model["repo"], "commit": model["commit"]}
        after["models"] = [
            item for item in after["models"] if any(item[key] != value for key, value in same.items())
        ]
        after["models"].append(
            {
                **same,
                "complete": True,
                "bytes": sum(model["files"].values()),
                "files": len(model["files"]),
                "exclude": model["exclude"],
                "include": model["include"],
            }
        )
    started = {server["name"] for server in todo["servers"]}
    removed = [*todo["remove"], *(todo["partition"]["remove"] if todo["partition"] else [])]
    store(after, todo, now)
    after["instances"] = [item for item in after["instances"] if item["name"] not in (*removed, *started)] + [
        {
            "name": server["name"],
            "deployment": server["deployment"],
            "state": "running",
            "spec_hash": server["spec_hash"],
            "artefact_hash": server["spec_hash"],
            "exit_code": 0,
        }
        for server in todo["servers"]
    ]
    return after


def _partitioned(before: list[dict[str, Any]], change: Mapping[str, Any]) -> list[dict[str, Any]]:
    """GPUs in other modes; they offer the modes of memory that they offered."""
    made = gpus(change["compute"] or before[0]["compute_partition"], len(before))
    for gpu, was in zip(made, before, strict=True):
        gpu["memory_partition"] = change["memory"] or was["memory_partition"]
        gpu.update({key: was[key] for key in ("available_memory_partitions",) if key in was})
    return made


def _bound(history: Mapping[str, Any]) -> set[int]:
    """The generations that a hold or an open rollout names, which are not pruned."""
    held, trial = history["held"] or {}, history["trial"] or {}
    return {held.get("generation"), *held.get("failed", ()), trial.get("generation"), trial.get("before")} - {
        None
    }


def store(after: dict[str, Any], todo: Mapping[str, Any], now: str = NOW) -> None:
    """What the module serving_generation does of a host's part of plan.json."""
    kept = {item["deployment"]: copied(item) for item in after.get("generations") or ()}
    for item in todo["generations"]:
        history = kept.setdefault(
            item["deployment"], {"deployment": item["deployment"], "held": None, "trial": None, "kept": []}
        )
        made = {key: value for key, value in item.items() if key != "needed"}
        kept_all = [*history["kept"], {**copy.deepcopy(made), "made": now}]
        bound = _bound(history)
        history["kept"] = [one for one in kept_all[:-5] if one["generation"] in bound] + kept_all[-5:]
    for item in todo["bindings"]:
        history = kept[item["deployment"]]
        if item["held"] is None:
            history.update(held=None, lifted=now)
        else:
            history["held"] = {**item["held"], "since": item["held"]["since"] or now}
        if "trial" in item:
            history.update(trial=None, ended=now)
    after["generations"] = [kept[name] for name in sorted(kept)]


SCHEMA = jsonschema.Draft202012Validator(
    json.loads((ROOT / "catalog/schemas/plan.schema.json").read_text(encoding="utf-8"))
)
