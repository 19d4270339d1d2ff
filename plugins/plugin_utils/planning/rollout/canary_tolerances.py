# SPDX-License-Identifier: Apache-2.0
"""Check the operator's tolerances for a canary. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...base.json_record import JsonRecord

MIN_RUNS = 4
"""The fewest runs that prove anything: measuring/statistics/shift.py says why, and a test checks that both agree."""
UNLIMITED = 100
"""The tolerance of accuracy, in points, with which no loss would stop a release; then no questions are asked."""


class CanaryError(Exception):
    """Raised for settings of the canary that make no sense."""


@dataclass(frozen=True)
class CanaryTolerances(JsonRecord):
    """The accepted changes: percent of throughput and of the medians of TTFT and TPOT, points of the sanity set."""

    tolerance: float
    latency_tolerance: float
    runs: int
    max_runs: int
    accuracy_tolerance: float

    @property
    def more(self) -> int:
        """Return the number of runs of a second look; 0 if there is none."""
        left = self.max_runs - self.runs
        return left if left >= MIN_RUNS else 0

    def wrong(self) -> tuple[tuple[str, str], ...]:
        """Return variables with invalid values, and why they are invalid."""
        found = []
        if self.runs < MIN_RUNS:
            found.append(("canary_runs", f"is {self.runs}: fewer than {MIN_RUNS} runs prove nothing."))
        if self.max_runs < self.runs:
            found.append(("canary_max_runs", f"is {self.max_runs}, less than canary_runs ({self.runs})."))
        for name, value, most in (
            ("canary_tolerance", self.tolerance, 100),
            ("canary_latency_tolerance", self.latency_tolerance, 1000),
        ):
            if not 0 < value < most:
                found.append((name, f"is {value:g}, which is not a usable percentage."))
        if not 0 < self.accuracy_tolerance <= UNLIMITED:
            what = f"is {self.accuracy_tolerance:g} points: it must be above 0, and at most {UNLIMITED:g}."
            found.append(("canary_accuracy_tolerance", what))
        return tuple(found)

    def check(self) -> None:
        """Raise CanaryError if a value makes no sense."""
        for name, what in self.wrong():
            raise CanaryError(f"{name} {what}")
