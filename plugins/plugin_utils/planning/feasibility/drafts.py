# SPDX-License-Identifier: Apache-2.0
"""Compute what a draft adds to an engine's memory: its weights, and its layers' part of the KV cache. Pure.

vLLM divides one pool of blocks over the layers of both models: vllm/v1/core/kv_cache_utils.py, and for V0
split_num_cache_blocks_evenly of vllm/spec_decode/spec_decode_worker.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...knowledge.shapes.checkpoint import checkpoint_size
from ...knowledge.shapes.family import Families
from ...knowledge.shapes.layers import Cache, Layer
from ...knowledge.shapes.shape import ModelShape, model_shape
from ...knowledge.shapes.weights import matrix_bytes
from ...knowledge.sizing.engine_config import EngineConfig
from ..desired.actions import size


@dataclass(frozen=True)
class Draft:
    """What drafts tokens for the model.

    repo: "" for the model's own layers for multi-token prediction. config, files: as far as they are known. tp: None
    for the model's.
    """

    repo: str = ""
    config: Mapping[str, Any] | None = None
    files: Sequence[tuple[str, int]] | None = None
    tp: int | None = None


@dataclass(frozen=True)
class DraftMemory:
    """The bytes of all of a draft's weights, and the layers that keep KV cache; None if they are unknown."""

    bytes: int | None
    layers: tuple[Layer, ...] | None


def draft_memory(draft: Draft, model: ModelShape, families: Families) -> DraftMemory:
    """Return what a draft needs."""
    if not draft.repo:
        total = sum(
            matrix_bytes(matrix, model.element) for layer in model.unloaded for matrix in layer.matrices
        )
        return DraftMemory(
            total, tuple(replace(layer, caches=model.layers[-1].caches) for layer in model.unloaded)
        )
    stored = checkpoint_size(draft.files)
    shape = model_shape(draft.config, families, draft.files) if draft.config else None
    if shape is None or shape.missing:
        return DraftMemory(stored.bytes if stored else None, None)
    return DraftMemory(stored.bytes if stored else shape.stored_total, shape.layers)


def with_draft(
    engine: EngineConfig, draft: Draft | None, model: ModelShape, families: Families
) -> EngineConfig:
    """Return the engine with what its draft needs, as far as that is known."""
    if draft is None:
        return engine
    memory = draft_memory(draft, model, families)
    layers = memory.layers or ()
    if draft.tp and draft.tp < engine.tp:  # on fewer GPUs, each keeps more heads
        layers = tuple(_on_fewer(layer, engine.tp // draft.tp) for layer in layers)
    return replace(engine, draft_bytes=memory.bytes or 0, draft_tp=draft.tp, draft_layers=layers)


def _on_fewer(layer: Layer, times: int) -> Layer:
    caches = (
        replace(item, heads=item.heads * times) if isinstance(item, Cache) else item for item in layer.caches
    )
    return replace(layer, caches=tuple(caches))


def draft_notes(draft: Draft | None, model: ModelShape, families: Families) -> tuple[str, ...]:
    """Return what is counted of the draft, and what is not."""
    if draft is None:
        return ()
    memory = draft_memory(draft, model, families)
    if not draft.repo:
        if not model.unloaded:
            return ()
        return (
            f"The weights include {size(memory.bytes or 0)} of the model's own layers that draft tokens, and the KV "
            "cache includes their part",
        )
    if memory.bytes is None:
        return (f"The memory that the draft {draft.repo} needs is unknown and is not counted",)
    if memory.layers is None:
        return (
            f"The weights include {size(memory.bytes)} for the draft {draft.repo}; its part of the KV cache is unknown "
            "and is not counted",
        )
    return (
        f"The weights include {size(memory.bytes)} for the draft {draft.repo}, and the KV cache includes its part",
    )
