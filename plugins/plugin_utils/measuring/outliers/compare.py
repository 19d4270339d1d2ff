# SPDX-License-Identifier: Apache-2.0
"""Compare instances that do the same work: with each other, node with node, and with their own past. Pure.

A slow node is distinguished from a slow GPU: an instance is compared after removing the median of the node's *other*
instances, so that its own slowness is not part of what is removed, and the nodes' medians are compared with each other.
Of only two, neither can be called slow: nothing shows which of them is at fault.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .robust import MIN_SLOWER, Deviation, deviations
from .samples import CellSpeed, InstanceKey, Interval, Row, SpeedMetric, cell_speeds

MIN_RUNS = 3
"""Runs from which an outlier is called slow rather than suspect."""
ONE_METRIC = 2 * MIN_SLOWER
"""Share of speed that must be missing by one metric if the other disagrees: two metrics, two chances of an alarm."""
MIN_PEERS = 3
"""Members of a group from which one of them can be an outlier, and instances of a node from which it has a median."""

History = Mapping[InstanceKey, float]
"""Log speed of each instance now, relative to the median of its GPUs' earlier runs of the same cells."""


@dataclass(frozen=True)
class InstanceSpeed:
    """An instance in one comparison: relative log speeds, the median over its cells.

    Attributes:
        group: deployment and number of GPUs, equal for instances that are compared
        speed: by the first metric
        second: by the second; None if the kind has none or it was not measured
        interval: of `speed`; None if a cell has too few runs
    """

    instance: InstanceKey
    group: tuple[Any, ...]
    speed: float
    second: float | None
    metrics: tuple[SpeedMetric, ...]
    runs: int
    interval: Interval | None

    @property
    def host(self) -> str:
        """Return the name of its host."""
        return self.instance[0]


@dataclass(frozen=True)
class SpeedComparison:
    """The outcome for one instance.

    Attributes:
        verdict: ok, slow or suspect; None if it was not compared, or too few runs show nothing
        scope: what is slow: gpu (this instance's), node, or pair (one of two)
        relative: its speed as a share of the median, 1.0 at the median; None without peers
        reason: why, as text; empty for ok
    """

    verdict: str | None
    scope: str = "gpu"
    relative: float | None = None
    z: float | None = None
    runs: int = 0
    reason: str = ""


def compare(rows: Sequence[Row], history: History | None = None) -> dict[InstanceKey, SpeedComparison]:
    """Return the outcome for every instance of `rows`."""
    groups: dict[tuple[Any, ...], list[InstanceSpeed]] = {}
    for speed in instance_speeds(cell_speeds(rows)):
        groups.setdefault(speed.group, []).append(speed)
    found = {(row["host"], row["instance"]): SpeedComparison(None, reason="no result") for row in rows}
    for group in groups.values():
        found.update(_compare_group(group, history or {}))
    return found


def instance_speeds(cells: Sequence[CellSpeed]) -> list[InstanceSpeed]:
    """Return each instance once: the median over its cells of its speed relative to the cell's median."""
    by_cell: dict[tuple[Any, ...], list[CellSpeed]] = {}
    for cell in cells:
        by_cell.setdefault(cell.cell, []).append(cell)
    centres = {
        key: tuple(_median(cell.speeds[at] for cell in group) for at in range(len(group[0].metrics)))
        for key, group in by_cell.items()
    }
    by_instance: dict[InstanceKey, list[CellSpeed]] = {}
    for cell in cells:
        by_instance.setdefault(cell.instance, []).append(cell)
    return [_instance(instance, own, centres) for instance, own in by_instance.items()]


