# SPDX-License-Identifier: Apache-2.0
"""Compare two releases item by item: McNemar's exact test, and the interval of the loss. Pure.

Both releases answer the same items, so only those count that one of them has right and the other wrong. That finds a
loss of two points with a quarter of the items that two percentages need. Sources: McNemar, Psychometrika 12 (1947)
153; Tango, Statistics in Medicine 17 (1998) 891; Connor, Biometrics 43 (1987) 207.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from ..statistics.holm import adjust_p_values
from .pairing import AccuracyError, PairedCounts

PASS, FAIL, NOT_CLEAR = "pass", "fail", "not clear"
LEVEL = 0.05
"""Probability that a run calls any of its equal releases worse. Each end of an interval is one-sided at this level."""
POWER = 0.9
"""Probability of a clear verdict with as many items as a verdict that is not clear asks for."""
TOLERANCE = 2.0
"""Default tolerance, in points of loss."""

_Z = NormalDist().inv_cdf(1 - LEVEL)
_Z_POWER = NormalDist().inv_cdf(POWER)
_LEAST_FLIPS = 0.01  # minimum share of answers that flip between two runs of one release
_STEPS = 60  # of a bisection: to the last bit of a float


@dataclass(frozen=True)
class PairedVerdict:
    """The verdict. loss, low, high, tolerance: points (1 is a hundredth), above 0 where the new release is worse.

    p: of McNemar's exact test, one-sided for "worse"; adjusted: by Holm's procedure for the other comparisons of the
    run. bound: `high` if all doubtful items were lost. needed: items for a clear verdict; None if it is clear, or if
    more items would not help.
    """

    kind: str
    counts: PairedCounts
    loss: float
    low: float
    high: float
    p: float
    adjusted: float
    bound: float
    tolerance: float
    needed: int | None = None

    @property
    def change(self) -> str:
        """Return the change with what it rests on."""
        change = (
            f"{abs(self.loss):.2f} points {'worse' if self.loss > 0 else 'better'}" if self.loss else "equal"
        )
        corrected = (
            f", {self.adjusted:.3f} with the run's other comparisons" if self.adjusted > self.p else ""
        )
        return (
            f"{change} (interval of the loss {self.low:.2f} to {self.high:.2f}, tolerance {self.tolerance:g}, "
            f"p = {self.p:.3f}{corrected}, n = {self.counts.n})"
        )

    @property
    def text(self) -> str:
        """Return the verdict in one line."""
        text = f"{self.kind}: {self.change}"
        if self.kind == NOT_CLEAR and self.high < self.tolerance:
            return (
                f"{text}; with {self.counts.doubtful} more items, unanswered in one of the runs, the loss may be "
                f"{self.bound:.2f} points. Measure both releases with the same items, and without failed requests"
            )
        return f"{text}, n needed = {self.needed}" if self.needed else text

    def to_json(self) -> dict[str, object]:
        """Return the verdict as accuracy.json has it."""
        counts = self.counts
        return {
            "verdict": self.kind,
            "loss_points": self.loss,
            "interval": [self.low, self.high],
            "bound": self.bound,
            "p": self.p,
            "p_adjusted": self.adjusted,
            "tolerance": self.tolerance,
            "n": counts.n,
            "lost": counts.lost,
            "gained": counts.gained,
            "needed": self.needed,
            "failed_old": list(counts.failed_old),
            "failed_new": list(counts.failed_new),
            "unmatched": counts.unmatched,
            "doubtful": counts.doubtful,
        }


def judge_pairs(family: Sequence[PairedCounts], tolerance: float = TOLERANCE) -> tuple[PairedVerdict, ...]:
    """Judge the comparisons of a run together, so that equal releases fail one run in twenty, however many there are.

    A release passes if the whole interval of its loss is below the tolerance, even if all doubtful items were lost. It
    fails if it is worse by McNemar's test and the loss may reach the tolerance: if the whole interval had to be above
    it, a loss of just the tolerance would be found in one of twenty cases. Raise AccuracyError if no item was answered,
    or the tolerance is not valid.
    """
    if not 0 < tolerance < 100:
        raise AccuracyError(
            f"A tolerance of {tolerance:g} points is not valid: it must be above 0 and below 100."
        )
    if not all(counts.n for counts in family):
        raise AccuracyError("No item was answered in both runs, so nothing can be compared.")
    p_values = [mcnemar_worse(counts.lost, counts.gained) for counts in family]
    return tuple(
        _judge(counts, p, own, tolerance, len(family))
        for counts, p, own in zip(family, p_values, adjust_p_values(p_values), strict=True)
    )


def _judge(counts: PairedCounts, p: float, corrected: float, tolerance: float, family: int) -> PairedVerdict:
    n, lost, gained = counts.n, counts.lost, counts.gained
    loss = 100 * (lost - gained) / n
    low, high = (100 * end for end in loss_interval(lost, gained, n))
    bound = 100 * loss_interval(lost + counts.doubtful, gained, n + counts.doubtful)[1]
    kind = PASS if bound < tolerance else FAIL if corrected <= LEVEL and high >= tolerance else NOT_CLEAR
    needed = None
    if kind == NOT_CLEAR and high >= tolerance:
        flips = max((lost + gained) / n, _LEAST_FLIPS)
        needed = max(n + 1, items_needed(max(loss, tolerance - loss) / 100, flips, LEVEL / family))
    return PairedVerdict(kind, counts, loss, low, high, p, corrected, bound, tolerance, needed)


def check_tolerance(tolerance: float) -> None:
    """Raise AccuracyError for a tolerance that is not valid, in points."""
    if not 0 < tolerance < 100:
        raise AccuracyError(f"accuracy_tolerance is {tolerance:g} points: it must be above 0 and below 100.")


def mcnemar_worse(lost: int, gained: int) -> float:
    """Return the probability that an equal release loses at least this many of the items that changed."""
    changed = lost + gained
    as_bad = sum(math.comb(changed, count) for count in range(lost, changed + 1))
    return as_bad / (1 << changed)


def loss_interval(lost: int, gained: int, n: int) -> tuple[float, float]:
    """Return Tango's score interval of the loss, as shares of n (-1 to 1); each end is one-sided at LEVEL.

    Unlike intervals that only look at the changed items, it is not empty where none changed.
    """
    estimate = (lost - gained) / n

    def score(loss: float) -> float:
        linear = -lost - gained + (2 * n - lost + gained) * loss
        root = math.sqrt(max(0.0, linear**2 + 8 * n * gained * loss * (1 - loss)))
        only_new = (root - linear) / (4 * n)
        variance = n * (2 * only_new + loss * (1 - loss))
        distance = lost - gained - n * loss
        return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance or 1.0)

    return (
        _bisect(lambda loss: score(loss) > _Z, -1.0, estimate),
        _bisect(lambda loss: score(loss) >= -_Z, estimate, 1.0),
    )


def _bisect(below: Callable[[float], bool], low: float, high: float) -> float:
    """Return where `below` turns from true to false between `low` and `high`."""
    for _step in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


def items_needed(loss: float, flips: float, level: float = LEVEL) -> int:
    """Return how many items McNemar's test needs to find a loss with POWER. `loss`, `flips`: shares, 0 to 1.

    flips: the share of items that change, which contains the loss. By Connor's formula.
    """
    changed = max(flips, loss)
    z = NormalDist().inv_cdf(1 - level)
    root = z * math.sqrt(changed) + _Z_POWER * math.sqrt(max(0.0, changed - loss**2))
    return math.ceil((root / loss) ** 2)
