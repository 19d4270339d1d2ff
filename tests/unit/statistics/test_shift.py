# SPDX-License-Identifier: Apache-2.0
"""The rank statistics of comparisons."""

from __future__ import annotations

import math
import statistics

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.statistics.shift import (
    Estimate,
    paired_shift,
    pairs_needed,
    shift,
    stratified_shift,
)


# Wilcoxon's signed ranks: the critical values of the tables at 5 %. An interval leaves out that many averages.
@pytest.mark.parametrize(("pairs", "critical"), [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (15, 25), (20, 52)])
def test_intervals_of_pairs_are_those_of_the_tables(pairs: int, critical: int) -> None:
    values = [float(2**at) for at in range(pairs)]
    averages = sorted((values[i] + values[j]) / 2 for i in range(pairs) for j in range(i, pairs))
    found = paired_shift(values)
    assert (found.low, found.high) == (averages[critical], averages[-1 - critical])
    assert found.estimate == statistics.median(averages)


@pytest.mark.parametrize(("level", "needed"), [(0.95, 6), (0.99, 8), (0.975, 7)])
def test_pairs_that_an_interval_needs(level: float, needed: int) -> None:
    assert pairs_needed(level) == needed
    differences = [float(at) for at in range(needed)]
    assert paired_shift(differences, level).low == 0.0
    assert paired_shift(differences[1:], level).low == -math.inf


def test_strata_add_up() -> None:
    old, new = [1.0, 2.0, 3.0], [11.0, 12.0, 13.0]
    far = [value + 1000 for value in old], [value + 1000 for value in new]
    assert stratified_shift([(old, new)]) == Estimate(10.0, -math.inf, math.inf)
    # Of 400 orders of both strata, 1 has a sum of 0, 2 have 1, 5 have 2: those are 2 %, and the next 10 too many.
    assert stratified_shift([(old, new), far]) == Estimate(10.0, 9.0, 11.0)
    assert shift(old, new) == stratified_shift([(old, new)])


def test_nothing_is_no_shift() -> None:
    with pytest.raises(ValueError, match="needs pairs"):
        paired_shift([])
    with pytest.raises(ValueError, match="runs on both sides"):
        stratified_shift([])
