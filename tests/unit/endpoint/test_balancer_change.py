# SPDX-License-Identifier: Apache-2.0
"""How a balancer's host comes to its files: what is written and called, in which order, and what is told before."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.hashing import spec_hash
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint import converge as balancer_node
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.converge import (
    AGENT_SERVICE,
    KEPT_CONFIGURATIONS,
    ROUTER_SERVICE,
    SERVICE,
    BalancerPaths,
    converge,
    running,
)
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.haproxy_socket import Haproxy
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.serving import health

from tests.helpers.eventually import GENEROUS, patient_socket
from tests.helpers.ports import free_port
from tests.worlds.fake_haproxy import HEAD, ROW, Socket


class Node:
    """A host whose systemctl starts a HAProxy of which there is only the admin socket."""

    def __init__(self, tmp: Path) -> None:
        self.tmp, self.calls, self.failing = tmp, list[str](), dict[str, str]()
        self.places = BalancerPaths(
            str(tmp / "etc"), str(tmp / "var"), str(tmp / "units"), str(tmp / "haproxy"), str(tmp / "router"),
            str(tmp / "keepalived"),
        )  # fmt: skip
        (tmp / "units").mkdir()
        (tmp / "haproxy").touch()
        self.port = free_port()
        self.admin: Socket | None = None
        self.refuses, self.deaf, self.late = "", False, 0.0
        self.running = {"agent.pid": False, "router.pid": False}

    def run(self, command: Sequence[str]) -> tuple[int, str]:
        if command[0] != "systemctl":
            self.calls.append(f"{os.path.basename(command[0])} {command[1]}")
            return (1, self.refuses) if self.refuses else (0, "")
        words = " ".join(command[1:])
        self.calls.append(words)
        for start, said in self.failing.items():
            if words.startswith(start):
                return 1, said
        verb, name = command[1], command[-1]
        if name == SERVICE and verb in ("start", "reload") and not self.deaf:
            threading.Timer(self.late, self.say_version).start() if self.late else self.say_version()
        if name in (AGENT_SERVICE, ROUTER_SERVICE) and verb in ("start", "restart"):
            self.running["agent.pid" if name == AGENT_SERVICE else "router.pid"] = True
        return 0, ""

    def say_version(self) -> None:
        version = json.loads((self.tmp / "etc/current/balancer.json").read_text())["version"]
        if self.admin is None:
            row = ROW.format(name="n1.llama-0:8000", up=2, admin=8)
            self.admin = Socket(
                self.tmp / "var/admin.sock", {"show servers": f"{HEAD}{row}\n", "set server": "\n"}
            )
        self.admin.answers["show info"] = f"description: {version}\n"

    def texts(self, version: str = "v1", **changes: Any) -> dict[str, str]:
        server = {
            "name": "n1.llama-0:8000",
            "host": "n1",
            "instance": "llama-0",
            "address": "127.0.0.1",
            "port": 8000,
        }
        data = {
            "version": version, "listen": "127.0.0.1", "port": self.port,
            "backends": [{"name": "llama", "models": ["m"], "servers": [server]}], **changes,
        }  # fmt: skip
        files = {
            "haproxy.cfg": version,
            "balancer.json": json.dumps(data),
            "agent.py": "agent",
            "keys.map": "secret",
        }
        return {**files, "router.py": "router"} if data.get("routers") else files

    def apply(self, texts: dict[str, str]) -> tuple[list[str], list[str]]:
        """What was told, the same in check mode and in the run, and what systemctl was called with."""
        reported = converge(texts, True, self.places, self.run)
        self.calls.clear()
        done = converge(texts, False, self.places, self.run)
        assert (done["actions"], done["diff"], done["changed"]) == (
            reported["actions"],
            reported["diff"],
            reported["changed"],
        )
        return done["actions"], [call for call in self.calls if not call.startswith("haproxy ")]

    def path(self, name: str) -> str:
        return str(self.tmp / "etc/current" / name)

    def unit(self, name: str) -> str:
        return str(self.tmp / "units" / name)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "lock"))
    monkeypatch.setattr(balancer_node, "busy", lambda port: False)
    monkeypatch.setattr(health, "socket", patient_socket())
    monkeypatch.setattr(Haproxy.__init__, "__defaults__", (GENEROUS,))
    monkeypatch.setattr(balancer_node, "READ_BACK_SECONDS", GENEROUS)
    made = Node(tmp_path)
    monkeypatch.setattr(
        balancer_node, "running", lambda path, word: made.running.get(os.path.basename(path), False)
    )
    yield made
    if made.admin:
        made.admin.close()


UNITS = ["daemon-reload", f"enable {SERVICE} {AGENT_SERVICE}"]


def test_the_first_time_and_then_nothing(node: Node) -> None:
    texts = node.texts()
    assert node.apply(texts) == (
        [
            f"write {node.unit(SERVICE)}",
            f"write {node.unit(AGENT_SERVICE)}",
            *(f"write {node.path(name)}" for name in sorted(texts)),
            f"start {SERVICE}",
            f"start {AGENT_SERVICE}",
        ],
        [*UNITS, f"start {SERVICE}", f"restart {AGENT_SERVICE}"],
    )
    assert node.apply(texts) == ([], [])
    assert {name: Path(node.path(name)).read_text() for name in os.listdir(node.path(""))} == texts
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (node.tmp / "etc/current/").iterdir()}
    assert set(modes.values()) == {0o600}
    assert [stat.S_IMODE((node.tmp / name).stat().st_mode) for name in ("etc", "var")] == [0o700, 0o700]
    assert (node.tmp / "var/applied").read_text() == spec_hash(texts) + "\n"
    master = f" -Ws -S {node.tmp}/var/master.sock,mode,600,level,admin "
    assert master in Path(node.unit(SERVICE)).read_text()
    for name in (SERVICE, AGENT_SERVICE):
        text = Path(node.unit(name)).read_text()
        assert str(node.tmp / "etc/current") in text
        assert stat.S_IMODE(os.stat(node.unit(name)).st_mode) == 0o644


def test_check_mode_leaves_nothing_behind(node: Node) -> None:
    """Not even the lock, which it does not take: it waits for no run that goes on."""
    before = sorted(node.tmp.rglob("*"))
    assert converge(node.texts(), True, node.places, node.run)["changed"]
    assert sorted(node.tmp.rglob("*")) == before


def test_a_change_is_a_reload_and_secrets_are_not_shown(node: Node) -> None:
    node.apply(node.texts())
    texts = {**node.texts("v2"), "keys.map": "other secret"}
    result = converge(texts, True, node.places, node.run)
    assert [part["before_header"].rpartition("/")[2] for part in result["diff"]] == [
        "balancer.json", "haproxy.cfg", "keys.map",
    ]  # fmt: skip
    assert (result["diff"][1]["before"], result["diff"][1]["after"]) == ("v1", "v2")
    assert (result["diff"][2]["before"], result["diff"][2]["after"]) == (
        "(secret, before)\n",
        "(secret, after)\n",
    )
    assert node.apply(texts) == (
        [
            *(f"write {node.path(name)}" for name in ("balancer.json", "haproxy.cfg", "keys.map")),
            f"reload {SERVICE}",
        ],
        [f"reload {SERVICE}"],
    )
    # What was out stays out over the reload.
    row = (node.tmp / "var/servers").read_text().splitlines()[2].split()
    assert (row[1], row[3:7]) == ("llama", ["n1.llama-0:8000", "127.0.0.1", "2", "8"])


@pytest.mark.parametrize(
    ("case", "actions", "calls"),
    [
        ("agent ended", [f"start {AGENT_SERVICE}"], [f"restart {AGENT_SERVICE}"]),
        (
            "agent is newer",
            ["write {agent.py}", f"reload {SERVICE}", f"start {AGENT_SERVICE}"],
            [f"reload {SERVICE}", f"restart {AGENT_SERVICE}"],
        ),
        ("file is gone", ["write {keys.map}", f"reload {SERVICE}"], [f"reload {SERVICE}"]),
        ("file is too many", [f"reload {SERVICE}"], [f"reload {SERVICE}"]),
        ("unit was changed", ["write {unit}", f"reload {SERVICE}"], [*UNITS, f"reload {SERVICE}"]),
        (
            "agent's unit was changed",
            ["write {agent unit}", f"reload {SERVICE}", f"start {AGENT_SERVICE}"],
            [*UNITS, f"reload {SERVICE}", f"restart {AGENT_SERVICE}"],
        ),
        ("haproxy runs with another one", [f"reload {SERVICE}"], [f"reload {SERVICE}"]),
        ("haproxy ended", [f"start {SERVICE}"], [f"start {SERVICE}"]),
        (
            "a run died",
            [f"reload {SERVICE}", f"start {AGENT_SERVICE}"],
            [*UNITS, f"reload {SERVICE}", f"restart {AGENT_SERVICE}"],
        ),
    ],
)
def test_what_is_amiss(node: Node, case: str, actions: list[str], calls: list[str]) -> None:
    texts = node.texts()
    node.apply(texts)
    match case:
        case "agent ended":
            node.running["agent.pid"] = False
        case "agent is newer":
            texts["agent.py"] = "newer"
        case "file is gone":
            os.unlink(node.path("keys.map"))
        case "file is too many":
            Path(node.path("left.over")).write_text("x")
        case "unit was changed":
            Path(node.unit(SERVICE)).write_text("x")
        case "agent's unit was changed":
            Path(node.unit(AGENT_SERVICE)).write_text("x")
        case "haproxy runs with another one":
            assert node.admin
            node.admin.answers["show info"] = "description: v0\n"
        case "haproxy ended":
            assert node.admin
            node.admin.close()
            node.admin = None
            os.unlink(node.tmp / "var/admin.sock")
        case "a run died":
            (node.tmp / "var/applied").unlink()
    names = {
        "{unit}": node.unit(SERVICE),
        "{agent unit}": node.unit(AGENT_SERVICE),
    }
    for name in ("agent.py", "keys.map"):
        names[f"{{{name}}}"] = node.path(name)
    for short, path in names.items():
        actions = [action.replace(short, path) for action in actions]
    assert node.apply(texts) == (actions, calls)
    assert node.apply(texts) == ([], [])
    assert sorted(os.listdir(node.path(""))) == sorted(texts)


@pytest.mark.parametrize("changed", ["nothing", "unit", "file"])
def test_what_haproxy_may_be_reading_stays_until_it_has_the_next(
    node: Node, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """An earlier reload may go on: HAProxy ends where its directory is missing."""
    node.apply(node.texts())
    if changed == "nothing":
        (node.tmp / "var/applied").unlink()
    else:
        Path(node.unit(SERVICE) if changed == "unit" else node.path("keys.map")).write_text("x")
    present, there = os.open(node.path(""), os.O_RDONLY), list[bool]()
    run = node.run

    def watched(command: Sequence[str]) -> tuple[int, str]:
        there.append(os.fstat(present).st_nlink > 0)
        return run(command)

    monkeypatch.setattr(node, "run", watched)
    try:
        assert f"reload {SERVICE}" in node.apply(node.texts())[1]
    finally:
        os.close(present)
    assert there
    assert all(there)


def test_states_of_a_haproxy_that_ended_are_those_it_left(node: Node) -> None:
    """Rows of servers that are there, in their places; new ones are down."""
    (node.tmp / "var").mkdir()
    rows = [ROW.format(name=name, up=2, admin=8) for name in ("n1.llama-0:8000", "n9.gone-0:1")]
    (node.tmp / "var/servers").write_text(HEAD + "\n".join(rows) + "\n")
    node.apply(node.texts())
    lines = (node.tmp / "var/servers").read_text().splitlines()
    assert [line.split()[3:5] for line in lines[2:]] == [["n1.llama-0:8000", "127.0.0.1"]]
    other = Node(node.tmp / "other") if (node.tmp / "other").mkdir() is None else node
    converge(other.texts(), False, other.places, other.run)
    (row,) = (node.tmp / "other/var/servers").read_text().splitlines()[2:]
    assert row.split()[3:6] == ["n1.llama-0:8000", "127.0.0.1", "0"]  # down, until it is checked
    assert other.admin
    other.admin.close()


# ---- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("[NOTICE] x\n[ALERT] bad line\n[ALERT] worse\n[WARNING] y", "[ALERT] bad line | [ALERT] worse"),
        ("what\nelse", "what | else"),
        ("\n".join(f"[ALERT] {number}" for number in range(9)), " | ".join(f"[ALERT] {n}" for n in range(6))),
    ],
)
def test_what_haproxy_refuses_changes_nothing(node: Node, said: str, text: str) -> None:
    node.apply(node.texts())
    node.refuses = said
    for check in (True, False):
        node.calls.clear()
        with pytest.raises(NodeError) as caught:
            converge(node.texts("v2"), check, node.places, node.run)
        assert str(caught.value) == (
            f"HAProxy rejects the configuration; the running one stays in use. It reports: {text}"
        )
        assert node.calls == ["haproxy -c"]
    assert Path(node.path("haproxy.cfg")).read_text() == "v1"


@pytest.mark.parametrize("case", ["reload", "read back"])
def test_a_change_that_fails_is_taken_back(node: Node, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    node.apply(node.texts())
    monkeypatch.setattr(balancer_node, "READ_BACK_SECONDS", 0.3)
    node.calls.clear()
    if case == "reload":
        node.failing["reload"] = "first\nJob failed.\n"
        words = f"systemctl reload {SERVICE} failed: Job failed. See journalctl -u {SERVICE}."
    else:
        node.deaf = True
        words = "HAProxy does not run with the new configuration after 0 s."
    with pytest.raises(NodeError) as caught:
        converge(node.texts("v2"), False, node.places, node.run)
    assert words in str(caught.value)
    assert [call for call in node.calls if "haproxy" not in call] == [f"reload {SERVICE}"] * 2
    assert Path(node.path("haproxy.cfg")).read_text() == "v1"
    assert (node.tmp / "var/applied").read_text() == spec_hash(node.texts()) + "\n"


def test_a_haproxy_that_takes_its_time_is_waited_for(node: Node) -> None:
    """As it does with many certificates; nothing is taken back before the time is over."""
    node.apply(node.texts())
    node.calls.clear()
    node.late = 0.3
    converge(node.texts("v2"), False, node.places, node.run)
    assert [call for call in node.calls if "haproxy" not in call] == [f"reload {SERVICE}"]
    assert Path(node.path("haproxy.cfg")).read_text() == "v2"


def test_a_first_start_that_fails_is_left_to_be_looked_at(node: Node) -> None:
    node.failing["start"] = ""
    with pytest.raises(NodeError, match=f"systemctl start {SERVICE} failed: exit code 1 See journalctl"):
        converge(node.texts(), False, node.places, node.run)
    assert Path(node.path("haproxy.cfg")).read_text() == "v1"
    node.failing.clear()
    actions, _ = node.apply(node.texts())
    assert actions == [f"start {SERVICE}", f"start {AGENT_SERVICE}"]


@pytest.mark.parametrize(("listen", "bound"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("[::]", "::1"),
                                               ("[::1]", "::1")])  # fmt: skip
def test_a_port_that_another_process_has(node: Node, listen: str, bound: str) -> None:
    """It is looked at before anything is written, and only when HAProxy itself does not have it."""
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with socket.socket(family) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((bound, node.port))
        taken.listen()
        with pytest.raises(NodeError, match=rf"Port {node.port} is taken by .*\. Stop it, or set another"):
            converge(node.texts(listen=listen), False, node.places, node.run)
        assert not os.path.lexists(node.tmp / "etc/current")
    node.apply(node.texts(listen=listen))


# ---- routers -----------------------------------------------------------------------------------------


def test_routers_come_change_and_go(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    routed = {"routers": {"llama": 8410}}
    node.apply(node.texts())
    unit = node.unit(ROUTER_SERVICE)
    actions, calls = node.apply(node.texts("v2", **routed))
    assert (f"write {unit}" in actions, actions[-1]) == (True, f"start {ROUTER_SERVICE}")
    assert calls == [
        "daemon-reload", f"enable {SERVICE} {AGENT_SERVICE} {ROUTER_SERVICE}", f"reload {SERVICE}",
        f"restart {ROUTER_SERVICE}",
    ]  # fmt: skip
    assert node.admin
    server = "set server llama.router/router state"
    assert [text for text in node.admin.asked if "router" in text] == [f"{server} maint", f"{server} ready"]
    assert str(node.tmp / "router") in Path(unit).read_text()
    assert node.apply(node.texts("v2", **routed)) == ([], [])

    # A router follows balancer.json; it ends for another program only.
    assert node.apply(node.texts("v3", **routed))[1] == [f"reload {SERVICE}"]
    newer = {**node.texts("v3", **routed), "router.py": "newer"}
    assert node.apply(newer)[1] == [f"reload {SERVICE}", f"restart {ROUTER_SERVICE}"]
    node.running["router.pid"] = False
    assert node.apply(newer)[0] == [f"start {ROUTER_SERVICE}"]

    # It ends when its requests have; HAProxy does without it meanwhile.
    left = [True, True, False]
    monkeypatch.setattr(balancer_node, "busy", lambda port: left.pop(0) if port == 8410 and left else False)
    actions, calls = node.apply(node.texts("v4"))
    assert actions[-1] == f"remove {ROUTER_SERVICE}"
    assert calls == [f"reload {SERVICE}", f"disable --now {ROUTER_SERVICE}", "daemon-reload"]
    assert (left, os.path.exists(unit)) == ([], False)
    assert node.apply(node.texts("v4")) == ([], [])


def test_a_router_that_is_busy_for_too_long_is_not_waited_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.apply(node.texts("v1", routers={"llama": 8410}))
    monkeypatch.setattr(balancer_node, "ROUTER_SECONDS", 0.3)
    monkeypatch.setattr(balancer_node, "busy", lambda port: True)
    assert node.apply(node.texts("v2"))[1][-2:] == [f"disable --now {ROUTER_SERVICE}", "daemon-reload"]


ROUTED = {"routers": {"llama": 8410}}


@pytest.mark.parametrize(
    "at",
    ["daemon-reload", f"enable {SERVICE}", f"reload {SERVICE}", f"restart {AGENT_SERVICE}", f"restart {ROUTER_SERVICE}",
     "the end"],
)  # fmt: skip
def test_after_a_run_that_died_every_service_has_the_files_of_the_next(
    node: Node, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Whatever it had done by then: the programs, the configuration and the unit files of all services are newer."""
    node.apply(node.texts(**ROUTED))
    for name in (SERVICE, AGENT_SERVICE, ROUTER_SERVICE):
        Path(node.unit(name)).write_text("older")
    newer = {**node.texts("v2", **ROUTED), "agent.py": "newer", "router.py": "newer"}

    class Died(BaseException):
        """Nobody hears of it."""

    def dies(command: Sequence[str]) -> tuple[int, str]:
        if command[0] == "systemctl" and " ".join(command[1:]).startswith(at):
            raise Died
        return run(command)

    def dies_at_the_end(_change: object) -> None:
        raise Died

    run = node.run
    with monkeypatch.context() as patch:
        if at == "the end":
            patch.setattr(balancer_node._Change, "_carry_drains", dies_at_the_end)
        with pytest.raises(Died):
            converge(newer, False, node.places, dies)
    actions, calls = node.apply(newer)
    assert actions[-3:] == [f"reload {SERVICE}", f"start {AGENT_SERVICE}", f"start {ROUTER_SERVICE}"]
    assert calls == [
        "daemon-reload", f"enable {SERVICE} {AGENT_SERVICE} {ROUTER_SERVICE}", f"reload {SERVICE}",
        f"restart {AGENT_SERVICE}", f"restart {ROUTER_SERVICE}",
    ]  # fmt: skip
    assert node.apply(newer) == ([], [])


