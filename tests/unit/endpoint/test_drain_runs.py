# SPDX-License-Identifier: Apache-2.0
"""What a run drained stays out while that run goes on, whoever plans meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.endpoint.test_plan import N1, ONE, TWO, planned, settled

RUN = {"state": "drain", "by": "run", "since": "2026-01-01T00:00:00Z", "run": "boot/1/100/7"}


@pytest.mark.parametrize(
    ("going", "undrain"),
    [((), [N1]), (("boot/1/200/8",), [N1]), (("boot/1/100/7",), [])],
    ids=["it ended", "another run goes on", "it goes on"],
)
def test_only_what_ended_runs_drained_is_returned(going: tuple[str, ...], undrain: list[str]) -> None:
    host = settled(ONE, TWO, drained={N1: RUN})
    assert host.observed is not None
    host = replace(host, observed=replace(host.observed, going=frozenset(going)))
    plan = planned(host, ONE, TWO)[0]
    assert list(plan.undrain) == undrain
    assert bool(plan.actions) == bool(undrain)
