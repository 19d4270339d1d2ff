# SPDX-License-Identifier: Apache-2.0
"""List the families of models whose layers are known, by model_type.

Source: the model classes and config defaults of transformers and vllm/model_executor/models/*.py. What no trait
expresses is in special.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .family import Family

_LLAMA = Family()
_ALL_BIASES = Family(gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True)
_QWEN3_5 = Family(sliding=False, qk_norm="head", shared_gate=True)
_GEMMA3 = Family(
    tied=True,
    norms=4,
    qk_norm="head",
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
    "llama": Family(
        output_bias=True,
        defaults={
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        },
    ),
    "mistral": Family(),
    "ministral": Family(),
    "mistral3": Family(),
    "mixtral": Family(head_everywhere=True),
    "qwen2": Family(sliding=False, qkv_bias=True),
    "qwen2_moe": Family(sliding=False, qkv_bias=True, shared_gate=True, head_everywhere=True),
    "qwen2_vl_text": Family(sliding=False, qkv_bias=True),
    "qwen2_5_vl_text": Family(sliding=False, qkv_bias=True),
    "qwen2_vl": Family(sliding=False, qkv_bias=True),
    "qwen2_5_vl": Family(sliding=False, qkv_bias=True),
    "qwen3": Family(sliding=False, qk_norm="head"),
    "qwen3_moe": Family(sliding=False, qk_norm="head", head_everywhere=True),
    "qwen3_vl_text": Family(sliding=False, qk_norm="head"),
    "qwen3_vl_moe_text": Family(sliding=False, qk_norm="head"),
    "qwen3_next": Family(head="own", sliding=False, qk_norm="head", shared_gate=True, head_everywhere=True),
    "phi": Family(
        gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norms=1, norm_bias=True, head_bias=True
    ),
    "phi3": Family(),
    "phimoe": Family(
        head="own", qkv_bias=True, output_bias=True, norm_bias=True, head_bias=True, head_everywhere=True
    ),
    "gemma": Family(tied=True),
    "gemma2": Family(head="shared", norms=4, period=2),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "cohere": Family(head="shared", norms=1, qk_norm="heads"),
    "cohere2": Family(head="shared", norms=1, period=4),
    "olmo2": Family(qk_norm="all"),
    "olmo3": Family(qk_norm="all", period=4),
    "granite": Family(tied=True),
    "granitemoe": Family(tied=True, head_everywhere=True),
    "granitemoehybrid": Family(tied=True, head_everywhere=True),
    "gpt_oss": Family(
        head="own",
        listed=False,
        qkv_bias=True,
        output_bias=True,
        sinks=True,
        expert_bias=True,
        period=2,
        head_everywhere=True,
    ),
    "llama4_text": Family(listed=False, shared_is_intermediate=True),
    "deepseek_v2": Family(head="own"),
    "deepseek_v3": Family(head="own"),
    "deepseek_v32": Family(head="own"),
    "kimi_k2": Family(head="own"),
    "glm4_moe": Family(head="own", router_correction=True, qk_norm="optional"),
    "jamba": Family(head="own", head_everywhere=True),
    "bamba": _LLAMA,
    "nemotron_h": Family(head="own", gated=False, norms=1, head_everywhere=True),
    "falcon_h1": _LLAMA,
    "starcoder2": Family(
        gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, tied=True
    ),
    "seed_oss": Family(),
    "qwen": Family(sliding=False, qkv_bias=True),
    "qwen3_5": _QWEN3_5,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "qwen3_5_moe_text": _QWEN3_5,
    "mimo": Family(sliding=False, qkv_bias=True),
    "mimo_v2": Family(head="own", router_correction=True),
    "mimo_v2_flash": Family(head="own", router_correction=True),
    "deepseek": Family(head="own"),
    "deepseek_v4": Family(head="own", router_correction=True),
    "glm_moe_dsa": Family(head="own", router_correction=True),
    "glm4_moe_lite": Family(head="own", router_correction=True),
    "glm": Family(defaults={"attention_bias": True}),
    "glm4": Family(norms=4, defaults={"attention_bias": True}),
    "chatglm": Family(
        reads={"intermediate_size": "ffn_hidden_size"},
        defaults={"multi_query_attention": True, "add_qkv_bias": True},
    ),
    "kimi_linear": Family(
        head="own",
        router_correction=True,
        reads={"n_shared_experts": "num_shared_experts", "num_experts_per_tok": "num_experts_per_token"},
    ),
    "longcat_flash": Family(
        head="own",
        router_correction=True,
        reads={"intermediate_size": "ffn_hidden_size", "moe_intermediate_size": "expert_ffn_hidden_size"},
    ),
    "minimax_m2": Family(head="own", qk_norm="all"),
    "minimax_m3_vl_text": Family(
        head="own",
        qk_norm="head",
        reads={
            "intermediate_size": "dense_intermediate_size",
            "moe_intermediate_size": "intermediate_size",
            "index_head_dim": "sparse_attention_config.sparse_index_dim",
            "index_n_heads": "sparse_attention_config.sparse_num_index_heads",
            "index_layers": "sparse_attention_config.sparse_attention_freq",
        },
    ),
    "step3_text": Family(
        head="own",
        reads={
            "num_experts": "moe_num_experts",
            "num_experts_per_tok": "moe_top_k",
            "max_position_embeddings": "max_position_embedding",
            "shared_expert_intermediate_size": "share_expert_dim",
        },
    ),
    "dbrx": Family(
        reads={
            "num_key_value_heads": "attn_config.kv_n_heads",
            "intermediate_size": "ffn_config.ffn_hidden_size",
            "num_experts": "ffn_config.moe_num_experts",
            "num_experts_per_tok": "ffn_config.moe_top_k",
        },
    ),
    "ernie4_5": Family(tied=True),
    "ernie4_5_moe": Family(
        tied=True, router_correction=True, reads={"num_shared_experts": "moe_num_shared_experts"}
    ),
    "hunyuan_v1_dense": Family(qk_norm="head"),
    "hy_v3": Family(qk_norm="optional", router_correction=True),
    "exaone": _LLAMA,
    "exaone4": Family(qk_norm="head", period=4),
    "exaone_moe": Family(qk_norm="head", period=4, router_correction=True),
    "smollm3": Family(tied=True),
    "apertus": Family(gated=False, qk_norm="head"),
    "arcee": Family(gated=False),
    "nemotron": Family(gated=False, norm_bias=True, output_bias=True),
    "olmo": Family(norms=0),
    "olmoe": Family(head="own", qk_norm="all"),
    "stablelm": Family(norm_bias=True),
    "ministral3": Family(),
    "internlm2": Family(),
    "internlm3": Family(output_bias=True),
    "baichuan": Family(),
    "orion": Family(norm_bias=True),
    "minicpm": Family(tied=True),
    "minicpm3": Family(tied=True),
    "dots1": Family(sliding=False, qk_norm="head"),
    "helium": Family(),
    "granitemoeshared": Family(tied=True, head_everywhere=True),
    "lfm2": Family(head="shared", qk_norm="head"),
    "lfm2_moe": Family(head="shared", qk_norm="head", router_correction=True),
    "afmoe": Family(
        head="own", norms=4, qk_norm="head", router_correction=True, defaults={"attn_output_gate": True}
    ),
    "axk1": Family(head="own", norms=3, router_correction=True),
    "cohere2_moe": Family(head="shared", norms=1),
    "granite_swa": Family(tied=True),
    "granitemoe_swa": Family(tied=True, head_everywhere=True),
    "hunyuan_v1_moe": Family(qk_norm="head", defaults={"num_shared_expert": 1}),
    "hyperclovax": Family(),
    "laguna": Family(qk_norm="head", router_correction=True),
    "hrm_text": Family(norms=0),
    "zamba2": Family(head="shared"),
    "gemma3n_text": Family(head="shared", norms=4, qk_norm="head"),
    "gemma4_text": Family(tied=True, norms=4, qk_norm="head", period=6),
    "opt": replace(_ALL_BIASES, tied=True, positions=2),
    "gpt2": replace(_ALL_BIASES, tied=True, positions=0),
    "gpt_bigcode": replace(_ALL_BIASES, tied=True, positions=0, whole="mlp", defaults={"multi_query": True}),
    "persimmon": replace(_ALL_BIASES, whole="self_attn mlp", qk_norm="biased"),
    "gpt_neox": _ALL_BIASES,
    "gptj": Family(gated=False, mlp_bias=True, norms=1, norm_bias=True, head_bias=True),
    "bloom": replace(_ALL_BIASES, tied=True, embedding_norm=True),
    "mpt": Family(gated=False, tied=True, reads={"num_key_value_heads": "attn_config.kv_n_heads"}),
    "falcon": Family(
        gated=False, tied=True, output_bias=True, norm_bias=True, defaults={"multi_query": True}
    ),
    "mamba": Family(tied=True, norms=1, state_only="mamba1"),
    "falcon_mamba": Family(tied=True, norms=1, state_only="mamba1"),
    "mamba2": Family(norms=1, state_only="mamba2"),
}
"""Families by model_type of the text model."""
