# SPDX-License-Identifier: Apache-2.0
"""The journal of a partition change on its disk: its room is taken first, and a crash finds one of the two whole."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.partition import journal as journals
from ansible_collections.instinct.fleet.plugins.module_utils.partition.holders import Service
from ansible_collections.instinct.fleet.plugins.module_utils.partition.journal import (
    LAST,
    NEXT,
    SIZE,
    STEPS,
    Journal,
    drop,
    load,
    reserve,
    save,
)


class Crash(BaseException):
    """The process ends here."""


def journal(step: str, services: int = 3) -> Journal:
    stopped = tuple(Service("instance", f"instinct-a-deployment-{number}", 120) for number in range(services))
    gpus = {f"0000:{number:02x}:00.0": "CPX" for number in range(8)}
    return Journal(step, "2026-01-01T00:00:00Z", "NPS1", gpus, "NPS4", gpus, stopped)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state/partition.json")


def inodes(path: str) -> set[int]:
    return {os.stat(path + suffix).st_ino for suffix in ("", NEXT, LAST) if os.path.exists(path + suffix)}


def test_it_is_written_where_its_room_was_taken(path: str) -> None:
    reserve(path)
    room = inodes(path)
    for step in STEPS:
        save(path, journal(step))
        assert load(path) == journal(step)
        assert inodes(path) == room
        assert {entry.stat().st_size for entry in os.scandir(os.path.dirname(path))} == {SIZE}
    drop(path)
    assert os.listdir(os.path.dirname(path)) == []


def test_it_holds_a_node_full_of_instances(path: str) -> None:
    reserve(path)
    save(path, journal("drain", 100))
    assert os.path.getsize(path) == SIZE


def test_it_is_written_without_room_as_well(path: str) -> None:
    """To put back what a change has stopped that was interrupted by an earlier release."""
    os.makedirs(os.path.dirname(path))
    for step in STEPS:
        save(path, journal(step))
        assert load(path) == journal(step)


CALLS = ("open", "fsync", "link", "replace", "unlink")


def failing(monkeypatch: pytest.MonkeyPatch, at: int, error: Callable[[], BaseException]) -> list[str]:
    """Let the call number `at` that changes the disk fail, and all that follow; return what was called."""
    called: list[str] = []

    def wrap(name: str) -> None:
        real: Any = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            called.append(name)
            if len(called) > at:
                raise error()
            return real(*args, **options)

        monkeypatch.setattr(journals.os, name, call)

    for name in CALLS:
        wrap(name)
    return called


@pytest.mark.parametrize("error", [Crash, lambda: OSError(errno.ENOSPC, "No space left on device")])
@pytest.mark.parametrize("reserved", [True, False])
@pytest.mark.parametrize("at", range(12))
def test_one_of_two_is_whole(
    path: str, monkeypatch: pytest.MonkeyPatch, at: int, reserved: bool, error: Callable[[], BaseException]
) -> None:
    """Whatever fails, and wherever it crashes: the next run reads the one or the other, and writes its own."""
    if reserved:
        reserve(path)
    else:
        os.makedirs(os.path.dirname(path))
    save(path, journal("drain"))
    save(path, journal("wait"))
    with monkeypatch.context() as patched:
        failing(patched, at, error)
        with contextlib.suppress(Crash, OSError):
            save(path, journal("set"))
    assert load(path) in (journal("wait"), journal("set"))
    reserve(path)  # it does not write onto what the journal's name still leads to
    assert load(path) in (journal("wait"), journal("set"))
    save(path, journal("undo"))
    assert load(path) == journal("undo")


@pytest.mark.parametrize("at", range(6))
def test_no_room_leaves_nothing_behind(path: str, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    os.makedirs(os.path.dirname(path))
    real = os.fsync
    left = [at]

    def full(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(journals.os, "fsync", full)
    if at < 2:
        with pytest.raises(OSError, match="No space left"):
            reserve(path)
        assert os.listdir(os.path.dirname(path)) == []
