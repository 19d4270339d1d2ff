# SPDX-License-Identifier: Apache-2.0
"""`make bench` fails when a figure misses its target, after all of them were measured."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests import bench


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, **parts: Callable[[bench.Judge], None]) -> object:
    """Its exit code or message, with figures that just hold; other parts in place of its own."""

    def part(**figures: float) -> Callable[[bench.Judge], None]:
        def measure(judge: bench.Judge) -> None:
            for name, value in figures.items():
                judge.holds(name.replace("_", "-"), value, " of 2 nodes" * (name == "site"))

        return measure

    planning = part(
        planning=1.0,
        planning_growth=1.0,
        planning_8000=8.0,
        planning_8000_spanning=8.0,
        simulation=0.2,
        change_growth=1.0,
        transfers=0.5,
        fit=2.0,
    )
    monkeypatch.setitem(bench.PARTS, "planning", planning)
    monkeypatch.setitem(bench.PARTS, "noop", part(audit=1.9, status=2.9, site=1.2, site_10=0.75))
    monkeypatch.setitem(bench.PARTS, "upgrade", part(upgrade=1.5))
    for name, measure in parts.items():
        monkeypatch.setitem(bench.PARTS, name, measure)
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    try:
        bench.main()
    except SystemExit as end:
        return end.code
    return 0


def test_what_holds_its_target_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch) == 0


def test_all_that_missed_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = run(monkeypatch, "--target", "site=1.1", "--target", "fit=1.9")
    assert reported == "\nTargets missed:\n  fit: 2.000, at most 1.9\n  site of 2 nodes: 1.200, at most 1.1"


def test_a_target_that_nothing_was_held_against_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, upgrade=lambda judge: None) == "never measured: upgrade"
    assert run(monkeypatch, "--only", "upgrade", upgrade=lambda judge: None) == 0


def test_a_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--only", "planning", "--target", "site=1.1") == 0
    assert run(monkeypatch, "--only", "noop", "--target", "site=1.1") != 0


@pytest.mark.parametrize("wrong", ["sites=1", "site", "site=quick"])
def test_a_wrong_target_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    assert run(monkeypatch, "--target", wrong) == 2


def test_a_figure_that_is_no_number_misses() -> None:
    judge = bench.Judge(bench.TARGETS)
    judge.holds("site", float("nan"))
    assert judge.missed
