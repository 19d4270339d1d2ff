# SPDX-License-Identifier: Apache-2.0
"""What a config.json does not say because the model's code has it: which norms, biases and blocks a family has.

Source: the model classes and config defaults of transformers and vllm/model_executor/models/*.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A model type's traits.

    tied: input and output embeddings are one matrix, where the config does not say. qk_norm: "" none, "head" one per
    head size, "all" over all heads, "optional" and "heads": the same where the config asks. norms: per layer; with
    norm_bias each has a bias. sliding: sliding attention is used although the config's own switch is absent;
    period: every period-th layer is a full one. final: the name of the rule that tells layers apart.
    """

    tied: bool = False
    gated: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norms: int = 2
    norm_bias: bool = False
    qk_norm: str = ""
    sinks: bool = False
    expert_bias: bool = False
    router_correction: bool = False
    shared_gate: bool = False
    shared_is_intermediate: bool = False
    sliding: bool = False
    period: int = 0
    positions: bool = False
    head_bias: bool = False


_LLAMA = Family()
_BIASED = Family(gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(output_bias=True),
    "mistral": Family(sliding=True),
    "ministral": Family(sliding=True),
    "mistral3": Family(),
    "mixtral": Family(sliding=True),
    "qwen2": Family(qkv_bias=True),
    "qwen2_moe": Family(qkv_bias=True, shared_gate=True),
    "qwen2_vl_text": Family(qkv_bias=True),
    "qwen2_5_vl_text": Family(qkv_bias=True),
    "qwen2_vl": Family(qkv_bias=True),
    "qwen2_5_vl": Family(qkv_bias=True),
    "qwen3": Family(qk_norm="head"),
    "qwen3_moe": Family(qk_norm="head"),
    "qwen3_vl_text": Family(qk_norm="head"),
    "qwen3_vl_moe_text": Family(qk_norm="head"),
    "qwen3_next": Family(qk_norm="head", shared_gate=True),
    "phi": Family(
        gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norms=1, norm_bias=True, head_bias=True
    ),
    "phi3": Family(sliding=True),
    "phimoe": Family(qkv_bias=True, output_bias=True, norm_bias=True, sliding=True, head_bias=True),
    "gemma": Family(tied=True),
    "gemma2": Family(tied=True, norms=4, sliding=True, period=2),
    "gemma3": Family(tied=True, norms=4, qk_norm="head", sliding=True, period=6),
    "gemma3_text": Family(tied=True, norms=4, qk_norm="head", sliding=True, period=6),
    "cohere": Family(tied=True, norms=1, qk_norm="heads"),
    "cohere2": Family(tied=True, norms=1, sliding=True, period=4),
    "olmo2": Family(qk_norm="all"),
    "olmo3": Family(qk_norm="all", sliding=True, period=4),
    "granite": Family(tied=True),
    "granitemoe": Family(tied=True),
    "granitemoehybrid": Family(tied=True, shared_is_intermediate=False),
    "gpt_oss": Family(qkv_bias=True, output_bias=True, sinks=True, expert_bias=True, sliding=True, period=2),
    "llama4_text": Family(shared_is_intermediate=True),
    "deepseek_v2": _LLAMA,
    "deepseek_v3": _LLAMA,
    "deepseek_v32": _LLAMA,
    "kimi_k2": _LLAMA,
    "glm4_moe": Family(router_correction=True, qk_norm="optional"),
    "jamba": Family(tied=True),
    "bamba": _LLAMA,
    "nemotron_h": Family(gated=False, norms=1),
    "nemotron": Family(gated=False, norm_bias=True),
    "falcon_h1": _LLAMA,
    "starcoder2": Family(
        gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, tied=True, sliding=True
    ),
    "gpt_neox": _BIASED,
    "opt": Family(
        gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, tied=True, positions=True
    ),
    "stablelm": Family(norm_bias=True),
    "exaone": _LLAMA,
    "internlm3": _LLAMA,
    "seed_oss": Family(),
}
"""By model_type, of the text model."""
