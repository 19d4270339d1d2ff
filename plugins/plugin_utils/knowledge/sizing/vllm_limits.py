# SPDX-License-Identifier: Apache-2.0
"""Check the limits that vLLM enforces by arithmetic; ids are those of statements in catalog/recipes/general.yml."""

from __future__ import annotations

from ..shapes.shape import ModelShape
from ..shapes.weights import IN, OUT, Matrix, Share
from .engine_config import EngineConfig

Refusal = tuple[str, str]
"""Id of the statement, and a text with the numbers."""


def refusals(model: ModelShape, engine: EngineConfig) -> tuple[Refusal, ...]:
    """Return every limit that this model violates on this engine; empty if the model's numbers are unknown."""
    if model.missing:
        return ()
    return (
        *_heads(model, engine),
        *_slices(model, engine),
        *_pipeline(model, engine),
        *_context(model, engine),
    )


def _heads(model: ModelShape, engine: EngineConfig) -> list[Refusal]:
    tp, found = engine.tp, []
    if model.heads and model.heads % tp:
        divisors = [size for size in (1, 2, 4, 8, 16) if model.heads % size == 0]
        found.append((
            "attention-heads",
            f"{model.heads} attention heads cannot be divided by a tensor parallel size of {tp}; "
            f"{_listed(divisors)} would be possible",
        ))  # fmt: skip
    kv = model.kv_heads
    if kv and not model.latent and kv % tp and tp % kv:
        found.append((
            "kv-heads",
            f"{kv} KV heads and a tensor parallel size of {tp}: neither is a multiple of the other",
        ))  # fmt: skip
    if engine.dcp > 1 and tp % engine.dcp:
        found.append((
            "kv-heads",
            f"A tensor parallel size of {tp} is not a multiple of decode context parallelism of {engine.dcp}",
        ))  # fmt: skip
    if engine.dcp > 1 and kv and not model.latent and engine.dcp > max(1, tp // kv):
        found.append((
            "kv-heads",
            f"Decode context parallelism of {engine.dcp} needs as many copies of each KV head; {kv} KV heads on {tp} "
            f"GPUs have {max(1, tp // kv)}",
        ))  # fmt: skip
    return found


def _slices(model: ModelShape, engine: EngineConfig) -> list[Refusal]:
    """Return the refusals of quantized weights that tensor parallelism would divide within a block.

    Weights must be divided at the edges of the blocks that share a scale, unless vLLM pads them.
    """
    if model.quantization.only_experts:
        return []
    seen: dict[str, Refusal] = {}
    for layer in {id(layer): layer for layer in model.layers}.values():
        for matrix in layer.matrices:
            broken = _broken_slice(matrix, engine.share(model))
            if broken:
                seen.setdefault(broken[1], broken)
    return list(seen.values())[:1]


def _broken_slice(matrix: Matrix, part: Share) -> Refusal | None:
    """Return why a matrix cannot be divided, or None if it can."""
    scheme = matrix.scheme
    parts = part.expert_tp if matrix.experts else part.tp
    if parts == 1 or not matrix.quantizable or matrix.split not in (IN, OUT):
        return None
    size = matrix.inputs if matrix.split == IN else matrix.outputs
    what = "the experts' intermediate size" if matrix.experts else f"{matrix.name.rpartition('.')[2]}'s size"
    if size % parts:
        return "tensor-parallel-slices", f"{what} {size} cannot be divided by {parts}"
    block = 0 if scheme is None else scheme.block[1] if matrix.split == IN else scheme.block[0]
    if scheme is None or block <= 1 or (size // parts) % block == 0:
        return None
    text = f"{what} {size} on {parts} GPUs is {size // parts} each, which is not a multiple of {block} ({scheme.name})"
    return "block-fp8-slices", text


def _pipeline(model: ModelShape, engine: EngineConfig) -> list[Refusal]:
    if engine.pp <= len(model.layers):
        return []
    return [
        ("pipeline-support", f"{len(model.layers)} layers cannot be divided into {engine.pp} pipeline stages")
    ]


def _context(model: ModelShape, engine: EngineConfig) -> list[Refusal]:
    length = engine.max_model_len
    if not length or not model.context or length <= model.context:
        return []
    return [("context-beyond-model", f"max_model_len {length} is more than the model's own {model.context}")]


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + (" and " if len(numbers) > 1 else "") + str(numbers[-1])
