# SPDX-License-Identifier: Apache-2.0
"""The admin socket of a HAProxy that answers, does not, or hangs up; and who depends on it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint import converge as balancer_change
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint import drain
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.converge import BalancerPaths, converge
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.drain import (
    ServerStateRequest,
    engine_requests,
    find_servers,
    set_state,
)
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.haproxy_socket import (
    PAUSES,
    Haproxy,
    HaproxyUnavailable,
    ServerLoad,
    ServerState,
    rows,
)
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.installed import Balancer, DrainRecord
from ansible_collections.instinct.fleet.plugins.module_utils.host.status import StatusPaths, read_node

from tests.helpers.eventually import GENEROUS
from tests.worlds.fake_haproxy import HEAD, ROW, Socket

STAT = (
    "# pxname,svname,qcur,scur,check_status,last_chk,last_agt\n"
    "llama,n1.llama-0:8000,2,3,L7OK,OK,up\n"
    "llama,n1.llama-1:8001,,,L4CON,,\n"
)
SERVERS = {"name": "n1.llama-0:8000", "host": "n1", "instance": "llama-0", "address": "127.0.0.1", "port": 1}
NAME = "llama/n1.llama-0:8000"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers may take as long as a busy machine makes it."""
    monkeypatch.setattr(Haproxy.__init__, "__defaults__", (GENEROUS,))


@contextlib.contextmanager
def admin(path: Path, **answers: str | None) -> Iterator[Socket]:
    made = Socket(path, {name.replace("_", " "): text for name, text in answers.items()})
    try:
        yield made
    finally:
        made.close()


def test_what_it_says(tmp_path: Path) -> None:
    text = HEAD + "".join(
        ROW.format(name=f"s{number}", up=up, admin=admin_state) + "\n"
        for number, (up, admin_state) in enumerate(((2, 0), (0, 0), (2, 8), (2, 1), (2, 9), (2, 32)))
    )
    with admin(
        tmp_path / "s", show_info="Name: HAProxy\ndescription: v7: x\n", show_servers=text, show_stat=STAT
    ):
        haproxy = Haproxy(str(tmp_path / "s"), GENEROUS)
        assert haproxy.version() == "v7: x"
        assert list(haproxy.servers().values()) == [
            ServerState("llama/s0", "ready", True),
            ServerState("llama/s1", "ready", False),
            ServerState("llama/s2", "drain", True),
            ServerState("llama/s3", "maint", True),
            ServerState("llama/s4", "maint", True),
            ServerState("llama/s5", "ready", True),
        ]
        assert haproxy.loads() == {
            "llama/n1.llama-0:8000": ServerLoad(3, 2, "L7OK OK up"),
            "llama/n1.llama-1:8001": ServerLoad(0, 0, "L4CON"),
        }


def test_rows_that_are_none() -> None:
    assert rows(HEAD) == rows("") == rows("1\n") == rows(f"{HEAD}3 llama 1 cut off\n") == []


def test_states_are_set_or_refused_in_its_words(tmp_path: Path) -> None:
    with admin(tmp_path / "s", set_server_a="\n", set_server_b="No such server.\n") as reported:
        haproxy = Haproxy(str(tmp_path / "s"), GENEROUS)
        haproxy.set_state("a/b", "drain")
        with pytest.raises(NodeError, match=r"HAProxy refuses to set b/c to maint: No such server\."):
            haproxy.set_state("b/c", "maint")
    assert reported.asked == ["set server a/b state drain", "set server b/c state maint"]


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        ("never started", "No such file or directory"),
        ("ended", "Connection refused"),
        ("hangs", "timed out"),
    ],
)
def test_nobody_answers(tmp_path: Path, moment: str, text: str) -> None:
    path = tmp_path / "s"
    answers: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if moment != "never started":
        answers = admin(path, show="")
    with answers:
        if moment == "ended":
            with admin(tmp_path / "t"):
                pass
            path = tmp_path / "t"
        haproxy = Haproxy(str(path), 0.2)
        with pytest.raises(HaproxyUnavailable) as caught:
            haproxy.servers()
        assert str(caught.value) == (
            f"HAProxy does not answer at {path} ({text}). Check systemctl status instinct-balancer, and run site.yml "
            "again."
        )
        assert haproxy.version() == ""


