# SPDX-License-Identifier: Apache-2.0
"""Which run this is, which other one is over, and what a host says of it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible_collections.instinct.fleet.plugins.module_utils.leases import lease
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions import runs
from ansible_collections.instinct.fleet.plugins.plugin_utils.actions.runs import Lease

from tests.helpers.eventually import GENEROUS, eventually

FOREIGN = Lease("b/1/100/7", "ann@c1", "upgrade.yml", "2026-01-01T00:00:00Z", "b/1/100/7:2", False, 40.0)


def identity(process: int) -> str:
    return runs._run(process).id


def test_both_sides_hold_a_lease_for_the_same_time() -> None:
    assert runs.HOLD == lease.HOLD


def test_a_run_is_over_once_its_process_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        name = identity(process.pid)
        assert not runs.is_over(name)
        process.kill()
        eventually("its end", lambda: runs.is_over(name))  # before its parent asks how it ended
        process.wait(GENEROUS)
    assert runs.is_over(name)
    mine = runs.this_run().id
    place, ticks = mine.rsplit("/", 1)
    assert not runs.is_over(mine)
    assert runs.is_over(f"{place}/{int(ticks) + 1}")  # the number belongs to another process now


def test_a_task_whose_controller_was_killed_takes_no_lease() -> None:
    """It would have the name of no process, and nothing would tell that it is over."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(GENEROUS)
    with pytest.raises(AnsibleError, match="has ended, so the task changed nothing"):
        identity(process.pid)


RUNNING = "17 (a) b) S 1" + " 0" * 17 + " 4711"
ENDED = RUNNING.replace(" S ", " Z ")
REUSED = RUNNING.replace("4711", "9000")


@pytest.mark.parametrize("killed", [None, PermissionError(), ProcessLookupError(), OverflowError()], ids=repr)
@pytest.mark.parametrize(
    ("stat", "over"),
    [
        (RUNNING, False),
        (ENDED, True),
        (REUSED, True),
        # hidepid=2 and hidepid=1: only kill() tells
        (FileNotFoundError(), None),
        (PermissionError(), None),
        (ProcessLookupError(), None),
    ],
    ids=repr,
)
def test_a_process_that_proc_hides_is_over_only_if_no_signal_reaches_it(
    stat: str | OSError, over: bool | None, killed: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot, namespace = runs._place()

    def read(path: Path, **options: Any) -> str:
        assert path == Path("/proc/17/stat")
        if isinstance(stat, OSError):
            raise stat
        return stat

    def kill(pid: int, number: int) -> None:
        assert (pid, number) == (17, 0)
        if killed:
            raise killed

    monkeypatch.setattr(runs, "_place", lambda: (boot, namespace))
    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(os, "kill", kill)
    found = runs.is_over(f"{boot}/{namespace}/17/4711")
    assert found is (isinstance(killed, ProcessLookupError) if over is None else over)


def test_a_run_whose_own_process_is_hidden_takes_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_ticks", lambda pid: None)
    with pytest.raises(AnsibleError, match="cannot be read, so no other run could tell when this one ends"):
        runs._run.__wrapped__(17)


@pytest.mark.parametrize("pid", ["²", "٣", "9" * 40, "-1", "0"])
def test_a_number_that_no_process_has_is_not_known_to_be_over(pid: str) -> None:
    """It comes from a host's answer."""
    boot, namespace, *_process = runs.this_run().id.split("/")
    assert not runs.is_over(f"{boot}/{namespace}/{pid}/5")


@pytest.mark.parametrize(
    "name", ["", "x", "///", "other-boot/1/999999/5", "a/b/c/d/e/f"], ids=lambda name: name or "none"
)
def test_what_another_machine_started_is_not_known_to_be_over(name: str) -> None:
    assert not runs.is_over(name)
    boot, namespace, _pid, _ticks = runs.this_run().id.split("/")
    assert not runs.is_over(f"{boot}/{int(namespace) + 1}/999999/5")  # a container on this machine


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, None),
        ("text", None),
        ({}, None),
        ({"run": "a/b/c/d", "left": "soon"}, None),
        ({"run": "a/b/c/d"}, Lease("a/b/c/d", "", "", "")),
        ({"run": "r\x1b[2J", "who": "a" * 999}, Lease("r?[2J", "a" * 100, "", "")),
    ],
)
def test_nothing_of_a_host_reaches_a_terminal_unchecked(data: Any, expected: Lease | None) -> None:
    assert Lease.from_json(data) == expected


def test_other_runs_are_those_that_go_on() -> None:
    mine = replace(FOREIGN, run=runs.this_run().id)
    leases = {
        "n1": FOREIGN,
        "n2": replace(FOREIGN, left=90.0),
        "n3": replace(FOREIGN, run="b/1/200/8", left=0.0),
        "n4": replace(FOREIGN, run="b/1/300/9", left=0.0, at_work=True),
        "n5": mine,
        "n6": None,
    }
    found = runs.other_runs(leases)
    assert {(lease.run, lease.left): hosts for lease, hosts in found.items()} == {
        ("b/1/100/7", 90.0): ["n1", "n2"],
        ("b/1/300/9", 0.0): ["n4"],
    }
    first, second = (problem.text() for problem in runs.refused_plan(found))
    assert "ann@c1 runs upgrade.yml (since 2026-01-01T00:00:00Z)" in first
    assert "its lease ends in 90 s" in first
    assert "-e take_over=true" in first
    assert "It is in progress; its lease ends 120 s after its last step" in second
    assert len(runs.run_warnings(found)) == 2


def test_a_refused_call_says_what_to_do() -> None:
    lease = {"run": "b/1/100/7", "who": "ann@c1", "command": "upgrade.yml", "started": "2026"}
    assert runs.refused_call("n1", False, lease).startswith(
        "n1 was not changed: ann@c1 runs upgrade.yml (since 2026). "
    )
    assert "Run the same command again" in runs.refused_call("n1", True, lease)
    assert "another run changes it" in runs.refused_call("n1", False, None)
