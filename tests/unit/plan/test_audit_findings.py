# SPDX-License-Identifier: Apache-2.0
"""What an audit of the plans found wrong: each finding as its kind, in cases that the audit did not have.

Black boxes: a list of deployments as an operator writes it, and what the plan says, prints or renders of it. Only
helpers that are older than the corrections are used, so that this file runs on the tree before them, and fails there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError

from tests import commands
from tests.worlds.plan_world import Lock, deployment, gpus, plan, state

JULY, OLD = "rocm/vllm:rocm6.4.1_vllm_0.9.1_20250715", "rocm/vllm-dev:main"
NOVEMBER = "rocm/vllm:rocm7.0.0_vllm_0.11.1_20251103"
FORK = "https://github.com/ROCm/vllm.git"
SMALL, LARGE, R1 = (
    "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct", "deepseek-ai/DeepSeek-R1"
)  # fmt: skip
FP8, FP8_LARGE = "amd/Llama-3.1-8B-Instruct-FP8-KV", "amd/Llama-3.3-70B-Instruct-FP8-KV"
FP8_405B = "amd/Llama-3.1-405B-Instruct-FP8-KV"
MIXTRAL = "amd/Mixtral-8x7B-Instruct-v0.1-FP8-KV"
AITER, MHA, SPLIT = (
    "VLLM_ROCM_USE_AITER", "VLLM_ROCM_USE_AITER_MHA", "VLLM_V1_USE_PREFILL_DECODE_ATTENTION"
)  # fmt: skip
UNIFIED, QUICK = "VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION", "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"
ASSERTED = {"ptpc-fp8", "quantization-at-start"}
"""Hints that hold only for a checkpoint which is not quantized."""


@dataclass(frozen=True)
class Said:
    """What the planner answered: the instances of plan.json, or why there is no plan."""

    instances: tuple[Mapping[str, Any], ...]
    refused: str

    @property
    def env(self) -> dict[str, str]:
        return dict(self.one["env"])

    @property
    def one(self) -> Mapping[str, Any]:
        assert self.instances, self.refused
        return self.instances[0]

    @property
    def warnings(self) -> str:
        return "\n".join(self.one["warnings"])

    @property
    def hints(self) -> set[str]:
        return {item["name"] for item in self.one["hints"]}

    def flag(self, name: str) -> Any:
        """A flag's value, as JSON where it is that; True where it has none, None where it is not there."""
        argv = list(self.one["argv"])
        if name not in argv:
            return None
        after = argv[argv.index(name) + 1 : argv.index(name) + 2]
        if not after or after[0].startswith("--"):
            return True
        try:
            return json.loads(after[0])
        except ValueError:
            return after[0]


def vllm(version: str) -> dict[str, str]:
    """The keys of an image of one's own with this release."""
    return {"image": "r.example/own:1", "vllm_version": version}


def one(model: str, keys: Mapping[str, Any], tp: int = 1, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "a", "model": model, "tensor_parallel_size": tp, **keys, **more}]


def asked(deployments: list[dict[str, Any]], node: Mapping[str, Any] | None) -> Said:
    """The plan of one host, offline where nothing is known of it."""
    items = [deployment(**item) for item in deployments]
    known: dict[str, Any] = {} if node else {"instinct_gpus": {"model": "MI300X", "count": 8}}
    try:
        made = plan(
            {"n1": node}, items, **({"lock": Lock()} if node is None else {}), offline=node is None, **known
        )
    except FleetError as error:
        return Said((), "\n".join(problem.text() for problem in error.problems))
    return Said(tuple(json.loads(json.dumps(made.to_json()))["hosts"]["n1"]["instances"]), "")


def built(ref: str, **keys: Any) -> dict[str, Any]:
    return {"image": None, "build": {"repo": FORK, "ref": ref, **keys}}


def drafted(**keys: Any) -> dict[str, Any]:
    return {"engine_args": {"speculative_config": {"num_speculative_tokens": 2, **keys}}}


