# SPDX-License-Identifier: Apache-2.0
"""One run at a time on a node, and runs that nobody waits for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.bench import run as benches
from ansible_collections.instinct.fleet.plugins.module_utils.common import paths
from ansible_collections.instinct.fleet.plugins.module_utils.common.abandoned import ControllerGone
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock as lock
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock as on_node
from ansible_collections.instinct.fleet.plugins.module_utils.serving import readiness
from ansible_collections.instinct.fleet.plugins.modules import vllm_bench, vllm_server

from tests.helpers.eventually import GENEROUS
from tests.worlds import bench_world, serving_world
from tests.worlds.fake_docker import FakeDocker
from tests.worlds.fake_vllm import vllm


@pytest.fixture
def lock_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lock, "LOCK_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(lock, "_POLL_SECONDS", 0.01)
    return tmp_path / "run"


def test_the_second_waits_for_the_first(lock_dir: Path) -> None:
    order: list[str] = []
    inside = threading.Event()

    def first() -> None:
        with lock.run_lock("m", 60):
            inside.set()
            time.sleep(0.2)  # so that one that did not wait would come first
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(GENEROUS)
    with lock.run_lock("m", 60):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert (lock_dir / "m.lock").stat().st_mode & 0o777 == 0o600


def test_another_module_does_not_wait(lock_dir: Path) -> None:
    with lock.run_lock("a", 0), lock.run_lock("b", 0):
        pass


def test_whoever_waits_too_long_is_told_who_holds_it(lock_dir: Path) -> None:
    with (
        lock.run_lock("m", 0),
        pytest.raises(lock.Busy, match=rf"pid {os.getpid()}\).*within 0 s"),
        lock.run_lock("m", 0),
    ):
        pass


def test_the_lock_ends_with_its_holder(lock_dir: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock.run_lock("m", 0):
        raise ZeroDivisionError
    with lock.run_lock("m", 0):
        pass


def test_a_process_without_a_reader_leaves(root: Path) -> None:
    program = """
import sys, time
sys.path.insert(0, sys.argv[1])
from ansible_collections.instinct.fleet.plugins.module_utils.common.abandoned import ControllerGone, leave_if_abandoned
leave_if_abandoned()
print("ready", flush=True)
for _ in range(60_000):
    try:
        leave_if_abandoned()
    except ControllerGone:
        sys.exit(7)
    time.sleep(0.01)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(root / ".collections")], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.1)  # ten looks, and it stays as long as there is a reader
        assert process.poll() is None
        process.stdout.close()
        assert process.wait(GENEROUS) == 7


def abandoned() -> None:
    raise ControllerGone("gone")


def test_an_abandoned_deploy_leaves_its_servers_starting(
    tmp_path: Path, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "STATE_DIR", str(tmp_path / "etc"))
    monkeypatch.setattr(paths, "DATA_DIR", str(tmp_path / "var"))
    monkeypatch.setattr(on_node, "LOCK_DIR", str(tmp_path / "run"))
    with FakeDocker(tmp_path) as docker:
        docker.add_image(serving_world.IMAGE)
        server = serving_world.spec(ready_timeout=GENEROUS)
        go_on = threading.Event()
        docker.programs["instinct-"] = vllm(server["port"], begin=lambda: go_on.wait(GENEROUS))
        args = serving_world.args(docker, server)
        with monkeypatch.context() as patch:
            patch.setattr(readiness, "leave_if_abandoned", abandoned)
            result, failed = run_module(vllm_server.main, args)
        assert failed
        assert result["msg"] == "gone"
        assert docker.containers["instinct-llama-0"].status == "running"
        go_on.set()
        result, failed = run_module(vllm_server.main, args)
        assert not failed
        assert result["servers"][0]["tokens"] == 4
        assert result["changed"] is False


def test_a_benchmark_that_holds_the_lock_for_nobody_is_ended(
    tmp_path: Path, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "DATA_DIR", str(tmp_path / "var"))
    monkeypatch.setattr(on_node, "LOCK_DIR", str(tmp_path / "run"))
    leave = 0.3
    monkeypatch.setattr(benches, "_LEAVE_SECONDS", leave)
    # Whoever held the lock gives it back in its own time.
    monkeypatch.setattr(
        benches,
        "run_lock",
        lambda name, seconds: on_node.run_lock(name, leave if seconds == leave else GENEROUS),
    )
    with FakeDocker(tmp_path) as docker:
        docker.add_image(bench_world.IMAGE)
        docker.add_container("instinct-llama-0", {"Image": bench_world.IMAGE})
        orphan = docker.add_container("instinct-bench-llama-0", {"Image": bench_world.IMAGE})
        docker.programs["instinct-bench-"] = bench_world.client()
        held = threading.Event()

        def hold() -> None:
            with on_node.run_lock("vllm_bench", 60):
                held.set()
                orphan.ended.wait(GENEROUS)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(GENEROUS)
        result, failed = run_module(vllm_bench.main, bench_world.args(docker, bench_world.instance()))
        thread.join()
        assert not failed, result["msg"]
        assert result["benchmarks"][0]["error"] is None
