# SPDX-License-Identifier: Apache-2.0
"""Classify the layers of a model: attention, state, and feed-forward block or experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .family import Family
from .numbers import ConfigNumbers


@dataclass(frozen=True)
class Kind:
    """The kind of one layer.

    Attributes:
        mixer: full, sliding, chunked, latent, or "" without attention.
        state: mamba1, mamba2, delta, conv, or "".
        block: mlp, experts, or "".
        inner: width of the feed-forward block, or of the dense block next to experts.
        heads, kv_heads, key, value: attention heads and their sizes in this layer; 0 for the model's.
        cached: False if the layer reads another layer's keys and values.
        indexed: False if a layer of sparse attention reads what another layer's index chose.
    """

    mixer: str = ""
    state: str = ""
    block: str = ""
    inner: int = 0
    window: int = 0
    chunk: int = 0
    heads: int = 0
    kv_heads: int = 0
    key: int = 0
    value: int = 0
    sinks: bool = False
    cached: bool = True
    indexed: bool = True


def layer_kinds(n: ConfigNumbers, family: Family, model_type: str) -> tuple[Kind, ...]:
    """Return the kinds of all layers, in order."""
    if model_type.startswith("nemotron_h"):
        blocks = n.items("hybrid_override_pattern") or n.items("layers_block_type") or n.items("layer_types")
        if blocks:
            return tuple(_one_block(str(block), n) for block in blocks)
    if family.state_only:
        return (Kind(state=family.state_only),) * n.layers
    mixers = [_mixer(n, family, model_type, index) for index in range(n.layers)]
    shared = n.get("num_kv_shared_layers")
    return tuple(
        replace(
            mixer,
            heads=mixer.heads or n.at("num_attention_heads_per_layer", index),
            cached=index < n.layers - shared,
            block="experts" if has_experts(n, model_type, index) else "mlp",
            inner=_inner(n, model_type, index),
        )
        for index, mixer in enumerate(mixers)
    )


def _one_block(name: str, n: ConfigNumbers) -> Kind:
    """Return the kind of a layer of Nemotron-H, which is one block: by its letter in the pattern, or its name."""
    if name in ("M", *_STATES):
        return Kind(state="mamba2")
    if name in ("E", "moe"):
        return Kind(block="experts")
    if name in ("-", "mlp"):
        return Kind(block="mlp", inner=n.intermediate)
    window = n.get("sliding_window")
    return Kind("sliding", window=window) if window else Kind("full")


_STATES = ("mamba", "mamba2", "linear_attention")
"""Names of layers that keep a state; the last is what transformers calls all of them since its fifth version."""


def _mixer(n: ConfigNumbers, family: Family, model_type: str, index: int) -> Kind:
    if n.get("kv_lora_rank"):
        return Kind("latent", indexed=_indexed(n, index))
    if n.items("full_attn_idxs") and not n.items("layer_types"):
        return Kind("full") if index in n.items("full_attn_idxs") else Kind(state="conv")
    types = (n.items("layer_types") or n.items("layers_block_type")) if family.listed else ()
    name = str(types[index]) if index < len(types) else ""
    if name == "conv":
        return Kind(state="conv")
    if name in _STATES:
        return Kind(state=_state(name, n))
    if name == "sliding_attention":
        return Kind("sliding", window=n.get("sliding_window"))
    if name == "chunked_attention":
        return Kind("chunked", chunk=n.get("attention_chunk_size"))
    if name:
        return Kind("full")
    return _mixer_by_rule(n, family, model_type, index)


def _state(name: str, n: ConfigNumbers) -> str:
    """Return which state a layer keeps; the name alone does not say it."""
    if n.get("mamba_n_heads", "mamba_num_heads"):
        return "mamba2"
    return "delta" if name == "linear_attention" and not n.get("mamba_d_state") else "mamba1"


def _indexed(n: ConfigNumbers, index: int) -> bool:
    """Return whether a layer of sparse latent attention has an index of its own, or takes an earlier layer's."""
    pattern = n.items("index_topk_pattern")
    if pattern:
        return index >= len(pattern) or str(pattern[index]) != "S"
    after = max(index - n.get("index_skip_topk_offset", default=2) + 1, 0)
    return after % max(1, n.get("index_topk_freq", default=1)) == 0


