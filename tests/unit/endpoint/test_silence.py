# SPDX-License-Identifier: Apache-2.0
"""For how long an instance has answered nothing: what counts, and what says nothing about it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.silence import GAP_SECONDS, Silence
from hypothesis import given
from hypothesis import strategies as st

ALLOWED = 13.0  # seconds for a connection and an answer

Check = tuple[bool, float, float]
"""Whether it was answered, its begin, its end."""


@pytest.mark.parametrize(
    ("checks", "silent"),
    [
        ([(True, 100, 100.1)], 0),
        # From the begin of the first check without an answer.
        ([(True, 100, 100.1), (False, 101, 111)], 10),
        ([(True, 100, 100.1), (False, 101, 111), (False, 111, 121), (False, 121, 131)], 30),
        ([(False, 100, 110)], 10),
        # Any answer ends it, however late in its time.
        ([(False, 101, 111), (False, 111, 121), (True, 121, 130.9)], 0),
        ([(False, 101, 111), (True, 111, 112), (False, 113, 123)], 10),
        # The program itself was stopped: during a check, or between two.
        ([(False, 101, 111), (False, 111, 4000)], 0),
        ([(False, 101, 111), (False, 4000, 4010)], 0),
        ([(False, 101, 111), (False, 4000, 4010), (False, 4010, 4020)], 10),
        # It got no CPU time for a moment.
        ([(False, 101, 111), (False, 115.9, 125.9)], 24.9),
        ([(False, 101, 118.9), (False, 118.9, 128.9)], 27.9),
    ],
)
def test_what_counts(checks: list[Check], silent: float) -> None:
    assert run(checks) == pytest.approx(silent)


def run(checks: list[Check]) -> float:
    silence, found = Silence(), 0.0
    for answered, begun, ended in checks:
        found = silence.note(answered, begun, ended, ALLOWED)
    return found


STEPS = st.lists(
    st.tuples(
        st.booleans(), st.sampled_from([0.0, 1.0, 4.9, 5.1, 90.0]), st.sampled_from([0.1, 10.0, 17.9, 18.1])
    ),
    max_size=20,
)


@given(STEPS)
def test_all_of_it_was_watched_and_nothing_was_answered(steps: list[tuple[bool, float, float]]) -> None:
    """A silence holds no answer, and no time in which this program was away."""
    checks: list[Check] = []
    now = 1000.0
    for answered, pause, took in steps:
        checks.append((answered, now + pause, now + pause + took))
        now += pause + took
    silent = run(checks)
    within = [check for check in checks if check[1] >= now - silent - 1e-6] if silent else []
    assert not any(answered for answered, _, _ in within)
    assert all(ended - begun <= ALLOWED + GAP_SECONDS for _, begun, ended in within)
    assert all(later[1] - earlier[2] <= GAP_SECONDS for earlier, later in pairwise(within))
    assert sum(ended - begun for _, begun, ended in within) <= silent + 1e-6
    if silent:
        assert now - silent == pytest.approx(within[0][1])
    elif checks:  # the last one was answered, or late
        answered, begun, ended = checks[-1]
        pause = begun - checks[-2][2] if len(checks) > 1 else 0.0
        assert answered or ended - begun > ALLOWED + GAP_SECONDS or pause > GAP_SECONDS
