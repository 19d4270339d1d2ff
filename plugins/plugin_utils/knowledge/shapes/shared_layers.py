# SPDX-License-Identifier: Apache-2.0
"""Describe the layers of models that run the same weights several times, with a cache for each time.

Source: vllm/model_executor/models/hrm_text.py and zamba2.py.
"""

from __future__ import annotations

from .family import Family
from .layers import Cache, Layer, mlp
from .numbers import ConfigNumbers
from .states import mamba2
from .weights import IN, OUT, Matrices, linear, vector


def hrm_text(n: ConfigNumbers, family: Family, model_type: str) -> tuple[Layer, ...]:
    """Two stacks that run in nested loops."""
    hidden, heads, size = n.hidden, n.heads, n.head_size
    outer, inner = n.get("H_cycles", default=1), n.get("L_cycles", default=1)
    bias = n.flag("attention_bias")
    matrices = (
        *linear("self_attn.gqkv_proj", 4 * heads * size, hidden, OUT, bias),
        *linear("self_attn.o_proj", hidden, heads * size, IN, bias),
        *mlp("mlp", hidden, n.intermediate, family.gated, n.flag("mlp_bias")),
    )
    stack = n.get("num_layers_per_stack", default=n.layers)
    fast, slow = (Layer(matrices, (Cache(heads, size, size),) * passes) for passes in (outer * inner, outer))
    return (fast,) * stack + (slow,) * stack


def zamba2(n: ConfigNumbers, family: Family, model_type: str) -> tuple[Layer, ...]:
    """State spaces, and in some layers one of few blocks with attention, which has adapters for each such layer."""
    inner, heads = n.get("mamba_expand", default=2) * n.hidden, n.get("n_mamba_heads", default=8)
    own = {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": n.get("mamba_ngroups", default=1),
        "mamba_proj_bias": n.flag("add_bias_linear"),
        "mamba_conv_bias": n.flag("use_conv_bias", default=True),
    }
    matrices, state = mamba2(ConfigNumbers({**n.config, **own}))
    plain = Layer((*matrices, vector("norm", n.hidden)), (state,))
    size = n.get("attention_head_dim", default=2 * n.hidden // max(1, n.heads))
    cache = Cache(n.heads, size, size, declared=n.get("num_key_value_heads", default=n.heads))
    layers, blocks = [], n.get("num_mem_blocks", default=1)
    kinds = n.items("layers_block_type") or n.items("layer_types")
    hybrid = n.items("hybrid_layer_ids")
    for index in range(n.layers):
        kind = kinds[index] if index < len(kinds) else "hybrid" if index in hybrid else "mamba"
        if kind not in ("hybrid", "full_attention"):
            layers.append(plain)
            continue
        added = [*_adapters(n), *linear("linear", n.hidden, n.hidden)]
        if blocks:  # the first of them have the blocks, and the others run these again
            added += _block(n)
        blocks = max(0, blocks - 1)
        layers.append(Layer((*plain.matrices, *added), (state, cache)))
    return tuple(layers)


def _block(n: ConfigNumbers) -> Matrices:
    wide, hidden = n.get("attention_hidden_size", default=2 * n.hidden), n.hidden
    return [
        *linear("self_attn.qkv_proj", 3 * wide, wide, OUT),
        *linear("self_attn.o_proj", hidden, wide, IN),
        *mlp("feed_forward", hidden, n.intermediate, True, n.flag("add_bias_linear")),
        vector("norms", 3 * hidden),
    ]


def _adapters(n: ConfigNumbers) -> Matrices:
    wide, rank = n.get("attention_hidden_size", default=2 * n.hidden), n.get("adapter_rank", default=128)
    found = [
        *linear("gate_up_proj_adapter.A", rank, n.hidden, OUT),
        *linear("gate_up_proj_adapter.B", 2 * n.intermediate, rank, OUT),
    ]
    if n.flag("use_shared_attention_adapter"):
        for side in "qkv":
            found += linear(f"linear_{side}_adapter.A", rank, wide, OUT)
            found += linear(f"linear_{side}_adapter.B", wide, rank, OUT)
    return found
