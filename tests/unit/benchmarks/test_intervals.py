# SPDX-License-Identifier: Apache-2.0
"""How well runs agree."""

from __future__ import annotations

import math
import random

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.benchmarks import intervals
from ansible_collections.instinct.fleet.plugins.module_utils.benchmarks.intervals import (
    half_width,
    median_interval,
    variation,
)


def t_probability(t: float, freedom: int, steps: int = 4000) -> float:
    """P(-t < T < t) of Student's distribution, by Simpson's rule."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    width = t / steps
    density = [(1 + (width * step) ** 2 / freedom) ** (-(freedom + 1) / 2) for step in range(steps + 1)]
    inner = 4 * sum(density[1:-1:2]) + 2 * sum(density[2:-1:2])
    return 2 * scale * width / 3 * (density[0] + inner + density[-1])


def test_the_quantiles_are_students() -> None:
    for freedom, t in enumerate(intervals._T_95, 1):
        assert t_probability(t, freedom) == pytest.approx(0.95, abs=6e-5), freedom


@pytest.mark.parametrize(
    ("values", "cv", "interval"),
    [
        ([], None, None),
        ([5.0], None, None),
        ([99.0, 101.0], 0.0141421, None),
        ([99.0, 100.0, 101.0], 0.01, (97.51566, 102.48434)),
        ([4.0, 4.0, 4.0], 0.0, (4.0, 4.0)),
    ],
)
def test_runs(values: list[float], cv: float | None, interval: tuple[float, float] | None) -> None:
    assert variation(values) == (None if cv is None else pytest.approx(cv, abs=1e-6))
    found = median_interval(values)
    assert found == (None if interval is None else pytest.approx(interval, abs=1e-4))


def test_the_half_width_is_relative() -> None:
    assert half_width([99.0, 100.0, 101.0]) == pytest.approx(0.0248434)
    assert half_width([0.0, 0.0, 0.0]) is None
    assert half_width([1.0, 2.0]) is None
    assert variation([0.0, 0.0]) is None


def test_more_runs_than_the_table_has_use_its_last_quantile() -> None:
    rng = random.Random(1)
    values = [rng.gauss(100, 1) for _ in range(60)]
    low, high = median_interval(values) or (0.0, 0.0)
    assert high - low == pytest.approx(2 * 2.042 * (variation(values) or 0) * sum(values) / 60 / 60**0.5)


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_the_interval_covers_the_median_in_95_of_100_cases(runs: int) -> None:
    rng = random.Random(runs)
    covered = 0
    for _ in range(2000):
        low, high = median_interval([rng.gauss(100, 2) for _ in range(runs)]) or (0.0, 0.0)
        covered += low <= 100 <= high
    assert 0.93 < covered / 2000 < 0.97
