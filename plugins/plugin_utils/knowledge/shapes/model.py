# SPDX-License-Identifier: Apache-2.0
"""Describe a model: its layers, the weights around them, and how they are stored."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .checkpoint import CheckpointSize
from .layers import Cache, Layer
from .quantized import Quantization
from .states import State
from .weights import Matrix, stored_bytes


@dataclass(frozen=True)
class ModelShape:
    """The shape of a model.

    Attributes:
        known: the layers of its architecture are known exactly.
        between: the leanest and the largest model that the config can mean, if that is not known exactly.
        unsure: what is not known, for messages, such as "the architecture NewForCausalLM".
        missing: numbers that config.json does not have; without them only the size of the files is known.
        embedding, before, final, head: weights before and after the layers.
        tied: the head is the embedding.
        head_everywhere: each pipeline stage has the head.
        unloaded: layers of the checkpoint that vLLM does not load (multi-token prediction).
        context: the longest sequence, in tokens.
        element, stored_element: bytes of an unquantized weight, as vLLM keeps it by default and in the checkpoint.
        other_bytes: weights outside the language model (vision), whole on each rank.
        factor: ratio of the file sizes to the computed weights; 1 if they agree.
    """

    model_type: str
    known: bool
    missing: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    embedding: Matrix | None = None
    before: tuple[Matrix, ...] = ()
    final: tuple[Matrix, ...] = ()
    head: Matrix | None = None
    tied: bool = False
    head_everywhere: bool = False
    unloaded: tuple[Layer, ...] = ()
    heads: int = 0
    kv_heads: int = 0
    hidden: int = 0
    intermediate: int = 0
    expert_intermediate: int = 0
    experts: int = 0
    experts_per_token: int = 0
    vocab: int = 0
    context: int = 0
    element: int = 2
    stored_element: int = 2
    quantization: Quantization = field(default_factory=Quantization)
    other_bytes: int = 0
    factor: float = 1.0
    checkpoint: CheckpointSize | None = None
    notes: tuple[str, ...] = ()
    between: tuple[ModelShape, ModelShape] | None = None
    unsure: str = ""

    @property
    def parameters(self) -> int:
        """Return the number of the language model's weights as vLLM loads it, each counted once."""
        ends = [self.embedding, *self.before, *self.final, None if self.tied else self.head]
        return sum(matrix.parameters for matrix in ends if matrix) + sum(
            matrix.parameters for layer in self.layers for matrix in layer.matrices
        )

    @property
    def stored_total(self) -> int:
        """Return the bytes of all tensors in the checkpoint, as far as they are known."""
        ends = [self.embedding, *self.before, *self.final, None if self.tied else self.head]
        size = stored_bytes((matrix for matrix in ends if matrix), self.stored_element) + self.other_bytes
        for layer, count in Counter((*self.layers, *self.unloaded)).items():
            size += count * stored_bytes(layer.matrices, self.stored_element)
        return size

    @property
    def latent(self) -> bool:
        """Return whether the model uses latent attention (MLA)."""
        return any(
            isinstance(cache, Cache) and cache.latent for layer in self.layers for cache in layer.caches
        )

    @property
    def stateful(self) -> bool:
        """Return whether some layers keep a state per request."""
        return any(isinstance(cache, State) for layer in self.layers for cache in layer.caches)

    @property
    def chunked(self) -> bool:
        """Return whether some layers use chunked attention."""
        return any(
            isinstance(cache, Cache) and cache.chunk for layer in self.layers for cache in layer.caches
        )
