# SPDX-License-Identifier: Apache-2.0
"""State how a model fits a GPU or partition, and the range of its numbers where not all of it is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from ...base.json_record import JsonRecord
from .estimates import MeasuredStart, PredictedRanges

EXACT: Final = "exact"
ESTIMATED: Final = "estimated"


@dataclass(frozen=True)
class FitRange(JsonRecord):
    """Between what the numbers of a Fit lie where not all of the model is known: the lowest and the highest of each.

    fits: whether it fits in the worst case too; Fit.fits is about the best one. unsure: what is not known.
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
        weights_bytes_per_gpu: of the rank that has most.
        kv_cache_bytes: what is left for the KV cache.
        max_model_len: in tokens.
        kv_bytes_per_token: of the largest pipeline stage, before rounding to blocks.
        kv_cache_tokens, max_concurrency: as in vLLM's log.
        headroom_bytes: memory left after weights, reserve and one request of max_model_len; negative if memory is
            missing.
        basis: of weights and KV cache per token: "exact" if the architecture is known, else "estimated".
        between: the range that the numbers lie in if they are estimated; None if they are exact, or if config.json
            does not have what they follow from. fits, headroom_bytes and max_model_len are then of the best case.
        reserve_bytes: an estimate, as is the cache size that results from it, unless `measured` at a start.
        measured: at a start of the same engine, from which the sizes then are; None if it has none.
        predicted: the ranges in which these estimates may be; None if nothing is estimated.
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
        """Return whether it fits beside the largest reserve too, as what is advised has to."""
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