def _instance(
    instance: InstanceKey, own: Sequence[CellSpeed], centres: Mapping[Any, tuple[float | None, ...]]
) -> InstanceSpeed:
    first = [(cell.speeds[0] or 0.0) - (centres[cell.cell][0] or 0.0) for cell in own]
    pairs = [(cell.speeds[1], centres[cell.cell][1]) for cell in own if len(cell.metrics) > 1]
    second = [speed - centre for speed, centre in pairs if speed is not None and centre is not None]
    spans = [
        (cell.interval[0] - (centres[cell.cell][0] or 0.0), cell.interval[1] - (centres[cell.cell][0] or 0.0))
        for cell in own
        if cell.interval
    ]
    return InstanceSpeed(
        instance=instance,
        group=(own[0].cell[0], own[0].cell[3]),
        speed=statistics.median(first),
        second=statistics.median(second) if second else None,
        metrics=own[0].metrics,
        runs=min(cell.runs for cell in own),
        interval=_middle(spans) if len(spans) == len(own) else None,
    )


def _compare_group(group: Sequence[InstanceSpeed], history: History) -> dict[InstanceKey, SpeedComparison]:
    hosts: dict[str, list[InstanceSpeed]] = {}
    for one in group:
        hosts.setdefault(one.host, []).append(one)
    outcomes = {one.instance: _unremarkable(one, len(group)) for one in group}
    if len(group) >= MIN_PEERS:
        outcomes.update(_slow_instances(group, hosts))
    outcomes.update(_slower_than_before(group, outcomes, history))
    if len(hosts) >= MIN_PEERS and all(len(own) >= MIN_PEERS for own in hosts.values()):
        outcomes.update(_slow_nodes(hosts, outcomes))
    elif len(hosts) == 2:
        outcomes.update(_slower_of_two([*hosts.values()], outcomes))
    elif len(group) == 2:
        outcomes.update(_slower_of_two([[one] for one in group], outcomes))
    return outcomes


def _unremarkable(one: InstanceSpeed, peers: int) -> SpeedComparison:
    if peers < 2:
        return SpeedComparison(
            None, runs=one.runs, reason="nothing to compare with: no other instance did this work"
        )
    return SpeedComparison("ok", relative=_share(one.speed), runs=one.runs)


def _slow_instances(
    group: Sequence[InstanceSpeed], hosts: Mapping[str, Sequence[InstanceSpeed]]
) -> dict[InstanceKey, SpeedComparison]:
    """Compare instances with the node's median removed, where there are several nodes with a median."""
    removed = len(hosts) > 1 and all(len(own) >= MIN_PEERS for own in hosts.values())
    first = _deviations(group, hosts, removed, second=False)
    second = _deviations(group, hosts, removed, second=True)
    found = {}
    for one in group:
        main, other = first[one.instance], second.get(one.instance)
        outcome = SpeedComparison("ok", relative=_share(one.speed), z=main.z, runs=one.runs)
        against = "the median of its node" if removed else "the median"
        if main.slow:
            reason = f"{one.metrics[0].label} {_worse(one.metrics[0], main.relative)} {against}"
            outcome = _confirmed(replace(outcome, reason=reason), one, main, other)
        elif other and other.slow and other.slower >= ONE_METRIC:
            reason = f"{one.metrics[1].label} {_worse(one.metrics[1], other.relative)} {against}"
            reason += f", but {one.metrics[0].label} is not"
            outcome = replace(outcome, verdict="suspect", z=other.z, reason=reason)
        found[one.instance] = outcome
    return found


def _deviations(
    group: Sequence[InstanceSpeed],
    hosts: Mapping[str, Sequence[InstanceSpeed]],
    removed: bool,
    second: bool,
) -> dict[InstanceKey, Deviation]:
    def value(one: InstanceSpeed) -> float | None:
        return one.second if second else one.speed

    known: dict[InstanceKey, float] = {}
    for one in group:
        own = value(one)
        others = [value(other) for other in hosts[one.host] if other is not one] if removed else [0.0]
        node = _median(others)
        if own is not None and node is not None:
            known[one.instance] = own - node
    return dict(zip(known, deviations([*known.values()]))) if len(known) >= MIN_PEERS else {}


