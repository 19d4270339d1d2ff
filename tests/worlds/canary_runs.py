# SPDX-License-Identifier: Apache-2.0
"""Measurements of a canary."""

from __future__ import annotations

STEADY = (1000.0, 1005.0, 995.0, 1002.0, 998.0)


def runs(
    speed: float = 1.0, ttft: float = 100.0, tpot: float = 10.0, of: tuple[float, ...] = STEADY
) -> dict[str, list[float]]:
    return {
        "output_throughput": [value * speed for value in of],
        "median_ttft_ms": [ttft * 1000 / value for value in of],
        "median_tpot_ms": [tpot * 1000 / value for value in of],
    }
