# SPDX-License-Identifier: Apache-2.0
"""Flags and variables of a deployment: the operator's word wins, recipes add, what cannot work is refused."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.facts import ModelFacts
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.catalog.images import ImageFacts
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.vllm.recognize import (
    recognize_settings,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.decisions import Decisions
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.tuning.tune import TunedSettings, tune

from tests.worlds.catalogue import knowledge
from tests.worlds.tune_world import LLAMA, MI300X, deployment, tuned

R1 = ModelFacts(
    "deepseek-ai/DeepSeek-R1",
    ("DeepseekV3ForCausalLM",),
    True,
    True,
    head_size=192,
    quantization="fp8",
    heads=128,
)


def problems(found: TunedSettings) -> list[str]:
    """The problems' texts."""
    return [problem.text() for problem in found.problems]


def test_recipes_choose_by_release() -> None:
    old, new = tuned("0.11.1"), tuned("0.33.0")
    assert old.env["VLLM_ROCM_USE_AITER"] == new.env["VLLM_ROCM_USE_AITER"] == "1"
    assert "--attention-backend" not in old.args
    assert new.args["--attention-backend"] == "ROCM_AITER_FA"
    assert "--attention-backend" in new.chosen


def test_every_value_has_one_reason_with_a_source() -> None:
    found = tuned(
        "0.11.1", objective="throughput", settings={"custom_ops": ["-rms_norm"]}, engine_args={"seed": 1}
    )
    named = [reason.setting for reason in found.reasons]
    assert set(named) == {*found.args, *found.env}
    # --compilation-config is put together from a setting and a recipe: each part has its own reason
    assert sorted(name for name in named if named.count(name) > 1) == ["--compilation-config"] * 2
    assert all(reason.source and reason.reason for reason in found.reasons)


@pytest.mark.parametrize(
    ("keys", "setting", "value"),
    [
        ({"engine_args": {"max_num_seqs": 64}}, "--max-num-seqs", 64),
        ({"engine_args": {"gpu-memory-utilization": 0.8}}, "--gpu-memory-utilization", 0.8),
        ({"settings": {"gpu_memory_utilization": 0.7}}, "--gpu-memory-utilization", 0.7),
        ({"engine_args": {"async_scheduling": False}}, "--async-scheduling", False),
    ],
)
def test_the_operator_wins(keys: dict[str, Any], setting: str, value: Any) -> None:
    found = tuned("0.11.1", objective="throughput", **keys)
    assert found.args[setting] == value
    assert setting not in found.chosen
    assert not found.problems


def test_a_contradicted_choice_is_omitted_whole() -> None:
    """AITER off by the operator: the AITER backend, which needs it, is not named either."""
    found = tuned("0.33.0", env={"VLLM_ROCM_USE_AITER": "0"})
    assert found.env["VLLM_ROCM_USE_AITER"] == "0"
    assert "--attention-backend" not in found.args


def test_without_recipes_only_the_operators_settings() -> None:
    found = tuned("0.33.0", objective="throughput", recipes=False, engine_args={"max_model_len": 4096})
    assert found.args == {"--max-model-len": 4096}
    assert found.env == {}


def test_an_image_for_cpu_gets_nothing_for_gpus() -> None:
    found = tuned("0.32.0+cpu", platform="cpu")
    assert not [name for name in found.env if "ROCM" in name or "AITER" in name or "HIP" in name]
    assert "--attention-backend" not in found.args