def test_one_that_hangs_up(tmp_path: Path) -> None:
    with admin(tmp_path / "s", show=None):
        haproxy = Haproxy(str(tmp_path / "s"), GENEROUS)
        assert haproxy.version() == ""
        for ask in (haproxy.servers, haproxy.loads):
            with pytest.raises(
                HaproxyUnavailable, match=r"HAProxy hung up at .* without an answer to 'show s"
            ):
                ask()


@pytest.mark.parametrize("leaves", [1, len(PAUSES) - 1])
def test_one_that_is_being_replaced(tmp_path: Path, leaves: int) -> None:
    """Right after a reload, the process that ends may take a connection."""
    text = "description: v7\n"
    made = Socket(tmp_path / "s", {"show info": text, "show stat": STAT}, leaves)
    try:
        haproxy = Haproxy(str(tmp_path / "s"), GENEROUS)
        assert haproxy.version() == "v7"
        made.leaves = leaves
        assert len(haproxy.loads()) == 2
    finally:
        made.close()


# ---- who depends on it -------------------------------------------------------------------------------


@pytest.fixture
def balancer(tmp_path: Path) -> Balancer:
    current = tmp_path / "etc/balancer/current"
    current.mkdir(parents=True)
    (current / "balancer.json").write_text(
        json.dumps({"backends": [{"name": "llama", "servers": [SERVERS]}]})
    )
    (tmp_path / "var/balancer").mkdir(parents=True)
    return Balancer(str(tmp_path / "etc/balancer"), str(tmp_path / "var/balancer"))


def seen(tmp_path: Path) -> dict[str, object]:
    """The load balancer as the status has it."""
    none = str(tmp_path / "none.sock")  # no Docker
    found = read_node(StatusPaths(str(tmp_path / "etc"), str(tmp_path / "var"), none, 0))
    assert found["problems"] == []
    return dict(found["balancer"])


LISTED = {"name": NAME, "host": "n1", "instance": "llama-0", "deployment": "llama"}
NOTHING = {**LISTED, "state": "", "up": False, "check": "", "requests": 0}


def test_status_of_one_that_answers(tmp_path: Path, balancer: Balancer) -> None:
    out = {NAME: {"state": "drain", "by": "operator", "since": "2026-11-21T19:00:00Z"}}
    row = ROW.format(name="n1.llama-0:8000", up=2, admin=8)
    path = tmp_path / "var/balancer/admin.sock"
    with admin(path, show_servers=f"{HEAD}{row}\n", show_stat=STAT):
        listed = {**LISTED, "state": "drain", "up": True, "check": "L7OK OK up", "requests": 5}
        assert seen(tmp_path) == {"error": "", "servers": [{**listed, "out": None}]}
        balancer.drain_record.write(out)
        assert seen(tmp_path) == {"error": "", "servers": [{**listed, "out": out[NAME]}]}


@pytest.mark.parametrize(
    ("servers", "stat"),
    [
        (f"{HEAD}\n", STAT),
        (f"{HEAD}{ROW.format(name='x', up=2, admin=0)}\n", STAT),
        (HEAD, "# pxname,svname\n"),
    ],
)
def test_status_of_one_that_does_not_know_a_server(
    tmp_path: Path, balancer: Balancer, servers: str, stat: str
) -> None:
    """It has not read yet what was written last: the server is told without figures."""
    with admin(tmp_path / "var/balancer/admin.sock", show_servers=servers, show_stat=stat):
        assert seen(tmp_path) == {"error": "", "servers": [{**NOTHING, "out": None}]}


