# SPDX-License-Identifier: Apache-2.0
"""The lab nodes' small systemctl: services start, stop, and come back at a boot."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.node import systemctl
from tests.helpers.eventually import eventually

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command on a node with the services gpuagent (runs on) and tune (oneshot); (exit code, stdout)."""
    units = tmp_path / "units"
    units.mkdir()
    (units / "gpuagent.service").write_text("[Service]\nExecStart=/bin/sleep 600\n")
    (units / "tune.service").write_text(
        f"[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/touch {tmp_path}/tuned\n"
    )
    (units / "broken.service").write_text("[Service]\nType=oneshot\nExecStart=/bin/false\n")
    monkeypatch.setattr(systemctl, "DIRECTORIES", [units])
    monkeypatch.setattr(systemctl, "WANTS", units / "multi-user.target.wants")
    monkeypatch.setattr(systemctl, "RUN", tmp_path / "run")
    monkeypatch.setattr(systemctl, "LOGS", tmp_path)
    monkeypatch.setattr(systemctl, "TMPFILES", tmp_path / "tmpfiles.d")
    monkeypatch.setattr(systemctl, "OPERATORS", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(systemctl.Unit, "cgroup", lambda self: tmp_path)

    def run(*argv: str) -> tuple[int, str]:
        code = systemctl.main(list(argv))
        return code, capsys.readouterr().out

    return run


def test_a_service_runs_until_it_is_stopped(call: Call) -> None:
    assert call("is-active", "gpuagent") == (3, "inactive\n")
    assert call("start", "gpuagent")[0] == 0
    pid = int(call("show", "-p", "MainPID", "--value", "gpuagent")[1])
    eventually("the shell's end", lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    assert call("is-active", "gpuagent.service") == (0, "active\n")
    assert call("start", "gpuagent")[0] == 0
    assert call("show", "--property=MainPID,SubState", "gpuagent") == (
        0,
        f"MainPID={pid}\nSubState=running\n",
    )
    assert call("stop", "gpuagent")[0] == 0
    assert call("is-active", "-q", "gpuagent") == (3, "")
    assert call("show", "-p", "MainPID", "--value", "gpuagent")[1] == "0\n"


def test_a_drop_in_says_by_which_signal_a_service_stops(call: Call, tmp_path: Path) -> None:
    script = f"trap 'touch {tmp_path}/soft; exit' USR1; touch {tmp_path}/up; while true; do sleep 0.05; done"
    (tmp_path / "units/soft.service").write_text(f'[Service]\nExecStart=/bin/sh -c "{script}"\n')
    (tmp_path / "units/soft.service.d").mkdir()
    (tmp_path / "units/soft.service.d/stop.conf").write_text(
        "[Service]\nKillSignal=SIGUSR1\nTimeoutStopSec=60\n"
    )
    assert call("start", "soft")[0] == 0
    eventually("the trap", (tmp_path / "up").exists)
    assert call("stop", "soft")[0] == 0
    assert (tmp_path / "soft").exists()


def test_oneshot_services(call: Call, tmp_path: Path) -> None:
    assert call("start", "tune")[0] == 0
    assert (tmp_path / "tuned").exists()
    assert call("show", "-p", "ActiveState,SubState", "tune")[1] == "ActiveState=active\nSubState=exited\n"
    assert call("start", "broken")[0] == 1
    assert call("is-active", "broken") == (3, "failed\n")


def test_enabled_services_start_at_boot(call: Call, tmp_path: Path) -> None:
    target = tmp_path / "governor"
    target.write_text("powersave\n")
    (tmp_path / "tmpfiles.d").mkdir()
    (tmp_path / "tmpfiles.d/x.conf").write_text(f"# settings\nw {target} - - - - performance\n")
    assert call("is-enabled", "tune") == (1, "disabled\n")
    assert call("boot")[0] == 0
    assert not (tmp_path / "tuned").exists()
    assert call("enable", "tune")[0] == 0
    assert not (tmp_path / "tuned").exists()
    assert call("is-enabled", "tune") == (0, "enabled\n")
    assert call("boot")[0] == 0
    assert (tmp_path / "tuned").exists()
    assert target.read_text() == "performance\n"
    assert call("disable", "--now", "tune")[0] == 0
    assert call("is-enabled", "tune")[0] == 1


def test_some_services_come_before_docker(call: Call, tmp_path: Path) -> None:
    (tmp_path / "units/early.service").write_text(
        f"[Unit]\nBefore=docker.service x.service\n[Service]\nType=oneshot\nExecStart=/bin/touch {tmp_path}/early\n"
    )
    assert call("enable", "tune", "early")[0] == 0
    assert call("boot-early")[0] == 0
    assert ((tmp_path / "early").exists(), (tmp_path / "tuned").exists()) == (True, False)
    (tmp_path / "early").unlink()
    assert call("boot")[0] == 0
    assert ((tmp_path / "early").exists(), (tmp_path / "tuned").exists()) == (False, True)


@pytest.mark.parametrize(("command", "code"), [("start", 5), ("stop", 5), ("enable", 1), ("bogus", 1)])
def test_what_is_not_there(call: Call, command: str, code: int) -> None:
    assert call(command, "nope")[0] == code
    assert "LoadState=not-found" in call("show", "nope")[1]
