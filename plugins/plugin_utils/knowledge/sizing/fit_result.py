# SPDX-License-Identifier: Apache-2.0
"""Describe how a model fits a GPU or partition, and the range of its numbers if not all of it is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from ...base.json_record import JsonRecord
from .estimates import MeasuredStart, PredictedRanges

EXACT: Final = "exact"
ESTIMATED: Final = "estimated"


@dataclass(frozen=True)
class FitRange(JsonRecord):
    """The range in which the numbers of a Fit lie if not all of the model is known.

    fits: whether it fits even in the worst case; Fit.fits is about the best one. unsure: what is not known.
    weights_bytes_per_gpu, kv_cache_bytes, kv_cache_tokens, max_concurrency: the lowest and the highest, as in a Fit.
    """

    weights_bytes_per_gpu: tuple[int, int]
    kv_cache_bytes: tuple[int, int]
    kv_cache_tokens: tuple[int, int]
    max_concurrency: tuple[float, float]
    fits: bool
    unsure: str

    def to_json(self) -> dict[str, Any]:
        """Return it for plan.json."""
        return {**super().to_json(), "max_concurrency": [round(value, 2) for value in self.max_concurrency]}


@dataclass(frozen=True)
class Fit(JsonRecord, hide=("notes",), omit=("between",)):
    """How a model fits one GPU or partition of the instance.

    Attributes:
        fits: whether vLLM would start.
        weights_bytes_per_gpu: of the rank that has the most.
        kv_cache_bytes: what is left for the KV cache.
        max_model_len: in tokens.
        kv_bytes_per_token: of the largest pipeline stage, before rounding to blocks.
        kv_cache_tokens, max_concurrency: as in vLLM's log.
        headroom_bytes: memory left after weights, reserve and one request of max_model_len; negative if memory is
            missing.
        basis: of weights and KV cache per token: "exact" if the architecture is known, else "estimated".
        between: the range in which the numbers lie if they are estimated; None if they are exact, or if config.json
            does not have what they are computed from. fits, headroom_bytes and max_model_len are then of the best case.
        reserve_bytes: an estimate, as is the cache size that results from it, unless they were `measured`.
        measured: what a start of the same engine measured, from which the sizes are then taken; None without one.
        predicted: the ranges in which these estimates may lie; None if nothing is estimated.
    """

    fits: bool
    weights_bytes_per_gpu: int
    kv_bytes_per_token: int
    kv_cache_bytes: int
    kv_cache_tokens: int
    max_concurrency: float
    max_model_len: int
    reserve_bytes: int
    headroom_bytes: int
    basis: Literal["exact", "estimated"]
    notes: tuple[str, ...] = ()
    between: FitRange | None = None
    predicted: PredictedRanges | None = None
    measured: MeasuredStart | None = None

    @property
    def surely_fits(self) -> bool:
        """Return whether it fits even with the largest reserve, which is required of anything that is advised."""
        return self.fits and (
            self.measured is not None or self.predicted is None or self.predicted.surely_fits
        )

    @property
    def certain(self) -> bool:
        """Return whether it fits in every case that is possible."""
        return self.fits and (self.between is None or self.between.fits)

    def to_json(self) -> dict[str, Any]:
        """Return it for plan.json."""
        return {**super().to_json(), "max_concurrency": round(self.max_concurrency, 2)}
