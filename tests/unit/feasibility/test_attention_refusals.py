# SPDX-License-Identifier: Apache-2.0
"""Attention backends that vLLM would not start with, by its own choice of them on a simulated MI300X."""

from __future__ import annotations

from typing import Any

import pytest

from tests.oracles.engine_cases import Case
from tests.oracles.real_engines import plan


@pytest.mark.parametrize(("version", "model", "flags", "said"), [
    ("0.24.0", "llama", {"block_size": 17}, "block_size 17 is not a multiple of 16"),
    ("0.24.0", "llama", {"block_size": 8}, "block_size 8 is not a multiple of 16"),
    ("0.24.0", "llama", {"block_size": 48}, ""),
    ("0.19.0", "llama", {"kv_cache_dtype": "fp8_inc"}, "kv_cache_dtype fp8_inc is not among"),
    ("0.16.0", "llama", {"kv_cache_dtype": "fp8_inc"}, ""),
    ("0.19.0", "llama", {"kv_cache_dtype": "fp8_e5m2"}, ""),
    ("0.28.0", "llama", {"kv_cache_dtype": "int8_per_token_head"}, ""),
    ("0.16.0", "llama", {"block_size": 8}, ""),
    ("0.24.0", "deepseek-v3-bf16", {"block_size": 1}, "attention backend triton_mla"),
    ("0.24.0", "deepseek-v3-bf16", {"kv_cache_dtype": "fp8"}, ""),
    ("0.16.0", "deepseek-v3-bf16", {"kv_cache_dtype": "fp8"}, "kv_cache_dtype fp8 is not among"),
    ("0.16.0", "llama", {"attention_backend": "auto"}, "auto is not an attention backend"),
    ("0.18.0", "llama", {"attention_backend": "auto"}, ""),
    ("0.24.0", "deepseek-v3-bf16", {"dtype": "float"}, "dtype float32 is not among float16, bfloat16"),
    ("0.24.0", "deepseek-v3-bf16", {"dtype": "half"}, ""),
    ("0.24.0", "llama", {"dtype": "float"}, ""),
    ("0.32.0", "gpt-oss", {"kv_cache_dtype": "turboquant_k8v4"}, "has attention sinks and turboquant_k8v4"),
    ("0.32.0", "llama", {"kv_cache_dtype": "turboquant_k8v4"}, ""),
    ("0.24.0", "llama", {"attention_backend": "FLASHINFER"}, "FLASHINFER is not an attention backend"),
    ("0.24.0", "gpt-oss", {"attention_backend": "ROCM_ATTN"}, "attention sinks are not supported"),
    ("0.16.0", "gpt-oss", {"attention_backend": "ROCM_ATTN"}, ""),
    ("0.16.0", "deepseek-v3-bf16", {"attention_backend": "TRITON_ATTN"}, "for dense attention, but the model's is mla"),
    ("0.13.0", "qwen2", {"attention_backend": "TRITON_MLA"}, "for mla attention, but the model's is dense"),
    ("0.16.0", "deepseek-v3-bf16", {"attention_backend": "TRITON_MLA"}, ""),
    ("0.16.0", "llama", {"attention_config": {"backend": "FLASHINFER"}}, "FLASHINFER is not an attention backend"),
    ("0.16.0", "llama", {"attention_config": {"backend": "TRITON_ATTN"}}, ""),
])  # fmt: skip
def test_attention(version: str, model: str, flags: dict[str, Any], said: str) -> None:
    found = plan(Case(model, flags, {}), version).problems
    assert bool(found) == bool(said), found
    assert said in " ".join(found)
