# SPDX-License-Identifier: Apache-2.0
"""Describe the layers of families that no trait of Family expresses, and the weights that they have before the layers.

Source: vllm/model_executor/models/*.py and vllm/models/*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from .deepseek_v4 import deepseek_v4
from .family import Family
from .layer_kinds import Kind, has_experts, layer_kinds
from .layers import Cache, Layer, attention, latent_attention, mixture, mlp
from .numbers import ConfigNumbers
from .shared_layers import hrm_text, zamba2
from .states import State, kimi_delta
from .weights import IN, OUT, Matrices, Matrix, linear, vector

Caches = tuple[Cache | State, ...]
Reader = Callable[[ConfigNumbers, Family, str], tuple[Layer, ...]]


def _block(n: ConfigNumbers, family: Family, model_type: str, index: int) -> Matrices:
    """Return the experts or the feed-forward block of a layer, and its norms."""
    norms = vector("norms", family.norms * n.hidden)
    if has_experts(n, model_type, index):
        return [*mixture(n, family), norms]
    return [*mlp("mlp", n.hidden, n.at("intermediate_size", index), family.gated), norms]


def longcat_flash(n: ConfigNumbers, family: Family, model_type: str) -> tuple[Layer, ...]:
    """Two latent attentions and dense blocks per layer, next to experts; some experts of the router compute nothing."""
    found, caches = latent_attention(n)
    matrices = [
        *_named(found, "self_attn", "self_attn.0"),
        *_named(found, "self_attn", "self_attn.1"),
        *mlp("mlps.0", n.hidden, n.intermediate),
        *mlp("mlps.1", n.hidden, n.intermediate),
        *mixture(n, family),
        Matrix("mlp.router.zero", n.get("zero_expert_num"), n.hidden),
        vector("norms", 4 * n.hidden),
    ]
    return (Layer(tuple(matrices), (*caches, *caches)),) * n.layers


def _named(matrices: Matrices, old: str, new: str) -> Matrices:
    return [replace(matrix, name=matrix.name.replace(old, new, 1)) for matrix in matrices]


def minicpm3(n: ConfigNumbers, family: Family, model_type: str) -> tuple[Layer, ...]:
    """Latent attention that vLLM runs as attention with many heads; values are padded to the keys' size."""
    usual = {"v_head_dim": n.hidden // max(1, n.heads)}
    found, _unused = latent_attention(ConfigNumbers({**usual, **n.config}))
    size = n.get("qk_nope_head_dim") + n.get("qk_rope_head_dim")
    matrices = [matrix for matrix in found if matrix.stored]
    matrices += [*mlp("mlp", n.hidden, n.intermediate), vector("norms", 2 * n.hidden)]
    return (Layer(tuple(matrices), (Cache(n.heads, size, size),)),) * n.layers


def kimi_linear(n: ConfigNumbers, family: Family, model_type: str) -> tuple[Layer, ...]:
    """Latent attention in some layers, delta attention in the others."""
    kinds = n.items("layer_types")
    own = n.part("linear_attn_config").items("full_attn_layers")  # counted from 1
    full, delta = latent_attention(n), kimi_delta(n)
    layers = []
    for index in range(n.layers):
        is_full = index + 1 in own if own else index < len(kinds) and kinds[index] == "full_attention"
        matrices, caches = (full[0], full[1]) if is_full else (delta[0], (delta[1],))
        layers.append(Layer((*matrices, *_block(n, family, model_type, index)), caches))
    return tuple(layers)


def step3(n: ConfigNumbers, family: Family, model_type: str) -> tuple[Layer, ...]:
    """Queries through a narrow vector, one head of keys and values; experts in the layers that are listed."""
    hidden, heads, size = n.hidden, n.heads, n.head_size
    narrow = n.get("share_q_dim", default=heads * size)
    listed = str(n.config.get("moe_layers_enum") or "")
    sparse = {int(item) for item in listed.split(",") if item.strip().isdigit()} or set(range(1, n.layers))
    own = [
        *linear("self_attn.qkv_proj", narrow + 2 * size, hidden),
        vector("self_attn.inter_norm", narrow),
        *linear("self_attn.wq", heads * size, narrow, OUT),
        *linear("self_attn.o_proj", hidden, heads * size, IN),
        vector("norms", 2 * hidden),
    ]
    dense = Layer((*own, *mlp("mlp", hidden, n.intermediate)), (Cache(1, size, size),))
    routed = Layer((*own, *mixture(n, family)), (Cache(1, size, size),))
    return tuple(routed if index in sparse else dense for index in range(n.layers))


def gemma3n(n: ConfigNumbers, family: Family, model_type: str) -> tuple[Layer, ...]:
    """Four streams, a low-rank branch and inputs per layer; the last layers read the caches of earlier ones."""
    hidden, streams, rank = n.hidden, n.get("altup_num_inputs", default=4), n.get("laurel_rank", default=64)
    per_layer = n.get("hidden_size_per_layer_input", default=256)
    extra = (
        Matrix("altup", streams * (streams + streams * streams), 1),
        Matrix("altup.modality_router", streams, hidden),
        Matrix("laurel.linear_left", rank, hidden, OUT),
        Matrix("laurel.linear_right", hidden, rank, IN),
        *_input_per_layer(per_layer, hidden),
        vector("norms", 5 * hidden),
    )
    shared = {**n.config, "num_kv_shared_layers": n.get("num_kv_shared_layers", default=15)}
    return _with_windows(ConfigNumbers(shared), family, model_type, lambda kind, index: extra)


def gemma4(n: ConfigNumbers, family: Family, model_type: str) -> tuple[Layer, ...]:
    """Full layers with heads of another size, inputs per layer, experts next to the dense block."""
    hidden, per_layer = n.hidden, n.get("hidden_size_per_layer_input", default=256)
    experts: Matrices = []
    if n.experts:
        experts = [
            *mixture(n, family),
            vector("mlp.per_expert_scale", n.experts),
            vector("norms_moe", 3 * hidden),
        ]
    extra = (*(_input_per_layer(per_layer, hidden) if per_layer else ()), *experts)
    return _with_windows(n, family, model_type, lambda kind, index: extra)


def _input_per_layer(width: int, hidden: int) -> Matrices:
    return [
        *linear("per_layer_input_gate", width, hidden),
        *linear("per_layer_projection", hidden, width),
        vector("post_per_layer_input_norm", hidden),
    ]


def _with_windows(
    n: ConfigNumbers, family: Family, model_type: str, extra: Callable[[Kind, int], tuple[Matrix, ...]]
) -> tuple[Layer, ...]:
    """Return Gemma's layers: sliding and full attention, the last ones without keys and values of their own."""
    layers = []
    first_shared = n.layers - n.get("num_kv_shared_layers")
    for index, found in enumerate(layer_kinds(n, family, model_type)):
        kind = found
        if found.mixer == "full" and model_type.startswith("gemma4"):
            kv = n.get("num_global_key_value_heads") if n.flag("attention_k_eq_v") else 0
            kind = replace(found, key=n.get("global_head_dim", default=512), kv_heads=kv)
        size, kv = kind.key or n.head_size, kind.kv_heads or n.kv_heads
        matrices = attention(n, family, kind)
        if index >= first_shared:
            matrices = [
                item
                for item in matrices
                if not any(part in item.name for part in ("k_proj", "v_proj", "k_norm"))
            ]
        caches = (Cache(kv, size, size, kind.window),) if index < first_shared else ()
        wide = index >= first_shared > 0 and n.flag("use_double_wide_mlp")
        inner = n.at("intermediate_size", index) * (2 if wide else 1)
        matrices += [*mlp("mlp", n.hidden, inner), vector("norms", 4 * n.hidden), *extra(kind, index)]
        layers.append(Layer(tuple(matrices), caches))
    return tuple(layers)


def minimax_m3(n: ConfigNumbers, family: Family, model_type: str) -> tuple[Layer, ...]:
    """Attention that reads chosen blocks: an index head per KV head, and one vector of keys per token for it."""
    size, heads, kind = n.get("index_head_dim"), n.get("index_n_heads"), Kind("full")
    layers = []
    for index in range(n.layers):
        matrices = attention(n, family, kind)
        caches: Caches = (Cache(n.kv_heads, n.head_size, n.head_size),)
        if n.at("index_layers", index) and size:
            matrices += [
                *linear("self_attn.index_q_proj", heads * size, n.hidden, OUT),
                *linear("self_attn.index_k_proj", size, n.hidden),
                vector("self_attn.index_norms", 2 * size),
            ]
            caches += (Cache(1, size, 0, latent=True),)
        layers.append(Layer((*matrices, *_block(n, family, model_type, index)), caches))
    return tuple(layers)


_OF_KEYS = ("k_proj", "v_proj", "k_norm", "k_proj.bias", "v_proj.bias")

READERS: Mapping[str, Reader] = {
    "deepseek_v4": deepseek_v4,
    "longcat_flash": longcat_flash,
    "minicpm3": minicpm3,
    "kimi_linear": kimi_linear,
    "step3_text": step3,
    "gemma3n_text": gemma3n,
    "gemma4_text": gemma4,
    "minimax_m3_vl_text": minimax_m3,
    "hrm_text": hrm_text,
    "zamba2": zamba2,
}
"""Families whose layers are read here, by model_type."""


def before_layers(n: ConfigNumbers, family: Family, model_type: str, context: int) -> Matrices:
    """Return the weights that the first stage has in addition to the embedding."""
    hidden, result = n.hidden, []
    if family.positions is not None:
        result.append(Matrix("embed_positions", context + family.positions, hidden))
    if family.embedding_norm:
        result.append(vector("embedding_norm", hidden * (2 if family.norm_bias else 1)))
    narrow = n.get("word_embed_proj_dim")
    if narrow and narrow != hidden:
        result += [Matrix("project_in", hidden, narrow), Matrix("project_out", narrow, hidden)]
    width = n.get(
        "hidden_size_per_layer_input", default=256 if model_type.startswith(("gemma3n", "gemma4")) else 0
    )
    if width:
        rows = n.get("vocab_size_per_layer_input", default=n.vocab)
        result += [
            Matrix("embed_tokens_per_layer", rows, n.layers * width, OUT),
            Matrix("per_layer_model_projection", n.layers * width, hidden, OUT),
            vector("per_layer_projection_norm", width),
        ]
    streams = n.get("altup_num_inputs", default=4 if model_type.startswith("gemma3n") else 1)
    # from the embedding to the other streams, and back
    result += [Matrix("altup_projections", 2 * (streams - 1) * hidden, hidden, OUT)] if streams > 1 else []
    return result
