# SPDX-License-Identifier: Apache-2.0
"""A quantized checkpoint is compared with its source: what vLLM's loader would miss is found before it has a name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.quantize.tensor_check import (
    BadCheckpoint,
    TensorComparison,
    check_index,
    compare,
    read_tensors,
    shape_of,
)

from tests.worlds.quantize_world import DATA, quantized_tensors, source_tensors, write_tensors

KV = ["*k_proj", "*v_proj"]
Change = Callable[[dict[str, Any]], object]


def compared(
    path: Path, scheme: str, kv: bool = False, change: Change | None = None, **own: Any
) -> TensorComparison:
    before, after = path / "before", path / "after"
    for directory in (before, after):
        directory.mkdir()
    tensors = quantized_tensors(scheme, kv)
    if change:
        change(tensors)
    write_tensors(before / "model.safetensors", source_tensors())
    write_tensors(after / "model.safetensors", tensors)
    exclude = own.get("exclude", ["lm_head"])
    expected = DATA["schemes"][scheme]["tensors"]
    return compare(read_tensors(str(before)), read_tensors(str(after)), expected, exclude, KV if kv else [])


@pytest.mark.parametrize(("scheme", "kv"), [("ptpc_fp8", False), ("fp8", True), ("mxfp4", False)])
def test_what_the_schemes_make_is_accepted(tmp_path: Path, scheme: str, kv: bool) -> None:
    found = compared(tmp_path, scheme, kv)
    assert (found.problems, len(found.quantized), found.excluded) == ([], 8, ["lm_head"])
    assert found.left == ["model.embed_tokens"]


K = "model.layers.1.self_attn.k_proj"
BAD: list[tuple[str, bool, Change, str]] = [
    ("ptpc_fp8", False, lambda t: t.pop(f"{K}.weight_scale"), f"{K}.weight_scale is missing"),
    ("ptpc_fp8", False, lambda t: t.update({f"{K}.weight_scale": ("F32", [1])}), "has the shape [1], not [32]"),
    ("ptpc_fp8", False, lambda t: t.update({f"{K}.weight": ("I8", [32, 64])}), "is I8, not F8_E4M3"),
    ("fp8", True, lambda t: t.pop(f"{K}.input_scale"), f"{K}.input_scale is missing"),
    ("fp8", True, lambda t: t.pop(f"{K}.output_scale"), "output_scale is missing, the scale of the KV cache"),
    ("fp8", False, lambda t: t.update({f"{K}.output_scale": ("F32", [])}), "although no KV cache is quantized"),
    ("mxfp4", False, lambda t: t.update({f"{K}.weight": ("U8", [32, 64])}), "not [32, 32]"),
    ("mxfp4", False, lambda t: t.pop("model.norm.weight"), "model.norm.weight of the source is missing"),
    ("ptpc_fp8", False, lambda t: t.update({"lm_head.weight": ("F8_E4M3", [320, 64])}), "lm_head is excluded, but was"),
    ("ptpc_fp8", False, lambda t: t.update({"stray": ("F32", [1])}), "tensors that the scheme does not have: stray"),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "kv", "change", "words"), BAD, ids=[row[3] for row in BAD])
def test_what_a_loader_would_miss_is_found(
    tmp_path: Path, scheme: str, kv: bool, change: Change, words: str
) -> None:
    assert words in "; ".join(compared(tmp_path, scheme, kv, change).problems)


def test_a_pattern_that_names_nothing_is_reported(tmp_path: Path) -> None:
    found = compared(tmp_path, "ptpc_fp8", exclude=["lm_head", "*.gait"])
    assert found.unmatched == ["*.gait"]


def test_nothing_quantized_is_a_failure(tmp_path: Path) -> None:
    def undo(tensors: dict[str, Any]) -> None:
        tensors.clear()
        tensors.update(source_tensors())

    assert "nothing is quantized" in compared(tmp_path, "ptpc_fp8", change=undo).problems


def test_truncated_and_broken_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_tensors(path, source_tensors())
    whole = path.read_bytes()
    for text, words in ((whole[:-1], "truncated"), (whole + b"x", "truncated"), (b"PK", "does not begin")):
        path.write_bytes(text)
        with pytest.raises(BadCheckpoint, match=words):
            read_tensors(str(tmp_path))
    path.unlink()
    with pytest.raises(BadCheckpoint, match=r"has no \*\.safetensors"):
        read_tensors(str(tmp_path))


def test_an_index_that_names_other_files_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"a.weight": ("BF16", [2, 2])})
    index = {"weight_map": {"a.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadCheckpoint, match=r"disagree: a\.weight"):
        check_index(str(tmp_path), read_tensors(str(tmp_path)))


def test_shapes_of_the_catalogue_are_those_of_a_matrix() -> None:
    assert shape_of(["out", "in/32"], [64, 80]) == (64, 3)
    assert shape_of([], [64, 80]) == ()
    assert shape_of(["1"], [64, 80]) == (1,)
