# SPDX-License-Identifier: Apache-2.0
"""Find slow members of a group by a robust z-score: one slow member moves neither the centre nor the spread. Pure.

Speeds are natural logarithms, so that a difference is a ratio. The spread is the median absolute deviation, scaled to
the standard deviation of normal noise; see Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993. The limits
keep false alarms among 8 to 1,600 equal GPUs (spread 1 %, CV of a run 1-2 %, median of 5 runs) near 1 % of the fleets:
tests/unit/outliers/test_detection.py measures that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LIMIT = 4.5
"""Robust z from which a member is an outlier."""
MIN_SLOWER = 0.03
"""Share of the centre's speed that a member must also lose: less is not worth opening a server for."""
FLOOR = 0.005
"""Minimum spread, as a share of the speed: equal values by chance must not make a difference of 1 % an outlier."""
_NORMAL = 1.4826


@dataclass(frozen=True)
class Deviation:
    """A member against its group.

    Attributes:
        relative: its speed as a share of the centre's, 1.0 at the centre
        z: how many spreads it is slower; negative if it is faster
    """

    relative: float
    z: float

    @property
    def slower(self) -> float:
        """Return the share of speed that is missing."""
        return 1 - self.relative

    @property
    def slow(self) -> bool:
        """Return whether it is an outlier to the slow side."""
        return self.z > LIMIT and self.slower >= MIN_SLOWER


def deviations(speeds: Sequence[float]) -> list[Deviation]:
    """Return each log speed against the median of all. Raise ValueError for an empty group."""
    if not speeds:
        raise ValueError("deviations need at least one speed")
    centre = statistics.median(speeds)
    spread = robust_spread(speeds, FLOOR)
    return [Deviation(math.exp(speed - centre), (centre - speed) / spread) for speed in speeds]


def robust_spread(values: Sequence[float], floor: float) -> float:
    """Return the scaled median absolute deviation of values, at least `floor` (in their unit)."""
    centre = statistics.median(values)
    return max(_NORMAL * statistics.median(abs(value - centre) for value in values), floor)
