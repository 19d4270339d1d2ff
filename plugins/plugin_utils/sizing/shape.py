# SPDX-License-Identifier: Apache-2.0
"""Derive a model's shape (layers, weights, caches) from its config.json and file sizes. Weights are not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .checkpoint import CheckpointSize, checkpoint_size
from .families import FAMILIES, Family
from .layer_kinds import Kind, layer_kinds
from .layers import (
    Cache,
    ConfigNumbers,
    Layer,
    Matrices,
    attention,
    delta_net,
    latent_attention,
    mamba1,
    mamba2,
    mixture,
    mlp,
    vector,
)
from .quantized import Quantization, quantization
from .weights import Matrix, stored_bytes, vocabulary

_TYPES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "float8_e4m3fn": 1}
_TOLERANCE = 0.01
_NO_TOWERS = ("text_config", "llm_config", "language_config", "quantization_config", "compression_config")
_WRAPPERS = ("text_config", "llm_config", "language_config", "thinker_config")


@dataclass(frozen=True)
class ModelShape:
    """The shape of a model.

    Attributes:
        known: the layers of its architecture are known exactly.
        missing: numbers that config.json lacks; without them only the size of the files is known.
        embedding, final, head: weights before and after the layers.
        tied: the head is the embedding.
        head_everywhere: each pipeline stage has the head.
        unloaded: layers of the checkpoint that vLLM does not load (multi-token prediction).
        context: the longest sequence, in tokens.
        element, stored_element: bytes of an unquantized weight, as vLLM keeps it by default and in the checkpoint.
        other_bytes: weights outside the language model (vision), whole on each rank.
        factor: ratio of the file sizes to the computed weights; 1 if they agree.
    """

    model_type: str
    known: bool
    missing: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    embedding: Matrix | None = None
    final: tuple[Matrix, ...] = ()
    head: Matrix | None = None
    tied: bool = False
    head_everywhere: bool = False
    unloaded: tuple[Layer, ...] = ()
    heads: int = 0
    kv_heads: int = 0
    hidden: int = 0
    intermediate: int = 0
    expert_intermediate: int = 0
    experts: int = 0
    experts_per_token: int = 0
    vocab: int = 0
    context: int = 0
    element: int = 2
    stored_element: int = 2
    quantization: Quantization = field(default_factory=Quantization)
    other_bytes: int = 0
    factor: float = 1.0
    checkpoint: CheckpointSize | None = None
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """Return the number of the language model's weights as vLLM loads it, each counted once."""
        ends = [self.embedding, *self.final, None if self.tied else self.head]
        return sum(matrix.parameters for matrix in ends if matrix) + sum(
            matrix.parameters for layer in self.layers for matrix in layer.matrices
        )

    @property
    def stored_total(self) -> int:
        """Return the bytes of all tensors in the checkpoint, as far as they are known."""
        ends = [self.embedding, *self.final, None if self.tied else self.head]
        size = stored_bytes((matrix for matrix in ends if matrix), self.stored_element) + self.other_bytes
        for layer, count in Counter((*self.layers, *self.unloaded)).items():
            size += count * stored_bytes(layer.matrices, self.stored_element)
        return size

    @property
    def latent(self) -> bool:
        """Return whether the model uses latent attention (MLA)."""
        return any(
            isinstance(cache, Cache) and cache.latent for layer in self.layers for cache in layer.caches
        )

    @property
    def chunked(self) -> bool:
        """Return whether some layers use chunked attention."""
        return any(
            isinstance(cache, Cache) and cache.chunk for layer in self.layers for cache in layer.caches
        )


