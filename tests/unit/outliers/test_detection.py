# SPDX-License-Identifier: Apache-2.0
"""How often a slow GPU is found, and how often a healthy one is accused: simulated fleets of known speed.

`python -m tests.unit.outliers.test_detection` prints the table of docs/runbooks/slow-gpu.md.
"""

from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.outliers.verdicts import (
    Earlier,
    gpu_verdicts,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.measuring.summary.earlier import earlier_medians

from tests.worlds.gpu_fleet import GpuFleet

FLEETS = {"8 GPUs of one node": (1, 8), "8 nodes of one instance": (8, 1), "64 GPUs of 8 nodes": (8, 8)}
CVS = (0.01, 0.02)
PAST = 4


def past(fleet: GpuFleet) -> Earlier:
    """Four earlier measurements, when nothing was slower; each with another release."""
    return earlier_medians(
        {"benchmarks": fleet.rows(session, ill=False), "hosts": fleet.hosts()}
        for session in range(1, PAST + 1)
    )


def accused(fleet: GpuFleet, earlier: Earlier | None = None) -> dict[tuple[str, int | None], str | None]:
    """The GPUs that are called slow or suspect, and which of both."""
    found = gpu_verdicts(fleet.rows(), fleet.hosts(), earlier)
    return {(item.gpu.host, item.gpu.index): item.verdict for item in found if item.verdict != "ok"}


def rates(shape: tuple[int, int], cv: float, lacks: float, count: int, remembered: bool) -> float:
    """The share of `count` fleets in which the slow GPU is called slow; without one, any GPU slow or suspect."""
    hits = 0
    for seed in range(count):
        fleet = GpuFleet(*shape, cv=cv, seed=seed, slower={(0, 3 % shape[1]): lacks} if lacks else {})
        found = accused(fleet, past(fleet) if remembered else None)
        hits += found.get(("n1", 3 % shape[1])) == "slow" if lacks else bool(found)
    return hits / count


@pytest.mark.parametrize("cv", CVS)
@pytest.mark.parametrize("shape", [(1, 8), (8, 8)])
def test_at_most_one_of_100_healthy_fleets_has_a_false_alarm(shape: tuple[int, int], cv: float) -> None:
    assert rates(shape, cv, 0.0, 100, remembered=False) <= 0.01


@pytest.mark.parametrize(("cv", "lacks", "least"), [(0.01, 0.08, 0.85), (0.02, 0.12, 0.85)])
def test_a_slow_gpu_of_64_is_found(cv: float, lacks: float, least: float) -> None:
    assert rates((8, 8), cv, lacks, 40, remembered=False) >= least


def test_five_percent_are_found_by_the_gpus_own_past() -> None:
    assert rates((8, 8), 0.01, 0.05, 40, remembered=True) >= 0.9
    assert rates((8, 8), 0.01, 0.05, 40, remembered=False) < 0.7


@pytest.mark.deep
@pytest.mark.parametrize("cv", CVS)
@pytest.mark.parametrize("name", FLEETS)
@pytest.mark.parametrize("remembered", [False, True])
def test_false_alarms_stay_rare_in_200_fleets(name: str, cv: float, remembered: bool) -> None:
    assert rates(FLEETS[name], cv, 0.0, 200, remembered) <= 0.02


def test_a_fleet_is_the_same_every_time() -> None:
    fleet = GpuFleet(seed=7)
    assert fleet.rows() == dataclasses.replace(fleet).rows()
    assert fleet.rows() != GpuFleet(seed=8).rows()


def main() -> None:
    """Print the table."""
    print("| fleet | CV of a run | false alarms | 5 % | 8 % | 12 % | 5 % with history | 8 % with history |")
    print("|---|---|---|---|---|---|---|---|")
    for name, shape in FLEETS.items():
        for cv in CVS:
            cells = [rates(shape, cv, lacks, 200, False) for lacks in (0.0, 0.05, 0.08, 0.12)]
            cells += [rates(shape, cv, lacks, 200, True) for lacks in (0.05, 0.08)]
            print(f"| {name} | {cv:.0%} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
