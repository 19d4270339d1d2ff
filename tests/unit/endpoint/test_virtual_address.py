# SPDX-License-Identifier: Apache-2.0
"""The address that load balancers share: what it needs, who announces it where; and keepalived's own word on it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import Problem
from ansible_collections.instinct.fleet.plugins.module_utils.common.module_main import NodeError
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.converge import run
from ansible_collections.instinct.fleet.plugins.module_utils.endpoint.keepalived import (
    PID_FILE,
    KeepalivedService,
)
from ansible_collections.instinct.fleet.plugins.module_utils.observe.balancer import read_balancer
from ansible_collections.instinct.fleet.plugins.module_utils.observe.source import Source
from ansible_collections.instinct.fleet.plugins.module_utils.programs import keepalived_check
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.desired.endpoint_settings import (
    BalancerHost,
    VirtualAddress,
    balancer_host,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.certificate import self_signed
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.plan import (
    BalancerPlan,
    EndpointAssets,
    EndpointInputs,
    plan_balancers,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.endpoint.secrets import load_secrets
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.instances.render import (
    template_renderer,
)

from tests import ROOT
from tests.helpers.eventually import GENEROUS
from tests.worlds.programs import program

ADDRESS, ROUTER = "load_balancer_virtual_address", "load_balancer_virtual_router_id"
VIRTUAL = "192.0.2.100/24"
FOUND = {
    "installed": True, "keepalived": True, "running": False,
    "files": {}, "applied": None, "config": None, "out": None,
}  # fmt: skip


def draw(name: str) -> Any:
    return template_renderer((ROOT / "templates" / name).read_text(encoding="utf-8"))


def host(
    name: str = "lb1", address: str = "192.0.2.1", seen: bool = True, absent: str = "", **changes: Any
) -> BalancerHost:
    """A balancer's host; in changes: variables, and of what was found balancer, interfaces and os."""
    state = {
        "os": {"id": changes.pop("os", "debian")},
        "balancer": {**FOUND, **changes.pop("balancer", {})},
        "interfaces": changes.pop(
            "interfaces",
            [
                {"name": "mgmt", "addresses": ["198.51.100.9"]},
                {"name": "ens1", "addresses": ["2001:db8::1", "192.0.2.1", "192.0.2.2", "192.0.2.3"]},
            ],
        ),
    }
    variables = {"ansible_host": address, ADDRESS: VIRTUAL, **changes}
    made, problems = balancer_host(name, variables, state if seen and not absent else None, absent)
    assert problems == ()
    return made


def planned(*hosts: BalancerHost) -> tuple[tuple[BalancerPlan, ...], tuple[Problem, ...]]:
    assets = EndpointAssets(
        draw("haproxy.cfg.j2"), "agent\n", draw_address=draw("keepalived.conf.j2"), check="check\n"
    )
    plans, problems, _ = plan_balancers(EndpointInputs(hosts, frozenset(), assets), [])
    return plans, problems


def lines(plan: BalancerPlan) -> list[str]:
    return [line.strip() for line in plan.files["keepalived.conf"].splitlines()]


def test_two_balancers_share_it() -> None:
    (first, second), problems = planned(host(), host("lb2", "192.0.2.2"))
    assert problems == ()
    assert (first.url, second.url) == ("https://192.0.2.100:8443",) * 2
    mine, other = lines(first), lines(second)
    assert [line for line in mine if line not in other] == [
        "priority 200",
        "unicast_src_ip 192.0.2.1",
        "192.0.2.2",
    ]
    assert [line for line in other if line not in mine] == [
        "priority 199",
        "unicast_src_ip 192.0.2.2",
        "192.0.2.1",
    ]
    assert {"interface ens1", "virtual_router_id 100", "192.0.2.100/24", "nopreempt"} <= set(mine)
    assert first.files["alive.py"] == first.files_before["alive.py"] == "check\n"
    assert first.files_before["keepalived.conf"] == first.files["keepalived.conf"]
    assert first.warnings == second.warnings == ()


