# SPDX-License-Identifier: Apache-2.0
"""Estimate what vLLM's profiling run finds in use besides weights: activations, sampling, libraries, graphs.

vLLM measures this when it starts and has no formula for it. The estimate follows what the run does: one step of
max_num_batched_tokens, then sampling for max_num_seqs requests, one after the other, so the larger one counts. What was
read from the log of a start replaces it (start_log.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..shapes.shape import ModelShape
from .engine_config import EngineConfig

_MIB = 1 << 20
_FLOAT = 4
LEAST, USUAL, MOST = range(3)


@dataclass(frozen=True)
class Reserve:
    """Bytes of one GPU: the least and the most that published logs and the code allow for, and the expected value."""

    low: int
    expected: int
    high: int


NOTHING = Reserve(0, 0, 0)


def reserve(model: ModelShape, engine: EngineConfig) -> Reserve:
    """Return what is in use besides weights and KV cache, as far as vLLM counts it against its budget."""
    if engine.platform == "cpu":
        return NOTHING
    active, fixed = activations(model, engine), _fixed(model, engine)
    return Reserve(active.low + fixed.low, active.expected + fixed.expected, active.high + fixed.high)


def activations(model: ModelShape, engine: EngineConfig) -> Reserve:
    """Return the peak of activations alone, which vLLM's log names `peak activation`."""
    rules = engine.rules.reserve
    tokens, size, tp = engine.step_tokens(model), max(2, engine.element(model)), engine.tp
    # Residual and hidden states twice each; gate, up and their product, or the routed copies of each token.
    residual, dense, routed = 4 * model.hidden, 3 * model.intermediate // tp, 0
    if model.experts:
        routed = model.experts_per_token * (model.hidden + 3 * model.expert_intermediate // tp)
    hidden = tokens * size * model.hidden
    step = tokens * size * (residual + max(dense, routed))
    rows = engine.max_num_seqs if engine.v1 else min(engine.max_num_seqs, tokens)
    scratch = rules.scratch_rows * _FLOAT * model.vocab if engine.v1 else 0
    logit = rules.v1_logit if engine.v1 else rules.v0_logit
    # Embeddings of images wait in the encoder's cache meanwhile, a step's tokens of them.
    images = hidden if model.other_bytes else 0

    def peak(which: int) -> int:
        sampling = rows * model.vocab * logit[which]
        sampling += hidden + scratch if sampling else 0
        experts = tokens * size * routed * rules.routed[which]
        return int(max(step * rules.forward[which], sampling) + experts + images)

    return Reserve(peak(LEAST), peak(USUAL), peak(MOST))


def _fixed(model: ModelShape, engine: EngineConfig) -> Reserve:
    """Return what does not depend on the model's sizes: libraries, communication, graphs."""
    rules = engine.rules.reserve
    together = engine.tp * engine.pp * engine.dp > 1
    counted = engine.rules.graphs_counted and not engine.enforce_eager

    def total(which: int) -> int:
        found = rules.alone[which]
        found += rules.joined[which] if together else 0
        found += rules.graphs[which] if counted else 0
        found += rules.encoder[which] if model.other_bytes else 0
        return int(found * _MIB) + (_quick_reduce(engine) if together and rules.joined[LEAST] else 0)

    return Reserve(total(LEAST), total(USUAL), total(MOST))


def _quick_reduce(engine: EngineConfig) -> int:
    """Return the buffers of Quick Reduce, two of its largest message (csrc/quickreduce/quick_reduce.h)."""
    return 2 * engine.quick_reduce_bytes


def graph_bytes(engine: EngineConfig) -> int:
    """Return the bytes that captured graphs usually use."""
    if engine.enforce_eager or engine.platform == "cpu":
        return 0
    return int(engine.rules.reserve.graphs[USUAL]) * _MIB
