# SPDX-License-Identifier: Apache-2.0
"""Judge whether a new release is as fast as the old one, for a canary. Pure.

The same client measured both in the same way, with several runs each. The effect is the shift of the log of a metric.
With a reference instance, which ran the old release in both windows, it is the shift of the difference to it, so that
changes of the machine itself between the windows cancel out.

If the first look is not clearly good, a second one follows with more runs, which are judged by themselves: a short
disturbance during the first look does not stop a release.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....module_utils.benchmarks.bench_metrics import normalise
from ....module_utils.benchmarks.bench_results import ResultError
from ...base.json_record import JsonRecord
from ...planning.rollout.canary_tolerances import CanaryTolerances
from ..statistics.holm import step_down
from ..statistics.shift import LEVEL, MIN_RUNS, shift

OK, SLOWER, UNDECIDED = "ok", "slower", "undecided"
WRONGLY_SLOWER = 0.05
"""Maximum probability of calling any metric slower that is within the tolerance."""
Runs = Mapping[str, Sequence[float]]
"""For each metric, one value per run."""


@dataclass(frozen=True)
class Metric:
    """A number by which releases are compared. `floor`: smaller differences, in `unit`, do not count."""

    key: str
    label: str
    unit: str
    more_is_better: bool
    decides: bool
    floor: float = 0.0


METRICS = (
    Metric("output_throughput", "output throughput", "tok/s", True, True),
    # A few milliseconds are not noticeable, and for a small engine they are noise.
    Metric("median_ttft_ms", "TTFT", "ms", False, False, 20.0),
    Metric("median_tpot_ms", "TPOT", "ms", False, False, 2.0),
)
FALLBACK_METRIC = Metric("request_throughput", "request throughput", "requests/s", True, True)
"""The deciding metric of models that generate nothing: they embed or classify."""


@dataclass(frozen=True)
class Measurements:
    """The measurements of one time window: of the instance, and of the reference (None if there was none)."""

    own: Runs
    reference: Runs | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurements:
        return cls(data["own"], data.get("reference"))

    def to_json(self) -> dict[str, Any]:
        return {"own": self.own, "reference": self.reference}

    @property
    def runs(self) -> int:
        return max((len(values) for values in self.own.values()), default=0)


@dataclass(frozen=True)
class Comparison(JsonRecord, hide=("metric",)):
    """One metric, new against old: medians, and the change with its interval (-0.31: 31 % less)."""

    metric: Metric
    old: float
    new: float
    change: float
    low: float
    high: float
    state: str
    tolerance: float  # percent

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `comparisons` in canary.json."""
        return {**super().to_json(), "metric": self.metric.key}

    def text(self) -> str:
        """Return a text such as `31 % less output throughput (interval 29 to 33 %), tolerance 10 %`."""
        more = self.change > 0
        words = ("more", "less") if self.metric.more_is_better else ("longer", "shorter")
        word = words[0] if more else words[1]
        text = f"{_percent(abs(self.change))} {word} {self.metric.label}"
        if math.isfinite(self.low) and math.isfinite(self.high):
            sign = 1 if more else -1
            ends = sorted((sign * self.low, sign * self.high))
            text += f" (interval {ends[0] * 100:.0f} to {_percent(ends[1])})"
        return f"{text}, tolerance {self.tolerance:g} %"


@dataclass(frozen=True)
class SpeedVerdict:
    """The outcome. `more`: additional runs that a final verdict needs; 0 if it is final."""

    state: str
    comparisons: tuple[Comparison, ...]
    warnings: tuple[str, ...] = ()
    more: int = 0


