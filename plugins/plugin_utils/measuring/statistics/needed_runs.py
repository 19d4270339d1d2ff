# SPDX-License-Identifier: Apache-2.0
"""Say how many pairs or runs would make a comparison clear. Pure."""

from __future__ import annotations

import math
import statistics

from .designs import BEFORE_AFTER, CROSSED, ONE_ORDER, Effect, units_needed

MANY = 100
"""More runs than this are not worth naming."""


def needs_of(found: Effect, tolerance: float, level: float) -> str:
    """Return how many pairs or runs would make the interval end before the tolerance does, if the estimate is right."""
    distance = min(abs(found.estimate.estimate - math.log1p(end)) for end in (-tolerance, tolerance))
    least = units_needed(found.design, level)
    if found.drift >= distance:
        return "drift hides it: needs a and b alternating on one instance, each of them first in half of the turns"
    if found.spread is None:
        return _amount(found, least)
    half = math.sqrt(distance**2 - found.drift**2)
    z = statistics.NormalDist().inv_cdf(0.5 + level / 2)
    # In the two-sample form both sides vary, and all instances count.
    of_both = 2 / found.units if found.design == BEFORE_AFTER else 1
    needed = math.ceil(min(of_both * (z * found.spread / half) ** 2, 1e6)) if half else MANY + 1
    return _amount(found, max(needed, least, found.count + 1))


def _amount(found: Effect, count: int) -> str:
    noun = {CROSSED: "instances", BEFORE_AFTER: "runs of each"}.get(found.design, "pairs")
    text = f"needs more than {MANY} {noun}" if count > MANY else f"needs {count} {noun}"
    return f"{text}, with a first in half of them" if found.design == ONE_ORDER else text
