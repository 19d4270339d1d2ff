# SPDX-License-Identifier: Apache-2.0
"""The balancer on its host, with the real HAProxy and a systemctl of our own: change, reload, refusal, out and in."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint import converge as balancer_node
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint import drain, keepalived
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.converge import BalancerPaths, converge
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.drain import (
    ServerStateRequest,
    find_servers,
    set_state,
)
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.haproxy_socket import (
    CarriedServer,
    Haproxy,
    state_file,
)
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.installed import Balancer
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.serving import health

from tests.helpers.eventually import GENEROUS, eventually, patient_socket
from tests.helpers.ports import free_port
from tests.worlds.programs import program

ROW = "3 llama 1 n1.a:1 10.0.0.1 2 8 1 1 0 15 3 2 6 22 0 0 - 1 - 0 0 - 127.0.0.1 8406"
OLD = f"1\n# be_id …\n{ROW}\n{ROW.replace('n1.a:1', 'gone')}\n"


def carried(**servers: CarriedServer) -> list[str]:
    """The rows of a state file, after its head."""
    head, names, *found = state_file(
        OLD, {f"llama/{name}": item for name, item in servers.items()}
    ).splitlines()
    assert (head, names.split()[:3]) == ("1", ["#", "be_id", "be_name"])
    return found


def test_a_server_has_the_state_of_the_one_that_it_continues() -> None:
    same = CarriedServer("10.0.0.1", 1, "llama/n1.a:1")
    assert carried(**{"n1.a:1": same}) == [ROW]
    assert carried(other=same) == [ROW.replace("n1.a:1", "other")]
    moved = CarriedServer("10.0.0.9", 7, "llama/n1.a:1")
    assert carried(**{"n1.a:1": moved}) == [ROW.replace("10.0.0.1", "10.0.0.9").replace(" - 1 - ", " - 7 - ")]
    assert carried(**{"n1.a:1": CarriedServer("node.example", 1, "llama/n1.a:1")}) == [ROW]


@pytest.mark.parametrize(("drained", "admin"), [(False, "0"), (True, "8")])
def test_a_new_server_is_down(drained: bool, admin: str) -> None:
    (row,) = carried(new=CarriedServer("10.0.0.2", 5, "", drained))
    words = row.split()
    assert (words[1], words[3], words[4], words[18]) == ("llama", "new", "10.0.0.2", "5")
    assert (words[5], words[6]) == ("0", admin)


class Engine(BaseHTTPRequestHandler):
    """An instance that streams, and goes on after its first chunk when it may; its port tells which."""

    protocol_version = "HTTP/1.1"
    busy = 0
    may_go_on = threading.Event()

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        text = (
            f'vllm:num_requests_running{{engine="0"}} {Engine.busy}.0\n' if self.path == "/metrics" else "ok"
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(10):
            text = f"{self.server.server_port}.{number}\n".encode()  # type: ignore[attr-defined]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
            self.wfile.flush()
            Engine.may_go_on.wait(GENEROUS)
        self.wfile.write(b"0\r\n\r\n")


class Server(ThreadingHTTPServer):
    """A queue of connections that checks do not fill while this process gets no turn."""

    request_queue_size = 1024


class Connection(http.client.HTTPConnection):
    """Waits for longer than its limit: a busy machine is no reason to take an instance for one without requests."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        super().__init__(host, port, timeout=max(timeout, GENEROUS))