# ---- what is kept ------------------------------------------------------------------------------------


def test_some_configurations_are_kept(node: Node) -> None:
    for number in range(6):
        node.apply(node.texts(f"v{number}"))
        for at, entry in enumerate(
            sorted(os.scandir(node.tmp / "etc"), key=lambda item: item.stat().st_mtime_ns)
        ):
            os.utime(entry.path, (1000 + number * 10 + at, 1000 + number * 10 + at), follow_symlinks=False)
    there = [entry for entry in os.scandir(node.tmp / "etc") if entry.is_dir(follow_symlinks=False)]
    kept = sorted(Path(entry.path, "haproxy.cfg").read_text() for entry in there)
    assert (kept, len(kept)) == (["v5"], KEPT_CONFIGURATIONS)
    assert Path(node.path("haproxy.cfg")).read_text() == "v5"


def test_what_is_no_longer_there_is_no_longer_out(node: Node) -> None:
    (node.tmp / "var").mkdir()
    out = {
        name: {"state": "drain", "by": "operator"} for name in ("llama/n1.llama-0:8000", "llama/n9.gone-0:1")
    }
    (node.tmp / "var/out.json").write_text(json.dumps(out))
    node.apply(node.texts())
    assert list(json.loads((node.tmp / "var/out.json").read_text())) == ["llama/n1.llama-0:8000"]


