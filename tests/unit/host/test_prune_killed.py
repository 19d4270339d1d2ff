# SPDX-License-Identifier: Apache-2.0
"""host_prune, killed at any point, loses nothing that a kept generation needs, and the next run finishes its work."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.common.errors import FleetError
from ansible_collections.instinct.fleet.plugins.module_utils.content.prune import Roots
from ansible_collections.instinct.fleet.plugins.module_utils.docker.client import DockerClient
from ansible_collections.instinct.fleet.plugins.module_utils.host.prune_node import converge
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    ROLLBACK,
    OperationRequest,
)

from tests import ROOT
from tests.worlds.fake_docker import FakeDocker
from tests.worlds.generations_world import planned
from tests.worlds.plan_world import deployment
from tests.worlds.pruned_node import PrunedNode, commit, digest

POINTS = 36
# The module itself, which ends as by kill -9 before the change of that number; in the end it says how many it made.
PROGRAM = """
import json, os, signal, sys
import tests
from ansible.module_utils.testing import patch_module_args
from ansible_collections.instinct.fleet.plugins.module_utils.leases import run_lock
from ansible_collections.instinct.fleet.plugins.modules import host_prune

given, last = json.loads(sys.argv[1]), int(sys.argv[2])
run_lock.LOCK_DIR = given["lock"]
real = host_prune.PrunePaths
host_prune.PrunePaths = lambda caches: real(caches, given["state_dir"], given["data_dir"])
changes = 0

def hook(event, args):
    global changes
    if event in ("os.remove", "os.rename", "os.rmdir", "socket.connect"):
        if changes == last:
            os.kill(os.getpid(), signal.SIGKILL)
        changes += 1

sys.addaudithook(hook)
try:
    with patch_module_args(given["params"]):
        host_prune.main()
finally:
    sys.stderr.write(f"{changes}\\n")
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrunedNode]:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "lock"))
    with FakeDocker(tmp_path) as docker:
        yield PrunedNode(tmp_path / "node", docker)


def run(node: PrunedNode, last: int) -> subprocess.CompletedProcess[str]:
    """Run the module on the node, killed before its change of this number."""
    command = [sys.executable, "-c", PROGRAM, node.given(), str(last)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_seven_generations(node: PrunedNode) -> None:
    assert node.lost() == []
    done = run(node, -1)
    assert done.returncode == 0, done.stdout + done.stderr
    actions = json.loads(done.stdout)["actions"]
    assert {" ".join(text.split()[1:3]) for text in actions} >= {"image r.example/vllm:1", "image r.example/vllm:2",
        "weights a/b@111111111111", "weights a/b@222222222222", "cache llama-1", "cache llama-2", "probe ffffffffffff",
        "stored blobs-of-no-manifest"}  # fmt: skip
    assert (node.lost(), node.everything()) == ([], node.wanted())
    assert int(done.stderr.split()[-1]) >= POINTS  # there are as many points at which it can be killed


def rollback(node: PrunedNode, number: int) -> dict[str, Any]:
    """The plan of a rollback to a generation, on the node as it is."""
    request = OperationRequest(ROLLBACK, frozenset(["llama"]), number, reason="answers got worse")
    return planned({"n1": node.observed()}, [deployment(name="llama")], request).to_json()


def test_every_kept_generation_can_be_rolled_back_to_without_a_network(node: PrunedNode) -> None:
    converge(DockerClient(node.docker.path), node.node, Roots(), False)
    for number in node.kept:
        plan = rollback(node, number)
        assert plan["excluded"] == {}
        todo = plan["hosts"]["n1"]
        assert [item["name"] for item in todo["servers"]] == [f"llama-{number}"]
        assert (todo["images"], todo["models"], plan.get("transfers")) == ([], [], None)  # nothing is fetched
    for number in (1, 2):
        with pytest.raises(FleetError, match=f"generation {number} was pruned"):
            rollback(node, number)
    for name, image in list(node.docker.images.items()):
        if digest(4) in " ".join(image["RepoDigests"]):
            del node.docker.images[name]
    assert "image" in rollback(node, 4)["excluded"]["n1"]
    (node.hub / "snapshots" / commit(5) / "model.safetensors").unlink()
    assert "the weights of a/b at 555555555555 are incomplete" in rollback(node, 5)["excluded"]["n1"]


def points(changes: int, count: int) -> list[int]:
    """Points spread over all of a run, each at random within its part."""
    chance = random.Random(7)
    return [chance.randrange(changes * at // count, changes * (at + 1) // count) for at in range(count)]


@pytest.mark.parametrize("count", [POINTS // 12, pytest.param(POINTS, marks=pytest.mark.deep)])
def test_killed_at_any_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(run_lock, "LOCK_DIR", str(tmp_path / "lock"))
    with FakeDocker(_place(tmp_path, "whole")) as docker:
        changes = int(run(PrunedNode(tmp_path / "whole/node", docker), -1).stderr.split()[-1])
    half_done = 0
    for point in points(changes, count):
        with FakeDocker(_place(tmp_path, str(point))) as docker:
            node = PrunedNode(tmp_path / f"{point}/node", docker)
            assert run(node, point).returncode == -signal.SIGKILL, point
            assert node.lost() == [], point
            half_done += node.everything() != node.wanted()
            converge(DockerClient(docker.path), node.node, Roots(), False)
            assert node.lost() == [], point
            assert node.everything() == node.wanted(), point
            assert converge(DockerClient(docker.path), node.node, Roots(), False)["changed"] is False, point
    assert half_done > count // 2  # most of them left work


def _place(top: Path, name: str) -> Path:
    (top / name).mkdir()
    return top / name
