# SPDX-License-Identifier: Apache-2.0
"""Wilson's interval of a share: JASA 22 (1927) 209. Pure."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson(kept: float, count: float, level: float = 0.95) -> tuple[float, float]:
    """Return the interval of kept / count as shares; (0, 1) where nothing was counted."""
    if not count:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share, weight = kept / count, z * z / count
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / count + weight / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)
