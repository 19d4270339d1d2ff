# SPDX-License-Identifier: Apache-2.0
"""What fleet_plan returns and prints for recorded fleets is what it was.

`python -m tests.recorded` shows what differs, and records it.
"""

from __future__ import annotations

import pytest

from tests.recorded.corpus import CASES, RESULTS, difference, differing, read, record

EVERY = 6
"""One of so many cases is played in each run, the others at night."""
SHARES = 4
"""Tests among which the cases of a run are divided, so that they run beside one another."""


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(number, marks=[pytest.mark.deep] if number % EVERY else [])
        for number in range(EVERY * SHARES)
    ],
)
def test_plans_are_what_they_were(share: int) -> None:
    wrong = []
    step = EVERY * SHARES
    pairs = zip(read(CASES, share, step), read(RESULTS, share, step), strict=True)
    for number, (case, before) in enumerate(pairs):
        now = record(case, share + number * step)
        if differing(before, now):
            wrong += [case["id"], *difference(before, now)]
    assert not wrong, "\n".join(wrong[:200])


def test_cases_and_results_are_of_the_same_order() -> None:
    names = [case["id"] for case in read(CASES)]
    assert names == [one["id"] for one in read(RESULTS)]
    assert len(set(names)) == len(names)
