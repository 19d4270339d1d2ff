# SPDX-License-Identifier: Apache-2.0
"""Energy of a measurement from samples of power, and whether it may be reported. Pure.

The rules are InferenceX's: the trapezoid of each GPU over the measurement's own window; a gap of more than 3 s between
samples makes it invalid, and so does an energy counter that differs by more than 5 %. An invalid energy has a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_GAP = 3.0
"""Seconds between two samples, and between the window's ends and the nearest sample."""
COUNTER_TOLERANCE = 0.05

Sample = tuple[float, float]
"""Time in seconds, power in W."""


@dataclass(frozen=True)
class Energy:
    """The energy of one GPU in a window; joules is None if it is invalid, and `why` says so."""

    joules: float | None
    why: str = ""


def energy(samples: Sequence[Sample], start: float, end: float) -> Energy:
    """Return the energy between two times, from samples in the order of time."""
    inside = [sample for sample in samples if start <= sample[0] <= end]
    times = [start, *(time for time, _unused in inside), end]
    if end <= start or not inside:
        return Energy(None, "no sample of its power in the measurement's window")
    gap = max(later - earlier for earlier, later in zip(times, times[1:]))
    if gap > MAX_GAP:
        return Energy(None, f"{gap:.1f} s without a sample of its power")
    # Up to the window's ends the power is that of the nearest sample.
    known = [(start, inside[0][1]), *inside, (end, inside[-1][1])]
    pairs = zip(known, known[1:])
    return Energy(sum((later[0] - earlier[0]) * (earlier[1] + later[1]) / 2 for earlier, later in pairs))


def agrees(measured: Energy, counted: float | None) -> Energy:
    """Return the energy if the GPU's own counter agrees over the same time, or has none; else invalid."""
    if measured.joules is None or not counted:
        return measured
    off = abs(measured.joules - counted) / counted
    if off > COUNTER_TOLERANCE:
        return Energy(None, f"its energy counter differs by {off * 100:.0f}%")
    return measured
