# SPDX-License-Identifier: Apache-2.0
"""Name what slow GPUs have in common and their equals do not, as lift: how much more frequent it is. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...base.json_record import Count, JsonRecord

STRONG = 3.0
"""Lift from which a factor is named by itself."""
WEAK = 1.5
"""Lift from which it is named if it is hardly due to chance."""
CHANCE = 0.05
"""Probability, below which a weak lift is named, that it is due to chance."""


@dataclass(frozen=True)
class Cause(JsonRecord):
    """A factor that is more frequent among the slow GPUs.

    Attributes:
        slow, others: how many slow and how many other GPUs have this value
        lift: its share among the slow ones by its share among all; 1.0 means no connection
    """

    factor: str
    value: str
    slow: Count
    of_slow: Count
    others: Count
    of_others: Count
    lift: float

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `causes` in summary.json."""
        return {**super().to_json(), "lift": round(self.lift, 2)}


def causes(
    own: Mapping[str, str], slow: Sequence[Mapping[str, str]], others: Sequence[Mapping[str, str]]
) -> tuple[Cause, ...]:
    """Return the factors of a slow GPU, the highest lift first. `slow` includes the GPU's own factors.

    GPUs whose value of a factor is unknown are not counted for that factor.
    """
    found = []
    for factor, value in own.items():
        ill = [item[factor] == value for item in slow if factor in item]
        well = [item[factor] == value for item in others if factor in item]
        if not ill or not well:
            continue
        share = (sum(ill) + sum(well)) / (len(ill) + len(well))
        lift = sum(ill) / len(ill) / share
        likely = _chance(sum(ill), len(ill), sum(ill) + sum(well), len(ill) + len(well))
        if lift >= STRONG or (lift >= WEAK and likely < CHANCE):
            found.append(Cause(factor, value, sum(ill), len(ill), sum(well), len(well), lift))
    return tuple(sorted(found, key=lambda cause: -cause.lift))


def _chance(hits: int, drawn: int, marked: int, total: int) -> float:
    """Return the probability of at least `hits` marked ones among `drawn` of `total` (hypergeometric)."""
    ways = sum(
        math.comb(marked, count) * math.comb(total - marked, drawn - count)
        for count in range(hits, min(drawn, marked) + 1)
    )
    return ways / math.comb(total, drawn)
