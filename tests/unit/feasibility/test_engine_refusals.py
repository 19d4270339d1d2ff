# SPDX-License-Identifier: Apache-2.0
"""What vLLM's engine configuration would refuse after its parser is refused in the plan, per release."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.feasibility.test_feasibility import FACTS, LLAMA_8B, verdict

PADDED = {"method": "ngram", "num_speculative_tokens": 3, "disable_padded_drafter_batch": True}


def refused(release: str, config: dict[str, Any] | None = None, **keys: Any) -> list[str]:
    found = verdict(
        LLAMA_8B if config is None else config, software=replace(FACTS, vllm=release), recipes=False, **keys
    )
    return [problem.text() for problem in found.problems]


@pytest.mark.parametrize(
    ("release", "args", "text"),
    [
        (
            "0.11.2",
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192},
            "max_num_batched_tokens 8192 is below",
        ),
        (
            "0.33.0",
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192},
            "max_num_batched_tokens 8192 is below",
        ),
        (
            "0.33.0",
            {"max_num_active_seqs": 64, "max_num_seqs": 32},
            "max_num_active_seqs 64 is above max_num_seqs 32",
        ),
        ("0.33.0", {"enable_eplb": True}, "enable_expert_parallel is off"),
        ("0.33.0", {"kv_transfer_config": {"kv_connector": "NixlConnector"}}, "kv_role"),
        ("0.33.0", {"ec_transfer_config": {"ec_connector": "X"}}, "ec_role"),
        ("0.33.0", {"profiler_config": {"torch_profiler_dir": "/tmp/x"}}, "profiler"),
        ("0.33.0", {"watermark": 1.5}, "watermark 1.5 is not below 1"),
        ("0.33.0", {"stream_interval": 0}, "stream_interval 0 is below 1"),
        ("0.11.2", {"async_scheduling": True, "speculative_config": PADDED}, "async_scheduling is on"),
        ("0.33.0", {"numa_bind_nodes": [0]}, "numa_bind is off"),
        (
            "0.33.0",
            {"enable_lora": True, "max_loras": 8, "max_cpu_loras": 4},
            "max_cpu_loras 4 is below max_loras 8",
        ),
        ("0.33.0", {"collect_detailed_traces": ["all"]}, "otlp_traces_endpoint"),
        ("0.33.0", {"decode_context_parallel_size": 3}, "decode_context_parallel_size"),
    ],
)
def test_what_the_engine_configuration_refuses(release: str, args: dict[str, Any], text: str) -> None:
    found = refused(release, engine_args=args)
    assert any(text in item for item in found), found


@pytest.mark.parametrize(
    ("release", "args"),
    [
        ("0.11.2", {"enable_chunked_prefill": False, "max_num_batched_tokens": 131072}),
        ("0.33.0", {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192, "max_model_len": 8192}),
        ("0.33.0", {"max_num_active_seqs": 16, "max_num_seqs": 32}),
        ("0.33.0", {"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}}),
        ("0.33.0", {"enable_lora": True, "max_loras": 4}),
        ("0.33.0", {"async_scheduling": True}),
        ("0.33.0", {"max_cpu_loras": 4, "max_loras": 8}),
        ("0.8.5", {}),
        ("0.6.3", {"max_num_seqs": 64}),
    ],
)
def test_what_it_takes(release: str, args: dict[str, Any]) -> None:
    assert refused(release, engine_args=args) == []


MLA = {
    **LLAMA_8B,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
FULL = {"compilation_config": {"cudagraph_mode": "FULL"}}


@pytest.mark.parametrize(
    ("release", "args", "env", "text"),
    [
        ("0.11.2", FULL, {}, "cudagraph_mode FULL is not supported"),
        (
            "0.11.2",
            {"compilation_config": '{"cudagraph_mode": "full"}'},
            {},
            "cudagraph_mode FULL is not supported",
        ),
        ("0.16.0", FULL, {}, "cudagraph_mode FULL is not supported"),
        ("0.11.2", FULL, {"VLLM_ROCM_USE_AITER": "1"}, ""),
        ("0.11.2", {**FULL, "enforce_eager": True}, {}, ""),
        ("0.11.2", {"compilation_config": {"cudagraph_mode": "PIECEWISE"}}, {}, ""),
        ("0.24.0", FULL, {}, ""),
        ("0.16.0", {"attention_backend": "TRITON_MLA", "block_size": 1}, {}, "block_size 1 is not supported"),
    ],
)
def test_graphs_and_blocks_that_latent_attention_takes(
    release: str, args: dict[str, Any], env: dict[str, str], text: str
) -> None:
    found = refused(release, MLA, engine_args=args, env=env, tensor_parallel_size=8)
    assert any(text in item for item in found) if text else found == []


@pytest.mark.parametrize(
    ("release", "args", "text"),
    [
        ("0.33.0", {"quantization": "ptpc_fp8"}, "method ptpc_fp8. From 0.24.0 on it is fp8_per_channel"),
        ("0.16.0", {"quantization": "ptpc_fp8"}, "Set allow_deprecated_quantization: true"),
        ("0.16.0", {"quantization": "ptpc_fp8", "allow_deprecated_quantization": True}, ""),
        ("0.11.2", {"quantization": "ptpc_fp8"}, ""),
        ("0.11.2", {"quantization": "bitsandbytes"}, "does not run the quantization method bitsandbytes on ROCm"),
        ("0.24.0", {"quantization": "hqq"}, "has no quantization method hqq"),
        ("0.33.0", {"quantization": "FP8"}, ""),
    ],
)  # fmt: skip
def test_quantization_methods_of_the_release(release: str, args: dict[str, Any], text: str) -> None:
    found = refused(release, engine_args=args)
    assert any(text in item for item in found) if text else found == []


@pytest.mark.parametrize(
    ("release", "speculative", "stops"),
    [
        ("0.11.2", {"model": "amd/Llama-3.1-8B-Instruct-FP8-KV", "num_speculative_tokens": 5}, True),
        ("0.11.2", {"method": "draft_model", "model": "a/draft", "num_speculative_tokens": 5}, True),
        ("0.14.1", {"model": "a/draft", "num_speculative_tokens": 5}, True),
        ("0.15.0", {"model": "a/b", "num_speculative_tokens": 5}, False),
        ("0.11.2", {"method": "eagle3", "model": "a/b", "num_speculative_tokens": 2}, False),
        ("0.11.2", {"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 2}, False),
        ("0.11.2", {"method": "ngram", "num_speculative_tokens": 2}, False),
        ("0.9.1", {"model": "a/b", "num_speculative_tokens": 5}, False),
    ],
)
def test_a_model_of_its_own_drafts_where_the_engine_can(
    release: str, speculative: dict[str, Any], stops: bool
) -> None:
    found = refused(release, engine_args={"speculative_config": speculative})
    assert any("cannot draft with a model of its own" in item for item in found) == stops


def test_nothing_is_said_of_later_drafts_where_eagle_drafts() -> None:
    eagle = {"method": "eagle3", "model": "a/b", "num_speculative_tokens": 2}
    found = verdict(
        LLAMA_8B, software=replace(FACTS, vllm="0.10.2"), engine_args={"speculative_config": eagle}
    )
    assert not any("came to V1 later" in text for text in found.warnings)
