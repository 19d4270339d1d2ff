# SPDX-License-Identifier: Apache-2.0
"""Evaluate the formula of AMD's CPX guide, "How to check if an LLM fits within a CPX GPU", which is shown as well."""

from __future__ import annotations

from dataclasses import dataclass

from ..shapes.shape import ModelShape
from .engine_config import EngineConfig


@dataclass(frozen=True)
class SimpleEstimate:
    """The terms of AMD's formula: size_of_weights + size_of_KV_cache < available_VRAM.

    The formula covers neither grouped-query nor latent attention, nor the other memory that vLLM uses. weights_bytes:
    of the whole model in its type, divided by the tensor parallel size; None if config.json does not have the numbers.
    """

    fits: bool | None
    weights_bytes: int
    kv_bytes_per_token: int
    kv_cache_bytes: int
    total_bytes: int
    memory_bytes: int


def simple_formula(model: ModelShape, engine: EngineConfig, batch: int, sequence: int) -> SimpleEstimate:
    """Return the formula's result for `batch` requests of `sequence` tokens.

    The guide is about one partition; here both sums are divided by the tensor parallel size.
    """
    element = engine.element(model)
    per_token = 2 * len(model.layers) * model.hidden * element
    cache = batch * sequence * per_token
    weights = element * model.parameters
    total = (weights + cache) // engine.tp
    fits = None if model.missing else total < engine.memory_bytes
    return SimpleEstimate(
        fits, weights // engine.tp, per_token, cache // engine.tp, total, engine.memory_bytes
    )
