# SPDX-License-Identifier: Apache-2.0
"""Bytes of one weight: formats with their scales, and what a rank holds of it. Figures are worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.knowledge.shapes.weights import (
    ALL,
    FP8_TENSOR,
    IN,
    KV,
    OUT,
    Matrix,
    Scheme,
    Share,
    cdiv,
    matrix_bytes,
    padded_vocabulary,
    stored_bytes,
    vocabulary,
)


@pytest.mark.parametrize(("a", "b", "expected"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2)])
def test_rounded_up(a: int, b: int, expected: int) -> None:
    assert cdiv(a, b) == expected


@pytest.mark.parametrize(
    ("scheme", "outputs", "inputs", "expected"),
    [
        (FP8_TENSOR, 10, 20, 200 + 4),
        (Scheme("no scale", 8), 10, 20, 200),
        (Scheme("per output", 8, 4, (1, 0)), 10, 20, 200 + 10 * 4),
        (Scheme("per input", 8, 4, (0, 1)), 10, 20, 200 + 20 * 4),
        (Scheme("blocks", 8, 4, (128, 128)), 256, 300, 256 * 300 + 2 * 3 * 4),
        (Scheme("groups with zero points", 4, 2, (1, 128), 4), 3, 256, 384 + 6 * 2 + 6 // 2),
        (Scheme("mxfp4", 4, 1, (1, 32)), 5, 33, 93),  # 660 bits and ten scales of 8
        (Scheme("mxfp6", 6, 1, (1, 32)), 2, 32, 48 + 2),
    ],
)
def test_bytes_of_a_format(scheme: Scheme, outputs: int, inputs: int, expected: int) -> None:
    assert scheme.bytes(outputs, inputs) == expected


EIGHT = Scheme("eight", 8)


def expert(outputs: int, inputs: int, split: str = OUT, **more: Any) -> Matrix:
    return Matrix("e", outputs, inputs, split, experts=6, **more)


@pytest.mark.parametrize(
    ("matrix", "part", "expected"),
    [
        (Matrix("norm", 100), Share(tp=4), 200),
        (Matrix("whole", 100, 30), Share(tp=4), 6000),
        (Matrix("out", 100, 30, OUT), Share(tp=4), 25 * 30 * 2),
        (Matrix("out", 101, 30, OUT), Share(tp=4), 26 * 30 * 2),
        (Matrix("in", 100, 30, IN), Share(tp=4), 100 * 8 * 2),
        (Matrix("in", 100, 30, IN), ALL, 6000),
        (Matrix("kv", 128, 30, KV, kv_heads=8), Share(tp=4), 2 * 16 * 30 * 2),
        (Matrix("kv", 128, 30, KV, kv_heads=8), Share(tp=8), 16 * 30 * 2),
        (Matrix("kv", 128, 30, KV, kv_heads=8), Share(tp=16), 16 * 30 * 2),  # never below one head
        # Experts: their own sizes count, not the attention's.
        (expert(64, 32), Share(tp=8, expert_tp=2), 32 * 32 * 2 * 6),
        (expert(64, 32, IN), Share(tp=8, expert_tp=2), 64 * 16 * 2 * 6),
        (expert(64, 32), Share(tp=8, expert_ranks=4), 64 * 32 * 2 * 2),
        # Padded are quantized experts, and of them no bias.
        (expert(300, 100, scheme=EIGHT), Share(expert_padding=256), 512 * 256 * 6),
        (expert(3, 2, scheme=EIGHT), Share(expert_padding=2), 4 * 2 * 6),
        (expert(300, 100, scheme=EIGHT), ALL, 300 * 100 * 6),
        (expert(3, 3, scheme=EIGHT), Share(tp=4), 3 * 3 * 6),
        (expert(300, 100), Share(expert_padding=256), 300 * 100 * 2 * 6),
        (expert(300, 1, scheme=EIGHT), Share(expert_padding=256), 300 * 6),
        (Matrix("dense", 300, 100, OUT, scheme=EIGHT), Share(expert_padding=256), 300 * 100),
        # Divided first, and padded then.
        (expert(600, 100, scheme=EIGHT), Share(expert_tp=2, expert_padding=256), 512 * 256 * 6),
    ],
)
def test_what_a_rank_holds(matrix: Matrix, part: Share, expected: int) -> None:
    assert matrix_bytes(matrix, 2, part) == expected


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (Matrix("linear", 10, 20, quantizable=True), 200),
        (Matrix("norm", 10, 20), 800),
        (Matrix("stored so", 10, 20, quantizable=True, scheme=Scheme("four", 4)), 100),
    ],
)
def test_online_quantization_takes_what_is_quantizable_and_stored_plain(
    matrix: Matrix, expected: int
) -> None:
    assert matrix_bytes(matrix, 4, ALL, EIGHT) == expected


def test_what_vllm_makes_while_it_loads_is_not_in_the_checkpoint() -> None:
    made = Matrix("made", 10, 20, stored=False)
    assert made.parameters == 0
    assert matrix_bytes(made, 2) == 400
    assert stored_bytes([made, Matrix("a", 10, 20), Matrix("b", 3)], 2) == 406
    assert [Matrix("a", 10, 20).parameters, expert(10, 20).parameters] == [200, 1200]


@pytest.mark.parametrize(("words", "kept"), [(1, 64), (64, 64), (65, 128), (1000, 1024), (32000, 32000)])
def test_a_vocabulary_is_padded(words: int, kept: int) -> None:
    stored = vocabulary("head", words, 8, EIGHT)
    assert stored == Matrix("head", words, 8, OUT, scheme=EIGHT)
    assert padded_vocabulary(stored) == Matrix("head", kept, 8, OUT, scheme=EIGHT)