def model_shape(
    config: Mapping[str, Any],
    files: Sequence[tuple[str, int]] | None = None,
    index_total: int | None = None,
) -> ModelShape:
    """Return the shape of a model.

    files: path and size of everything in its repository. index_total: metadata.total_size of the index. An unknown
    architecture is read by the keys that most models share, with `known` False.
    """
    text = _text(config)
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    family = FAMILIES.get(model_type)
    given = {name: value for name, value in text.items() if value is not None}
    numbers = ConfigNumbers({**(family.defaults if family else {}), **given})
    size = checkpoint_size(files, index_total)
    missing = tuple(
        name
        for name, value in (
            ("hidden_size", numbers.hidden),
            ("num_hidden_layers", numbers.layers or len(numbers.items("hybrid_override_pattern"))),
            ("vocab_size", numbers.get("vocab_size")),
            ("num_attention_heads", numbers.heads or numbers.get("state_size")),
        )
        if not value
    )
    if missing:
        return ModelShape(model_type, False, missing, checkpoint=size)
    shape = _build(config, text, numbers, family or Family(), model_type)
    shape = replace(shape, known=family is not None and shape.quantization.known, checkpoint=size)
    return _calibrated(shape, size, config) if size else shape


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a config that wraps it."""
    for name in _WRAPPERS:
        inner = config.get(name)
        if isinstance(inner, Mapping) and inner:
            return _text(inner) if name == "thinker_config" else inner
    return config


def _build(
    config: Mapping[str, Any], text: Mapping[str, Any], n: ConfigNumbers, family: Family, model_type: str
) -> ModelShape:
    quantized = quantization(config)
    kinds = layer_kinds(n, family, model_type)
    made: dict[Kind, Layer] = {}
    distinct: dict[Layer, Layer] = {}
    layers = []
    for index, kind in enumerate(kinds):
        if kind not in made:
            made[kind] = _layer(n, family, kind)
        layer = made[kind]
        if quantized.scheme:
            layer = replace(layer, matrices=_with_schemes(layer.matrices, quantized, index))
            layer = distinct.setdefault(layer, layer)
        layers.append(layer)
    vocab, hidden = n.get("vocab_size"), n.hidden
    tied = _tied(config, text, family)
    final = [vector("norm", hidden * (2 if family.norm_bias else 1))]
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
        layers=tuple(layers),
        embedding=vocabulary("embed_tokens", vocab, hidden),
        final=tuple(final),
        head=vocabulary("lm_head", vocab, hidden),
        tied=tied,
        head_everywhere=family.head_everywhere,
        unloaded=(_mtp_layer(layers[-1], hidden, vocab),) * extra,
        heads=n.heads,
        kv_heads=n.kv_heads,
        hidden=hidden,
        intermediate=n.intermediate,
        expert_intermediate=n.expert_intermediate if n.experts else 0,
        experts=n.experts,
        experts_per_token=n.get("num_experts_per_tok", "experts_per_token", "top_k", default=1),
        vocab=vocab,
        context=_context(n, text, model_type),
        element=2,
        stored_element=max(2, stored),
        quantization=quantized,
        other_bytes=_vision_bytes(config, hidden),
    )


def _tied(config: Mapping[str, Any], text: Mapping[str, Any], family: Family) -> bool:
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
        matrices += attention(n, family, kind.kv_heads, gated)
        if kind.cached:
            value = n.get("v_head_dim", default=n.head_size)
            caches.append(Cache(kind.kv_heads or n.kv_heads, n.head_size, value, kind.window, kind.chunk))
    elif kind.mixer == "latent":
        found, latent = latent_attention(n)
        matrices += found
        caches += latent
    if kind.state:
        found, state = {"mamba1": mamba1, "mamba2": mamba2, "delta": delta_net}[kind.state](n)
        matrices += found
        caches.append(state)
    if kind.block == "mlp":
        matrices += mlp("mlp", hidden, kind.inner, family.gated, n.flag("mlp_bias", default=family.mlp_bias))
    elif kind.block == "experts":
        matrices += mixture(n, family)
        if kind.inner:  # runs next to the experts, for every token
            matrices += mlp("mlp.shared_experts", hidden, kind.inner, family.gated)
    matrices.append(vector("norms", family.norms * hidden * (2 if family.norm_bias else 1)))
    return Layer(tuple(matrices), tuple(caches))


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


def _vision_bytes(config: Mapping[str, Any], hidden: int) -> int:
    """Estimate a vision tower's bytes as a plain transformer; known file sizes replace the estimate."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return 0
    n = ConfigNumbers(vision)
    width = n.get("hidden_size", "embed_dim", "width")
    depth = n.get("num_hidden_layers", "depth", "layers")
    inner = n.get("intermediate_size", default=4 * width)
    return 2 * (depth * (4 * width * width + 2 * width * inner) + width * hidden)


def _calibrated(shape: ModelShape, checkpoint: CheckpointSize, config: Mapping[str, Any]) -> ModelShape:
    """Return the shape corrected by the checkpoint's size: an excess is other weights or, like a deficit, a factor."""
    total, expected = checkpoint.bytes, shape.stored_total
    if not shape.other_bytes:
        # The checkpoint may lack the layers for multi-token prediction.
        for size in (expected, replace(shape, unloaded=()).stored_total):
            if abs(total - size) <= _TOLERANCE * size:
                return shape
        if not shape.quantization.scheme and abs(total - 2 * expected) <= 2 * _TOLERANCE * expected:
            return replace(shape, stored_element=2 * shape.stored_element)
    language = replace(shape, other_bytes=0).stored_total
    if total >= language and any(name.endswith("_config") and name not in _NO_TOWERS for name in config):
        return replace(shape, other_bytes=total - language)
    return replace(
        shape,
        known=False,
        factor=total / expected,
        notes=(
            *shape.notes,
            f"The checkpoint's files are {100 * (total / expected - 1):+.1f} % off what config.json gives ({total:,} "
            f"against {expected:,} bytes); weights are scaled to the files",
        ),
    )
