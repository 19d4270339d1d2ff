# SPDX-License-Identifier: Apache-2.0
"""Keep weights that can run code out of a download: pickles, unless the deployment accepts any format. Pure.

vLLM loads *.safetensors of the top directory, else *.bin, else *.pt. The last two are pickles: loading one runs any
code in it. Source: vllm/model_executor/model_loader/default_loader.py and weight_utils.py of 0.6.3 to 0.32.0.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from fnmatch import fnmatchcase

from ..pins.lockfile import ModelPin
from .deployment import FORMATS

SAFE, ANY = FORMATS
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt")
SAFE_WEIGHTS = ("*.safetensors", "*.gguf")
NEVER_LOADED = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
"""State of a training run, which vLLM does not load."""


def pickles(paths: Iterable[str]) -> list[str]:
    """Return the files whose names say that they are pickles."""
    return [path for path in paths if _matches(path, PICKLES)]


def loaded_pickles(paths: Iterable[str]) -> list[str]:
    """Return the pickles that a server would load as weights: those of a top directory without other weights."""
    top = [path for path in paths if "/" not in path]
    if any(_matches(path, SAFE_WEIGHTS) for path in top):
        return []
    return [path for path in pickles(top) if path not in NEVER_LOADED]


def without_pickles(pin: ModelPin, exclude: tuple[str, ...], include: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a download of safe weights leaves out, including pickles that no server loads.

    Those that a server would load stay in, so that they can be refused.
    """
    return _without_pickles(pin.files, exclude, include) if pin.files else exclude


@functools.lru_cache(maxsize=1024)  # asked for each of a thousand hosts
def _without_pickles(
    files: tuple[tuple[str, int], ...], exclude: tuple[str, ...], include: tuple[str, ...]
) -> tuple[str, ...]:
    found = ModelPin("", files).selection(exclude, include)
    there = pickles(found)
    if not there or loaded_pickles(found) or len(there) == len(found):
        return exclude
    return (*exclude, *(pattern for pattern in PICKLES if pattern not in exclude))


def same_patterns(found: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Return whether a snapshot left out what is wanted to be left out, apart from pickles."""
    return [item for item in found if item not in PICKLES] == [item for item in wanted if item not in PICKLES]


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(path.lower(), pattern) for pattern in patterns)
