# SPDX-License-Identifier: Apache-2.0
"""Reading what runs on a node: containers of a Docker API, instances that answer, what a supervisor left."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.host import status as status_node
from ansible_collections.instinct.fleet.plugins.module_utils.host.status import (
    StatusPaths,
    endpoint_of,
    load_and_speed,
    read_metrics,
    read_node,
)
from ansible_collections.instinct.fleet.plugins.module_utils.observe.held_bytes import held_bytes
from ansible_collections.instinct.fleet.plugins.module_utils.serving.attention import Proof
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.changes.quota import image_bytes
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.observed.node_state import NodeState

from tests.helpers.eventually import GENEROUS
from tests.worlds.plan_world import SOFTWARE
from tests.worlds.pruned_node import PrunedNode
from tests.worlds.status_host import BOTH, KEY, V0, Host, host

__all__ = ["host"]  # a fixture


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("python_info 1.0\n", None),
        (V0, {"running": 2, "kv": 0.5}),
        (BOTH, {"running": 2, "kv": 0.75}),
        (V0 + 'vllm:num_requests_running{engine="1"} 1.5e1\n', {"running": 17}),
        (V0 + 'vllm:generation_tokens_total{engine="0"} 7.0 1700000000\n', {"generated": 7}),
        (V0 + 'vllm:generation_tokens_created{engine="0"} 7.0\n', {"generated": 0}),
        ("# vllm:num_requests_running 3\n", None),
    ],
)
def test_metrics_of_several_releases(text: str, expected: dict[str, float] | None) -> None:
    found = read_metrics(text)
    assert (
        found == expected if expected is None else {key: (found or {})[key] for key in expected} == expected
    )


def test_speed() -> None:
    first = {"running": 1.0, "waiting": 0.0, "generated": 100.0, "prompted": 50.0}
    found = load_and_speed(first, {**first, "generated": 400.0, "prompted": 20.0}, 1.5)
    assert (found["tokens_per_second"], found["prompt_tokens_per_second"], found["kv"]) == (200.0, None, None)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exec vllm serve m \\\n  --host 0.0.0.0 \\\n  --port 8001\n", ("127.0.0.1", 8001)),
        ("exec vllm serve m --host=10.0.0.1 --port=8001", ("10.0.0.1", 8001)),
        ("exec vllm serve m --port 8001 # --port 9", ("127.0.0.1", 8001)),
        (
            "exec python3 /instinct-lib/supervise.py --port 1 -- vllm serve m --host :: --port 8001",
            ("::1", 8001),
        ),
        ("exec vllm serve m --headless", None),
        ("", None),
        ("exec 'vllm", None),
    ],
)
def test_endpoint(script: str, expected: tuple[str, int] | None) -> None:
    found = endpoint_of(script)
    assert (found and (found["host"], found["port"])) == expected


class Engine(BaseHTTPRequestHandler):
    """Generates 100 tokens between two looks."""

    tokens = 0
    health: Callable[[], object] = bool

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        if self.path == "/health":
            Engine.health()
        Engine.tokens += 100 if self.path == "/metrics" else 0
        text = f'{BOTH}vllm:generation_tokens_total{{engine="0"}} {Engine.tokens}.0\n'
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_node(host: Host, port: int) -> None:
    host.add("llama-0", port=port)
    host.add("llama-0", "created", container="instinct-llama-0.next", port=port)
    failing = host.add("llama-1", "restarting", supervisor="no json")
    failing.exit_code = 1
    failing.log = f"torch.OutOfMemoryError: HIP out of memory with {KEY}.\n"
    reported = {"state": "gave_up", "failures": [{"kind": "unknown", "line": f"api {KEY}"}]}
    host.add("other-0", supervisor=json.dumps(reported))
    found = read_node(host.node)
    first, second, third = found["instances"]
    assert [item["name"] for item in found["instances"]] == ["llama-0", "llama-1", "other-0"]
    assert (first["status"], first["health"], first["failure"], first["started"]) == (
        "running",
        200,
        None,
        1767225600,
    )
    assert first["metrics"]["kv"] == 0.75
    assert 0 < first["metrics"]["tokens_per_second"] <= 500  # 100 in the interval, or somewhat more
    assert second["failure"]["kind"] == "out_of_memory"
    assert second["health"] is None
    assert (third["health"], third["metrics"]) == (0, None)
    assert KEY not in json.dumps(found)
    assert found["balancer"] is None
    assert found["problems"] == []


def test_the_attention_backend_is_that_of_the_present_container(host: Host) -> None:
    for name in ("llama-0", "llama-1", "llama-2"):
        container = host.add(name)
        if name != "llama-2":
            of = container.id if name == "llama-0" else "another"
            proof = Proof(of, "aiter_fa", ("triton",), "Using Triton Attention backend.")
            (host.tmp / "etc/instances" / name / "attention.json").write_text(proof.to_text())
    found = [item["attention"] for item in read_node(host.node)["instances"]]
    assert found == [{"planned": "aiter_fa", "running": ["triton"]}, None, None]


def test_what_a_start_measured_is_passed_on(host: Host) -> None:
    for name, text in (("llama-0", '{"key": "a", "lines": ["x"]}'), ("llama-1", "torn {"), ("llama-2", None)):
        host.add(name)
        if text:
            (host.tmp / "etc/instances" / name / "start.json").write_text(text)
    found = [item["start"] for item in read_node(host.node)["instances"]]
    assert found == [{"key": "a", "lines": ["x"]}, None, None]


def test_instances_are_asked_at_once(host: Host, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_node, "TIMEOUT", 2 * GENEROUS)
    # None of them answers before all are asked.
    monkeypatch.setattr(Engine, "health", threading.Barrier(3, timeout=GENEROUS).wait)
    for number in range(3):
        host.add(f"llama-{number}", port=port)
    assert [item["health"] for item in read_node(host.node)["instances"]] == [200] * 3


def test_an_answer_without_end_is_not_read_to_its_end(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_node, "ANSWER_BYTES", 10)
    assert status_node.get({"host": "127.0.0.1", "port": port}, "/metrics") == (200, BOTH[:10])


def test_a_host_without_docker_is_told_when_it_has_instances(host: Host) -> None:
    node = StatusPaths(host.node.state_dir, host.node.data_dir, str(host.tmp / "none.sock"))
    assert read_node(node)["problems"] == []
    host.add("llama-0")
    assert "does not exist" in read_node(node)["problems"][0]


def test_a_load_balancer_whose_haproxy_does_not_answer(host: Host) -> None:
    current = host.tmp / "etc/balancer/current"
    current.mkdir(parents=True)
    server = {"name": "n1.llama-0:1", "host": "n1", "instance": "llama-0", "address": "127.0.0.1", "port": 1}
    (current / "balancer.json").write_text(json.dumps({"backends": [{"name": "llama", "servers": [server]}]}))
    found = read_node(host.node)["balancer"]
    assert "HAProxy does not answer" in found["error"]
    assert found["servers"][0]["deployment"] == "llama"


def test_never_is_no_time() -> None:
    assert status_node.seconds("0001-01-01T00:00:00Z") is None
    assert status_node.seconds("1970-01-01T00:00:10.5Z") == 10
    assert status_node.seconds(None) is None


def test_disks_are_as_full_as_df_has_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once; of the blocks that only root may fill nothing is left for anybody."""
    space = os.statvfs_result((4096, 4096, 1000, 150, 100, 0, 0, 0, 0, 255))
    monkeypatch.setattr(status_node.os, "statvfs", lambda _path: space)
    os.makedirs(f"{host.node.data_dir}/hf", exist_ok=True)
    found = read_node(host.node)["disks"]
    assert {item["percent"] for item in found} == {90}  # 850 used, 100 left
    assert {item["free_bytes"] for item in found} == {100 * 4096}
    devices = [os.stat(item["path"]).st_dev for item in found]
    assert len(devices) == len(set(devices)) > 0


def test_the_status_and_the_plan_count_the_same_against_a_quota(host: Host) -> None:
    node = PrunedNode(host.tmp / "node", host.docker)
    paths = node.node
    for probe in (node.top / "var/images").iterdir():
        probe.write_text(json.dumps(SOFTWARE.to_json()))
    read = StatusPaths(paths.state_dir, paths.data_dir, host.docker.path, 0, cache_dirs=paths.caches)
    planned = (
        image_bytes(NodeState.from_json(node.observed())),
        held_bytes(paths.data_dir, list(paths.caches)),
    )
    assert min(planned) > 0
    assert read_node(read)["held_bytes"] == sum(planned)
    assert read_node(StatusPaths(paths.state_dir, paths.data_dir, "/none", 0))["held_bytes"] is None
