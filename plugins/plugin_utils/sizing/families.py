# SPDX-License-Identifier: Apache-2.0
"""Traits of model families that config.json omits because the model's code has them: norms, biases and blocks.

Source: the model classes and config defaults of transformers and vllm/model_executor/models/*.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Family:
    """The traits of a model type.

    Attributes:
        tied: input and output embeddings are one matrix unless the config says otherwise.
        qk_norm: "" for none, "head" for one per head size, "all" for one over all heads; "optional" and "heads" are the
            same two, if the config enables them.
        norms: number per layer; with norm_bias each has a bias.
        sliding: sliding attention is used even if the config's own switch is absent; every period-th layer is a full
            one.
        expert_bias: experts and router have biases.
        shared_gate: the shared experts have a gate.
        shared_is_intermediate: a shared expert has the width intermediate_size.
        head_everywhere: vLLM's class creates the output layer on every pipeline stage.
        defaults: values of keys that published configs omit.
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
    head_bias: bool = False
    head_everywhere: bool = False
    defaults: Mapping[str, int] = field(default_factory=dict)


_LLAMA = Family()
_GEMMA3 = Family(
    tied=True,
    norms=4,
    qk_norm="head",
    sliding=True,
    period=6,
    defaults={
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
    },
)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(output_bias=True),
    "mistral": Family(sliding=True),
    "ministral": Family(sliding=True),
    "mistral3": Family(),
    "mixtral": Family(sliding=True, head_everywhere=True),
    "qwen2": Family(qkv_bias=True),
    "qwen2_moe": Family(qkv_bias=True, shared_gate=True, head_everywhere=True),
    "qwen2_vl_text": Family(qkv_bias=True),
    "qwen2_5_vl_text": Family(qkv_bias=True),
    "qwen2_vl": Family(qkv_bias=True),
    "qwen2_5_vl": Family(qkv_bias=True),
    "qwen3": Family(qk_norm="head"),
    "qwen3_moe": Family(qk_norm="head", head_everywhere=True),
    "qwen3_vl_text": Family(qk_norm="head"),
    "qwen3_vl_moe_text": Family(qk_norm="head"),
    "qwen3_next": Family(qk_norm="head", shared_gate=True, head_everywhere=True),
    "phi": Family(
        gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norms=1, norm_bias=True, head_bias=True
    ),
    "phi3": Family(sliding=True),
    "phimoe": Family(
        qkv_bias=True, output_bias=True, norm_bias=True, sliding=True, head_bias=True, head_everywhere=True
    ),
    "gemma": Family(tied=True),
    "gemma2": Family(tied=True, norms=4, sliding=True, period=2),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "cohere": Family(tied=True, norms=1, qk_norm="heads"),
    "cohere2": Family(tied=True, norms=1, sliding=True, period=4),
    "olmo2": Family(qk_norm="all"),
    "olmo3": Family(qk_norm="all", sliding=True, period=4),
    "granite": Family(tied=True),
    "granitemoe": Family(tied=True, head_everywhere=True),
    "granitemoehybrid": Family(tied=True, head_everywhere=True),
    "gpt_oss": Family(
        qkv_bias=True,
        output_bias=True,
        sinks=True,
        expert_bias=True,
        sliding=True,
        period=2,
        head_everywhere=True,
    ),
    "llama4_text": Family(shared_is_intermediate=True),
    "deepseek_v2": _LLAMA,
    "deepseek_v3": _LLAMA,
    "deepseek_v32": _LLAMA,
    "kimi_k2": _LLAMA,
    "glm4_moe": Family(router_correction=True, qk_norm="optional"),
    "jamba": Family(tied=True, head_everywhere=True),
    "bamba": _LLAMA,
    "nemotron_h": Family(gated=False, norms=1, head_everywhere=True),
    "falcon_h1": _LLAMA,
    "starcoder2": Family(
        gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, tied=True, sliding=True
    ),
    "seed_oss": Family(),
}
"""Families by model_type of the text model."""
