# SPDX-License-Identifier: Apache-2.0
"""A bundle is on one host: a run with more of them is refused before anything is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.action.test_sick_host import Fakes, fakes, play

__all__ = ["fakes"]  # the fixture
from tests.worlds.generations_world import llama
from tests.worlds.plan_world import state


@pytest.mark.parametrize("playbook", ["bundle_create", "bundle_verify", "bundle_load"])
def test_one_host_at_a_time(fakes: Fakes, tmp_path: Path, playbook: str) -> None:
    done = play(fakes, tmp_path, playbook, {name: state(hostname=name) for name in ("n1", "n2")}, llama(1))
    assert done.rc != 0
    assert "this run has 2. Add --limit HOST." in done.out
    assert not any(done.calls.values())