@pytest.mark.parametrize(
    ("content", "word", "expected"),
    [("{pid}\n", "python", True), ("{pid}\n", "another-program", False), ("", "python", False), ("x", "python", False),
     (None, "python", False), ("999999999\n", "python", False)],
)  # fmt: skip
def test_whether_a_process_runs(tmp_path: Path, content: str | None, word: str, expected: bool) -> None:
    """That of these tests; of one just started /proc may not tell the command line yet."""
    if content is not None:
        (tmp_path / "pid").write_text(content.format(pid=os.getpid()))
    assert running(str(tmp_path / "pid"), word) is expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo out; echo err >&2; exit 3", (3, "out\nerr\n")),
        ("cat", (0, "")),
        (r"printf 'a\377b'", (0, "a\ufffdb")),
    ],
)
def test_a_program_is_heard_to_its_end(script: str, expected: tuple[int, str]) -> None:
    """Both of its streams, without an input that it could wait for, and whatever its exit code."""
    assert balancer_node.run(["sh", "-c", script]) == expected


def test_programs_beside_haproxy_have_no_power_of_roots(tmp_path: Path) -> None:
    """What parses clients' requests and instances' answers runs on the machine with the TLS key."""
    paths = BalancerPaths(units=str(tmp_path), state=str(tmp_path), haproxy="/bin/true")
    for path, text in paths.service_files(True).items():
        Path(path).write_text(text)
        alone = not path.endswith("instinct-balancer.service")  # HAProxy itself gives its power up
        lines = text.splitlines()
        wanted = (
            "CapabilityBoundingSet=",
            "NoNewPrivileges=yes",
            "ProtectSystem=strict",
            f"ReadWritePaths={tmp_path}",
        )
        assert [line in lines for line in wanted] == [alone] * 4
        if verify := shutil.which("systemd-analyze"):
            done = subprocess.run([verify, "verify", path], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
