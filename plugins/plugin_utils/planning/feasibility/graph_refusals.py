# SPDX-License-Identifier: Apache-2.0
"""Refuse sizes of CUDA graphs that stop vLLM at its start. Pure. Source: vllm/config/vllm.py of the releases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..tuning.tune import TunedSettings
from .option_refusals import as_map

COMPILATION, SIZES, LARGEST = "--compilation-config", "cudagraph_capture_sizes", "max_cudagraph_capture_size"
SINCE, MODES_SINCE = "0.11.1", "0.13.0"
WHOLE_MODE = ("3", "VLLM_COMPILE")
"""The mode of compilation without which piecewise graphs, the default, are switched off, since 0.13.0."""
BREAKABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"


def graph_refusals(tuned: TunedSettings) -> Iterator[tuple[str, str, str]]:
    """Yield the flag, what is wrong, and what to do."""
    inner = as_map(tuned.args.get(COMPILATION)) or {}
    flag = f"--{LARGEST.replace('_', '-')}"
    largest = tuned.args.get(flag, inner.get(LARGEST))
    if not isinstance(largest, int) or isinstance(largest, bool) or _off(tuned, inner):
        return
    if largest <= 0 and tuned.inside(SINCE):
        fix = "Set it to 1 at least, or enforce_eager: true for none at all."
        yield flag, f"{largest} is below 1, the size of the smallest graph", fix
    sizes = tuned.args.get(f"--{SIZES.replace('_', '-')}", inner.get(SIZES))
    listed = sizes if isinstance(sizes, (list, tuple)) else ()
    if listed and all(isinstance(size, int) for size in listed) and max(listed) < largest:
        what = f"{LARGEST} is {largest}, and the largest of {SIZES} {max(listed)}"
        yield flag, what, "Make them equal, or leave one out."


def _off(tuned: TunedSettings, inner: Mapping[str, Any]) -> bool:
    """Whether there are no graphs at all."""
    graphs, mode = str(inner.get("cudagraph_mode") or "").upper(), inner.get("mode")
    if tuned.args.get("--enforce-eager") or graphs == "NONE":
        return True
    if str(tuned.args.get("--optimization-level")) in ("0", "O0"):
        return True
    pieces = graphs in ("", "PIECEWISE", "FULL_AND_PIECEWISE") and tuned.env.get(BREAKABLE) not in (
        "1",
        "true",
    )
    since = tuned.inside(MODES_SINCE)
    return pieces and since and mode is not None and str(mode).upper() not in WHOLE_MODE
