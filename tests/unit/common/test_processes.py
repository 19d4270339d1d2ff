# SPDX-License-Identifier: Apache-2.0
"""A program that does not end is killed with all that it started, and nobody waits for what survives that."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import processes
from ansible_collections.instinct.fleet.plugins.module_utils.common.checked_program import run_checked
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.common.processes import (
    Program,
    ProgramEnd,
    run_program,
)

from tests.helpers.eventually import GENEROUS, eventually


def sh(text: str, **more: object) -> Program:
    return Program(["/bin/sh", "-c", text], **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "end"),
    [
        (sh("echo out; echo err >&2; exit 3"), ProgramEnd(3, "out\n", "err\n")),
        (sh("echo out; echo err >&2", merged=True), ProgramEnd(0, "out\nerr\n")),
        (sh("cat", stdin="y\n"), ProgramEnd(0, "y\n")),
        (sh("exit 0", stdin="nobody reads it\n"), ProgramEnd(0, "")),
        (sh("pwd; echo $A", cwd="/", env={"A": "b"}), ProgramEnd(0, "/\nb\n")),
        (sh("kill -TERM $$"), ProgramEnd(-15, "")),
        (sh(r"printf '\377'"), ProgramEnd(0, "\ufffd")),
        (sh("exec >&- 2>&-; sleep 0.1; exit 4"), ProgramEnd(4, "")),
    ],
)
def test_how_a_program_ended(program: Program, end: ProgramEnd) -> None:
    assert run_program(program, GENEROUS) == end


def test_a_program_that_prints_for_ever_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "KEPT", 1000)
    end = run_program(sh("yes | head -c 3000000; echo last; printf x >&2"), GENEROUS)
    assert (len(end.out), end.out[-7:], end.err) == (1000, "y\nlast\n"[-7:], "x")


IGNORES = "trap '' TERM HUP INT"


@pytest.mark.parametrize(
    "text",
    [
        "exec sleep 600",
        f"{IGNORES}; while :; do sleep 600; done",
        "sleep 600 & wait",
        f"({IGNORES}; sleep 600) & exit 0",  # it holds the output open after its parent's end
        "exec >&- 2>&-; sleep 600",
        "while :; do echo x; sleep 0.01; done",
    ],
)
def test_at_its_limit_a_program_is_killed_with_what_it_started(text: str, tmp_path: Path) -> None:
    mark = tmp_path / "group"
    end = run_program(sh(f"echo $$ > {mark}; {text}"), 0.5)
    assert end.code is None
    group = int(mark.read_text(encoding="utf-8"))
    eventually("the end of all of them", lambda: not in_group(group))


def in_group(group: int) -> list[str]:
    """The processes of a group that run; one that has ended and that nobody has waited for does not."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, number = place.read_text(encoding="utf-8").rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(number) == group and state != "Z":
            found.append(place.parent.name)
    return found


def test_what_the_caller_raises_ends_the_program(tmp_path: Path) -> None:
    mark = tmp_path / "group"

    def watch() -> None:
        if mark.exists() and mark.read_text(encoding="utf-8"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_program(sh(f"echo $$ > {mark}; exec sleep 600"), GENEROUS, watch)
    assert not in_group(int(mark.read_text(encoding="utf-8")))


def test_nobody_waits_for_a_killed_process_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one inside the kernel: the signal changes nothing."""
    pids: list[int] = []
    monkeypatch.setattr(processes, "_DEAD_SECONDS", 0.1)
    with monkeypatch.context() as inside:
        inside.setattr(os, "killpg", lambda pid, _number: pids.append(pid))
        assert run_program(sh("exec sleep 600"), 0.1).code is None
    os.killpg(pids[0], 9)


def test_a_group_is_not_killed_after_its_program_was_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another group's by then."""
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, _number: killed.append(pid))
    run_program(sh("exit 0"), GENEROUS)
    assert killed == []


@pytest.mark.parametrize(
    ("words", "limit", "message"),
    [
        (
            ["/nowhere/tool", "a"],
            GENEROUS,
            "/nowhere/tool a cannot be started: No such file or directory. Fix.",
        ),
        (["/bin/sh", "-c", "echo why >&2; exit 3"], GENEROUS, "exit 3 ended with exit code 3: why Fix."),
        (["/bin/sleep", "600"], 0.1, "/bin/sleep 600 did not finish within 0 s and was killed. Fix."),
    ],
)
def test_a_program_that_must_succeed(words: list[str], limit: float, message: str) -> None:
    with pytest.raises(NodeError) as error:
        run_checked(words, limit, "Fix.")
    assert str(error.value).endswith(message)
    assert run_checked(["/bin/echo", "done"], GENEROUS) == "done\n"


def test_it_ends_although_a_child_of_another_session_holds_its_output() -> None:
    started = time.monotonic()
    code = (
        "import subprocess, sys;"
        "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)"
    )
    end = run_program(Program([sys.executable, "-c", code]), 2)
    assert end.code is None
    assert time.monotonic() - started < GENEROUS
    subprocess.run(["kill", end.out.strip()], check=True)
