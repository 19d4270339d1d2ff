# SPDX-License-Identifier: Apache-2.0
"""Decide whether a model fits a GPU or partition, how many tokens its KV cache holds, and else what to change.

Everything is computed from config.json and file sizes. The calculation follows vLLM's own planning step by step; only
what its profiling run measures is estimated (reserve.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..shapes.layers import Layer
from ..shapes.shape import ModelShape
from ..shapes.weights import cdiv, matrix_bytes, padded_vocabulary
from .engine_config import GIB, EngineConfig
from .estimates import MeasuredStart, PredictedRanges
from .fit_result import ESTIMATED, EXACT, Fit, FitRange
from .kv_cache import CachePlan, element_bytes, plan
from .reserve import Reserve, graph_bytes, reserve
from .vllm_limits import refusals

__all__ = ["EngineConfig", "Fit", "fit", "refusals", "remedies", "smallest_tp"]

HUB, GIVEN = "the repository's config.json", "model_config"
CATALOGUE = "the catalogue, by the model's name, as its config.json is not known yet"
"""Possible origins of a shape, for fit()."""


def stages(layers: Sequence[Layer], pp: int) -> list[Sequence[Layer]]:
    """Return the layers of each pipeline stage; a remainder goes one each to the stages before the last, backwards."""
    sizes = [len(layers) // pp] * pp
    for index in range(2, len(layers) % pp + 2):
        sizes[-index] += 1
    starts = [sum(sizes[:index]) for index in range(pp)]
    return [layers[start : start + size] for start, size in zip(starts, sizes)]


def stage_weights(model: ModelShape, engine: EngineConfig) -> tuple[int, ...]:
    """Return the bytes of weights on a rank of each pipeline stage, as loaded, including those of a draft model."""
    if model.missing:
        size = model.checkpoint.bytes if model.checkpoint else 0
        return (cdiv(size, engine.tp * engine.pp) + engine.draft_bytes_per_gpu,) * engine.pp
    element, part, online = engine.element(model), engine.share(model), engine.online(model)
    sizes: dict[int, int] = {}
    result = []
    parts = stages(model.layers, engine.pp)
    for index, layers in enumerate(parts):
        total = 0
        for layer in layers:
            if id(layer) not in sizes:
                sizes[id(layer)] = sum(
                    matrix_bytes(matrix, element, part, online) for matrix in layer.matrices
                )
            total += sizes[id(layer)]
        last = index == len(parts) - 1
        if model.embedding and (index == 0 or (last and model.tied)):
            total += matrix_bytes(padded_vocabulary(model.embedding), element, part)
        if last:
            total += sum(matrix_bytes(matrix, element, part) for matrix in model.final)
        if model.head and not model.tied and (last or model.head_everywhere):
            total += matrix_bytes(padded_vocabulary(model.head), element, part)
        if index == 0:
            total += model.other_bytes + sum(matrix_bytes(matrix, element, part) for matrix in model.before)
        result.append(int(total * model.factor) + engine.draft_bytes_per_gpu)
    return tuple(result)


def fit(
    model: ModelShape, engine: EngineConfig, origin: str = "", measured: MeasuredStart | None = None
) -> Fit:
    """Return whether the model fits, and what the KV cache then holds.

    origin: the source of the model's shape, for the notes. measured: what a start of the same engine measured.
    """
    found = _fit(model, engine, origin, measured)
    if model.between is None or model.missing or measured:
        return found
    cases = [found, *(_fit(case, engine, "") for case in model.between)]
    weights, sizes, tokens, requests = (
        [getattr(case, name) for case in cases]
        for name in ("weights_bytes_per_gpu", "kv_cache_bytes", "kv_cache_tokens", "max_concurrency")
    )
    between = FitRange(
        (min(weights), max(weights)), (min(sizes), max(sizes)), (min(tokens), max(tokens)),
        (min(requests), max(requests)), all(case.fits for case in cases), model.unsure,
    )  # fmt: skip
    room = max(case.headroom_bytes for case in cases)
    return replace(found, fits=room >= 0, headroom_bytes=room, basis=ESTIMATED, between=between)


def _fit(model: ModelShape, engine: EngineConfig, origin: str, measured: MeasuredStart | None = None) -> Fit:
    weights = stage_weights(model, engine)
    estimate = reserve(model, engine)
    available = _available(engine, weights, estimate.expected)
    length = engine.length(model)
    notes = (*_notes(model, engine), *_estimates(engine, estimate, measured))
    if origin:
        notes += (f"The model's shape is from {origin}",)
    if model.missing:
        lacking = ", ".join(model.missing)
        notes += (
            f"config.json does not have {lacking}: only the size of the weights is compared with the memory",
        )
        left, size = min(available), estimate.expected
        return Fit(left > 0, max(weights), 0, max(0, left), 0, 0.0, length, size, left, ESTIMATED, notes)
    parts = stages(model.layers, engine.pp)
    cache = plan([*parts[:-1], (*parts[-1], *engine.draft_layers)], engine.layout(model))
    predicted = _filled(model, engine, cache, weights, estimate.expected)
    predicted = replace(predicted, notes=notes, predicted=_ranges(model, engine, cache, weights, estimate))
    return _corrected(predicted, model, engine, cache, measured) if measured else predicted


def _filled(
    model: ModelShape, engine: EngineConfig, cache: CachePlan, weights: Sequence[int], size: int
) -> Fit:
    """Return how the model fits with a reserve of this size."""
    available, length = _available(engine, weights, size), engine.length(model)
    blocks = _blocks(cache, engine, available)
    needed = cache.request_blocks(length)
    # vLLM never gives one block of the pool to a request (the null block).
    headroom = _overdrawn(engine, weights, size) or min(
        room - (needed + 1) * block if block else room
        for room, block in zip(_pool_bytes(cache, engine, available), cache.stage_bytes)
    )
    concurrency = blocks / needed if needed else 0.0
    return Fit(
        fits=headroom >= 0,
        weights_bytes_per_gpu=max(weights),
        kv_bytes_per_token=cache.bytes_per_token,
        kv_cache_bytes=max(0, min(available)),
        kv_cache_tokens=_tokens(cache, engine, blocks, concurrency, length),
        max_concurrency=concurrency,
        max_model_len=length,
        reserve_bytes=size,
        headroom_bytes=headroom,
        basis=EXACT if model.known else ESTIMATED,
    )


def _ranges(
    model: ModelShape, engine: EngineConfig, cache: CachePlan, weights: Sequence[int], estimate: Reserve
) -> PredictedRanges | None:
    """Return the ranges that follow from the least and the most of the reserve; None if it decides nothing."""
    if estimate.high == 0 or engine.kv_cache_memory_bytes is not None:
        return None
    least, most = (_filled(model, engine, cache, weights, size) for size in (estimate.high, estimate.low))
    return PredictedRanges(
        reserve_bytes=(estimate.low, estimate.high),
        kv_cache_bytes=(least.kv_cache_bytes, most.kv_cache_bytes),
        kv_cache_tokens=(least.kv_cache_tokens, most.kv_cache_tokens),
        surely_fits=least.fits,
    )


def _corrected(
    predicted: Fit, model: ModelShape, engine: EngineConfig, cache: CachePlan, measured: MeasuredStart
) -> Fit:
    """Return the fit with what a start measured instead of the estimates.

    That start may have had another max_model_len: the bytes of its cache remain, and its tokens change as predicted.
    """
    size = measured.log.kv_bytes
    if size is None:  # the release prints tokens only
        size = (measured.log.tokens or 0) * cache.bytes_per_token
    given = replace(engine, kv_cache_memory_bytes=size)
    now = _filled(model, given, cache, (0,) * engine.pp, 0)
    tokens, concurrency, length = now.kv_cache_tokens, now.max_concurrency, predicted.max_model_len
    before = measured.log.max_model_len or length
    if measured.log.tokens:
        then = replace(given, max_model_len=before)
        expected = _filled(model, then, cache, (0,) * engine.pp, 0).kv_cache_tokens
        ratio = measured.log.tokens / expected if expected else 1.0
        tokens = measured.log.tokens if before == length else int(tokens * ratio)
        concurrency *= ratio
    weights = measured.log.weights_bytes or predicted.weights_bytes_per_gpu
    return replace(
        predicted,
        fits=before >= length or now.headroom_bytes >= 0,
        weights_bytes_per_gpu=weights,
        kv_cache_bytes=size,
        kv_cache_tokens=tokens,
        max_concurrency=concurrency,
        reserve_bytes=max(0, engine.requested_bytes - weights - size) if predicted.predicted else 0,
        headroom_bytes=now.headroom_bytes,
        measured=measured,
    )


def _available(engine: EngineConfig, weights: Sequence[int], reserve: int) -> list[int]:
    """Return the bytes for the KV cache on each stage; negative where weights and reserve exceed the memory."""
    if engine.kv_cache_memory_bytes is not None:
        return [engine.kv_cache_memory_bytes] * len(weights)
    return [engine.requested_bytes - size - reserve for size in weights]


def _overdrawn(engine: EngineConfig, weights: Sequence[int], reserve: int) -> int:
    """Return by how many bytes a cache of configured size exceeds the memory, as a negative number; else 0.

    vLLM does not check this.
    """
    if engine.kv_cache_memory_bytes is None or engine.platform == "cpu":
        return 0
    return min(0, engine.memory_bytes - max(weights) - reserve - engine.kv_cache_memory_bytes)


def _pool_bytes(cache: CachePlan, engine: EngineConfig, available: Sequence[int]) -> list[int]:
    """Return the bytes of the pool on each stage, or those that follow from an override of the number of blocks."""
    if engine.num_gpu_blocks_override is None:
        return list(available)
    return [
        min(engine.num_gpu_blocks_override * size, room) for room, size in zip(available, cache.stage_bytes)
    ]


def _blocks(cache: CachePlan, engine: EngineConfig, available: Sequence[int]) -> int:
    """Return the number of blocks in the pool: the smallest of all stages."""
    if engine.num_gpu_blocks_override is not None:
        return engine.num_gpu_blocks_override
    return max(0, min((room // size for room, size in zip(available, cache.stage_bytes) if size), default=0))


def _tokens(cache: CachePlan, engine: EngineConfig, blocks: int, concurrency: float, length: int) -> int:
    """Return the number of tokens that this release prints in its log."""
    rules = engine.rules
    if rules.by_concurrency:
        return int(concurrency * length)
    groups = len(cache.groups) if rules.grouped else 1
    return blocks // max(1, groups) * cache.layout.block_size * engine.dcp


def _notes(model: ModelShape, engine: EngineConfig) -> tuple[str, ...]:
    notes = list(model.notes)
    if model.kv_heads and engine.tp > model.kv_heads and not model.latent and model.layers:
        notes.append(
            f"Each of the {model.kv_heads} KV heads is kept on {engine.tp // model.kv_heads} GPUs with a tensor "
            f"parallel size of {engine.tp}"
        )
    if model.latent and engine.tp > 1 and engine.dcp == 1:
        notes.append("Each tensor parallel rank keeps the whole latent KV cache")
    if model.unloaded and not engine.draft_layers:
        notes.append("The checkpoint's multi-token prediction layers are not loaded without speculation")
    if engine.kv_cache_dtype != "auto" and element_bytes(engine.kv_cache_dtype) is None:
        notes.append(
            f"KV cache type {engine.kv_cache_dtype} is counted with the size of the model's own type"
        )
    outside = engine.memory_bytes - engine.requested_bytes
    if engine.platform != "cpu" and not engine.rules.graphs_counted and outside < graph_bytes(engine):
        notes.append(
            f"In this release graphs need memory beyond gpu_memory_utilization, which leaves {outside / GIB:.1f} GiB"
        )
    if model.unsure:
        notes.append(
            f"Not known here: {model.unsure}. Sizes are given as ranges; vLLM's log has the exact ones"
        )
    return tuple(notes)


def _estimates(engine: EngineConfig, estimate: Reserve, measured: MeasuredStart | None) -> tuple[str, ...]:
    """Return the notes on values that are estimated."""
    if measured:
        return ()
    if not estimate.expected or engine.kv_cache_memory_bytes is not None:
        return ()
    return (
        f"About {estimate.expected / GIB:.1f} GiB per GPU ({estimate.low / GIB:.1f} to {estimate.high / GIB:.1f}) are "
        "reserved for activations, graphs and libraries. This is an estimate, as is the number of tokens in the KV "
        "cache: vLLM measures both when it starts, and later plans use what it measured",
    )


def smallest_tp(model: ModelShape, engine: EngineConfig, choices: Sequence[int] = (1, 2, 4, 8)) -> int | None:
    """Return the smallest tensor parallel size that fits and breaks no rule of vLLM, or None."""
    for tp in sorted(choices):
        tried = replace(engine, tp=tp)
        if not refusals(model, tried) and fit(model, tried).fits:
            return tp
    return None


def largest_max_model_len(model: ModelShape, engine: EngineConfig) -> int:
    """Return the largest max_model_len with which one request fits; 0 if there is none or the cache is unknown."""
    if model.missing:
        return 0
    low, high = 0, engine.length(model)
    while low < high:
        middle = (low + high + 1) // 2
        if fit(model, replace(engine, max_model_len=middle)).fits:
            low = middle
        else:
            high = middle - 1
    return low


def remedies(model: ModelShape, engine: EngineConfig, found: Fit) -> tuple[str, ...]:
    """Return what to change if the model does not fit, the most helpful first; empty if it fits.

    Each remedy with a number is sufficient by itself, except the last, which states the memory that would be needed.
    """
    if found.fits:
        return ()
    advice = []
    if not model.missing:
        length = largest_max_model_len(model, engine)
        if length >= _SHORTEST:
            advice.append(f"Set max_model_len to {length} or less; the model's own is {model.context}")
        eight = replace(engine, kv_cache_dtype="fp8")
        possible = engine.kv_cache_dtype == "auto" and (engine.rules.latent_fp8 or not model.latent)
        if possible and fit(model, eight).fits:
            advice.append(
                f"Set kv_cache_dtype to fp8, which halves the KV cache and keeps max_model_len {found.max_model_len}"
            )
    larger = [tp for tp in _SIZES if tp > engine.tp]
    tp = smallest_tp(model, engine, larger)
    if tp:
        advice.append(f"Set tensor_parallel_size to {tp}, the smallest that fits")
    if model.quantization.scheme is None and engine.online(model) is None:
        advice += _quantized(model, engine)
    missing = -found.headroom_bytes
    needed = found.weights_bytes_per_gpu + found.reserve_bytes
    advice.append(
        f"Use a larger GPU or partition: the instance needs {(engine.requested_bytes + missing) / GIB:.1f} GiB "
        f"({needed / GIB:.1f} GiB before the KV cache), which is {missing / GIB:.1f} GiB more than it may use"
    )
    return tuple(advice)


_SHORTEST = 512
"""In tokens; a smaller max_model_len than this is not offered as a remedy."""
_SIZES = (1, 2, 4, 8)


def _quantized(model: ModelShape, engine: EngineConfig) -> list[str]:
    """Return the advice to quantize the weights to FP8, if the model then fits."""
    eight = replace(engine, quantization="fp8")
    if not fit(model, eight).fits:
        return []
    weights = max(stage_weights(model, eight)) / GIB
    return [f"Use a checkpoint quantized to FP8: its weights are about {weights:.1f} GiB per GPU"]
