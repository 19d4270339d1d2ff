# SPDX-License-Identifier: Apache-2.0
"""Describe the layers of a language model: their weights, and what each keeps per token or per request.

Source: the models' published shapes and vllm/model_executor/models/*.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from .family import Family
from .layer_kinds import Kind
from .numbers import ConfigNumbers
from .states import State
from .weights import IN, KV, OUT, Matrices, Matrix, linear, vector


@dataclass(frozen=True)
class Cache:
    """What an attention layer keeps for each token.

    window: of sliding attention, chunk: of chunked attention, in tokens; 0 for none. latent: one vector for all heads,
    which every tensor parallel rank keeps whole. raw: bytes per token that are independent of the KV type. selected:
    tokens that sparse attention reads of them at most; 0 for all. page, block: bytes and tokens of a page, where the
    model's own code fixes both; 0 where they follow from the rest. declared: the KV heads of
    config.json, from which vLLM sizes blocks to match states, where the layers have another number; else 0.
    """

    heads: int
    key: int
    value: int
    window: int = 0
    chunk: int = 0
    latent: bool = False
    raw: int = 0
    selected: int = 0
    page: int = 0
    block: int = 0
    declared: int = 0


@dataclass(frozen=True)
class Layer:
    """One decoder layer."""

    matrices: tuple[Matrix, ...]
    caches: tuple[Cache | State, ...] = ()


def attention(n: ConfigNumbers, family: Family, kind: Kind, gated: bool = False) -> Matrices:
    """Return the matrices of multi-head or grouped-query attention."""
    hidden, heads, size = n.hidden, kind.heads or n.heads, kind.key or n.head_size
    kv = kind.kv_heads or n.kv_heads
    value = kind.value or n.get("v_head_dim", default=size)
    bias = attention_bias(n, family)
    result = [
        *linear("self_attn.q_proj", heads * size * (2 if gated else 1), hidden, OUT, bias),
        *linear("self_attn.k_proj", kv * size, hidden, KV, bias, kv),
        *linear("self_attn.v_proj", kv * value, hidden, KV, bias, kv),
        *linear("self_attn.o_proj", hidden, heads * value, IN, bias and family.output_bias),
    ]
    if family.qk_norm == "head" or (family.qk_norm == "optional" and n.flag("use_qk_norm", "qk_norm")):
        result += [vector("self_attn.q_norm", size), vector("self_attn.k_norm", size)]
    elif family.qk_norm == "biased" and n.flag("qk_layernorm"):
        result.append(vector("self_attn.qk_layernorms", 4 * size))
    elif family.qk_norm == "all" or (family.qk_norm == "heads" and n.flag("use_qk_norm")):
        result += [
            vector("self_attn.q_norm", heads * size, OUT),
            vector("self_attn.k_norm", kv * size, KV, kv),
        ]
    if family.sinks or kind.sinks:
        result.append(vector("self_attn.sinks", heads, OUT))
    return result


def attention_bias(n: ConfigNumbers, family: Family) -> bool:
    """Return whether the projections to queries, keys and values have biases."""
    names = ("attention_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias", "use_bias", "bias")
    return family.qkv_bias or n.flag(*names)


def latent_attention(n: ConfigNumbers, indexed: bool = True) -> tuple[Matrices, tuple[Cache, ...]]:
    """Return the matrices and caches of DeepSeek's multi-head latent attention.

    vLLM keeps kv_b_proj and two copies of its halves in 16 bit.
    """
    hidden, heads = n.hidden, n.heads
    lora, q_lora = n.get("kv_lora_rank"), n.get("q_lora_rank")
    nope, rope, value = n.get("qk_nope_head_dim"), n.get("qk_rope_head_dim"), n.get("v_head_dim")
    bias = n.flag("attention_bias")
    if q_lora:
        result = [
            *linear("self_attn.q_a_proj", q_lora, hidden, bias=bias),
            vector("self_attn.q_a_layernorm", q_lora),
            *linear("self_attn.q_b_proj", heads * (nope + rope), q_lora, OUT),
        ]
    else:
        result = linear("self_attn.q_proj", heads * (nope + rope), hidden, OUT)
    result += [
        *linear("self_attn.kv_a_proj_with_mqa", lora + rope, hidden, bias=bias),
        vector("self_attn.kv_a_layernorm", lora),
        *linear("self_attn.kv_b_proj", heads * (nope + value), lora, OUT),
        Matrix("self_attn.kv_b_proj absorbed", heads * (nope + value), lora, OUT, stored=False),
        *linear("self_attn.o_proj", hidden, heads * value, IN, bias),
    ]
    index_heads, index_size = n.get("index_n_heads"), n.get("index_head_dim")
    sparse = bool(index_heads and index_size)
    caches = [Cache(1, lora + rope, 0, latent=True, selected=n.get("index_topk") if sparse else 0)]
    if sparse and indexed:
        result += [
            *linear("self_attn.indexer.wq_b", index_heads * index_size, q_lora or hidden),
            *linear("self_attn.indexer.wk", index_size, hidden),
            vector("self_attn.indexer.k_norm", 2 * index_size),
            Matrix("self_attn.indexer.weights_proj", index_heads, hidden),
        ]
        # FP8 keys and one float32 scale per 128 of them: vLLM, DeepseekV32IndexerCache
        caches.append(Cache(1, 0, 0, latent=True, raw=index_size + 4 * (index_size // 128)))
    return result, tuple(caches)


def mlp(name: str, hidden: int, inner: int, gated: bool = True, bias: bool = False) -> Matrices:
    """Return the matrices of a feed-forward block."""
    result = linear(f"{name}.gate_proj", inner, hidden, OUT, bias) if gated else []
    return [
        *result,
        *linear(f"{name}.up_proj", inner, hidden, OUT, bias),
        *linear(f"{name}.down_proj", hidden, inner, IN, bias),
    ]


def mixture(n: ConfigNumbers, family: Family) -> Matrices:
    """Return the matrices of routed experts, their router, and the model's shared experts, if any."""
    hidden, experts, inner = n.hidden, n.experts, n.expert_intermediate
    bias = family.expert_bias
    result = [Matrix("mlp.gate", experts, hidden)]
    if bias:
        result.append(vector("mlp.gate.bias", experts))
    if n.config.get("topk_method") == "noaux_tc" or family.router_correction or n.flag("use_routing_bias"):
        result.append(vector("mlp.gate.e_score_correction_bias", experts))
    sides = ("gate_proj", "up_proj") if family.gated else ("up_proj",)
    narrow = n.get("moe_latent_size")  # experts of Nemotron-3 Super work on a projection of the hidden state
    if narrow:
        result += [
            *linear("mlp.fc1_latent_proj", narrow, hidden),
            *linear("mlp.fc2_latent_proj", hidden, narrow),
        ]
    outer = narrow or hidden
    for side in sides:
        result += linear(f"mlp.experts.0.{side}", inner, outer, OUT, bias, experts=experts)
    result += linear("mlp.experts.0.down_proj", outer, inner, IN, bias, experts=experts)
    count = n.get("n_shared_experts", "num_shared_experts", "num_shared_expert")
    each = n.get("moe_shared_expert_intermediate_size", default=inner)
    shared = n.get("shared_expert_intermediate_size", default=count * each)
    if family.shared_is_intermediate:
        shared = n.intermediate
    if shared:
        result += mlp("mlp.shared_experts", hidden, shared, family.gated)
        if family.shared_gate:
            result.append(Matrix("mlp.shared_expert_gate", 1, hidden))
    return result