@pytest.mark.parametrize(
    ("version", "keys", "text"),
    [
        (
            "0.11.1",
            {"engine_args": {"max_num_seq": 4}},
            "vllm_deployments[0].engine_args.max_num_seq: is not a flag of vLLM 0.11.1, nor of any other release "
            "in the catalogue. Did you mean max_num_seqs?",
        ),
        ("0.11.1", {"engine_args": {"swap_spce": 4}}, "Did you mean swap_space?"),
        ("0.18.0", {"engine_args": {"swap_space": 4}}, "was removed in vLLM 0.18.0, and this is 0.18.0."),
        ("0.9.1", {"engine_args": {"async_scheduling": True}}, "came with vLLM 0.10.0, and this is 0.9.1."),
        ("0.11.1", {"engine_args": {"kv_cache_dtype": "fp9"}}, "'fp9' is not valid in vLLM 0.11.1."),
        ("0.11.1", {"engine_args": {"n": 2}}, "engine_args.n: is set by the toolkit."),
        (
            "0.11.1",
            {"settings": {"atention_backend": "triton"}},
            "is not a setting. Did you mean attention_backend?",
        ),
        (
            "0.11.1",
            {"settings": {"attention_backend": "cuda"}},
            "settings.attention_backend: 'cuda' is not valid.",
        ),
        (
            "0.11.1",
            {"settings": {"max_num_seqs": 8}, "engine_args": {"max_num_seqs": 9}},
            "settings.max_num_seqs: needs --max-num-seqs to be 8, but it is set to 9. Keep one of the two.",
        ),
        (
            "0.11.1",
            {"engine_args": {"max_num_seqs": 9000}},
            "max_num_batched_tokens is 8192, and max_num_seqs 9000; vLLM stops.",
        ),
        ("0.11.1", {"env": {"VLLM_ROCM_FP8_PADDING": "true"}}, "env.VLLM_ROCM_FP8_PADDING:"),
        (
            "0.11.1",
            {"settings": {"tensor_parallel_size": 4}},
            "Use the deployment's key tensor_parallel_size.",
        ),
        (
            "0.33.0",
            {"engine_args": {"gpu_memory_utilization": 95}},
            "engine_args.gpu_memory_utilization: 95 is out of range. It is the part of a GPU's memory, above 0 and at "
            "most 1. Did you mean 0.95?",
        ),
        (
            "0.33.0",
            {"instances_per_gpu": 2, "instances_per_host": 2, "engine_args": {"gpu_memory_utilization": 0.9}},
            "2 instances per GPU with gpu_memory_utilization 0.9 each want 180% of its memory. Leave "
            "gpu_memory_utilization out, or set it to at most 0.45.",
        ),
    ],
)
def test_what_this_release_refuses(version: str, keys: dict[str, Any], text: str) -> None:
    assert text in "\n".join(problems(tuned(version, **keys)))


@pytest.mark.parametrize(
    ("version", "keys", "text"),
    [
        (
            "0.17.0",
            {"engine_args": {"swap_space": 4}},
            "engine_args.swap_space: is accepted and does nothing.",
        ),
        ("0.33.0", {"env": {"VLLM_USE_V1": "1"}}, "env.VLLM_USE_V1: has not been read since vLLM 0.11.1"),
        ("0.33.0", {"env": {"VLLM_USE_TRTION": "1"}}, "env.VLLM_USE_TRTION: is not a variable of vLLM"),
        ("0.11.2.dev3", {}, "vLLM 0.11.2.dev3 is not a release in the catalogue"),
    ],
)
def test_what_is_warned_of(version: str, keys: dict[str, Any], text: str) -> None:
    found = tuned(version, **keys)
    assert not found.problems
    assert any(text in warning for warning in found.warnings)


def test_latent_attention_gets_its_block_size() -> None:
    assert tuned("0.11.0", R1, tensor_parallel_size=8).args["--block-size"] == 1
    assert "--block-size" not in tuned("0.19.0", R1, tensor_parallel_size=8).args
    wrong = tuned("0.11.0", R1, tensor_parallel_size=8, engine_args={"block_size": 16})
    assert "AITER MLA stops at any block size but 1" in problems(wrong)[0]


@pytest.mark.parametrize(("count", "part"), [(2, 0.45), (3, 0.3), (4, 0.22)])
def test_instances_that_share_a_gpu_share_its_memory(count: int, part: float) -> None:
    found = tuned("0.11.1", instances_per_gpu=count, recipes=False)
    assert found.args["--gpu-memory-utilization"] == part
    assert part * count <= 0.9


