# SPDX-License-Identifier: Apache-2.0
"""One run at a time changes a node: who may go on, and what is left of a run that was killed."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.leases import lease, lease_file, lease_lock
from ansible_collections.instinct.fleet.plugins.module_utils.leases.lease import OTHER_RUN, STALE_PLAN

from tests.helpers.eventually import GENEROUS

A, B, C = "boot-1-100-7", "boot-1-200-8", "boot-1-300-9"
CHANGED, SAME = {"changed": True}, {"changed": False}


def call(run: str = A, **given: Any) -> dict[str, Any]:
    words = {"who": f"op@{run}", "command": "site.yml", "started": "2026-01-01T00:00:00Z"}
    own = {"seen": None, "void": [], "take_over": False, "hold": 900, "changes": True}
    return {"run": run, **words, **own, **given}


LEASE = {"run": A, "tag": f"{A}:4", "before": [C]}
RULES: dict[str, tuple[dict[str, Any], dict[str, Any], bool, str]] = {
    "nobody was here": (call(B), {}, False, ""),
    "a plan of when nobody was here": (call(B, seen=""), {}, False, ""),
    "the run's own lease": (call(A), LEASE, True, ""),
    "another run goes on": (call(B, seen=f"{A}:4"), LEASE, True, OTHER_RUN),
    "its lease has ended": (call(B, seen=f"{A}:4"), LEASE, False, ""),
    "it is known to be dead": (call(B, seen=f"{A}:4", void=[A]), LEASE, True, ""),
    "another one is": (call(B, void=[C]), LEASE, True, OTHER_RUN),
    "taken over": (call(B, seen=f"{A}:4", take_over=True), LEASE, True, ""),
    "who was taken over does not take back": (call(C, take_over=True), LEASE, True, OTHER_RUN),
    "who was followed by another run plans again": (call(C), LEASE, False, STALE_PLAN),
    "changed since the plan": (call(B, seen=f"{A}:3"), LEASE, False, STALE_PLAN),
    "changed since a plan that saw nothing": (call(B, seen=""), LEASE, False, STALE_PLAN),
    "changed by the run itself": (call(A, seen=f"{C}:2"), LEASE, True, ""),
    "a dead run changed it since": (call(B, seen=f"{A}:3", void=[A]), LEASE, True, STALE_PLAN),
    "taken over, but changed since": (call(B, seen=f"{A}:3", take_over=True), LEASE, True, STALE_PLAN),
    "without a plan": (call(B), LEASE, False, ""),
    "rebooted since": (call(B, seen=f"{A}:3"), {}, False, ""),
}


@pytest.mark.parametrize("case", RULES)
def test_who_may_go_on(case: str) -> None:
    given, found, live, expected = RULES[case]
    assert lease.refusal(given, found, live) == expected


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with files of its own."""
    file = tmp_path / "run" / "lease"
    monkeypatch.setattr(lease_file, "LEASE", str(file))
    monkeypatch.setattr(paths, "STATE_DIR", str(tmp_path / "etc"))
    monkeypatch.setattr(lease, "_POLL", 0.01)
    return file


def found(place: Path) -> dict[str, Any]:
    return dict(json.loads(place.read_text(encoding="utf-8")))


def made(given: dict[str, Any], result: Any = CHANGED, check: bool = False, drained: Any = None) -> Any:
    module = SimpleNamespace(params={"lease": given}, check_mode=check)
    return lease.run_leased(module, lambda: result, drained)()


def refused(given: dict[str, Any], result: Any = CHANGED) -> dict[str, Any]:
    with pytest.raises(NodeError) as error:
        made(given, result)
    return error.value.result


def passed(place: Path, seconds: float) -> None:
    """Let time pass."""
    data = found(place)
    place.write_text(json.dumps({**data, "at": data["at"] - seconds}), encoding="utf-8")


