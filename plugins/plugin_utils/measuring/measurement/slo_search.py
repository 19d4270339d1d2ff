# SPDX-License-Identifier: Apache-2.0
"""Find the highest load that keeps an SLO, with few probes. Pure: the caller measures, this says what next.

First the load doubles (or halves) until one probe keeps the SLO and one does not; then the gap between them is halved,
in logarithms. A probe keeps the SLO if enough of its requests did. The result's interval reaches from the highest load
that certainly keeps it to the lowest that certainly does not, by Wilson's interval of a share (JASA 22, 1927).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..statistics.wilson import wilson
from .goodput import LatencyLimits, kept_and_missed
from .requests import LoadPoint, Requests

if TYPE_CHECKING:
    from numpy.typing import NDArray

OFFERED = 0.95
"""Share of a rate below which the client did not send it."""
BATCHES = 10
"""Parts of a run whose differences show how much its requests depend on each other."""


@dataclass(frozen=True)
class SearchRules:
    """How to search. kind: of the load, `rate` or `concurrency`, which is a whole number. start: the first load.

    share: of the requests that must keep the SLO. tolerance: the search ends when the highest load that is kept and the
    lowest that is not are this close.
    """

    kind: str
    start: float
    share: float = 0.99
    probes: int = 10
    tolerance: float = 0.025
    least: float = 0.0
    most: float = math.inf

    @property
    def whole(self) -> bool:
        """Return whether loads are integers."""
        return self.kind == "concurrency"

    def point(self, load: float) -> LoadPoint:
        """Return a load as a cell has it."""
        return LoadPoint(self.kind, int(load) if self.whole else load)

    def text(self, load: float) -> str:
        """Return a load as messages name it."""
        return f"{load:g} at once" if self.whole else f"{load:g} requests/s"


@dataclass(frozen=True)
class Probe:
    """One probe: its load, and the requests that kept the SLO, missed it, and failed.

    Answers that do not show whether they kept it are not counted. offered: whether the client could send the load.
    client_bound: whether the client may have been the limit. clustering: how many requests are worth as much as one
    independent request: those that wait in one queue are late together.
    """

    load: float
    kept: int
    missed: int
    failed: int = 0
    offered: bool = True
    client_bound: bool = False
    clustering: float = 1.0

    @property
    def interval(self) -> tuple[float, float]:
        """Return Wilson's interval of the share that kept the SLO."""
        return wilson(self.kept / self.clustering, self.decided / self.clustering)

    @property
    def decided(self) -> int:
        """Return the number of requests that show whether they kept the SLO."""
        return self.kept + self.missed


@dataclass(frozen=True)
class SearchResult:
    """The highest load that keeps the SLO; None if no probe kept it. low, high: None where no probe is certain.

    why: why the search ended, and what the next higher load showed.
    """

    load: float | None
    low: float | None
    high: float | None
    probes: int
    why: str


def read_probe(requests: Requests, load: LoadPoint, limits: LatencyLimits, client_bound: bool) -> Probe:
    """Return a probe from its requests. An answer of one token decides nothing about a limit of TPOT."""
    kept, missed = kept_and_missed(requests, limits)
    value = float(load.value or 0.0)
    offered = True
    if load.kind == "rate" and requests.starts is not None and len(requests.starts) > 1:
        # The client scales its times of arrival so that the last falls at requests/rate.
        offered = (len(requests.starts) + requests.failed) / value >= OFFERED * float(requests.starts[-1])
    clustering = _clustering(kept[kept | missed])
    return Probe(
        value, int(kept.sum()), int(missed.sum()), requests.failed, offered, client_bound, clustering
    )


def _clustering(kept: NDArray[Any]) -> float:
    """Return by how much the mean of requests in the order of sending varies more than that of independent ones."""
    import numpy as np

    share = float(kept.mean()) if len(kept) else 1.0
    if len(kept) < BATCHES**2 or share in (0.0, 1.0):
        return 1.0
    means = [float(part.mean()) for part in np.array_split(kept, BATCHES)]
    return max(1.0, statistics.variance(means) / BATCHES / (share * (1 - share) / len(kept)))


def next_probe(history: Sequence[Probe], rules: SearchRules) -> float | SearchResult:
    """Return the load to measure next, or the result."""
    if not history:
        return _fit(rules.start, rules)
    broken = min((probe.load for probe in history if not keeps(probe, rules)), default=math.inf)
    # A probe that keeps the SLO above one that breaks it was lucky.
    kept = max((probe.load for probe in history if keeps(probe, rules) and probe.load < broken), default=0.0)
    if broken == math.inf:
        load = _fit(kept * 2, rules)
        why = f"the highest load to try, {rules.text(kept)}, keeps the SLO"
    elif not kept:
        load = _fit(broken / 2, rules)
        why = f"the lowest load to try, {rules.text(broken)}, misses the SLO"
    elif broken / kept <= 1 + rules.tolerance or (rules.whole and broken - kept <= 1):
        load, why = kept, f"{rules.text(broken)} misses it"
    else:
        load = _fit(math.sqrt(kept * broken), rules)
        why = f"{rules.text(broken)} misses it"
    if load in (kept, broken):
        return _result(history, rules, kept, broken, why)
    if len(history) >= rules.probes:
        return _result(history, rules, kept, broken, _exhausted(history, rules, kept, broken))
    return load


def keeps(probe: Probe, rules: SearchRules) -> bool:
    """Return whether a probe kept the SLO: no request failed, the client sent the load, and enough requests kept it."""
    fair = not probe.failed and probe.offered and probe.decided > 0
    return fair and probe.kept / probe.decided >= rules.share


def _exhausted(history: Sequence[Probe], rules: SearchRules, kept: float, broken: float) -> str:
    """Return that there were not enough probes, and what to change."""
    made = f"{len(history)} probes were made"
    if broken == math.inf:
        return f"{made}, and {rules.text(kept)} keeps the SLO: start higher"
    if not kept:
        return f"{made}, and {rules.text(broken)} misses the SLO: start lower"
    advice = ": start nearer, or allow more probes" if broken / kept > 1 + 2 * rules.tolerance else ""
    return f"{made}, and {rules.text(broken)} misses it{advice}"


def _result(
    history: Sequence[Probe], rules: SearchRules, kept: float, broken: float, why: str
) -> SearchResult:
    sure = [(probe, probe.interval) for probe in history if probe.offered and probe.decided]
    low = [
        probe.load
        for probe, ends in sure
        if keeps(probe, rules) and ends[0] >= rules.share and probe.load <= kept
    ]
    high = [
        probe.load
        for probe, ends in sure
        if (probe.failed or ends[1] < rules.share) and (not kept or probe.load > kept)
    ]
    against = [probe for probe in history if probe.load == broken]
    return SearchResult(
        load=kept or None,
        low=max(low, default=None),
        high=min(high, default=None),
        probes=len(history),
        why="".join([why, *(_against(probe) for probe in against[-1:])]),
    )


def _against(probe: Probe) -> str:
    """Return what a probe that did not keep the SLO showed."""
    if probe.failed:
        found = f": {probe.failed} of {probe.failed + probe.decided} requests failed"
    elif not probe.offered:
        return ": the client could not send as fast"
    else:
        found = f": {probe.kept} of {probe.decided} requests kept it"
    return f"{found}, and the client may have been the limit" if probe.client_bound else found


def _fit(load: float, rules: SearchRules) -> float:
    # Three digits are enough, and make readable names.
    rounded = float(max(1, round(load))) if rules.whole else float(f"{load:.3g}")
    return min(max(rounded, rules.least), rules.most)
