# SPDX-License-Identifier: Apache-2.0
"""Derive a model's shape (layers, weights, caches) from its config.json and file sizes. Weights are not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .bounds import attention_share, keeps_states, largest_reading, leanest_reading
from .build import build
from .checkpoint import CheckpointSize, checkpoint_size
from .family import Families, Family
from .layers import Layer
from .model import ModelShape
from .numbers import ConfigNumbers, flatten_config, resolve_config
from .quantized import quantization

__all__ = ["ModelShape", "model_shape"]

_TOLERANCE = 0.01
_NO_TOWERS = ("text_config", "llm_config", "language_config", "quantization_config", "compression_config")
_WRAPPERS = ("text_config", "llm_config", "language_config", "thinker_config")
_FILES_BETWEEN = (0.8, 1.15)
"""The share of its files that a model with unknown layers loads: less than all, or some of it on every rank."""
_READINGS_BETWEEN = (0.9, 1.15)
"""By how much the real weights of an unknown architecture can differ from its leanest and its largest reading."""
_WITH_STATES = 0.5
"""The weights of a layer that keeps states, at least, as a share of those of a layer with attention and a block."""
_TOWER_BETWEEN = (0.0, 3.0)
"""The share of its estimate that a tower takes; the largest case has a projector in addition."""
_PROJECTOR = 1 << 29


def model_shape(
    config: Mapping[str, Any],
    families: Families,
    files: Sequence[tuple[str, int]] | None = None,
    index_total: int | None = None,
) -> ModelShape:
    """Return the shape of a model.

    files: path and size of everything in its repository. index_total: metadata.total_size of the index. The shape of
    an unknown architecture is not `known`: it is read by the keys that most models share, and is `between` two others.
    """
    text = _text(config)
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    family = families.get(model_type)
    numbers = ConfigNumbers(
        resolve_config(text, family.reads, family.defaults) if family else flatten_config(text)
    )
    size = checkpoint_size(files, index_total)
    missing = _missing(numbers, family or Family())
    if missing:
        return ModelShape(model_type, False, missing, checkpoint=size)
    quantized = quantization(config)
    shape = build(config, text, numbers, family or Family(), model_type, quantized)
    tower = _tower_bytes(config, numbers.hidden)
    shape = replace(shape, other_bytes=tower, known=family is not None and quantized.known, checkpoint=size)
    if size:
        shape = _calibrated(shape, size, config)
    return _between(shape, config, text, numbers, family, tower)


def _missing(n: ConfigNumbers, family: Family) -> tuple[str, ...]:
    """Return the keys without which nothing can be computed."""
    needed = {
        "hidden_size": n.hidden,
        "num_hidden_layers": n.layers,
        "vocab_size": n.vocab,
        "num_attention_heads": n.heads or (1 if family.state_only else 0),
    }
    return tuple(name for name, value in needed.items() if value <= 0)


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a config that wraps it."""
    for name in _WRAPPERS:
        inner = config.get(name)
        if isinstance(inner, Mapping) and inner:
            return _text(inner) if name == "thinker_config" else inner
    return config


def _tower_bytes(config: Mapping[str, Any], hidden: int) -> int:
    """Estimate the towers' bytes as plain transformers; known file sizes replace the estimate."""
    total = 0
    for name, tower in config.items():
        if not isinstance(tower, Mapping) or not name.endswith(
            ("vision_config", "audio_config", "speech_config")
        ):
            continue
        n = ConfigNumbers(tower)
        width = n.get("hidden_size", "embed_dim", "width", "d_model")
        depth = n.get("num_hidden_layers", "depth", "layers", "encoder_layers")
        inner = n.get("intermediate_size", "encoder_ffn_dim", default=4 * width)
        total += 2 * (depth * (4 * width * width + 2 * width * inner) + width * hidden)
    return total