def test_status_of_one_that_hangs(
    tmp_path: Path, balancer: Balancer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Haproxy.__init__, "__defaults__", (0.2,))  # seconds
    with admin(tmp_path / "var/balancer/admin.sock", show=""):
        found = seen(tmp_path)
    assert "HAProxy does not answer" in str(found["error"])
    assert "(timed out)" in str(found["error"])
    assert found["servers"] == [NOTHING]


def test_nothing_is_noted_as_out_when_nobody_answers(
    balancer: Balancer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ansible_collections.instinct.fleet.plugins.module_utils.leases.run_lock.LOCK_DIR",
        f"{balancer.state}/lock",
    )
    with pytest.raises(HaproxyUnavailable):
        set_state(balancer, ServerStateRequest((NAME,), "drain", "run", 0), False)
    assert balancer.drain_record.read() == {}
    assert find_servers(balancer, deployment="llama") == (NAME,)


def test_a_refusal_leaves_the_record_for_whoever_mends_it(
    tmp_path: Path, balancer: Balancer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the record, then HAProxy: a run that is cut off between them is found."""
    monkeypatch.setattr(
        "ansible_collections.instinct.fleet.plugins.module_utils.leases.run_lock.LOCK_DIR",
        f"{balancer.state}/lock",
    )
    row = ROW.format(name="n1.llama-0:8000", up=2, admin=0)
    path = tmp_path / "var/balancer/admin.sock"
    with admin(path, show_servers=f"{HEAD}{row}\n", set_server="Require 'admin' level.\n"):
        with pytest.raises(NodeError, match="refuses to set"):
            set_state(balancer, ServerStateRequest((NAME,), "drain", "run", 0), False)
        assert {name: item["by"] for name, item in balancer.drain_record.read().items()} == {NAME: "run"}
        assert set(balancer.drain_record.read()[NAME]) == {"state", "by", "since"}
        # Of a run it also says which one, and what it was about.
        ours = ServerStateRequest((NAME,), "drain", "run", 0, run="boot/1", command="benchmark.yml")
        with pytest.raises(NodeError, match="refuses to set"):
            set_state(balancer, ours, False)
        noted = balancer.drain_record.read()[NAME]
        assert (noted["run"], noted["command"]) == ("boot/1", "benchmark.yml")
    # Taken in is what HAProxy took in, and not before.
    path.unlink()
    row = ROW.format(name="n1.llama-0:8000", up=2, admin=8)
    with (
        admin(path, show_servers=f"{HEAD}{row}\n", set_server="Require 'admin' level.\n"),
        pytest.raises(NodeError, match="refuses to set"),
    ):
        set_state(balancer, ServerStateRequest((NAME,), "ready", "run", 0), False)
    assert list(DrainRecord(f"{balancer.state}/out.json").read()) == [NAME]


@pytest.mark.parametrize(
    ("by", "run", "noted"),
    [("run", "boot/1/100/7", "boot/1/100/7"), ("operator", "boot/1/100/7", None), ("run", "", None)],
)
def test_the_record_names_the_run_that_drained(
    tmp_path: Path,
    balancer: Balancer,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
    run: str,
    noted: str | None,
) -> None:
    """Other runs leave such a server out while that run goes on; what the operator drained stays out anyway."""
    monkeypatch.setattr(
        "ansible_collections.instinct.fleet.plugins.module_utils.leases.run_lock.LOCK_DIR",
        f"{balancer.state}/lock",
    )
    row = ROW.format(name="n1.llama-0:8000", up=2, admin=0)
    path = tmp_path / "var/balancer/admin.sock"
    with admin(path, show_servers=f"{HEAD}{row}\n", set_server="\n", show_stat=STAT):
        set_state(balancer, ServerStateRequest((NAME,), "drain", by, 0, run=run), False)
    assert balancer.drain_record.read()[NAME].get("run") == noted


def test_one_that_hangs_up_while_requests_end(
    tmp_path: Path, balancer: Balancer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAProxy is stopped between two looks: that is told as such."""
    monkeypatch.setattr(
        "ansible_collections.instinct.fleet.plugins.module_utils.leases.run_lock.LOCK_DIR",
        f"{balancer.state}/lock",
    )
    row = ROW.format(name="n1.llama-0:8000", up=2, admin=0)
    path = tmp_path / "var/balancer/admin.sock"
    with (
        admin(path, show_servers=f"{HEAD}{row}\n", set_server="\n", show_stat=None),
        pytest.raises(HaproxyUnavailable, match="HAProxy hung up"),
    ):
        set_state(balancer, ServerStateRequest((NAME,), "drain", "run", 5), False)
    assert list(balancer.drain_record.read()) == [NAME]


def test_check_mode_asks_and_touches_nothing(tmp_path: Path, balancer: Balancer) -> None:
    row = ROW.format(name="n1.llama-0:8000", up=2, admin=0)
    with admin(tmp_path / "var/balancer/admin.sock", show_servers=f"{HEAD}{row}\n") as reported:
        found = set_state(balancer, ServerStateRequest((NAME,), "drain", "run", 0), True)
    assert (found["changed"], found["actions"]) == (True, [f"set server {NAME} state drain"])
    assert found["diff"] == [
        {"before_header": NAME, "after_header": NAME, "before": "ready\n", "after": "drain\n"}
    ]
    assert reported.asked == ["show servers state"]
    assert balancer.drain_record.read() == {}


def test_one_that_hangs_up_before_a_reload_is_not_reloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its word on which servers are out, a reload would take them all in."""
    monkeypatch.setattr(
        "ansible_collections.instinct.fleet.plugins.module_utils.leases.run_lock.LOCK_DIR",
        str(tmp_path / "lock"),
    )
    places = BalancerPaths(
        str(tmp_path / "etc"), str(tmp_path / "var"), str(tmp_path / "units"), str(tmp_path / "none")
    )
    (tmp_path / "var").mkdir()
    (tmp_path / "var/servers").write_text("1\nkept\n")
    data = {"version": "v2", "listen": "127.0.0.1", "port": 1, "backends": []}
    texts = {"haproxy.cfg": "", "balancer.json": json.dumps(data), "agent.py": ""}
    called: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> tuple[int, str]:
        called.append(command)
        return 0, ""

    with (
        admin(tmp_path / "var/admin.sock", show_info="description: v1\n", show_servers=None),
        pytest.raises(HaproxyUnavailable, match="hung up"),
    ):
        converge(texts, False, places, run)
    assert called == []
    assert (tmp_path / "var/servers").read_text() == "1\nkept\n"
    assert not (tmp_path / "etc/current").exists()


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ('vllm:num_requests_running 2\nvllm:num_requests_waiting{engine="0"} 3.0\nother 9\n', 5),
        ("vllm:num_requests_running 1e999\n", 0),
        ("vllm:num_requests_running ...\n", 0),
        ("", 0),
    ],
)
def test_what_an_instance_counts_itself(page: str, count: int) -> None:
    assert counted(page) == count


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fill the memory of the load balancer's host."""
    monkeypatch.setattr(drain, "ANSWER_BYTES", 1000)
    page = "vllm:num_requests_running 2\n"
    assert (counted(page + "x" * 2000), counted("x" * 1000 + "\n" + page)) == (2, 0)


def counted(page: str) -> int:
    """What an instance with this page of metrics counts."""

    class Metrics(BaseHTTPRequestHandler):
        def log_message(self, *_args: object) -> None: ...

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page.encode())

    with HTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        return engine_requests("127.0.0.1", server.server_address[1])


def test_a_program_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """As systemctl may, and then the way back still has to be gone."""
    monkeypatch.setattr(balancer_change, "RUN_SECONDS", 0.1)
    assert balancer_change.run(["sleep", "60"]) == (124, "It did not end within 0.1 s.")
