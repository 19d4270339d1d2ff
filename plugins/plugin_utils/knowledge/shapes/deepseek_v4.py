# SPDX-License-Identifier: Apache-2.0
"""Describe the layers of DeepSeek-V4: compressed attention, hyper-connections, and experts in a format of their own.

Source: vllm/models/deepseek_v4/*.py.
"""

from __future__ import annotations

from .family import Family
from .layers import Cache, Layer, mixture
from .numbers import ConfigNumbers
from .weights import IN, OUT, Matrices, Matrix, linear, vector

_SPARSE = 4
"""The ratio of the layers that choose what they read by an index; others compress more and read all of it."""


def deepseek_v4(n: ConfigNumbers, family: Family, model_type: str) -> tuple[Layer, ...]:
    """Return the layers; compress_ratios says by how much each compresses what it keeps."""
    made = {ratio: _layer(n, family, ratio) for ratio in {_ratio(n, index) for index in range(n.layers)}}
    return tuple(made[_ratio(n, index)] for index in range(n.layers))


def _ratio(n: ConfigNumbers, index: int) -> int:
    if n.items("compress_ratios"):
        return max(1, n.at("compress_ratios", index))
    kinds = n.items("layer_types")
    name = str(kinds[index]) if index < len(kinds) else ""
    if "heavily" in name or (not name and index % 2):
        return 128
    return 1 if "sliding" in name else _SPARSE


def _layer(n: ConfigNumbers, family: Family, ratio: int) -> Layer:
    hidden, heads, size, q_lora = n.hidden, n.heads, n.get("head_dim", default=512), n.get("q_lora_rank")
    rope, groups, o_lora = (
        n.get("qk_rope_head_dim", default=64),
        n.get("o_groups", default=1),
        n.get("o_lora_rank"),
    )
    token = size - rope + 2 * rope + 8  # FP8, rotated part in 16 bit, scales
    streams = n.get("hc_mult", default=4)
    mixed = (2 + streams) * streams
    matrices = [
        *linear("self_attn.fused_wqa_wkv", q_lora + size, hidden),
        *linear("self_attn.wq_b", heads * size, q_lora, OUT),
        *linear("self_attn.wo_a", groups * o_lora, heads * size // groups, OUT),
        *linear("self_attn.wo_b", hidden, groups * o_lora, IN),
        vector("self_attn.norms, sinks", q_lora + size + 2 * heads),
        *mixture(n, family),
        Matrix("hyper_connections", 2 * mixed, 2 * streams * hidden),  # float32
        vector("norms", 2 * hidden),
    ]
    caches = [
        Cache(
            1,
            0,
            0,
            n.get("sliding_window", default=128),
            latent=True,
            raw=token,
            page=_page(64 * token),
            block=64,
        )
    ]
    if ratio > 1:
        matrices += _compressor("self_attn", hidden, size, ratio)
        caches += _compressed(size, token, ratio, n.get("index_topk"))
    if ratio == _SPARSE:
        index_heads, index_size = n.get("index_n_heads"), n.get("index_head_dim")
        matrices += [
            *linear("self_attn.indexer.wq_b", index_heads * index_size, q_lora),
            Matrix("self_attn.indexer.weights_proj", index_heads, hidden),
            *_compressor("self_attn.indexer", hidden, index_size, ratio),
        ]
        caches += _compressed(index_size, index_size + 4, ratio, 0)
    return Layer(tuple(matrices), tuple(caches))


def _compressed(size: int, token: int, ratio: int, selected: int) -> tuple[Cache, Cache]:
    """Return the compressed cache of a vector of this size, and the float32 states of what is not compressed yet."""
    overlap, block = (2, 4) if ratio == _SPARSE else (1, 8)
    states = 2 * overlap * size * 4
    kept, raw = _BLOCK // ratio * token, -(-token // ratio)
    return (
        Cache(1, 0, 0, latent=True, raw=raw, selected=selected, page=_page(kept), block=_BLOCK),
        Cache(1, 0, 0, overlap * ratio, latent=True, page=_page(block * states), block=block),
    )


_BLOCK = 256
"""Tokens of a block: the only size that the model's attention takes."""


def _page(size: int) -> int:
    """Return the size of a page, which is a multiple of 576 bytes."""
    return -(-size // 576) * 576


def _compressor(name: str, hidden: int, size: int, ratio: int) -> Matrices:
    overlap = 2 if ratio == _SPARSE else 1
    return [
        Matrix(f"{name}.compressor.fused_wkv_wgate", 2 * overlap * size, hidden),
        Matrix(f"{name}.compressor.ape", 2 * ratio * overlap, size),  # float32
        vector(f"{name}.compressor.norm", size),
    ]