class Host:
    """A host with a balancer: places of its own, and systemctl as a function."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.places = BalancerPaths(
            str(tmp / "etc"), str(tmp / "var"), str(tmp / "units"), program("haproxy")
        )
        self.balancer = Balancer(str(tmp / "etc"), str(tmp / "var"))
        self.process: subprocess.Popen[bytes] | None = None
        self.calls: list[str] = []
        self.port = free_port()
        self.engines = [Server(("127.0.0.1", free_port()), Engine) for _ in range(2)]
        for engine in self.engines:
            threading.Thread(target=engine.serve_forever, daemon=True).start()
        (tmp / "units").mkdir()

    def run(self, command: Sequence[str]) -> tuple[int, str]:
        if command[0] != "systemctl":
            return balancer_node.run(command)
        self.calls.append(" ".join(command[1:]))
        if command[1:] == ["start", balancer_node.SERVICE]:
            self.process = subprocess.Popen(
                [
                    self.places.haproxy, "-Ws", "-C", self.places.current, "-f", "haproxy.cfg",
                    "-p", str(self.tmp / "var/haproxy.pid"),
                ],
                stdout=(self.tmp / "log").open("wb"), stderr=subprocess.STDOUT,
            )  # fmt: skip
        if command[1:] == ["reload", balancer_node.SERVICE]:
            assert self.process
            self.process.send_signal(signal.SIGUSR2)
        return 0, ""

    def texts(self, version: str = "v1", extra: str = "", count: int = 2) -> dict[str, str]:
        ports = [engine.server_port for engine in self.engines[:count]]
        servers = [
            {"name": f"n1.m-{i}:{p}", "host": "n1", "instance": f"m-{i}", "address": "127.0.0.1", "port": p}
            for i, p in enumerate(ports)
        ]
        data = {
            "version": version, "listen": "127.0.0.1", "port": self.port,
            "backends": [{"name": "m", "models": ["m"], "servers": servers}],
        }  # fmt: skip
        # Whoever is gone refuses at once; one slow connection is a busy machine's.
        check = "check inter 2s fastinter 100ms fall 5"
        lines = [f"    server {s['name']} {s['address']}:{s['port']} {check}" for s in servers]
        config = "\n".join([
            "global", f"    description {version}", f"    stats socket {self.tmp}/var/admin.sock mode 600 level admin",
            f"    server-state-file {self.tmp}/var/servers", "defaults", "    mode http", "    timeout connect 90s",
            "    timeout client 90s", "    timeout server 90s", "    option http-server-close",
            "    load-server-state-from-file global", "frontend f", f"    bind 127.0.0.1:{self.port}",
            "    default_backend m", "backend m", "    balance leastconn", *lines, extra, "",
        ])  # fmt: skip
        return {"haproxy.cfg": config, "balancer.json": json.dumps(data), "agent.py": "pass\n"}

    def apply(self, texts: dict[str, str], check: bool = False) -> dict[str, Any]:
        return converge(texts, check, self.places, self.run)

    def name(self, number: int) -> str:
        return f"m/n1.m-{number}:{self.engines[number].server_port}"

    def answers(self) -> bool:
        """Whether a request is answered by now; refused connections are no answer."""
        try:
            return bool(self.post())
        except (OSError, http.client.HTTPException):
            return False

    def post(self) -> str:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        link.request("POST", "/", b"x")
        return link.getresponse().read().decode()

    def post_many(self, count: int) -> tuple[list[threading.Thread], list[str]]:
        """Requests that are under way, and a list that gets their answers."""
        self.ready()
        Engine.may_go_on.clear()
        answers: list[str] = []
        clients = [threading.Thread(target=lambda: answers.append(self.post())) for _ in range(count)]
        # One by one: HAProxy's threads may choose the same server for two that come at the same time.
        for number, client in enumerate(clients, 1):
            client.start()
            eventually("the request", lambda number=number: self.running() >= number)  # type: ignore[misc]
        return clients, answers

    def ready(self) -> None:
        """Wait until all servers are in service: new ones are not before they were checked."""
        eventually("servers", lambda: all(server.up for server in self.balancer.haproxy.servers().values()))

    def running(self) -> int:
        """Requests that HAProxy counts at its servers."""
        return sum(load.running for load in self.balancer.haproxy.loads().values())

    def close(self) -> None:
        Engine.may_go_on.set()
        for engine in self.engines:
            engine.shutdown()
        if (
            self.process
        ):  # asked again, for it may be starting itself anew just now, and then does not hear it
            eventually("HAProxy's end", lambda: self.process.terminate() or self.process.poll() is not None)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "lock"))
    monkeypatch.setattr(health, "socket", patient_socket())
    monkeypatch.setattr(balancer_node, "READ_BACK_SECONDS", GENEROUS)
    monkeypatch.setattr(Haproxy.__init__, "__defaults__", (GENEROUS,))
    patient = SimpleNamespace(**{**vars(http.client), "HTTPConnection": Connection})
    monkeypatch.setattr(drain, "http", SimpleNamespace(client=patient))
    monkeypatch.setattr(Engine, "busy", 0)
    Engine.may_go_on.set()
    made = Host(tmp_path)
    yield made
    made.close()


def test_check_mode_then_once(host: Host) -> None:
    texts = host.texts()
    would = host.apply(texts, check=True)
    assert would["changed"]
    assert host.calls == []
    assert not (host.tmp / "etc").exists()

    did = host.apply(texts)
    assert did["actions"] == would["actions"]
    assert f"start {balancer_node.SERVICE}" in did["actions"]
    assert Haproxy(host.places.in_state("admin.sock")).version() == "v1"
    assert (host.tmp / "etc/current/haproxy.cfg").stat().st_mode & 0o777 == 0o600
    (host.tmp / "var/agent.pid").write_text(f"{os.getpid()}\n")
    agent = balancer_node.running
    balancer_node.running = lambda *_: True  # this process is not the agent's
    try:
        again = host.apply(texts)
    finally:
        balancer_node.running = agent
    assert (again["changed"], again["actions"]) == (False, [])


def test_the_first_configuration_is_in_service_when_it_is_done(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows in the run counts on it: another load balancer is drained, or an operator asks the model."""
    monkeypatch.setattr(balancer_node, "CHECK_SECONDS", GENEROUS)
    host.apply(host.texts())
    assert all(server.up for server in host.balancer.haproxy.servers().values())


