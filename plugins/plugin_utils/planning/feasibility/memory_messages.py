# SPDX-License-Identifier: Apache-2.0
"""Write the messages about what does not fit, may not fit, or leaves too little memory. Pure."""

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


def misfit_messages(
    deployment: Deployment, shape: ModelShape, engine: EngineConfig, found: Fit
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Return a problem if it is certain that the model does not fit, or a warning if that depends on an estimate."""
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
    """Return the weights per GPU; the smallest possible size if not all of the model is known."""
    if found.between is None:
        return size_text(found.weights_bytes_per_gpu)
    return f"{size_text(found.between.weights_bytes_per_gpu[0])} or more"


def unsure_warnings(deployment: Deployment, engine: EngineConfig, found: Fit) -> tuple[str, ...]:
    """Return the warning about a model of which not all is known, if it fits only in some of the possible cases."""
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
    """Return how much of a GPU's memory vLLM may use, in bytes."""
    return int(engine.memory_bytes * engine.gpu_memory_utilization)


def partition_too_small(
    machine: TargetGpu, shape: ModelShape, engine: EngineConfig, found: Fit
) -> tuple[str, ...]:
    """Return a warning if a partition's KV cache is too small to keep it busy, with what the whole GPU would have."""
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
    """Return the warning that a default which has grown can make the start fail, if it makes memory tight.

    smaller: the default before it grew, and the memory from which it grew; None if it did not, or is not used. Memory
    is tight if the start fails when activations take twice what is estimated.
    """
    if smaller is None or engine.platform != "rocm" or engine.memory_bytes < smaller["memory_gib"] * GIB:
        return ()
    tokens = int(smaller["tokens"])
    before = fit(shape, replace(engine, max_num_batched_tokens=tokens))
    more = found.reserve_bytes - before.reserve_bytes
    if more <= 0 or (found.certain and found.headroom_bytes >= found.reserve_bytes):
        return ()
    return (
        f"{why} Here they take about {size_text(more)} more per GPU, and memory is tight; write engine_args: "
        f"{{max_num_batched_tokens: {tokens}}} (--max-num-batched-tokens {tokens})",
    )
