# SPDX-License-Identifier: Apache-2.0
"""Which streams are closed for an instance that hangs, by the commands that HAProxy gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.haproxy_socket import HaproxyUnavailable
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.hung_streams import close_streams

from tests.worlds.fake_haproxy import HEAD, Socket

HUNG = "llama/n1.llama-0:8000"
ROW = "3 {backend} 1 {name} {address} {up} 0 1 1 0 15 3 2 6 22 0 0 - {port} - 0 0 - 127.0.0.1 8406\n"
STAT = "# pxname,svname,qcur,scur,check_status,last_chk,last_agt\n"
PROC = """\
#<PID>          <type>          <reloads>       <uptime>        <version>
11              master          2               0d00h02m07s     2.6
# workers
12              worker          0               0d00h00m01s     2.6
# old workers
13              worker          1               0d00h01m01s     2.6
14              worker          2               0d00h02m01s     2.6
# programs

"""
SESSIONS = """\
0x1: proto=tcpv4 src=192.0.2.7:1 fe=api be=llama srv=n1.llama-0:8000 ts=00 age=40s calls=3 exp=
0x2: proto=tcpv4 src=192.0.2.7:2 fe=api be=llama srv=n2.llama-0:8000 ts=00 age=40s calls=3 exp=
0x3: proto=tcpv4 src=192.0.2.7:3 fe=routers be=llama.n1.llama-0:8000 srv=is ts=00 age=40s calls=3 exp=
0x4: proto=tcpv4 src=192.0.2.7:4 fe=api be=llama srv=<none> ts=00 age=40s calls=3 exp=
0x5: proto=sockpair src=unix:2 fe=GLOBAL be=<NONE> srv=<none> ts=00 epoch=0 age=0s
"""


def states(up: int) -> str:
    """Two instances, and a server of another backend that tracks the first; another port of the same host."""
    rows = [
        ("llama", "n1.llama-0:8000", "192.0.2.11", 8000, up),
        ("llama", "n2.llama-0:8000", "192.0.2.12", 8000, 2),
        ("llama.n1.llama-0:8000", "is", "192.0.2.11", 8000, up),
        ("mixtral", "n1.mixtral-0:8001", "192.0.2.11", 8001, 2),
    ]
    return HEAD + "".join(
        ROW.format(backend=backend, name=name, address=address, port=port, up=state)
        for backend, name, address, port, state in rows
    )


def loads() -> str:
    rows = [
        ("llama", "n1.llama-0:8000", 3),
        ("llama", "n2.llama-0:8000", 9),
        ("llama.n1.llama-0:8000", "is", 2),
    ]
    return STAT + "".join(f"{backend},{name},0,{count},L7TOUT,,\n" for backend, name, count in rows)


Made = Callable[..., Socket]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    sockets: list[Socket] = []

    def make(name: str, answers: dict[str, str | None]) -> Socket:
        sockets.append(Socket(tmp_path / name, answers))
        return sockets[-1]

    yield make
    for item in sockets:
        item.close()


def admin(made: Made, up: int = 0) -> Socket:
    """The socket of the present process."""
    return made("admin.sock", {"show servers state": states(up), "show stat": loads()})


def changes(socket: Socket) -> list[str]:
    return [command for command in socket.asked if "show" not in command]


def test_all_servers_of_the_instance_and_no_others(tmp_path: Path, made: Made) -> None:
    present = admin(made)
    assert close_streams(str(tmp_path), HUNG) == 5
    assert changes(present) == [
        "set table agent.closed key llama/n1.llama-0:8000 data.gpc0 1",
        "shutdown sessions server llama/n1.llama-0:8000",
        "set table agent.closed key llama.n1.llama-0:8000/is data.gpc0 1",
        "shutdown sessions server llama.n1.llama-0:8000/is",
    ]


@pytest.mark.parametrize(("name", "up"), [(HUNG, 2), ("llama/n9.llama-0:8000", 0)])
def test_one_that_haproxy_has_in_service_or_does_not_know(
    tmp_path: Path, made: Made, name: str, up: int
) -> None:
    present = admin(made, up)
    assert close_streams(str(tmp_path), name) is None
    assert changes(present) == []


def test_former_processes(tmp_path: Path, made: Made) -> None:
    """They refuse commands about servers, so that each stream is closed by itself. One of them has just ended."""
    admin(made)
    master = made("master.sock", {
        "show proc;quit": PROC, "@!13 show servers state": states(2), "@!13 show sess": SESSIONS, "@!14": None,
    })  # fmt: skip
    assert close_streams(str(tmp_path), HUNG) == 5 + 2
    assert changes(master) == [
        "@!13 set table agent.closed key llama/n1.llama-0:8000 data.gpc0 1;quit",
        "@!13 set table agent.closed key llama.n1.llama-0:8000/is data.gpc0 1;quit",
        "@!13 shutdown session 0x1;quit",
        "@!13 shutdown session 0x3;quit",
    ]
    assert not any("@!12" in command for command in master.asked)


def test_without_haproxy(tmp_path: Path) -> None:
    with pytest.raises(HaproxyUnavailable):
        close_streams(str(tmp_path), HUNG)
