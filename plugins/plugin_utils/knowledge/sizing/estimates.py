# SPDX-License-Identifier: Apache-2.0
"""How sure the size of a KV cache is: the range that was predicted, and what a start of the same engine measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...base.json_record import JsonRecord
from .start_log import StartLog


@dataclass(frozen=True)
class PredictedRanges(JsonRecord, hide=("surely_fits",)):
    """The least and the most of each estimate. surely_fits: the model fits with the largest reserve too."""

    reserve_bytes: tuple[int, int]
    kv_cache_bytes: tuple[int, int]
    kv_cache_tokens: tuple[int, int]
    surely_fits: bool = True


@dataclass(frozen=True)
class MeasuredStart:
    """What vLLM printed when it started: on `host`, at the time `at` (UTC)."""

    log: StartLog
    host: str
    at: str

    def to_json(self) -> dict[str, Any]:
        """Return it for plan.json."""
        return {
            "host": self.host,
            "at": self.at,
            "kv_cache_bytes": self.log.kv_bytes,
            "kv_cache_tokens": self.log.tokens,
            "max_model_len": self.log.max_model_len,
            "weights_bytes_per_gpu": self.log.weights_bytes,
        }
