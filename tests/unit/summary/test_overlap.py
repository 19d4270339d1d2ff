# SPDX-License-Identifier: Apache-2.0
"""Sums over instances: whether these were measured at the same time."""

from __future__ import annotations

import time
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.overlap import (
    non_overlapping_sums,
    overlaps,
)


def run(place: str, start: float, seconds: float | None = 60.0, **more: Any) -> dict[str, Any]:
    """A run of "host/instance" that starts some seconds after ten."""
    host, _slash, instance = place.partition("/")
    minute, second = divmod(int(start), 60)
    found = {
        "host": host, "instance": instance, "deployment": "llama", "kind": "serve", "cell": "c8", "block": 1,
        "probe": None, "started": f"2026-01-31T10:{minute:02d}:{second:02d}Z", "seconds": seconds, "duration_s": None,
    }  # fmt: skip
    return found | more


def shares(*rows: dict[str, Any]) -> dict[str, float]:
    return {f"{key[0]}/{key[1]}": share for key, share in overlaps(rows).items()}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([run("n1/a", 0)], {}),
        ([run("n1/a", 0), run("n1/b", 0)], {"n1/a": 1.0, "n1/b": 1.0}),
        ([run("n1/a", 0), run("n1/b", 31)], {"n1/a": 0.5, "n1/b": 0.5}),  # starts are whole seconds
        ([run("n1/a", 0), run("n1/b", 90)], {"n1/a": 0.0, "n1/b": 0.0}),
        # Clocks of two hosts may differ.
        ([run("n1/a", 0), run("n2/a", 5)], {"n1/a": 1.0, "n2/a": 1.0}),
        ([run("n1/a", 0), run("n2/a", 35)], {"n1/a": 0.5, "n2/a": 0.5}),
        # One that is twice as fast was never alone, the other half of its time.
        ([run("n1/a", 0), run("n1/b", 0, 29.0)], {"n1/a": 0.5, "n1/b": 1.0}),
        # What counts are the requests, not the start of the client.
        ([run("n1/a", 0), run("n1/b", 0, 160.0, duration_s=60.0)], {"n1/a": 0.0, "n1/b": 0.0}),
        ([run("n1/a", 0), run("n1/b", 0, None)], {}),
        ([run("n1/a", 0), run("n1/b", 0, started=None)], {}),
        ([run("n1/a", 0), run("n1/b", 0, cell="c16")], {}),
        ([run("n1/a", 0, probe=1), run("n1/b", 90, probe=1)], {}),
        # A repeat that only one of them needed.
        ([run("n1/a", 0), run("n1/b", 0), run("n1/a", 90, block=2)], {"n1/a": 0.5, "n1/b": 1.0}),
    ],
)
def test_the_share_of_the_time(rows: list[dict[str, Any]], expected: dict[str, float]) -> None:
    assert shares(*rows) == pytest.approx(expected, abs=0.02)


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = overlaps(rows)
    return [
        {**row, "overlap": found.get((row["host"], row["instance"], row["kind"], row["cell"]))}
        for row in rows
    ]


def test_a_sum_is_marked_below_90_percent() -> None:
    together = [run(f"n{at}/a", at % 3) for at in range(32)]
    assert non_overlapping_sums(summary(together)) == {}
    # One of 32 at another time, and one that takes longer, change little.
    assert non_overlapping_sums(summary([*together[:31], run("n31/a", 300)])) == {}
    assert non_overlapping_sums(summary([*together[:31], run("n31/a", 0, 80.0)])) == {}
    # Batches of four.
    batches = [run(f"n{at}/a", at // 4 * 100) for at in range(16)]
    assert non_overlapping_sums(summary(batches)) == {("llama", "serve", "c8"): pytest.approx(0.2)}
    assert (
        non_overlapping_sums([{"deployment": "llama", "kind": "serve", "cell": "c8"}]) == {}
    )  # a summary of before


def test_a_large_fleet_is_no_long_wait() -> None:
    rows = [run(f"n{at // 8}/{at % 8}", 0, block=block) for at in range(512) for block in (1, 2, 3)]
    began = time.process_time()
    overlaps(rows)
    assert time.process_time() - began < 1.0
