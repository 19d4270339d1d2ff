# SPDX-License-Identifier: Apache-2.0
"""Find the files of a repository that vLLM loads as weights, and their size in bytes.

Source: vllm/model_executor/model_loader/default_loader.py: *.safetensors of the top directory, else *.bin, else *.pt.
Mistral's consolidated*.safetensors repeat the others, so they count only if there are no other files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_INDEX_TOLERANCE = 0.02


@dataclass(frozen=True)
class CheckpointSize:
    """The size of a checkpoint's weights.

    bytes: of the weights. files: number of weight files. exact: the file headers are not included in `bytes`.
    """

    bytes: int
    files: int
    exact: bool = False


def checkpoint_size(
    files: Sequence[tuple[str, int]] | None, index_total: int | None = None
) -> CheckpointSize | None:
    """Return the size of the weights that vLLM would load, or None if neither the files nor an index give it."""
    chosen = weight_files(files or ())
    total = sum(size for _unused, size in chosen)
    if index_total and (not total or abs(total - index_total) <= _INDEX_TOLERANCE * total):
        return CheckpointSize(index_total, len(chosen), True)
    return CheckpointSize(total, len(chosen)) if total else None


def weight_files(files: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return the weight files, without those of subdirectories and adapters, and without copies in another format."""
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
