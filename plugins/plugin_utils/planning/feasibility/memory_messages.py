# SPDX-License-Identifier: Apache-2.0
"""Word what does not fit, may not fit, or leaves too little memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....module_utils.common.errors import Problem
from ...knowledge.shapes.shape import ModelShape
from ...knowledge.sizing.engine_config import GIB
from ...knowledge.sizing.fit import EngineConfig, Fit, fit, remedies
from ..desired.actions import size as size_text
from ..desired.deployment import Deployment
from ..tuning.tune import TargetGpu

FEW_REQUESTS = 4.0
"""Fewer requests of the full length at once than this is a KV cache that starves the GPU; a judgement."""


def too_large(
    deployment: Deployment, shape: ModelShape, engine: EngineConfig, found: Fit
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """A problem where it is certain, a warning where the reserve is an estimate."""
    what = (
        f"{deployment.model} does not fit: weights {_weights(found)} per GPU, one request of "
        f"{found.max_model_len} tokens {size_text(found.max_model_len * found.kv_bytes_per_token)}, and "
        f"{size_text(found.reserve_bytes)} for activations and graphs, of the {size_text(budget(engine))} that "
        f"gpu_memory_utilization {engine.gpu_memory_utilization:g} gives of {size_text(engine.memory_bytes)}"
    )
    fixes = remedies(shape, engine, found)
    fix = f"To make it fit: {'; '.join(fixes)}." if fixes else "Use larger GPUs or partitions."
    sure = found.basis == "exact" or found.between is not None
    if sure and found.headroom_bytes + found.reserve_bytes < 0:
        return (Problem(deployment.path, f"{what}.", fix),), ()
    return (), (f"{what.replace(' does not fit:', ' may not fit:')}. {fix}",)


def _weights(found: Fit) -> str:
    """Return the weights per GPU; those of a model that is not all known as the least that they can be."""
    if found.between is None:
        return size_text(found.weights_bytes_per_gpu)
    return f"{size_text(found.between.weights_bytes_per_gpu[0])} or more"


def unsure(deployment: Deployment, engine: EngineConfig, found: Fit) -> tuple[str, ...]:
    """Return the warning about a model of which not all is known, if it fits in some of the possible cases only."""
    if found.between is None or found.between.fits:
        return ()
    low, high = found.between.weights_bytes_per_gpu
    return (
        f"whether {deployment.model} fits is not known: {found.between.unsure} is not known here, and its weights are "
        f"between {size_text(low)} and {size_text(high)} per GPU, of the {size_text(budget(engine))} that "
        f"gpu_memory_utilization {engine.gpu_memory_utilization:g} gives. Start one instance first: vLLM's log says "
        "what its weights and its KV cache take, or what is missing",
    )


def budget(engine: EngineConfig) -> int:
    """What vLLM may take of a GPU, in bytes."""
    return int(engine.memory_bytes * engine.gpu_memory_utilization)


def partition_too_small(
    machine: TargetGpu, shape: ModelShape, engine: EngineConfig, found: Fit
) -> tuple[str, ...]:
    """A partition whose KV cache is too small to keep it busy, with what the whole GPU would have."""
    if machine.gpu_bytes <= machine.memory_bytes or found.max_concurrency >= FEW_REQUESTS:
        return ()
    whole = fit(shape, replace(engine, memory_bytes=machine.gpu_bytes, tp=1))
    return (
        f"{machine.compute} leaves too little memory for this model's KV cache: it holds {found.max_concurrency:.1f} "
        "requests of "
        f"{found.max_model_len} tokens per instance; the whole GPU (SPX) would hold {whole.max_concurrency:.0f}",
    )


def doubled_batch(
    smaller: Mapping[str, Any] | None, shape: ModelShape, engine: EngineConfig, found: Fit, why: str
) -> tuple[str, ...]:
    """Return the warning that a default which has grown can end the start, where the memory is tight with it.

    smaller: the default before and the memory from which it has grown, None where it has not, or is not used. The
    memory is tight if an estimate of activations that is half of what they take ends the start.
    """
    if smaller is None or engine.platform != "rocm" or engine.memory_bytes < smaller["memory_gib"] * GIB:
        return ()
    tokens = int(smaller["tokens"])
    before = fit(shape, replace(engine, max_num_batched_tokens=tokens))
    more = found.reserve_bytes - before.reserve_bytes
    if more <= 0 or (found.certain and found.headroom_bytes >= found.reserve_bytes):
        return ()
    return (
        f"{why} Here they take about {size_text(more)} more per GPU, and the memory is tight; write engine_args: "
        f"{{max_num_batched_tokens: {tokens}}} (--max-num-batched-tokens {tokens})",
    )