def test_the_lease_lasts_for_the_next_call_of_its_run(place: Path) -> None:
    made(call(A))
    assert refused(call(B))["why"] == OTHER_RUN
    assert refused(call(B))["class"] == OTHER_RUN
    assert refused(call(B))["lease"]["who"] == f"op@{A}"
    made(call(A))
    passed(place, 121)
    made(call(B))
    assert found(place)["run"] == B


def test_every_change_renews_the_tag_and_nothing_else_does(place: Path) -> None:
    made(call(A, seen=""), SAME)
    assert found(place)["tag"] == ""
    made(call(A, seen=""))
    tag = found(place)["tag"]
    assert tag == f"{A}:1"
    made(call(A, seen="", changes=False))
    made(call(A, seen=""), SAME)
    assert found(place)["tag"] == tag
    with pytest.raises(ZeroDivisionError):
        lease.run_leased(SimpleNamespace(params={"lease": call(A)}, check_mode=False), lambda: 1 // 0)()
    assert found(place)["tag"] == f"{A}:2"
    passed(place, 121)
    assert refused(call(B, seen=tag))["why"] == STALE_PLAN
    made(call(B, seen=f"{A}:2"))
    assert found(place)["tag"] == f"{B}:3"


def test_a_call_that_changes_nothing_leaves_the_tag_of_one_beside_it(place: Path) -> None:
    def beside() -> dict[str, Any]:
        made(call(A))
        return SAME

    lease.run_leased(SimpleNamespace(params={"lease": call(A)}, check_mode=False), beside)()
    assert found(place)["tag"] == f"{A}:2"


def test_a_check_and_a_call_by_hand_take_no_lease(place: Path) -> None:
    made(call(A), check=True)
    assert made({}) == CHANGED
    assert not place.exists()
    made(call(A))
    assert made(call(B), check=True) == CHANGED


def test_a_balancer_is_held_while_servers_are_out(place: Path) -> None:
    made(call(A), drained=lambda run: run == A)
    passed(place, 800)
    assert refused(call(B))["why"] == OTHER_RUN
    made(call(A))  # another module's call on that host
    passed(place, 800 - 1)
    made(call(A), drained=lambda run: False)
    passed(place, 121)
    made(call(B))


def test_taking_over_is_journalled_and_final(place: Path, tmp_path: Path) -> None:
    made(call(A))
    made(call(B, take_over=True, seen=f"{A}:1"), SAME)
    journal = (tmp_path / "etc" / "journal.log").read_text(encoding="utf-8")
    assert journal.endswith(f" op@{B} (site.yml) took over from op@{A} (site.yml)\n")
    assert refused(call(A))["lease"]["run"] == B
    assert refused(call(A, take_over=True))["why"] == OTHER_RUN
    passed(place, 121)  # nor later, although the second run changed nothing
    assert refused(call(A, seen=""))["why"] == STALE_PLAN


def test_the_work_of_a_dead_run_is_continued_at_once_without_a_word(place: Path, tmp_path: Path) -> None:
    made(call(A))
    made(call(B, void=[A]))
    assert not (tmp_path / "etc" / "journal.log").exists()


HOLDER = """
import sys, time
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from ansible_collections.instinct.fleet.plugins.module_utils.leases import lease, lease_file
import json
lease_file.LEASE = sys.argv[2]
def work():
    print("at work", flush=True)
    time.sleep(float(sys.argv[4]))
    return {"changed": True}
lease.run_leased(SimpleNamespace(params={"lease": json.loads(sys.argv[3])}, check_mode=False), work)()
"""


@contextmanager
def at_work(
    root: Path, place: Path, given: dict[str, Any], seconds: float
) -> Iterator[subprocess.Popen[bytes]]:
    """A call in a process of its own."""
    args = [str(root / ".collections"), str(place), json.dumps(given), str(seconds)]
    with subprocess.Popen([sys.executable, "-c", HOLDER, *args], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"at work\n"
        yield process
        process.kill()


def is_at_work(place: Path, run: str) -> bool:
    file = os.open(place, os.O_RDONLY)
    try:
        return lease_file.at_work(file, run)
    finally:
        os.close(file)


def test_a_call_holds_the_lease_as_long_as_its_process_lives(root: Path, place: Path) -> None:
    with at_work(root, place, call(A), GENEROUS) as process:
        passed(place, 10_000)  # however long it works
        assert is_at_work(place, A)
        assert not is_at_work(place, B)
        assert refused(call(B))["why"] == OTHER_RUN
        module = SimpleNamespace(params={"lease": call(A)}, check_mode=False)
        assert lease.run_leased(module, lambda: SAME)() == SAME  # calls of one run work side by side
        assert is_at_work(place, A)
        passed(place, 10_000)
        process.kill()
        process.wait(GENEROUS)
        assert not is_at_work(place, A)
        made(call(B))


def test_a_call_of_a_dead_run_is_waited_for(root: Path, place: Path) -> None:
    with at_work(root, place, call(A), GENEROUS) as process:
        threading.Timer(0.3, process.kill).start()
        made(call(B, void=[A]))
        assert process.wait(GENEROUS) == -9


def test_who_takes_over_from_a_call_at_work_plans_again(root: Path, place: Path) -> None:
    with at_work(root, place, call(A), 0.5):
        assert refused(call(B, take_over=True, seen=f"{A}:1"))["why"] == STALE_PLAN
        assert not is_at_work(place, A)
    assert refused(call(A))["lease"]["run"] == B
    made(call(C, void=[B], seen=found(place)["tag"]))


def test_who_follows_a_takeover_waits_for_the_first_run_too(
    root: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "WAIT", 0.2)
    with at_work(root, place, call(A), GENEROUS):
        assert refused(call(B, take_over=True))["why"] == OTHER_RUN
        assert refused(call(C, void=[B]))["why"] == OTHER_RUN


def test_a_module_that_takes_no_lease_works_under_that_of_its_run(place: Path) -> None:
    def work() -> dict[str, Any]:
        assert is_at_work(place, A)
        return CHANGED

    assert lease_lock.under_lease(None, lambda: CHANGED) == CHANGED
    assert not place.exists()
    made(call(A))
    assert lease_lock.under_lease(call(A), work) == CHANGED
    assert not is_at_work(place, A)
    with pytest.raises(NodeError) as error:
        lease_lock.under_lease(call(B), work)
    assert error.value.result["why"] == OTHER_RUN
    passed(place, 121)
    assert lease_lock.under_lease(call(B), lambda: SAME) == SAME


@pytest.mark.parametrize("there", [False, True])
def test_a_lease_that_nobody_has_is_that_of_who_works_under_it(place: Path, there: bool) -> None:
    """Also where the file is new: another call has created it, and has not written it yet."""
    if there:
        place.parent.mkdir(mode=0o700)
        place.touch()

    def work() -> dict[str, Any]:
        assert is_at_work(place, A)
        passed(place, 121)
        assert refused(call(B))["why"] == OTHER_RUN
        return CHANGED

    assert lease_lock.under_lease(call(A), work) == CHANGED
    assert (found(place)["run"], is_at_work(place, A)) == (A, False)
    assert refused(call(B, seen=""))["why"] == STALE_PLAN
    made(call(A, seen=""))


def test_the_lease_is_not_taken_by_two_at_once(place: Path) -> None:
    """One looks while the other writes: it waits, and is refused."""
    place.parent.mkdir(mode=0o700)
    file = os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    answers: list[object] = []

    def other() -> None:
        try:
            lease_lock.under_lease(call(B), lambda: answers.append("worked"))
        except NodeError as error:
            answers.append(error.result["why"])

    thread = threading.Thread(target=other)
    thread.start()
    data = {**call(A), "tag": "", "before": [], "at": lease_file.now(), "seconds": 120.0}
    os.pwrite(file, json.dumps(data).encode(), 0)
    os.close(file)
    thread.join(GENEROUS)
    assert answers == [OTHER_RUN]


def test_a_lease_from_before_a_reboot_has_ended(place: Path) -> None:
    made(call(A))
    passed(place, -10_000_000)
    made(call(B))