def test_a_balancer_that_is_not_in_this_run_is_still_a_peer() -> None:
    plans, problems = planned(
        host(), host("lb2", "192.0.2.2", absent="not in --limit"), host("lb3", "192.0.2.3")
    )
    assert problems == ()
    assert [plan.host.name for plan in plans] == ["lb1", "lb3"]
    assert {"192.0.2.2", "192.0.2.3"} <= set(lines(plans[0]))
    assert "priority 198" in lines(plans[1])


def test_none_is_wanted() -> None:
    (plan,), problems = planned(host(**{ADDRESS: ""}, balancer={"keepalived": False}))
    assert problems == ()
    assert "keepalived.conf" not in plan.files
    assert plan.url == "https://192.0.2.1:8443"
    assert plan.packages == ()


def test_one_balancer_gains_nothing() -> None:
    (plan,), _ = planned(host())
    assert [text for text in plan.warnings if "is useless with a single load balancer" in text]
    assert "unicast_peer {" not in lines(plan)


def test_before_a_host_was_looked_at_its_interface_is_not_known() -> None:
    plans, problems = planned(host(seen=False), host("lb2", "192.0.2.2", seen=False))
    assert problems == ()
    assert "keepalived.conf" not in plans[0].files
    assert [action.target for action in plans[0].actions] == ["haproxy", "keepalived", plans[0].url]


def test_what_the_host_lacks() -> None:
    lacking = {"keepalived": False}
    (plan, _), problems = planned(host(balancer=lacking), host("lb2", "192.0.2.2"))
    assert (plan.packages, problems) == (("keepalived",), ())
    assert (plan.actions[0].target, plan.actions[0].reason) == (
        "keepalived",
        "it moves 192.0.2.100 between the load balancers",
    )
    _, problems = planned(host(balancer=lacking, os="rocky"), host("lb2", "192.0.2.2"))
    assert [str(problem.what) for problem in problems] == [
        "has no keepalived, and the toolkit cannot install packages on rocky."
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {ADDRESS: ""}, "not the same on all load balancers: lb1 192.0.2.100/24 (router id 100), lb2 has none"),
        ({}, {ROUTER: 7}, "lb2 192.0.2.100/24 (router id 7)"),
        ({"address": "198.51.100.9"}, {}, "its address 198.51.100.9 is not in 192.0.2.0/24"),
        ({"address": "lb1.example"}, {}, "its address lb1.example is not in 192.0.2.0/24"),
        ({"address": "192.0.2.100"}, {}, "192.0.2.100 is the host's own address"),
        ({"address": "192.0.2.50"}, {}, "its address 192.0.2.50 is on none of its interfaces (mgmt 198.51.100.9, ens1"),
        ({"interfaces": []}, {}, "is on none of its interfaces (none is known)"),
        ({"load_balancer_listen": "192.0.2.1"}, {}, "is 192.0.2.1: HAProxy would not accept connections"),
        # Also of one that this run leaves alone.
        ({}, {"address": "198.51.100.7", "absent": "gone"}, "its address 198.51.100.7 is not in 192.0.2.0/24"),
    ],
)  # fmt: skip
def test_what_cannot_work(first: dict[str, Any], second: dict[str, Any], expected: str) -> None:
    _, problems = planned(host(**first), host("lb2", **{"address": "192.0.2.2", **second}))
    assert len(problems) == 1
    assert expected in problems[0].what
    assert problems[0].fix


