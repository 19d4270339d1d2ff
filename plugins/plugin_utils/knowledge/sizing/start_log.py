# SPDX-License-Identifier: Apache-2.0
"""Read what vLLM measured from the log lines of its start; they differ between releases (see test_start_log.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_GIB = 1 << 30
_NUMBER = r"(-?[\d,]+(?:\.\d+)?)"
_WEIGHTS = re.compile(rf"(?:Loading model weights|Model loading) took {_NUMBER} Gi?B")
_AVAILABLE = re.compile(
    rf"(?:Available KV cache memory: |the rest of the memory reserved for KV Cache is ){_NUMBER} ?GiB"
)
_TOKENS = re.compile(rf"KV cache size: {_NUMBER} tokens")
_BLOCKS = re.compile(rf"# \w+ blocks: {_NUMBER},")
_CONCURRENCY = re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request: {_NUMBER}x")


@dataclass(frozen=True)
class StartLog:
    """What the engine measured: bytes of one GPU, and tokens of one engine. None: the release does not print it.

    max_model_len: with which it started; tokens are those of that length.
    """

    kv_bytes: int | None = None
    tokens: int | None = None
    max_model_len: int | None = None
    weights_bytes: int | None = None

    def __bool__(self) -> bool:
        """Return whether it says how large the KV cache is."""
        return self.tokens is not None


def read_start_log(lines: Iterable[str], block_size: int = 16) -> StartLog:
    """Return what lines of a log say; empty if they do not say how large the KV cache is.

    Each worker prints its own memory: the largest weights and the smallest cache count, as in vLLM. An engine that
    started twice in one container prints everything twice, and the later start counts.
    """
    text = list(lines)
    starts = [index for index, line in enumerate(text) if _WEIGHTS.search(line)]
    # The workers' first lines of a start follow the last line about its cache of the start before.
    ends = [index for index, line in enumerate(text) if _TOKENS.search(line) or _BLOCKS.search(line)]
    later = [end for end in ends if starts and end < starts[-1]]
    text = text[later[-1] + 1 :] if later and any(end > starts[-1] for end in ends) else text
    tokens = _pick(_TOKENS, text, min)
    blocks = _pick(_BLOCKS, text, min)
    if tokens is None and blocks is not None:
        tokens = blocks * block_size
    kv, weights = _pick(_AVAILABLE, text, min), _pick(_WEIGHTS, text, max)
    return StartLog(
        kv_bytes=None if kv is None else int(kv * _GIB),
        tokens=None if tokens is None else int(tokens),
        max_model_len=_whole(_pick(_CONCURRENCY, text, max)),
        weights_bytes=None if weights is None else int(weights * _GIB),
    )


def _pick(
    pattern: re.Pattern[str], lines: Iterable[str], choose: Callable[[Iterable[float]], float]
) -> float | None:
    found = [float(match.group(1).replace(",", "")) for line in lines for match in pattern.finditer(line)]
    return choose(found) if found else None


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