def _confirmed(
    outcome: SpeedComparison, one: InstanceSpeed, main: Deviation, other: Deviation | None
) -> SpeedComparison:
    """Call an outlier slow if enough runs and its second metric agree; else suspect, or ok if it is a small one."""
    if other is not None and other.slower < MIN_SLOWER and main.slower < ONE_METRIC:
        return replace(outcome, verdict="ok", reason="")
    if one.runs < MIN_RUNS:
        few = "one run" if one.runs == 1 else f"{one.runs} runs"
        return replace(outcome, verdict="suspect", reason=f"{outcome.reason}, in {few} only")
    if other is not None and other.slower < MIN_SLOWER:
        reason = f"{outcome.reason}, but {one.metrics[1].label} is not worse"
        return replace(outcome, verdict="suspect", reason=reason)
    return replace(outcome, verdict="slow")


def _slower_than_before(
    group: Sequence[InstanceSpeed], outcomes: Mapping[InstanceKey, SpeedComparison], history: History
) -> dict[InstanceKey, SpeedComparison]:
    """Compare with the GPUs' own past, after removing what changed for all (a new release, another driver)."""
    known = {one.instance: history[one.instance] for one in group if one.instance in history}
    if len(known) < MIN_PEERS:
        return {}
    found = {}
    for one, change in zip([one for one in group if one.instance in known], deviations([*known.values()])):
        if not change.slow or outcomes[one.instance].verdict == "slow":
            continue
        reason = f"{_percent(change.slower)} slower than in its earlier runs, relative to the others"
        outcome = replace(outcomes[one.instance], z=change.z, scope="gpu", reason=reason)
        found[one.instance] = _confirmed(outcome, one, change, None)
    return found


def _slow_nodes(
    hosts: Mapping[str, Sequence[InstanceSpeed]], outcomes: Mapping[InstanceKey, SpeedComparison]
) -> dict[InstanceKey, SpeedComparison]:
    found = {}
    medians = [statistics.median(one.speed for one in own) for own in hosts.values()]
    for own, deviation in zip(hosts.values(), deviations(medians)):
        if not deviation.slow:
            continue
        label = own[0].metrics[0]
        reason = f"the whole node: {label.label} {_worse(label, deviation.relative)} the other nodes' median"
        for one in own:
            if outcomes[one.instance].verdict == "slow":  # slow within its node as well
                continue
            outcome = replace(outcomes[one.instance], scope="node", z=deviation.z, reason=reason)
            found[one.instance] = _confirmed(outcome, one, deviation, None)
    return found


def _slower_of_two(
    sides: Sequence[Sequence[InstanceSpeed]], outcomes: Mapping[InstanceKey, SpeedComparison]
) -> dict[InstanceKey, SpeedComparison]:
    """Judge the slower of two: suspect if the repeats show a difference, undecided if they are too few."""
    slower, faster = sorted(sides, key=lambda side: statistics.median(one.speed for one in side))
    low, high = (statistics.median(one.speed for one in side) for side in (slower, faster))
    lacks = 1 - _share(low - high)
    if lacks < MIN_SLOWER:
        return {}
    named = faster[0].host if faster[0].host != slower[0].host else faster[0].instance[1]
    reason = f"{_percent(lacks)} slower than {named}"
    spans = [[one.interval for one in side if one.interval] for side in (slower, faster)]
    found = {}
    for one in slower:
        outcome = outcomes[one.instance]
        if outcome.verdict in ("slow", "suspect"):
            continue
        if any(len(known) < len(side) for known, side in zip(spans, (slower, faster))):
            text = f"{reason}: this is not judged without at least {MIN_RUNS} runs of both"
            found[one.instance] = replace(outcome, verdict=None, scope="pair", reason=text)
        elif _middle(spans[0])[1] < _middle(spans[1])[0]:
            text = f"{reason}: nothing shows which of the two is at fault"
            found[one.instance] = replace(outcome, verdict="suspect", scope="pair", reason=text)
    return found


def _middle(spans: Sequence[Interval]) -> Interval:
    return statistics.median(span[0] for span in spans), statistics.median(span[1] for span in spans)


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _share(log_speed: float) -> float:
    return math.exp(log_speed)


def _worse(metric: SpeedMetric, relative: float) -> str:
    if metric.higher:
        return f"{_percent(1 - relative)} below"
    return f"{_percent(1 / relative - 1)} above"


def _percent(share: float) -> str:
    return f"{share * 100:.0f}%"
