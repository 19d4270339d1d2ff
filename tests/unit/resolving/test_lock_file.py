# SPDX-License-Identifier: Apache-2.0
"""The lock file when two runs of one control node write it."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.action_base import write_json
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.pins.lockfile import (
    ImagePin,
    Lock,
    ModelPin,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.resolving.lock_file import (
    read_lock,
    update_lock,
)

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")


def images(**digests: str) -> Lock:
    return Lock({name: ImagePin(digest) for name, digest in digests.items()})


CASES = [
    # what this run read, what it changed that to, what another wrote meanwhile, refresh, what has to be there
    (images(), images(x=A), images(), False, images(x=A)),
    (images(), images(x=A), images(y=B), False, images(x=A, y=B)),
    (images(x=A), images(x=A, y=B), images(x=C), False, images(x=C, y=B)),
    (images(), images(x=A), images(x=B), False, images(x=B)),
    (images(x=C), images(x=A), images(x=B), True, images(x=A)),
    (images(x=C), images(x=A), images(x=C, y=B), True, images(x=A, y=B)),
]


@pytest.mark.parametrize(("read", "changed", "now", "refresh", "wanted"), CASES)
def test_what_another_run_pinned_stays(
    tmp_path: Path, read: Lock, changed: Lock, now: Lock, refresh: bool, wanted: Lock
) -> None:
    path = tmp_path / "fleet.lock.json"
    write_json(path, now.to_json())
    assert update_lock(path, read, changed, refresh, write_json) == wanted
    assert read_lock(path) == wanted
    assert [item.name for item in tmp_path.iterdir()] == ["fleet.lock.json"]


@pytest.mark.parametrize(("refresh", "commit"), [(False, "2"), (True, "1")])
def test_models_have_the_same_rule(tmp_path: Path, refresh: bool, commit: str) -> None:
    path = tmp_path / "fleet.lock.json"
    write_json(path, Lock({}, {"m": ModelPin("2", ()), "n": ModelPin("3", ())}).to_json())
    update_lock(path, Lock(), Lock({}, {"m": ModelPin("1", ())}), refresh, write_json)
    assert {key: pin.commit for key, pin in read_lock(path).models.items()} == {"m": commit, "n": "3"}


def _pin(path: Path, name: str, gate: object) -> None:
    gate.wait()  # type: ignore[attr-defined]
    for number in range(10):
        update_lock(path, Lock(), images(**{f"{name}{number}": A}), False, write_json)


def test_processes_lose_no_pin(tmp_path: Path) -> None:
    path = tmp_path / "fleet.lock.json"
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(4)
    runs = [context.Process(target=_pin, args=(path, name, gate)) for name in "abcd"]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert len(read_lock(path).images) == 40


def test_no_directory_is_an_error_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="cannot be opened"):
        update_lock(tmp_path / "none" / "lock.json", Lock(), images(x=A), False, write_json)