def _mixer_by_rule(n: ConfigNumbers, family: Family, model_type: str, index: int) -> Kind:
    """Return the attention of a layer for configs that do not list layer types."""
    if model_type == "falcon_h1":
        return Kind("full", state="mamba2")
    if model_type == "jamba":
        period, offset = n.get("attn_layer_period", default=8), n.get("attn_layer_offset", default=4)
        return Kind("full") if index % period == offset else Kind(state="mamba1")
    if model_type == "bamba":
        return Kind("full") if index in n.items("attn_layer_indices") else Kind(state="mamba2")
    if n.get("linear_num_value_heads"):
        every = n.get("full_attention_interval", default=4)
        return Kind("full") if (index + 1) % every == 0 else Kind(state="delta")
    if model_type == "llama4_text":
        rope = n.items("no_rope_layers")
        local = bool(rope[index]) if rope else (index + 1) % 4 != 0
        chunk = n.get("attention_chunk_size")
        return Kind("chunked", chunk=chunk) if local and chunk else Kind("full")
    window = n.get("sliding_window", "sliding_window_size")
    if not window or not n.flag("use_sliding_window", default=family.sliding):
        return Kind("full")
    pattern = n.items("hybrid_layer_pattern")
    if pattern:
        return _own_window(n) if index < len(pattern) and pattern[index] == 1 else Kind("full")
    period = n.get("sliding_window_pattern", "_sliding_window_pattern", default=family.period)
    if period and (index + 1) % period == 0:
        return Kind("full")
    if model_type.startswith("qwen") and index < n.get("max_window_layers"):
        return Kind("full")
    return Kind("sliding", window=window)


def _own_window(n: ConfigNumbers) -> Kind:
    """Return a layer of sliding attention that has heads of its own, as in MiMo-V2."""
    return Kind(
        "sliding",
        window=n.get("sliding_window_size", "sliding_window"),
        heads=n.get("swa_num_attention_heads"),
        kv_heads=n.get("swa_num_key_value_heads"),
        key=n.get("swa_head_dim"),
        value=n.get("swa_v_head_dim"),
        sinks=n.flag("add_swa_attention_sink_bias"),
    )


def has_experts(n: ConfigNumbers, model_type: str, index: int) -> bool:
    if n.experts < 2:
        return False
    if model_type == "jamba":
        period, offset = n.get("expert_layer_period", default=2), n.get("expert_layer_offset", default=1)
        return index % period == offset
    kinds = n.items("mlp_layer_types")
    # Where a config has both, vLLM uses the number, except for these.
    if kinds and (model_type in _BY_BLOCK or "first_k_dense_replace" not in n.config):
        return index < len(kinds) and kinds[index] == "sparse"
    if index in n.items("mlp_only_layers") or index < n.get("first_k_dense_replace", "num_dense_layers"):
        return False
    if n.get("moe_layer_end_index", default=-1) >= 0 and index > n.get("moe_layer_end_index"):
        return False
    if index < n.get("moe_layer_start_index"):
        return False
    if isinstance(n.config.get("moe_layer_freq"), list):
        return bool(n.at("moe_layer_freq", index))
    if n.get("moe_layer_freq"):
        return index % n.get("moe_layer_freq") == 0
    every = n.get("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_interval", default=1)
    return every > 0 and (index + 1) % every == 0


_BY_BLOCK = ("exaone_moe", "cohere2_moe", "laguna", "hy_v4")
"""Model types whose class in vLLM reads mlp_layer_types."""


def _inner(n: ConfigNumbers, model_type: str, index: int) -> int:
    """Return the width of a dense block, or of the one that GraniteMoeHybrid has next to its experts."""
    if model_type in ("granitemoehybrid", "granitemoeshared", "granitemoe_swa"):
        return n.get("shared_intermediate_size")
    if has_experts(n, model_type, index):
        return 0
    if model_type == "llama4_text":
        return n.get("intermediate_size_mlp", default=n.intermediate)
    if model_type == "falcon":
        return 4 * n.hidden
    width = (
        n.get("block_ff_dim", "prefix_dense_intermediate_size")
        or n.at("intermediate_size", index)
        or n.intermediate
        or 4 * n.hidden
    )
    if model_type == "lfm2" and n.flag("block_auto_adjust_ff_dim", default=True):
        factor, step = (
            n.config.get("block_ffn_dim_multiplier") or 1.0,
            n.get("block_multiple_of", default=256),
        )
        return step * -(-int(factor * (2 * width // 3)) // max(1, step))
    return width
