# SPDX-License-Identifier: Apache-2.0
"""Describe how a model's weights are stored, and how many bytes of them one GPU holds.

Which dimension each parallel size divides is from the docs of vLLM's linear layers,
vllm/model_executor/layers/linear.py, and from vllm/model_executor/layers/fused_moe/layer.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

WHOLE, OUT, IN, KV = "whole", "out", "in", "kv"
"""What tensor parallelism divides: nothing, a matrix's outputs, its inputs, or its KV heads (at least one remains)."""

VOCAB_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this before dividing it (vocab_parallel_embedding.py)."""


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


@dataclass(frozen=True)
class Scheme:
    """A storage format: bits per weight, and the scale (and zero point) that a block of weights shares.

    block is outputs x inputs; 0 means all of them. linear: the format applies to linear layers as well as to experts,
    True unless it exists for experts only.
    """

    name: str
    bits: int
    scale_bytes: int = 0
    block: tuple[int, int] = (0, 0)
    zero_bits: int = 0

    def bytes(self, outputs: int, inputs: int) -> int:
        """Return the bytes of one matrix with its scales."""
        blocks = (cdiv(outputs, self.block[0]) if self.block[0] else 1) * (
            cdiv(inputs, self.block[1]) if self.block[1] else 1
        )
        return cdiv(outputs * inputs * self.bits + blocks * (8 * self.scale_bytes + self.zero_bits), 8)


FP8_TENSOR = Scheme("fp8 per tensor", 8, 4)


@dataclass(frozen=True)
class Matrix:
    """A weight, `outputs` x `inputs`; a bias or a norm has one input.

    Attributes:
        name: of the module, below its layer.
        experts: number of experts with this matrix; 0 if it belongs to no expert.
        kv_heads: the heads that a KV split divides.
        quantizable: a linear layer, which online quantization converts too.
        scheme: None for the model's own type.
        stored: False if vLLM creates the weight while loading.
    """

    name: str
    outputs: int
    inputs: int = 1
    split: str = WHOLE
    experts: int = 0
    kv_heads: int = 0
    quantizable: bool = False
    scheme: Scheme | None = None
    stored: bool = True

    @property
    def parameters(self) -> int:
        """Return the number of weights over all experts, without scales."""
        return self.outputs * self.inputs * max(1, self.experts) if self.stored else 0


@dataclass(frozen=True)
class Share:
    """Over how many ranks weights are divided.

    tp: attention and dense layers. expert_tp: each expert's inner dimension. expert_ranks: whole experts.
    expert_padding: the sizes of a rank's quantized experts are rounded up to a multiple of it.
    """

    tp: int = 1
    expert_tp: int = 1
    expert_ranks: int = 1
    expert_padding: int = 1


ALL = Share()


def matrix_bytes(matrix: Matrix, element: int, part: Share = ALL, online: Scheme | None = None) -> int:
    """Return the bytes of the largest part of a matrix that one rank holds.

    element: bytes of the type of unquantized weights. online: the format that quantizable weights get while loading.
    """
    outputs, inputs, count = matrix.outputs, matrix.inputs, 1
    tp = part.tp
    if matrix.experts:
        tp, count = part.expert_tp, cdiv(matrix.experts, part.expert_ranks)
    if matrix.split == OUT:
        outputs = cdiv(outputs, tp)
    elif matrix.split == IN:
        inputs = cdiv(inputs, tp)
    elif matrix.split == KV:
        outputs = max(1, matrix.kv_heads // tp) * (outputs // matrix.kv_heads)
    scheme = matrix.scheme or (online if matrix.quantizable else None)
    if matrix.experts and scheme and part.expert_padding > 1 and matrix.inputs > 1:
        outputs, inputs = (
            cdiv(size, part.expert_padding) * part.expert_padding for size in (outputs, inputs)
        )
    one = scheme.bytes(outputs, inputs) if scheme else outputs * inputs * element
    return one * count


Matrices = list[Matrix]


def linear(
    name: str,
    outputs: int,
    inputs: int,
    split: str = WHOLE,
    bias: bool = False,
    kv_heads: int = 0,
    experts: int = 0,
) -> Matrices:
    """Return the matrices of a linear layer.

    The bias is divided along with the outputs, and whole if the inputs are divided.
    """
    result = [Matrix(name, outputs, inputs, split, experts, kv_heads, quantizable=True)]
    if bias:
        result.append(vector(f"{name}.bias", outputs, WHOLE if split == IN else split, kv_heads, experts))
    return result


def vector(name: str, size: int, split: str = WHOLE, kv_heads: int = 0, experts: int = 0) -> Matrix:
    """Return a norm, a bias or another one-dimensional weight."""
    return Matrix(name, size, 1, split, experts, kv_heads)


def stored_bytes(matrices: Iterable[Matrix], element: int) -> int:
    """Return the bytes of these matrices in the checkpoint."""
    return sum(matrix_bytes(matrix, element) for matrix in matrices if matrix.stored)


def vocabulary(name: str, vocab: int, hidden: int, scheme: Scheme | None = None) -> Matrix:
    """Return an embedding or an output layer over the vocabulary, as the checkpoint stores it."""
    return Matrix(name, vocab, hidden, OUT, scheme=scheme)


def padded_vocabulary(matrix: Matrix) -> Matrix:
    """Return the matrix with the vocabulary padded as in vLLM."""
    padded = cdiv(matrix.outputs, VOCAB_PADDING) * VOCAB_PADDING
    return Matrix(matrix.name, padded, matrix.inputs, OUT, scheme=matrix.scheme)
