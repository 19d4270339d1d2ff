# SPDX-License-Identifier: Apache-2.0
"""A load balancer that is taken down: requests finish, nothing of it stays, and nothing else goes."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint import take_down as taken
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.converge import (
    AGENT_SERVICE,
    ROUTER_SERVICE,
    SERVICE,
)
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.keepalived import (
    SERVICE as ADDRESS_SERVICE,
)
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.take_down import TakenDown, take_down

from tests.helpers.eventually import GENEROUS, eventually
from tests.unit.endpoint import test_converge
from tests.unit.endpoint.test_converge import Engine, Host

host = test_converge.host


class Leaving:
    """A host whose load balancer runs, and systemd as far as this needs it: by which signal HAProxy stops."""

    def __init__(self, its: Host) -> None:
        self.host, self.calls = its, list[str]()
        tmp = its.tmp
        self.there = TakenDown(
            its.places,
            (str(tmp / "router"), str(tmp / "router-pip.conf")),
            str(tmp / "run"),
            str(tmp / "keep.pid"),
        )

    def run(self, command: Sequence[str], seconds: float) -> tuple[int, str]:
        words = list(command[1:])
        self.calls.append(" ".join(words))
        process = self.host.process
        if words == ["stop", SERVICE] and process:
            drop_in = self.host.tmp / f"run/{SERVICE}.d/soft-stop.conf"
            soft = drop_in.exists() and "KillSignal=SIGUSR1" in drop_in.read_text()
            wanted = signal.SIGUSR1 if soft else signal.SIGTERM
            # Asked again, for it may be starting itself anew just now, and then does not hear it.
            eventually("HAProxy's end", lambda: process.send_signal(wanted) or process.poll() is not None)
        return 0, ""

    def down(self, check: bool = False, wait: int = 300) -> dict[str, object]:
        return take_down(wait, check, self.there, self.run)


@pytest.fixture
def leaving(host: Host) -> Leaving:
    host.apply(host.texts())
    (host.tmp / "router/bin").mkdir(parents=True)
    (host.tmp / "router-pip.conf").write_text("[global]\n")
    for service in (ROUTER_SERVICE, ADDRESS_SERVICE):
        (host.tmp / "units" / service).write_text("[Service]\n")
    (host.tmp / "units/haproxy.service").write_text("the distribution's\n")
    return Leaving(host)


def test_check_mode_then_once(leaving: Leaving) -> None:
    tmp = leaving.host.tmp
    would = leaving.down(check=True)
    assert leaving.calls == []
    assert leaving.host.balancer.haproxy.version() == "v1"
    done = leaving.down()
    assert done["actions"] == would["actions"] == [
        f"stop and remove {ADDRESS_SERVICE}",
        f"stop and remove {SERVICE}",
        f"stop and remove {ROUTER_SERVICE}",
        f"stop and remove {AGENT_SERVICE}",
        *(f"remove {tmp / name}" for name in ("router", "router-pip.conf", "var", "etc")),
    ]  # fmt: skip
    assert (done["changed"], done["warnings"]) == (True, [])
    assert sorted(path.name for path in tmp.iterdir() if path.name not in ("lock", "log", "run")) == ["units"]
    assert [path.name for path in (tmp / "units").iterdir()] == ["haproxy.service"]
    assert list((tmp / "run").iterdir()) == []
    assert leaving.calls[-1] == "daemon-reload"
    assert leaving.down() == {
        "changed": False,
        "actions": [],
        "diff": {"before": "", "after": ""},
        "warnings": [],
    }


def soft_stop(there: Host) -> None:
    assert there.process
    there.process.send_signal(signal.SIGUSR1)


def listens(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


def test_running_requests_finish(leaving: Leaving) -> None:
    there = leaving.host
    clients, answers = there.post_many(2)

    def stop(command: Sequence[str], seconds: float) -> tuple[int, str]:
        if list(command[1:]) == ["stop", SERVICE]:
            eventually("the port to be closed", lambda: soft_stop(there) or not listens(there.port))
            Engine.may_go_on.set()
            eventually("HAProxy's end", lambda: there.process is None or there.process.poll() is not None)
            return 0, ""
        return leaving.run(command, seconds)

    take_down(300, False, leaving.there, stop)
    for client in clients:
        client.join(GENEROUS)
    assert all(answers)
    assert len(answers) == len(clients)
    assert not (there.tmp / "etc").exists()


def test_requests_that_do_not_end_are_a_warning(leaving: Leaving, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100000, 400))
    monkeypatch.setattr(taken, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(clock))}))
    assert leaving.down()["warnings"] == ["HAProxy still had requests after 300 s; they were ended"]


def test_what_does_not_stop_keeps_its_files(leaving: Leaving) -> None:
    """Files of a process that runs are not removed below it."""
    run = leaving.run

    def deaf(command: Sequence[str], seconds: float) -> tuple[int, str]:
        return (0, "") if "stop" in command else run(command, seconds)

    with pytest.raises(NodeError, match=f"Still running after it was stopped: {SERVICE}"):
        take_down(300, False, leaving.there, deaf)
    assert (leaving.host.tmp / "etc/current/haproxy.cfg").exists()


def test_a_failing_systemctl_names_the_command(leaving: Leaving) -> None:
    def broken(command: Sequence[str], seconds: float) -> tuple[int, str]:
        return (1, "Failed to disable unit: Access denied\n") if "disable" in command else (0, "")

    with pytest.raises(
        NodeError, match=rf"systemctl disable {ADDRESS_SERVICE} failed: .* Access denied Run again"
    ):
        take_down(300, False, leaving.there, broken)


def test_links_lead_nowhere(leaving: Leaving, tmp_path: Path) -> None:
    """What a link leads to stays, whoever made the link."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "file").write_text("x")
    os.symlink(other, leaving.host.tmp / "var/link")
    leaving.down()
    assert (other / "file").read_text() == "x"


def test_it_is_given_the_asked_time(leaving: Leaving) -> None:
    texts: list[str] = []
    limits: list[float] = []

    def noted(command: Sequence[str], seconds: float) -> tuple[int, str]:
        if list(command[1:]) == ["stop", SERVICE]:
            texts.append((leaving.host.tmp / f"run/{SERVICE}.d/soft-stop.conf").read_text())
            limits.append(seconds)
        return leaving.run(command, seconds)

    take_down(900, False, leaving.there, noted)
    assert texts == ["[Service]\nKillSignal=SIGUSR1\nTimeoutStopSec=900\n"]
    assert limits[0] > 900
