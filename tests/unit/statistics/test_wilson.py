# SPDX-License-Identifier: Apache-2.0
"""Wilson's interval of a share."""

from __future__ import annotations

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.statistics.wilson import wilson


# Newcombe, Two-sided confidence intervals for the single proportion, Statistics in Medicine 17, 1998, table I.
@pytest.mark.parametrize(
    ("kept", "count", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1194, 1319, 0.8882, 0.9199),
    ],
)
def test_wilsons_interval_is_the_published_one(kept: int, count: int, low: float, high: float) -> None:
    assert wilson(kept, count) == pytest.approx((low, high), abs=5e-5)


def test_nothing_counted_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