@pytest.mark.parametrize(
    ("virtual", "own", "listen", "works"),
    [
        ("192.0.2.100/24", "192.0.2.1", "0.0.0.0", True),
        ("192.0.2.100/24", "192.0.2.1", "::", True),
        ("2001:db8::100/64", "2001:db8::1", "::", True),
        ("2001:db8::100/64", "2001:db8::1", "0.0.0.0", False),
    ],
)
def test_haproxy_listens_there(virtual: str, own: str, listen: str, works: bool) -> None:
    one = host(address=own, load_balancer_listen=listen, **{ADDRESS: virtual})
    assert (planned(one)[1] == ()) is works


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({ADDRESS: "10.0.0.100/24"}, VirtualAddress("10.0.0.100/24", 100)),
        ({ADDRESS: "10.0.0.100/24", ROUTER: 51}, VirtualAddress("10.0.0.100/24", 51)),
        ({ADDRESS: "10.0.1.0/16"}, VirtualAddress("10.0.1.0/16", 255)),
        ({ADDRESS: "2001:db8::5/64"}, VirtualAddress("2001:db8::5/64", 5)),
        ({ADDRESS: "10.0.0.100/32"}, VirtualAddress("10.0.0.100/32", 100)),
        ({}, None),
        ({ADDRESS: "10.0.0.100"}, "'10.0.0.100' is not an address with a prefix length"),
        ({ADDRESS: "lb.example/24"}, "is not an address with a prefix length"),
        ({ADDRESS: 10}, "is not an address with a prefix length"),
        ({ADDRESS: "10.0.0.0/24"}, "10.0.0.0 stands for all of 10.0.0.0/24"),
        ({ADDRESS: "10.0.0.255/24"}, "10.0.0.255 stands for all of"),
        ({ADDRESS: "10.0.0.100/24", ROUTER: 256}, "256"),
        ({ROUTER: -1}, "-1"),
    ],
)
def test_variables(variables: dict[str, Any], expected: Any) -> None:
    made, problems = balancer_host("lb", {"ansible_host": "10.0.0.1", **variables}, None, "")
    if isinstance(expected, str):
        assert len(problems) == 1
        assert expected in str(problems[0])
    else:
        assert (made.settings.virtual, problems) == (expected, ())


