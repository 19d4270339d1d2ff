# SPDX-License-Identifier: Apache-2.0
"""Compute what a decode step reads and multiplies: the model's side of the HBM and FLOP roofline in results.

Bytes are those of the GPU that holds most; what a step of a given batch reads of them is decided by
summary/roofline.py, which says what is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...base.json_record import Count, JsonRecord
from ..shapes.layers import Cache, Layer
from ..shapes.shape import ModelShape
from ..shapes.weights import Matrix, Scheme, matrix_bytes, padded_vocabulary
from .engine_config import EngineConfig
from .kv_cache import CacheLayout, state_bytes, token_bytes

_PREFILL_ONLY = "self_attn.kv_b_proj"
"""Decoding with latent attention reads the absorbed copies of this weight instead."""
_PLAIN = {"float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}


@dataclass(frozen=True)
class PeakRates:
    """The peak rates of one GPU or partition, as its maker states them.

    hbm: bytes/s. flops: dense operations per second of the matrix cores, by data type.
    """

    hbm: float
    flops: tuple[tuple[str, float], ...] = ()

    def part(self, count: int) -> PeakRates:
        """Return the rates of one of `count` equal partitions."""
        return PeakRates(self.hbm / count, tuple((name, value / count) for name, value in self.flops))

    def to_json(self) -> dict[str, Any]:
        """Return the rates for plan.json."""
        return {"hbm_bytes_per_second": self.hbm, "flops": dict(self.flops)}


@dataclass(frozen=True)
class KvRead(JsonRecord):
    """What attention layers of one kind read for each token of a sequence, in bytes.

    window: the tokens that sliding or sparse attention reads at most. chunk: the length of a chunk of chunked
    attention. 0 for none.
    """

    bytes_per_token: int
    window: int = 0
    chunk: int = 0


@dataclass(frozen=True)
class StepReads(JsonRecord):
    """What one GPU reads in a decode step, in bytes.

    Attributes:
        data_parallel_ranks: sequences are spread evenly over them.
        weights_bytes: read whatever the batch is.
        experts_bytes: of all routed experts, of which a batch reads a part.
        experts: routed experts of a layer; 0 for none.
        kv: by kind of attention layer.
        state_bytes: of state-space and linear attention layers, for each sequence.
    """

    data_parallel_ranks: int
    weights_bytes: int
    experts_bytes: int
    experts: int
    experts_per_token: int
    kv: tuple[KvRead, ...]
    state_bytes: int


@dataclass(frozen=True)
class DecodeStep(JsonRecord):
    """What an engine reads and multiplies.

    Attributes:
        gpus: of the engine.
        peak: of one of them, by the catalogue.
        parameters: weights that each token is multiplied with over all GPUs, by the data type of the multiplication;
            sampled_parameters: those of the output layer, for tokens that are sampled only.
        reads: None for a pipeline, where the number of batches that are in flight is not known.
    """

    gpus: int
    peak: PeakRates | None
    parameters: Mapping[str, Count]
    sampled_parameters: Mapping[str, Count]
    reads: StepReads | None


def decode_step(model: ModelShape, engine: EngineConfig, peak: PeakRates | None) -> DecodeStep | None:
    """Return what a decode step of the engine takes; None unless the layers of the architecture are known exactly.

    peak: of one of its GPUs or partitions.
    """
    if not model.known or engine.platform != "rocm":
        return None
    head = model.embedding if model.tied else model.head
    return DecodeStep(
        gpus=engine.tp * engine.pp * engine.dp,
        peak=peak,
        parameters=_parameters(_products(model), model, engine),
        sampled_parameters=_parameters([(head, 1)] if head else [], model, engine),
        reads=_reads(model, engine, head) if engine.pp == 1 else None,
    )


def compute_type(scheme: Scheme | None, weight_only: bool, plain: str) -> str:
    """Return the data type in which a weight is multiplied.

    plain: the type of activations that are not quantized, to which weight-only formats are converted first.
    """
    name = scheme.name.split()[0] if scheme else ""
    if not name or weight_only or name == "bitsandbytes" or (name.startswith("int") and name != "int8"):
        return plain
    return name


def _products(model: ModelShape) -> Iterator[tuple[Matrix, int]]:
    """Yield the matrices that a token is multiplied with, and how often; vectors are left out."""
    for layer, count in _distinct(model.layers):
        for matrix in layer.matrices:
            if matrix.inputs > 1:
                yield matrix, count


def _distinct(layers: Sequence[Layer]) -> list[tuple[Layer, int]]:
    """Return each layer once, and how often it occurs; equal ones are the same object, and hashing them takes long."""
    counts = Counter(map(id, layers))
    return [(layer, counts[key]) for key, layer in {id(layer): layer for layer in layers}.items()]


def _parameters(
    products: Iterable[tuple[Matrix, int]], model: ModelShape, engine: EngineConfig
) -> dict[str, int]:
    found: dict[str, float] = {}
    online = engine.online(model)
    for matrix, count in products:
        scheme = matrix.scheme or (online if matrix.quantizable else None)
        name = compute_type(scheme, model.quantization.weight_only, _PLAIN.get(engine.dtype, "bf16"))
        active = model.experts_per_token / matrix.experts if matrix.experts else 1.0
        found[name] = found.get(name, 0.0) + matrix.parameters * active * count
    return {name: round(value) for name, value in sorted(found.items()) if value}


def _reads(model: ModelShape, engine: EngineConfig, head: Matrix | None) -> StepReads:
    element, part, online = engine.element(model), engine.share(model), engine.online(model)
    latent = model.latent
    whole = experts = 0
    for layer, count in _distinct(model.layers):
        for matrix in layer.matrices:
            if latent and matrix.name == _PREFILL_ONLY:
                continue
            size = count * matrix_bytes(matrix, element, part, online)
            if matrix.experts:
                experts += size
            else:
                whole += size
    whole += sum(matrix_bytes(matrix, element, part) for matrix in model.final)
    if head:
        whole += matrix_bytes(padded_vocabulary(head), element, part)
    kv, state = _caches(model, engine.layout(model))
    return StepReads(engine.dp, whole, experts, model.experts, model.experts_per_token, kv, state)


def _caches(model: ModelShape, layout: CacheLayout) -> tuple[tuple[KvRead, ...], int]:
    """Return the reads of attention layers of each kind, and of states for each sequence, on one GPU."""
    sizes: dict[tuple[int, int], int] = {}
    state = 0
    for layer in model.layers:
        for cache in layer.caches:
            if isinstance(cache, Cache):
                kind = (cache.selected or cache.window, cache.chunk)
                sizes[kind] = sizes.get(kind, 0) + token_bytes(cache, layout)
            else:
                state += state_bytes(cache, layout)
    # Decode context parallel ranks have a part of each sequence's tokens.
    return tuple(KvRead(size // layout.dcp, *kind) for kind, size in sorted(sizes.items())), state
