# SPDX-License-Identifier: Apache-2.0
"""Build the shape of a model from the numbers of its config.json and the traits of its family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .family import Family
from .layer_kinds import Kind, layer_kinds
from .layers import Cache, Layer, attention, latent_attention, mixture, mlp
from .model import ModelShape
from .numbers import ConfigNumbers
from .quantized import Quantization
from .special import READERS, before_layers
from .states import delta_net, mamba1, mamba2, short_convolution
from .weights import WHOLE, Matrices, Matrix, vector, vocabulary

_TYPES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "float8_e4m3fn": 1}
_STATES = {"mamba1": mamba1, "mamba2": mamba2, "delta": delta_net, "conv": short_convolution}


def build(
    config: Mapping[str, Any],
    text: Mapping[str, Any],
    n: ConfigNumbers,
    family: Family,
    model_type: str,
    quantized: Quantization,
) -> ModelShape:
    """Return the shape of the language model; config is the whole one, text its part, n its numbers."""
    layers = _layers(n, family, model_type, quantized)
    vocab, hidden, context = n.vocab, n.hidden, _context(n, text, model_type)
    narrow = n.get("word_embed_proj_dim", default=hidden)
    tied = _tied(config, text, family)
    final = [vector("norm", hidden * (2 if family.norm_bias else 1) if family.norms else 0)]
    if family.head_bias:
        final.append(vector("lm_head.bias", vocab, "out"))
    extra = n.get("num_nextn_predict_layers", "mtp_num_hidden_layers") if _stores_mtp(model_type) else 0
    dtype = str(
        text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype") or ""
    )
    stored = _TYPES.get(dtype.replace("torch.", ""), 2)
    return ModelShape(
        model_type=model_type,
        known=True,
        layers=layers,
        embedding=vocabulary("embed_tokens", vocab, narrow),
        before=tuple(before_layers(n, family, model_type, context)),
        final=tuple(final),
        head=vocabulary("lm_head", vocab, narrow),
        tied=tied,
        head_everywhere=family.head_everywhere,
        unloaded=(_mtp_layer(layers[-1], hidden, vocab),) * extra,
        heads=n.heads,
        kv_heads=n.kv_heads,
        hidden=hidden,
        intermediate=n.intermediate,
        expert_intermediate=n.expert_intermediate if n.experts else 0,
        experts=n.experts,
        experts_per_token=n.experts_per_token,
        vocab=vocab,
        context=context,
        element=2,
        stored_element=max(2, stored),
        quantization=quantized,
    )


def _layers(n: ConfigNumbers, family: Family, model_type: str, quantized: Quantization) -> tuple[Layer, ...]:
    """Return all layers, equal ones as one object; a quantized checkpoint names what it leaves out layer by layer."""
    if model_type in READERS:
        plain = READERS[model_type](n, family, model_type)
    else:
        made: dict[Kind, Layer] = {}
        plain = tuple(
            made[kind] if kind in made else made.setdefault(kind, _layer(n, family, kind))
            for kind in layer_kinds(n, family, model_type)
        )
    if family.whole:
        plain = tuple(
            replace(layer, matrices=tuple(_undivided(item, family) for item in layer.matrices))
            for layer in plain
        )
    distinct: dict[Layer, Layer] = {}
    if not quantized.scheme:
        return tuple(distinct.setdefault(layer, layer) for layer in plain)
    found = (
        replace(layer, matrices=_with_schemes(layer.matrices, quantized, index))
        for index, layer in enumerate(plain)
    )
    return tuple(distinct.setdefault(layer, layer) for layer in found)


def _undivided(matrix: Matrix, family: Family) -> Matrix:
    return replace(matrix, split=WHOLE) if matrix.name.partition(".")[0] in family.whole.split() else matrix


def _tied(config: Mapping[str, Any], text: Mapping[str, Any], family: Family) -> bool:
    if family.head:
        return family.head == "shared"
    for source in (text, config):
        value = source.get("tie_word_embeddings")
        if isinstance(value, bool):
            return value
    return family.tied


def _stores_mtp(model_type: str) -> bool:
    return model_type.startswith(("deepseek", "glm4_moe", "kimi_k2", "qwen3_next", "mimo", "ernie4_5_moe"))


def _mtp_layer(last: Layer, hidden: int, vocab: int) -> Layer:
    """Return a multi-token prediction layer: a decoder layer, a projection of two inputs, embeddings."""
    return Layer((
        *last.matrices,
        Matrix("eh_proj", hidden, 2 * hidden),
        vector("enorm, hnorm, norm", 3 * hidden),
        Matrix("embed_tokens", vocab, hidden),
        Matrix("shared_head.head", vocab, hidden),
    ))  # fmt: skip


def _layer(n: ConfigNumbers, family: Family, kind: Kind) -> Layer:
    matrices: Matrices = []
    caches: list[Any] = []
    hidden = n.hidden
    if kind.mixer in ("full", "sliding", "chunked"):
        gated = n.flag("attn_output_gate", default=bool(n.get("linear_num_value_heads")))
        matrices += attention(n, family, kind, gated)
        if kind.cached:
            size = kind.key or n.head_size
            value = kind.value or n.get("v_head_dim", default=size)
            caches.append(Cache(kind.kv_heads or n.kv_heads, size, value, kind.window, kind.chunk))
    elif kind.mixer == "latent":
        found, latent = latent_attention(n, kind.indexed)
        matrices += found
        caches += latent
    if kind.state:
        found, state = _STATES[kind.state](n)
        matrices += found
        caches.append(replace(state, alone=bool(family.state_only)))
    if kind.block == "mlp":
        matrices += mlp("mlp", hidden, kind.inner, family.gated, _mlp_bias(n, family))
    elif kind.block == "experts":
        matrices += mixture(n, family)
        if kind.inner:  # runs next to the experts, for every token
            matrices += mlp("mlp.shared_experts", hidden, kind.inner, family.gated)
    norms = _falcon_norms(n) if n.config.get("model_type") == "falcon" else family.norms
    matrices.append(vector("norms", norms * hidden * (2 if family.norm_bias else 1)))
    return Layer(tuple(matrices), tuple(caches))


def _falcon_norms(n: ConfigNumbers) -> int:
    if not n.flag("parallel_attn", default=True):
        return 2
    both = n.flag("new_decoder_architecture")
    return n.get("num_ln_in_parallel_attn", default=2 if both else 1)


def _mlp_bias(n: ConfigNumbers, family: Family) -> bool:
    everywhere = n.flag("bias", "use_bias") and n.config.get("model_type") in _ONE_BIAS
    return everywhere or n.flag("mlp_bias", default=family.mlp_bias)


_ONE_BIAS = ("falcon", "ernie4_5_moe", "ernie4_5")
"""Families with one switch for the biases of attention and feed-forward blocks."""


def _with_schemes(matrices: Sequence[Matrix], quantized: Quantization, index: int) -> tuple[Matrix, ...]:
    return tuple(
        replace(matrix, scheme=quantized.of(f"layers.{index}.{matrix.name}", bool(matrix.experts)))
        if matrix.quantizable
        else matrix
        for matrix in matrices
    )


def _context(n: ConfigNumbers, text: Mapping[str, Any], model_type: str) -> int:
    """Return the longest sequence, by vLLM's rules (vllm/config/model.py, _get_and_verify_max_len)."""
    if n.get("model_max_length"):
        return n.get("model_max_length")
    found = n.get(
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "max_sequence_length",
        default=2048,
    )
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    if not isinstance(scaling, Mapping):
        return found
    kind = scaling.get("rope_type") or scaling.get("type")
    factor = scaling.get("factor")
    if not isinstance(factor, (int, float)) or "gemma3" in model_type:
        return found
    if kind in ("yarn", "deepseek_yarn"):
        original = scaling.get("original_max_position_embeddings")
        return max(found, int(original * factor)) if original else found
    return found if kind in ("su", "longrope", "llama3", "mrope", "default") else int(found * factor)
