# SPDX-License-Identifier: Apache-2.0
"""Traits of model families that config.json omits because the model's code has them: norms, biases and blocks.

Source: the model classes and config defaults of transformers and vllm/model_executor/models/*.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """The traits of a model type.

    Attributes:
        tied: input and output embeddings are one matrix unless the config says otherwise.
        qk_norm: "" for none, "head" for one per head size, "all" for one over all heads; "optional" and "heads" are the
            same two, if the config enables them.
        norms: number per layer; with norm_bias each has a bias.
        sliding: sliding attention is used even if the config's own switch is absent; every period-th layer is a full
            one.
        expert_bias: experts and router have biases.
        shared_gate: the shared experts have a gate.
        shared_is_intermediate: a shared expert has the width intermediate_size.
        head_everywhere: vLLM's class creates the output layer on every pipeline stage.
        positions: rows that learned positions have beyond the longest sequence; None if positions are not learned.
        embedding_norm: a norm follows the embedding.
        state_only: all layers keep this state, and none has attention or a feed-forward block.
        reads: keys that this code knows, and where the family has them, as a path into nested parts.
        defaults: values of keys that published configs omit.
        cache_between: what the cache of real layers is, as factors of the described one, where that is not settled.
    """

    tied: bool = False
    gated: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norms: int = 2
    norm_bias: bool = False
    qk_norm: str = ""
    sinks: bool = False
    expert_bias: bool = False
    router_correction: bool = False
    shared_gate: bool = False
    shared_is_intermediate: bool = False
    sliding: bool = False
    period: int = 0
    head_bias: bool = False
    head_everywhere: bool = False
    positions: int | None = None
    embedding_norm: bool = False
    state_only: str = ""
    reads: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    cache_between: tuple[float, float] = (1.0, 1.0)
