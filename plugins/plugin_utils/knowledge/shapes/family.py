# SPDX-License-Identifier: Apache-2.0
"""Traits of model families that config.json omits because the model's code has them: norms, biases and blocks.

catalog/families.yml has the families. What no trait expresses is read in special.py.
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
        head: what vLLM's class does whatever the config says: "own", an output layer of its own, or "shared", none.
        qk_norm: "" for none, "head" for one per head size, "all" for one over all heads; "optional" and "heads" are the
            same two, if the config enables them, and "biased" is "optional" with biases.
        norms: number per layer; with norm_bias each has a bias.
        sliding: a window in the config is used unless the config's own switch is off; every period-th layer is a full
            one.
        listed: the class uses the layer types that the config lists.
        expert_bias: experts and router have biases.
        shared_gate: the shared experts have a gate.
        shared_is_intermediate: a shared expert has the width intermediate_size.
        head_everywhere: vLLM's class creates the output layer on every pipeline stage.
        whole: what tensor parallelism does not divide where transformers' class runs: "self_attn mlp" or "mlp".
        positions: rows that learned positions have beyond the longest sequence; None if positions are not learned.
        embedding_norm: a norm follows the embedding.
        state_only: all layers keep this state, and none has attention or a feed-forward block.
        reads: keys that this code knows, and where the family has them, as a path into nested parts.
        defaults: values of keys that published configs omit.
    """

    tied: bool = False
    head: str = ""
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
    sliding: bool = True
    listed: bool = True
    period: int = 0
    head_bias: bool = False
    head_everywhere: bool = False
    whole: str = ""
    positions: int | None = None
    embedding_norm: bool = False
    state_only: str = ""
    reads: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


Families = Mapping[str, Family]
"""The families whose layers are known, by the model_type of the text model."""


def parse_families(data: Mapping[str, Any]) -> Families:
    """Return the families of catalog/families.yml."""
    return {name: Family(**traits) for name, traits in data["families"].items()}