Row = tuple[str, list[dict[str, Any]], Callable[[Said], bool]]
ROWS: tuple[Row, ...] = (
    # 2: AMD's 0.9.1 is not vLLM's.
    ("2-variable", one(FP8, {"image": JULY}, 2, env={QUICK: "INT6"}), lambda s: s.env[QUICK] == "INT6"
        and "Remove it" not in s.warnings),
    ("2-setting", one(FP8_LARGE, {"image": JULY}, 4, settings={"quick_reduce": "INT8"}),
        lambda s: s.env.get(QUICK) == "INT8"),
    ("2-mixtral", one(MIXTRAL, {"image": JULY}), lambda s: (s.env[AITER], s.env.get(MHA)) == ("1", "0")
        and SPLIT not in s.env),
    # 3: what recipes choose for it is what AMD measured.
    ("3-latency", one(FP8_LARGE, {"image": JULY}, 8, objective="latency"), lambda s: s.flag("--kv-cache-dtype") == "fp8"
        and (s.env[AITER], s.env[SPLIT]) == ("0", "1")),
    ("3-one-gpu", one(FP8, {"image": JULY}, objective="throughput"), lambda s: s.flag("--kv-cache-dtype") == "fp8"
        and not (s.env[AITER] == "1" and SPLIT in s.env)),
    # 4: no recipe takes the effect of a choice.
    ("4-split", one(LARGE, vllm("0.10.2"), 4, env={SPLIT: "1"}), lambda s: s.env[SPLIT] == "1"
        and not (s.env.get(AITER) == "1" and s.env.get(MHA) != "0")),
    ("4-named", one(SMALL, {"image": NOVEMBER}, env={"VLLM_ATTENTION_BACKEND": "TRITON_ATTN"}),
        lambda s: s.env.get(MHA) != "1"),
    # 5: a build of the fork's commit is what its tag is.
    ("5-version", one(FP8, vllm("0.9.2.dev364+gb432b7a28.rocm641"), objective="throughput"),
        lambda s: not any(map(s.flag, ("--num-scheduler-steps", "--swap-space", "--no-enable-chunked-prefill")))),
    ("5-commit", one(FP8_LARGE, {**built("b432b7a285aa"), "vllm_version": "0.9.2.dev364"}, 8, objective="latency"),
        lambda s: s.flag("--num-scheduler-steps") is None and "is assumed" not in s.warnings),
    # 6: the AITER branch is of another release, and has its file elsewhere.
    ("6-branch", one(FP8, built("aiter_integration_final", dockerfile="Dockerfile.rocm")),
        lambda s: s.env.get("VLLM_USE_AITER") == "1" and AITER not in s.env),
    ("6-file", one(FP8_LARGE, {**built("aiter_integration_final"), "vllm_version": "0.7.3"}, 8),
        lambda s: "Dockerfile.rocm" in s.refused),
    # 8: JSON as text is a choice like a map.
    ("8-ngram", one(SMALL, vllm("0.10.1"), objective="throughput", engine_args={
        "speculative_config": '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'}),
        lambda s: s.flag("--async-scheduling") is None),
    ("8-compilation", one(SMALL, {"image": NOVEMBER}, objective="throughput", engine_args={
        "compilation_config": '{"cudagraph_capture_sizes": [1, 2, 4]}'}), lambda s: s.flag("--compilation-config")
        == {"cudagraph_capture_sizes": [1, 2, 4], "cudagraph_mode": "FULL_AND_PIECEWISE"}),
    # 9: what is unknown of a checkpoint is not asserted, and its name is evidence.
    ("9-mxfp4", one("amd/DeepSeek-V3.1-MXFP4", {"image": NOVEMBER}, 8), lambda s: "MXFP4" in s.refused),
    ("9-path", one("/srv/models/our-own-7b", {"image": NOVEMBER}), lambda s: not ASSERTED & s.hints),
    ("9-gptq", one("someone/Qwen3-32B-GPTQ-Int4", {"image": NOVEMBER}, 2), lambda s: not ASSERTED & s.hints),
    # 10: graphs that the backend cannot have.
    ("10-v3", one("deepseek-ai/DeepSeek-V3", vllm("0.11.2"), 8, env={AITER: "0"}, settings={"graph_mode": "FULL"}),
        lambda s: "cudagraph_mode FULL is not supported" in s.refused),
    ("10-recipe", one(R1, vllm("0.11.1"), 8, env={AITER: "0"}, objective="throughput"),
        lambda s: s.flag("--compilation-config") == {"cudagraph_mode": "PIECEWISE"}),
    # 11: a batch below the context needs chunks.
    ("11-batch", one(SMALL, vllm("0.16.0"), engine_args={"enable_chunked_prefill": False, "max_model_len": 16384,
        "max_num_batched_tokens": 4096}), lambda s: "max_num_batched_tokens 4096 is below" in s.refused),
    # 12: who can draft.
    ("12-draft", one(LARGE, vllm("0.13.0"), 8, **drafted(model="meta-llama/Llama-3.2-1B-Instruct")),
        lambda s: "cannot draft with a model of its own" in s.refused),
    ("12-eagle", one(SMALL, vllm("0.10.1"), **drafted(method="eagle", model="yuhuili/EAGLE-LLaMA3.1-Instruct-8B")),
        lambda s: "came to V1 later" not in s.warnings),
    # 13: switches without effect are named.
    ("13-master", one(R1, {"image": NOVEMBER}, 8, env={AITER: "0", "VLLM_ROCM_USE_AITER_MLA": "1"}),
        lambda s: "env.VLLM_ROCM_USE_AITER_MLA: has no effect" in s.warnings),
    ("13-recipe", one(R1, vllm("0.11.2"), 8, env={AITER: "0"}),
        lambda s: "VLLM_ROCM_USE_AITER_MOE" not in s.env and "VLLM_ROCM_USE_AITER_FP8BMM" not in s.env),
    ("13-unified", one(LARGE, vllm("0.11.1"), 4, env={AITER: "1", UNIFIED: "1"}),
        lambda s: f"env.{UNIFIED}: has no effect" in s.warnings),
    ("13-reduce", one(SMALL, {"image": NOVEMBER}, settings={"quick_reduce": "FP"}),
        lambda s: f"{QUICK}: has no effect" in s.warnings),
    # 15: two models on a GPU, as the seed writes it.
    ("15-unequal", [*one(SMALL, {"image": NOVEMBER}, gpus=[3], engine_args={"gpu_memory_utilization": 0.4}),
        {"name": "b", "model": "Qwen/Qwen3-8B", "image": NOVEMBER, "port": 9000, "gpus": [3],
         "engine_args": {"gpu_memory_utilization": 0.5}}],
        lambda s: [item["gpus"] for item in s.instances] == [[3], [3]]),
    ("15-help", [*one(SMALL, {"image": NOVEMBER}, gpus=[2]), {"name": "b", "model": "Qwen/Qwen3-8B", "port": 9000,
        "image": NOVEMBER, "gpus": [2]}], lambda s: "instances_per_gpu" in s.refused),
    # 16: methods of quantization that the release lacks.
    ("16-gone", one(LARGE, vllm("0.28.0"), 4, engine_args={"quantization": "ptpc_fp8"}),
        lambda s: "has no quantization method ptpc_fp8" in s.refused),
    ("16-deprecated", one(SMALL, vllm("0.17.0"), engine_args={"quantization": "ptpc_fp8"}),
        lambda s: "allow_deprecated_quantization" in s.refused),
    # 17: what AMD's FP8 checkpoints declare, and the commands that AMD prints for them.
    ("17-flag", one(FP8_405B, {"image": JULY}, 8, engine_args={"quantization": "fp8"}),
        lambda s: s.flag("--quantization") == "fp8"),
    # 18: the small ones.
    ("18-slash", one("amd/Llama-3.3-70B-Instruct-FP8-KV/", {"image": NOVEMBER}, 8),
        lambda s: s.one["argv"][2] == FP8_LARGE),
    ("18-shared", one(LARGE, {"image": NOVEMBER}, 4, runtime={"ipc": "private", "shm_size": "1g"}),
        lambda s: "runtime.shm_size: 1.0 GiB may be too little for 4 workers" in s.warnings),
    ("18-reduce", one(FP8_405B, {"image": OLD, "vllm_version": "0.6.3"}, 8, recipes=False),
        lambda s: "custom all-reduce" not in s.warnings),
    ("18-dots", one(SMALL, {"image": NOVEMBER}, env={"RCCL_DEBUG": "INFO"}),
        lambda s: "RCCL" in s.warnings and ".." not in s.warnings),
)  # fmt: skip


