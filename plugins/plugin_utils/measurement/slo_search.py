# SPDX-License-Identifier: Apache-2.0
"""Find the highest load that keeps an SLO, with few probes. Pure: the caller measures, this says what next.

First the load doubles (or halves) until one probe keeps the SLO and one does not; then the gap between them is halved,
in logarithms. A probe keeps the SLO if enough of its requests did. The result's interval reaches from the highest load
that surely keeps it to the lowest that surely does not, by Wilson's interval of a share (JASA 22, 1927).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True)
class SearchRules:
    """How to search. whole: loads are integers, as concurrencies are. target: share of requests that must keep the SLO.

    tolerance: the search ends when the highest load that is kept and the lowest that is not are this close.
    """

    start: float
    whole: bool
    target: float = 0.99
    tolerance: float = 0.05
    most_probes: int = 10
    most_errors: float = 0.01
    least: float = 0.0
    most: float = math.inf


@dataclass(frozen=True)
class Probe:
    """One probe: its load, decided requests that kept the SLO or missed it, and the share of failed requests (0-1)."""

    load: float
    kept: int
    missed: int
    errors: float = 0.0


@dataclass(frozen=True)
class SearchResult:
    """The highest load that keeps the SLO; None if no probe kept it. low, high: None where no probe is certain."""

    load: float | None
    low: float | None
    high: float | None
    probes: int
    why: str


def next_probe(history: Sequence[Probe], rules: SearchRules) -> float | SearchResult:
    """Return the load to measure next, or the result."""
    if not history:
        return _fit(rules.start, rules)
    broken = min((probe.load for probe in history if not keeps(probe, rules)), default=math.inf)
    # A probe that keeps the SLO above one that breaks it was lucky.
    kept = max((probe.load for probe in history if keeps(probe, rules) and probe.load < broken), default=0.0)
    if len(history) >= rules.most_probes:
        return _result(history, rules, kept, f"{len(history)} probes were made")
    if broken == math.inf:
        upper = _fit(kept * 2, rules)
        return upper if upper > kept else _result(history, rules, kept, "the highest load keeps the SLO")
    if not kept:
        lower = _fit(broken / 2, rules)
        return lower if lower < broken else _result(history, rules, kept, "the lowest load breaks the SLO")
    if broken / kept <= 1 + rules.tolerance or (rules.whole and broken - kept <= 1):
        return _result(history, rules, kept, "the loads around the limit are close")
    return _fit(math.sqrt(kept * broken), rules)


def keeps(probe: Probe, rules: SearchRules) -> bool:
    """Return whether a probe kept the SLO."""
    decided = probe.kept + probe.missed
    return probe.errors <= rules.most_errors and decided > 0 and probe.kept / decided >= rules.target


def wilson(kept: int, decided: int, level: float = LEVEL) -> tuple[float, float]:
    """Return Wilson's interval of a share; (0, 1) without a decided request."""
    if not decided:
        return 0.0, 1.0
    z = statistics.NormalDist().inv_cdf(0.5 + level / 2)
    share, weight = kept / decided, z * z / decided
    centre = share + weight / 2
    half = z * math.sqrt(share * (1 - share) / decided + weight / decided / 4)
    return max(0.0, (centre - half) / (1 + weight)), min(1.0, (centre + half) / (1 + weight))


def _result(history: Sequence[Probe], rules: SearchRules, kept: float, why: str) -> SearchResult:
    shares = [(probe, wilson(probe.kept, probe.kept + probe.missed)) for probe in history]
    high = min(
        (probe.load for probe, ends in shares if ends[1] < rules.target or probe.errors > rules.most_errors),
        default=math.inf,
    )
    low = max(
        (
            probe.load
            for probe, ends in shares
            if keeps(probe, rules) and ends[0] >= rules.target and probe.load < high
        ),
        default=None,
    )
    return SearchResult(kept or None, low, None if high == math.inf else high, len(history), why)


def _fit(load: float, rules: SearchRules) -> float:
    fitted = min(max(load, rules.least), rules.most)
    return float(max(1, round(fitted))) if rules.whole else fitted