def test_what_has_started_just_now_is_in_service_over_a_reload(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new process goes on with the states of the former one: what that had not checked would be down for longer."""
    monkeypatch.setattr(balancer_node, "CHECK_SECONDS", GENEROUS)
    host.apply(host.texts())
    host.balancer.haproxy.ask(f"set server {host.name(0)} health down")
    host.apply(host.texts("v2"))
    assert all(server.up for server in host.balancer.haproxy.servers().values())


def test_a_reload_drops_nothing_and_keeps_what_is_out(host: Host) -> None:
    host.apply(host.texts())
    set_state(host.balancer, ServerStateRequest((host.name(0),), "drain", "operator", 0), False)
    clients, answers = host.post_many(8)
    done = host.apply(host.texts("v2"))
    assert f"reload {balancer_node.SERVICE}" in done["actions"]
    assert answers == []
    Engine.may_go_on.set()
    for client in clients:
        client.join()
    port = host.engines[1].server_port
    assert [answer.split() for answer in answers] == [[f"{port}.{n}" for n in range(10)]] * 8
    assert host.balancer.haproxy.servers()[host.name(0)].state == "drain"
    assert (
        len([entry for entry in (host.tmp / "etc").iterdir() if entry.is_dir() and not entry.is_symlink()])
        == 1
    )


def test_what_haproxy_refuses_is_never_in_use(host: Host) -> None:
    host.apply(host.texts())
    with pytest.raises(NodeError, match=r"rejects the configuration; the running one stays in use.*nonsense"):
        host.apply(host.texts("v2", "    nonsense"))
    assert host.balancer.haproxy.version() == "v1"
    assert "description v1" in (host.tmp / "etc/current/haproxy.cfg").read_text()
    eventually("an answer", host.answers)  # the reload that takes it back is not waited for


def test_a_configuration_that_does_not_come_up_is_taken_back(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.apply(host.texts())
    monkeypatch.setattr(balancer_node, "READ_BACK_SECONDS", 3.0)  # that it does not come up
    busy = f"listen other\n    bind 127.0.0.1:{host.engines[0].server_port}"  # valid, and the port is taken
    with pytest.raises(NodeError, match="does not run with the new configuration"):
        host.apply(host.texts("v2", busy))
    assert "description v1" in (host.tmp / "etc/current/haproxy.cfg").read_text()
    eventually("an answer", host.answers)  # the reload that takes it back is not waited for


def test_a_port_that_is_taken(host: Host) -> None:
    host.port = host.engines[0].server_port
    with pytest.raises(NodeError, match=rf"Port {host.port} is taken by pid {os.getpid()} "):
        host.apply(host.texts())


@pytest.fixture
def address(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A keepalived that can be told to refuse, and that systemctl starts and ends; its process' file."""
    program, pid_file = tmp_path / "keepalived", tmp_path / "keepalived.pid"
    program.write_text('#!/bin/sh\n! grep nonsense "$3"\n')
    program.chmod(0o755)
    monkeypatch.setattr(keepalived, "PID_FILE", str(pid_file))
    monkeypatch.setattr(keepalived, "START_SECONDS", GENEROUS)
    host.places = dataclasses.replace(host.places, keepalived=str(program))
    process = subprocess.Popen(["keepalived", "3600"], executable="/bin/sleep")
    command = Path(f"/proc/{process.pid}/cmdline")  # of one just started it may not be there yet
    eventually("the command line", lambda: command.read_bytes().startswith(b"keepalived"))
    before = host.run

    def run(command: Sequence[str]) -> tuple[int, str]:
        if list(command[1:]) == ["start", keepalived.SERVICE]:
            pid_file.write_text(f"{process.pid}\n")
        return before(command)

    monkeypatch.setattr(host, "run", run)
    yield pid_file
    process.kill()
    process.wait()


def test_a_virtual_address_comes_changes_and_goes(host: Host, address: Path) -> None:
    service = keepalived.SERVICE
    host.apply(host.texts())
    unit = host.tmp / "units" / service
    assert not unit.exists()

    def reported(texts: dict[str, str]) -> list[str]:
        would = host.apply(texts, check=True)["actions"]
        host.calls.clear()
        assert host.apply(texts)["actions"] == would
        return [action for action in would if service in action]

    assert reported({**host.texts(), "keepalived.conf": "a"}) == [f"write {unit}", f"start {service}"]
    assert any(call.startswith("enable ") and service in call for call in host.calls)
    assert f"--use-file {host.places.current}/keepalived.conf" in unit.read_text()
    assert reported({**host.texts(), "keepalived.conf": "b"}) == [f"reload {service}"]
    with pytest.raises(NodeError, match="keepalived rejects the configuration"):
        host.apply({**host.texts(), "keepalived.conf": "nonsense"})
    assert (host.tmp / "etc/current/keepalived.conf").read_text() == "b"
    address.unlink()
    assert reported({**host.texts(), "keepalived.conf": "b"}) == [f"start {service}"]
    assert reported(host.texts()) == [f"remove {service}"]
    assert f"disable --now {service}" in host.calls
    assert not unit.exists()
    assert not (host.tmp / "etc/current/keepalived.conf").exists()
    assert reported(host.texts()) == []


def test_a_keepalived_that_ends_at_once_is_told(
    host: Host, address: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepalived, "START_SECONDS", 0.5)
    monkeypatch.setattr(host, "run", Host.run.__get__(host))
    with pytest.raises(NodeError, match=r"keepalived does not run 0 s after its start"):
        host.apply({**host.texts(), "keepalived.conf": "a"})


def test_out_waits_for_running_requests(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.apply(host.texts())
    clients, answers = host.post_many(4)
    seen: list[tuple[str, int]] = []

    def sleep(seconds: float) -> None:
        """Between two looks: the requests go on after the first one."""
        now, load = host.balancer.haproxy.servers()[host.name(0)], host.balancer.haproxy.loads()[host.name(0)]
        seen.append((now.state, load.running))
        Engine.may_go_on.set()
        time.sleep(seconds)

    monkeypatch.setattr(drain, "time", SimpleNamespace(**{**vars(time), "sleep": sleep}))
    done = set_state(host.balancer, ServerStateRequest((host.name(0),), "drain", "run", GENEROUS), False)
    assert seen[0] == ("drain", 2)  # half of them, with which it is not done
    assert done["servers"][0]["requests"] == 0
    for client in clients:
        client.join()
    assert all(len(answer.split()) == 10 for answer in answers)
    assert host.post().startswith(str(host.engines[1].server_port))
    record = json.loads((host.tmp / "var/out.json").read_text())
    assert (record[host.name(0)]["state"], record[host.name(0)]["by"]) == ("drain", "run")
    assert (
        set_state(host.balancer, ServerStateRequest((host.name(0),), "drain", "run", 10), False)["changed"]
        is False
    )
    back = set_state(host.balancer, ServerStateRequest((host.name(0),), "ready", "run", GENEROUS), False)
    assert (back["changed"], back["servers"][0]["up"]) == (True, True)
    assert json.loads((host.tmp / "var/out.json").read_text()) == {}


def test_requests_that_only_the_instance_counts(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "busy", 2)
    host.apply(host.texts())
    done = set_state(host.balancer, ServerStateRequest((host.name(0),), "drain", "operator", 1), False)
    assert done["warnings"] == [f"{host.name(0)} still has 2 requests after 1 s"]


def test_a_run_leaves_what_the_operator_took_out(host: Host) -> None:
    host.apply(host.texts())
    set_state(host.balancer, ServerStateRequest((host.name(0),), "drain", "operator", 1), False)
    assert (
        set_state(host.balancer, ServerStateRequest((host.name(0),), "ready", "run", 1), False)["changed"]
        is False
    )
    assert host.balancer.haproxy.servers()[host.name(0)].state == "drain"
    assert (
        set_state(host.balancer, ServerStateRequest((host.name(0),), "ready", "operator", GENEROUS), False)[
            "changed"
        ]
        is True
    )


def test_an_instance_that_does_not_come_in(host: Host) -> None:
    host.apply(host.texts())
    set_state(host.balancer, ServerStateRequest((host.name(0),), "drain", "operator", 0), False)
    host.engines[0].shutdown()
    host.engines[0].server_close()
    eventually("failed checks", lambda: not host.balancer.haproxy.servers()[host.name(0)].up)
    # With a star while the next check is under way.
    with pytest.raises(NodeError, match=r"Not in service after 1 s: m/n1.m-0:\d+ \((\* )?L4CON"):
        set_state(host.balancer, ServerStateRequest((host.name(0),), "ready", "operator", 1), False)


def test_selection(host: Host) -> None:
    host.apply(host.texts())
    assert find_servers(host.balancer, hosts=["n1"], deployment=None, instance="m-1") == (host.name(1),)
    assert find_servers(host.balancer, hosts=None, deployment="m", instance=None) == (
        host.name(0),
        host.name(1),
    )
    assert find_servers(host.balancer, hosts=["n1"], instances=["m-1", "gone"]) == (host.name(1),)
    assert find_servers(host.balancer, instances=[], optional=True) == ()
    assert find_servers(Balancer(str(host.tmp / "none")), optional=True) == ()
    with pytest.raises(NodeError, match=r"No load balancer server matches. Servers: m/n1.m-0"):
        find_servers(host.balancer, hosts=["n2"], deployment=None, instance=None)
    with pytest.raises(NodeError, match="has no server m/nope"):
        set_state(host.balancer, ServerStateRequest(("m/nope",), "drain", "operator", 0), False)