@pytest.mark.parametrize(("deployments", "right"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_finding(deployments: list[dict[str, Any]], right: Callable[[Said], bool]) -> None:
    said = asked(deployments, None)
    assert right(said), said


@pytest.mark.parametrize(
    ("mode", "count", "size"), [("CPX", 4, 1), ("CPX", 12, 1), ("QPX", 6, 1), ("DPX", 3, 1), ("CPX", 8, 2)]
)
def test_finding_14_partitions_spread_over_gpus(mode: str, count: int, size: int) -> None:
    """Each GPU has an instance before any has two."""
    said = asked([{"instances_per_host": count, "tensor_parallel_size": size}], state(gpus=gpus(mode)))
    parts = len(gpus(mode)[0]["partitions"])
    used = {item["gpus"][0] // parts for item in said.instances}
    assert len(used) == min(count, 8), said


def test_finding_6_in_the_documents_commands() -> None:
    """The AITER branch is no 0.9.1, and its Dockerfile is named."""
    found = [
        entry for entry in commands.entries() if "aiter_integration_final" in json.dumps(entry.deployments)
    ]
    assert found
    for entry in found:
        assert all(item["build"].get("dockerfile") == "Dockerfile.rocm" for item in entry.deployments)
        assert not any(str(item.get("vllm_version", "")).startswith("0.9") for item in entry.deployments)