def test_a_certificate_is_made_for_it_and_an_older_one_is_told(tmp_path: Path) -> None:
    def texts() -> tuple[str, ...]:
        made = load_secrets([host()], tmp_path, True, lambda path: path.read_text(), yaml.safe_load)
        return made["lb1"].warnings

    assert texts() == ()
    path = tmp_path / ".secrets/endpoint.pem"
    names = subprocess.run(
        ["openssl", "x509", "-in", str(path), "-noout", "-ext", "subjectAltName"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "IP Address:192.0.2.100," in names
    older = self_signed(["192.0.2.1"])
    path.write_text(older)
    assert len(texts()) == 1
    assert "endpoint.pem does not cover 192.0.2.100" in texts()[0]
    assert path.read_text() == older


# --- keepalived itself ---------------------------------------------------------------------------------


def real_interface() -> str:
    """Keepalived refuses interfaces that are not there, and loopback."""
    names = sorted(os.listdir("/sys/class/net"))
    return next(name for name in names if name.startswith(("eth", "en", "wl", "docker")))


@pytest.fixture
def keeper(tmp_path: Path) -> KeepalivedService:
    place = str(tmp_path)
    return KeepalivedService(place, place, lambda *_: None, lambda _: True, program("keepalived"))


@pytest.mark.parametrize("peers", [0, 1, 3])
def test_keepalived_takes_what_is_rendered(keeper: KeepalivedService, tmp_path: Path, peers: int) -> None:
    here = {"interfaces": [{"name": real_interface(), "addresses": ["192.0.2.1"]}]}
    others = [host(f"lb{n + 2}", f"192.0.2.{n + 2}", absent="elsewhere") for n in range(peers)]
    plans, problems = planned(host(**here), *others)
    assert problems == ()
    path = tmp_path / "keepalived.conf"
    path.write_text(plans[0].files["keepalived.conf"])
    path.chmod(0o600)
    assert run([program("keepalived"), "--config-test", "--use-file", str(path)]) == (0, "")
    keeper.validate(str(tmp_path), run)


def test_what_keepalived_refuses_is_told_in_its_words(keeper: KeepalivedService, tmp_path: Path) -> None:
    (tmp_path / "keepalived.conf").write_text("nonsense\n")
    with pytest.raises(NodeError, match=r"the running one stays in use. It reports: .*'nonsense'"):
        keeper.validate(str(tmp_path), run)


@pytest.mark.parametrize(
    ("wanted", "there", "runs", "changed", "unit", "expected"),
    [
        (False, False, False, [], False, ""),
        (False, True, True, ["keepalived.conf"], False, "remove"),
        (False, True, False, [], False, "remove"),
        (True, False, False, ["keepalived.conf"], True, "start"),
        (True, True, True, [], False, ""),
        (True, True, True, ["haproxy.cfg"], False, ""),
        (True, True, True, ["keepalived.conf"], False, "reload"),
        (True, True, True, ["keepalived.conf"], True, "restart"),
        (True, True, False, [], False, "start"),
    ],
)
def test_what_is_to_be_done(
    tmp_path: Path, wanted: bool, there: bool, runs: bool, changed: list[str], unit: bool, expected: str
) -> None:
    place = str(tmp_path)
    calls: list[tuple[str, ...]] = []
    keeper = KeepalivedService(place, place, lambda *words: calls.append(words), lambda _: runs, "/none")
    if there:
        Path(keeper.unit).write_text("")
    step = keeper.step({"keepalived.conf": ""} if wanted else {}, changed, unit)
    assert step == expected
    if step == "remove":
        keeper.do(step)
        assert not Path(keeper.unit).exists()
        assert calls[0] == ("disable", "--now", "instinct-balancer-address.service")


@pytest.fixture
def process() -> Iterator[int]:
    """A process whose command line has the names of all of a balancer's."""
    made = subprocess.Popen(["haproxy agent.py keepalived", "600"], executable="/bin/sleep")
    # The kernel tells that a program was started before it shows its command line.
    while b"agent" not in Path(f"/proc/{made.pid}/cmdline").read_bytes():
        time.sleep(0.01)
    yield made.pid
    made.kill()
    made.wait()


def test_a_balancer_whose_keepalived_is_gone_does_not_run(tmp_path: Path, process: int) -> None:
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "usr/sbin/keepalived").touch()
    current, state = tmp_path / "etc/balancer/current", tmp_path / "var/balancer"
    for place in (current, state, tmp_path / "run"):
        place.mkdir(parents=True)
    for name in ("haproxy.pid", "agent.pid"):
        (state / name).write_text(f"{process}\n")

    def found() -> tuple[bool, bool]:
        source = Source(str(tmp_path))
        seen = read_balancer(source, str(tmp_path / "etc"), str(tmp_path / "var"))
        return seen["keepalived"], seen["running"]

    assert found() == (True, True)
    (current / "keepalived.conf").write_text("")
    assert found() == (True, False)
    (tmp_path / PID_FILE.lstrip("/")).write_text(f"{process}\n")
    assert found() == (True, True)


# --- the check -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def haproxy_that_says(path: Path, answer: bytes) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                link, _ = server.accept()
                link.recv(100)
                link.sendall(answer)
                link.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(GENEROUS)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"Name: HAProxy\nUptime: 1\nStopping: 0\nJobs: 3\n\n", 0),
        (b"Name: HAProxy\nStopping: 1\nJobs: 3\n\n", 1),
        (b"", 1),
    ],
)
def test_the_check(tmp_path: Path, answer: bytes, code: int) -> None:
    path = tmp_path / "admin.sock"
    with haproxy_that_says(path, answer):
        # As keepalived runs it; with more patience.
        text = Path(keepalived_check.__file__).read_text()
        patient = text.replace(f"\nSECONDS = {keepalived_check.SECONDS}\n", f"\nSECONDS = {GENEROUS}\n")
        assert patient != text
        (tmp_path / "alive.py").write_text(patient)
        command = [sys.executable, "-IS", str(tmp_path / "alive.py"), str(path)]
        assert subprocess.run(command, check=False).returncode == code


def test_the_check_without_haproxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not keepalived_check.works(str(tmp_path / "none.sock"))
    monkeypatch.setattr(keepalived_check, "SECONDS", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        assert not keepalived_check.works(str(tmp_path / "silent.sock"))