def runs_of(results: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the metrics of an instance's runs, from vLLM's JSON of each. Runs without a number are omitted."""
    found: dict[str, list[float]] = {}
    for raw in results:
        try:
            metrics = normalise("serve", raw)
        except ResultError:
            continue
        for key in (*(metric.key for metric in METRICS), FALLBACK_METRIC.key):
            value = metrics.get(key)
            if isinstance(value, (int, float)) and value > 0:
                found.setdefault(key, []).append(float(value))
    return found


def judge_speed(before: Measurements, looks: Sequence[Measurements], rules: CanaryTolerances) -> SpeedVerdict:
    """Judge the new release's runs, of one look or two, against the old one's. Raise ValueError without a look."""
    if not looks:
        raise ValueError("there is nothing to judge yet")
    first = compare(before, looks[0], rules)
    state = _worst(first)
    if not first:
        return SpeedVerdict(OK, (), ("the runs have no numbers that can be compared",))
    if len(looks) == 1:
        if state == OK:
            return SpeedVerdict(OK, first)
        return SpeedVerdict(state, first, more=rules.more) if rules.more else _final(first)
    second = compare(before, looks[1], rules)
    if not second:
        return _final(first)
    final = _final(second)
    if state == SLOWER and final.state == OK:
        what = f"the first {looks[0].runs} runs were slower, the {looks[1].runs} after them were not"
        return SpeedVerdict(OK, second, (*final.warnings, f"{what}: the first runs were probably disturbed"))
    return final


def _final(comparisons: tuple[Comparison, ...]) -> SpeedVerdict:
    """Decide without more runs: undecided metrics are decided by their medians.

    If the interval contains zero, the median must exceed twice the tolerance: otherwise noise alone would
    occasionally stop equal releases.
    """
    state = _worst(comparisons)
    if state != UNDECIDED:
        return SpeedVerdict(state, comparisons)
    reported = next(item for item in comparisons if item.state == UNDECIDED)
    least = min(_slowdown(reported.metric, value) for value in (reported.low, reported.high))
    limit = reported.tolerance / 100 * (1 if least > 0 else 2)
    state = SLOWER if _slowdown(reported.metric, reported.change) > limit else OK
    return SpeedVerdict(
        state, comparisons, (f"decided by the median, because the runs differ too much: {reported.text()}",)
    )


def _worst(comparisons: Sequence[Comparison]) -> str:
    states = {item.state for item in comparisons}
    return next((state for state in (SLOWER, UNDECIDED) if state in states), OK)


def compare(before: Measurements, after: Measurements, rules: CanaryTolerances) -> tuple[Comparison, ...]:
    """Compare each metric that both windows have. Holm's procedure corrects for their number."""
    found = []
    for metric in METRICS:
        if _both(metric, before, after):
            found.append(metric)
        elif metric.decides and _both(FALLBACK_METRIC, before, after):
            found.append(FALLBACK_METRIC)
    judged = step_down(
        found,
        # Only one end of the interval says that a metric is slower.
        lambda metric, level: _compare(metric, before, after, rules, max(LEVEL, level)),
        lambda comparison: comparison.state == SLOWER,
        1 - 2 * WRONGLY_SLOWER,
    )
    return tuple(judged.values())


def _both(metric: Metric, before: Measurements, after: Measurements) -> bool:
    return bool(before.own.get(metric.key) and after.own.get(metric.key))


def _compare(
    metric: Metric, before: Measurements, after: Measurements, rules: CanaryTolerances, level: float
) -> Comparison:
    old, new = before.own[metric.key], after.own[metric.key]
    reference = relative_to_reference(before, after)
    effect = shift(_logs(metric.key, before, reference), _logs(metric.key, after, reference), level)
    change, low, high = (math.expm1(value) for value in (effect.estimate, effect.low, effect.high))
    medians = statistics.median(old), statistics.median(new)
    tolerance = rules.tolerance if metric.decides else rules.latency_tolerance
    limit = tolerance / 100
    slowdowns = sorted(_slowdown(metric, value) for value in (low, high))
    if slowdowns[0] > limit and abs(medians[1] - medians[0]) >= metric.floor:
        state = SLOWER
    elif slowdowns[1] > limit and metric.decides:
        state = UNDECIDED
    else:
        state = OK
    return Comparison(metric, *medians, change, low, high, state, tolerance)


def relative_to_reference(before: Measurements, after: Measurements) -> bool:
    """Return whether enough runs of a reference were measured in both windows."""
    key = METRICS[0].key
    return all(
        window.reference is not None
        and len(window.reference.get(key) or window.reference.get(FALLBACK_METRIC.key, ())) >= MIN_RUNS
        for window in (before, after)
    )


def _logs(key: str, window: Measurements, reference: bool) -> list[float]:
    own = [math.log(value) for value in window.own[key]]
    reference_name = (window.reference or {}).get(key) if reference else None
    if not reference_name:
        return own
    # Runs with the same number ran at about the same time.
    return [value - math.log(other) for value, other in zip(own, reference_name)]


def _slowdown(metric: Metric, change: float) -> float:
    return -change if metric.more_is_better else change


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"
