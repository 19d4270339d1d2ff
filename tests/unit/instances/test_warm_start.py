# SPDX-License-Identifier: Apache-2.0
"""What makes starts quick: variables, how weights are read, and whose caches an instance takes over."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.engines.start_command import without_addresses

from tests.worlds.plan_world import deployment, plan, state

FLAG = "--safetensors-load-strategy"


def instances(network: str = "", hosts: int = 1, **keys: Any) -> list[dict[str, Any]]:
    """The instances of a deployment on bare hosts, whose cache of weights lies on such a file system."""
    disks = copy.deepcopy(state()["disk"])
    if network:
        disks[1]["network"] = network
    keys = {"recipes": False, "vllm_version": "0.32.0", **keys}
    states = {f"n{number}": state(disk=disks, hostname=f"n{number}") for number in range(1, hosts + 1)}
    made: dict[str, Any] = plan(states, [deployment(**keys)]).to_json()
    return [item for host in made["hosts"].values() for item in host["instances"]]


def strategy(found: dict[str, Any]) -> str:
    words = found["argv"]
    return words[words.index(FLAG) + 1] if FLAG in words else ""


@pytest.mark.parametrize(
    ("network", "version", "keys", "expected"),
    [
        ("", "0.32.0", {}, ""),
        ("nfs4", "0.32.0", {}, ""),  # it reads ahead by itself, if the memory suffices
        ("lustre", "0.24.0", {}, ""),
        ("wekafs", "0.32.0", {}, "prefetch"),
        ("ceph", "0.19.0", {}, "prefetch"),
        ("nfs", "0.16.0", {}, "eager"),
        ("wekafs", "0.11.2", {}, "eager"),
        ("nfs", "0.9.1", {}, ""),  # has no such flag
        ("wekafs", "0.32.0", {"engine_args": {"safetensors_load_strategy": "lazy"}}, "lazy"),
        ("wekafs", "0.32.0", {"engine_args": {"load_format": "dummy"}}, ""),
        ("wekafs", "0.32.0", {"model": "/models/llama", "served_model_name": "m"}, ""),
    ],
)
def test_weights_are_read_as_their_file_system_wants(
    network: str, version: str, keys: dict[str, Any], expected: str
) -> None:
    (found,) = instances(network, vllm_version=version, **keys)
    assert strategy(found) == expected
    reasons = [item for item in found["reasons"] if item["setting"] == FLAG]
    assert len(reasons) == bool(expected)
    if expected in ("prefetch", "eager"):
        assert (network in reasons[0]["reason"], reasons[0]["source"]) == (True, "vllm-weight-loader")


@pytest.mark.parametrize(("version", "expected"), [("0.25.0", None), ("0.26.0", "1"), ("0.32.0", "1")])
def test_a_start_is_remembered_where_the_release_can(version: str, expected: str | None) -> None:
    (found,) = instances(vllm_version=version)
    assert found["env"].get("VLLM_ENABLE_STARTUP_PLAN") == expected
    assert found["env"]["TRITON_CACHE_DIR"] == "/cache/triton"
    told = {item["setting"]: item["source"] for item in found["reasons"]}
    assert told["TRITON_CACHE_DIR"] == "vllm-compile-cache"
    assert told.get("VLLM_ENABLE_STARTUP_PLAN") == (expected and "vllm-startup-plan")


def test_the_operators_word_stands() -> None:
    (found,) = instances(env={"VLLM_ENABLE_STARTUP_PLAN": "0", "TRITON_CACHE_DIR": "/tmp/t"})
    assert (found["env"]["VLLM_ENABLE_STARTUP_PLAN"], found["env"]["TRITON_CACHE_DIR"]) == ("0", "/tmp/t")


def keys_of(**keys: Any) -> set[str]:
    return {item["server"]["cache_key"] for item in instances(**keys)}


def test_equal_instances_share_their_caches_wherever_they_listen() -> None:
    assert len(keys_of(hosts=3, instances_per_host=4)) == 1
    assert keys_of(port=9000) == keys_of(listen="0.0.0.0") == keys_of()


@pytest.mark.parametrize(
    "keys",
    [
        {"engine_args": {"max_model_len": 1024}},
        {"engine_args": {"gpu_memory_utilization": 0.7}},
        {"env": {"VLLM_ROCM_USE_AITER": "1"}},
        {"vllm_version": "0.28.0"},
        {"tensor_parallel_size": 2},
        {"settings": {"max_num_seqs": 16}},
    ],
)
def test_what_compiles_otherwise_has_another_key(keys: dict[str, Any]) -> None:
    assert keys_of(**keys).isdisjoint(keys_of())


def test_a_command_without_its_addresses() -> None:
    argv = "vllm serve m --host 10.0.0.1 --port 1 --port=2 --master-addr x --data-parallel-address y --seed 1"
    assert without_addresses(argv.split()) == ["vllm", "serve", "m", "--seed", "1"]
