# SPDX-License-Identifier: Apache-2.0
"""Which of a repository's files vLLM loads as weights, and how many bytes they are.

Source: vllm/model_executor/model_loader/default_loader.py: *.safetensors of the top directory, else *.bin, else *.pt;
Mistral's consolidated*.safetensors only where there is nothing else, as they repeat the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_INDEX_TOLERANCE = 0.02


@dataclass(frozen=True)
class CheckpointSize:
    """bytes: of the weights. files: how many hold them. exact: they were counted without file headers."""

    bytes: int
    files: int
    exact: bool = False


def checkpoint_size(
    files: Sequence[tuple[str, int]] | None, index_total: int | None = None
) -> CheckpointSize | None:
    """The size of the weights that vLLM would load; None when neither files nor an index says."""
    chosen = weight_files(files or ())
    total = sum(size for _, size in chosen)
    if index_total and (not total or abs(total - index_total) <= _INDEX_TOLERANCE * total):
        return CheckpointSize(index_total, len(chosen), True)
    return CheckpointSize(total, len(chosen)) if total else None


def weight_files(files: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """The files that hold the weights: not those of subdirectories, of adapters, or of another format's copy."""
    top = [(name, size) for name, size in files if "/" not in name and not name.startswith("adapter_")]
    safetensors = [item for item in top if item[0].endswith(".safetensors")]
    own = [item for item in safetensors if not item[0].startswith("consolidated")]
    if own or safetensors:
        return tuple(own or safetensors)
    for end in (".bin", ".pt"):
        found = [
            item
            for item in top
            if item[0].endswith(end) and not item[0].startswith(("training_args", "optimizer"))
        ]
        if found:
            return tuple(found)
    return ()