@pytest.mark.parametrize(
    ("keys", "v1"),
    [
        ({}, True),
        ({"engine_args": {"num_scheduler_steps": 10}}, False),
        ({"settings": {"speculative": {"model": "a/draft", "num_speculative_tokens": 5}}}, False),
        ({"engine_args": {"num_scheduler_steps": 1}}, True),
    ],
)
def test_what_only_v0_can_do_leaves_v1_off(keys: dict[str, Any], v1: bool) -> None:
    """AMD's fork of 0.9.1 prefers V1; with VLLM_USE_V1=1 vLLM stops at what V1 cannot do."""
    image = ImageFacts("r/i:t", "tag", vllm="0.9.1+gb432b7a28")
    found = tune(deployment(**keys), MI300X, image, LLAMA, knowledge())
    assert not found.problems
    assert (found.context.engine == "V1") == ("VLLM_V1_USE_PREFILL_DECODE_ATTENTION" in found.env) == v1
    assert "VLLM_USE_V1" not in found.env


def test_recipes_only_advise_sizes() -> None:
    """Which GPUs an instance has follows from the deployment: a second flag would contradict it."""
    found = tuned("0.11.1", R1, tensor_parallel_size=4)
    assert "--tensor-parallel-size" not in found.args
    assert [item.text for item in found.recommended] == [
        "tensor_parallel_size 8 is recommended: The weights need a whole host of eight GPUs."
    ]
    assert not tuned("0.11.1", R1, tensor_parallel_size=8).recommended


def test_no_more_sequences_than_tokens() -> None:
    found = tuned("0.11.1", objective="throughput", engine_args={"max_num_batched_tokens": 1024})
    assert found.args["--max-num-seqs"] == 1024
    assert not found.problems


@pytest.mark.parametrize(
    ("version", "args", "env", "setting", "value"),
    [
        ("0.33.0", {"--max-model-len": 4096}, {}, "max_model_len", 4096),
        (
            "0.33.0",
            {"--compilation-config": {"cudagraph_mode": "FULL", "level": 3}},
            {},
            "graph_mode",
            "FULL",
        ),
        ("0.9.1", {"--disable-log-requests": True}, {}, "log_requests", False),
        ("0.11.1", {}, {"VLLM_ROCM_USE_AITER": "true"}, "aiter", True),
        (
            "0.11.1",
            {},
            {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_MHA": "1"},
            "attention_backend",
            "aiter_fa",
        ),
        ("0.33.0", {"--attention-backend": "TRITON_ATTN"}, {}, "attention_backend", "triton"),
        ("0.9.1", {}, {"VLLM_USE_V1": "1"}, "engine", "V1"),
        ("0.11.1", {}, {"NCCL_MIN_NCHANNELS": "112"}, "rccl_min_channels", 112),
    ],
)
def test_recognise(version: str, args: dict[str, Any], env: dict[str, str], setting: str, value: Any) -> None:
    assert recognize_settings(knowledge().book(version), args, env)[setting] == value


def test_a_ledger_never_changes_what_stands() -> None:
    decisions = Decisions()
    decisions.add({"--a": 1, "--c": {"x": {"y": 1}}}, {"E": "1"}, "first", "s")
    assert decisions.conflict({"--c": {"x": {"z": 2}}}, {"E": "1"}) is None
    assert decisions.conflict({"--c": {"x": {"y": 2}}}, {}) is not None
    assert decisions.conflict({}, {"E": "0"}) is not None
    decisions.add({"--a": 2, "--c": {"x": {"z": 2}}}, {"E": "0"}, "second", "s")
    assert decisions.args == {"--a": 1, "--c": {"x": {"y": 1, "z": 2}}}
    assert decisions.env == {"E": "1"}
