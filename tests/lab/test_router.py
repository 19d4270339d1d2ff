# SPDX-License-Identifier: Apache-2.0
"""vllm-router behind HAProxy: a prefix stays where it is cached; no request is lost while instances leave and come."""

from __future__ import annotations

import collections
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import ROOT

from .conftest import Lab, node_address
from .endpoint import HOST, Endpoint
from .helpers import MODEL, deployment, wait_for

pytestmark = pytest.mark.deep
LOCK = ROOT / "roles/load_balancer/files/router-requirements.txt"
RATE = 30  # requests per second
PLACES = [
    (host, address, port)
    for host, address in ((HOST, "127.0.0.1"), ("lab-n2", node_address(2)))
    for port in (8000, 8001)
]


def deploy(lab: Lab, wheels: Path, second: int = 1 << 20, routing: str = "prefix") -> None:
    tokens = f"{{{{ {second} if inventory_hostname == 'lab-n2' else {1 << 20} }}}}"
    lab.write_vars(
        vllm_deployments=[
            deployment(
                instances_per_host=2,
                routing=routing,
                engine_args={"shutdown_timeout": 20},
                env={"STANDIN_KV_TOKENS": tokens},
            )
        ]
    )
    lab.write_balancer(HOST, load_balancer_router_wheels=str(wheels))


@pytest.fixture(scope="module")
def routed(balanced_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[Endpoint, Path]:
    wheels = tmp_path_factory.mktemp("wheels")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--require-hashes", "-d", str(wheels), "-r", str(LOCK)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.fail(f"vllm-router could not be fetched: {done.stderr.strip().splitlines()[-1:]}")
    deploy(balanced_lab, wheels)
    return Endpoint.deployed(balanced_lab), wheels


def router_up(endpoint: Endpoint) -> bool:
    """HAProxy has asked the router and has it as up. Before it asks, it says UP too, and spreads requests itself."""
    program = (
        "import socket; s=socket.socket(socket.AF_UNIX); s.connect('/var/lib/instinct-fleet/balancer/admin.sock'); "
        "s.sendall(b'show stat -1 4 -1\\n'); print(s.makefile().read())"
    )
    rows = [row.split(",") for row in endpoint.lab.on(HOST, f'python3 -c "{program}"').splitlines()]
    return any(row[0] == "llama.router" and row[1] == "router" and {"UP", "L7OK"} <= {*row} for row in rows)


def served(endpoint: Endpoint) -> dict[str, int]:
    """Completions that each instance has ended, as itself counts them."""
    found = {}
    for host, address, port in PLACES:
        program = (
            f"import urllib.request as u; print(u.urlopen('http://{address}:{port}/metrics').read().decode())"
        )
        lines = endpoint.lab.on(host, f'python3 -c "{program}"').splitlines()
        found[f"{host}:{port}"] = sum(
            int(float(line.split()[1])) for line in lines if line.startswith("vllm:request_success_total{")
        )
    return found


def ask(endpoint: Endpoint, prefix: int, results: list[int] | None = None, tokens: int = 4) -> None:
    body = {"model": MODEL, "prompt": f"prefix {prefix} " * 60 + "and a question", "max_tokens": tokens}
    status, _ = endpoint.ask("/v1/completions", body)
    assert status == 200
    if results is not None:
        results.append(status)


def test_a_prefix_stays_where_it_is_cached(routed: tuple[Endpoint, Path]) -> None:
    endpoint, _ = routed
    wait_for("the router", lambda: router_up(endpoint))
    done: list[int] = []
    threads = [threading.Thread(target=ask, args=(endpoint, n, done, 60)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == len(threads)  # at once, so that they are spread
    homes = collections.Counter()
    for prefix in range(4):
        before = served(endpoint)
        for _ in range(5):
            ask(endpoint, prefix)
        after = served(endpoint)
        gained = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        assert list(gained.values()) == [5], f"prefix {prefix}: {gained}"
        homes.update(gained)
    assert len(homes) > 1


def test_no_request_is_lost_while_instances_leave_and_come(routed: tuple[Endpoint, Path]) -> None:
    endpoint, wheels = routed
    lab = endpoint.lab
    with endpoint.load(RATE) as load:
        wait_for("the load", lambda: len(load.outcomes) > 100)
        out = lab.play("drain", "--limit", "lab-n2")
        assert out.rc == 0, out.out
        before = served(endpoint)
        wait_for("requests", lambda: sum(served(endpoint).values()) > sum(before.values()) + 100)
        after = served(endpoint)
        assert {name for name in after if after[name] > before[name]} <= {f"{HOST}:8000", f"{HOST}:8001"}
        assert lab.on("lab-n2", "docker restart instinct-llama-0 instinct-llama-1").split()
        assert lab.play("undrain", "--limit", "lab-n2").rc == 0

        # What a deploy replaces; its router goes on, with the same workers.
        pids = lab.on(HOST, "pgrep -f bin/vllm-router").split()
        deploy(lab, wheels, second=2_000_000)
        replaced = lab.play("site", "--skip-tags", "benchmark")
        assert replaced.rc == 0, replaced.out[-3000:]
        assert lab.on(HOST, "pgrep -f bin/vllm-router").split() == pids
    print(load.assert_nothing_lost(at_least=300))


def test_without_its_router_haproxy_goes_on(routed: tuple[Endpoint, Path]) -> None:
    endpoint, wheels = routed
    lab = endpoint.lab
    lab.on(HOST, "systemctl stop instinct-balancer-router")
    wait_for("its end", lambda: not router_up(endpoint))
    for number in range(4):
        ask(endpoint, number)
    run = lab.play("site", "--skip-tags", "benchmark")
    assert run.rc == 0, run.out[-3000:]
    assert "it is not running" in run.out
    wait_for("the router", lambda: router_up(endpoint))
    assert lab.play("site", "--skip-tags", "benchmark").changed() == []

    with endpoint.load(RATE) as load:
        wait_for("the load", lambda: len(load.outcomes) > 60)
        deploy(lab, wheels, second=2_000_000, routing="least-requests")
        run = lab.play("site", "--skip-tags", "benchmark")
        assert run.rc == 0, run.out[-3000:]
        done = len(load.outcomes)
        wait_for("requests without a router", lambda: len(load.outcomes) > done + 60)
    assert lab.on(HOST, "pgrep -f bin/vllm-router", check=False).strip() == ""
    assert lab.on(HOST, "ls /etc/systemd/system").count("instinct-balancer-router") == 0
    print(load.assert_nothing_lost(at_least=2 * RATE))
    ask(endpoint, 1)