def _calibrated(shape: ModelShape, checkpoint: CheckpointSize, config: Mapping[str, Any]) -> ModelShape:
    """Return the shape corrected by the checkpoint's size: an excess is other weights or, like a deficit, a factor."""
    total, expected = checkpoint.bytes, shape.stored_total
    if not shape.other_bytes:
        # The checkpoint may not have the layers for multi-token prediction.
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
            f"The size of the checkpoint's files is {100 * (total / expected - 1):+.1f} % off what config.json gives "
            f"({total:,} instead of {expected:,} bytes); weights are scaled to the files",
        ),
    )


def _between(
    shape: ModelShape,
    config: Mapping[str, Any],
    text: Mapping[str, Any],
    n: ConfigNumbers,
    family: Family | None,
    tower: int,
) -> ModelShape:
    """Return the shape with the two that it lies between, unless all of it is known."""
    names = [str(name) for name in config.get("architectures") or ()] or [
        shape.model_type or "of this config.json"
    ]
    if family is None:
        pair = _readings(shape, config, text, n)
        unsure = f"the architecture {names[0]}"
    elif not shape.known:
        pair, unsure = (shape, shape), "the format of the quantized weights"
    elif tower and shape.checkpoint is None:
        pair, unsure = (shape, shape), "the size of what reads images or sound"
    else:
        return shape
    if family is not None and not shape.quantization.known and shape.checkpoint is None:
        pair = (replace(pair[0], factor=0.25), pair[1])
    low, high = pair
    if tower and shape.checkpoint is None:
        said = any(isinstance(part.get("tie_word_embeddings"), bool) for part in (config, text))
        low = replace(low, other_bytes=int(_TOWER_BETWEEN[0] * tower), tied=low.tied or not said)
        high = replace(high, other_bytes=int(_TOWER_BETWEEN[1] * tower) + _PROJECTOR)
    if shape.checkpoint and not shape.known:
        said = any(part.get(name) for part in (config, text) for name in ("dtype", "torch_dtype"))
        low = _to_files(
            low, shape.checkpoint, _FILES_BETWEEN[0] * (1 if said else 0.5)
        )  # float32 files are halved
        high = _to_files(high, shape.checkpoint, _FILES_BETWEEN[1])
    return replace(shape, between=(low, high), unsure=unsure)


def _readings(
    shape: ModelShape, config: Mapping[str, Any], text: Mapping[str, Any], n: ConfigNumbers
) -> tuple[ModelShape, ModelShape]:
    """Return the leanest and the largest reading of an unknown architecture, with something in reserve for both."""
    quantized = shape.quantization
    small, big = (
        build(config, text, *read, shape.model_type, quantized)
        for read in (leanest_reading(n), largest_reading(n))
    )
    kept = max(1, round(attention_share(n) * len(small.layers)))
    few = (*small.layers[:kept], *(replace(layer, caches=()) for layer in small.layers[kept:]))
    states = keeps_states(n)
    more = len(big.layers) if states else -(-len(big.layers) // 10)
    many = (*(_kept(layer, 4 if states else 2) for layer in big.layers[:more]), *big.layers[more:])
    # An unknown format of quantized weights has 4 bits at least.
    least = _READINGS_BETWEEN[0] * (1.0 if quantized.known else 0.25) * (_WITH_STATES if states else 1.0)
    return (
        replace(small, known=False, layers=few, checkpoint=shape.checkpoint, factor=least),
        replace(big, known=False, layers=many, checkpoint=shape.checkpoint, factor=_READINGS_BETWEEN[1]),
    )


def _to_files(shape: ModelShape, checkpoint: CheckpointSize, times: float) -> ModelShape:
    """Return the shape scaled to a multiple of the files' size, whatever it is made of."""
    plain = replace(shape, factor=1.0, other_bytes=0, unloaded=())
    return replace(plain, factor=times * checkpoint.bytes / max(1, plain.stored_total))


def _kept(layer: Layer, times: int) -> Layer:
    return replace(layer, caches=layer.caches * times)
