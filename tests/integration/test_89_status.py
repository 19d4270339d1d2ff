# SPDX-License-Identifier: Apache-2.0
"""A fleet with a load balancer as status.yml tells it, and as somebody who should not see anything finds it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import pytest
import yaml

from tests.load import Load, Target, first_key

from .conftest import ROOT, Lab, Run, copy_inventory, lab_command
from .helpers import MODEL, deployment, wait_for

RUNBOOK = (ROOT / "docs/runbooks/status.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ ansible-playbook -i inventory/mine playbooks/(.+)$", RUNBOOK, re.MULTILINE)
HOST, OTHER = "lab-n1", "lab-n2"  # the first one has the load balancer too
ran: set[str] = set()


def play(lab: Lab, command: str, *more: str) -> Run:
    """Run a command of the runbook."""
    assert command in COMMANDS, f"not in the runbook: {command}"
    ran.add(command)
    playbook, *args = shlex.split(command.replace("=status.json", f"={lab.tmp}/status.json"))
    return lab.play(playbook.removesuffix(".yml"), *args, *more)


def table(run: Run) -> list[str]:
    """Lines of the status in a run's output."""
    return run.out[run.out.index("Status: ") :].partition("\n\nTASK")[0].partition("\n\nPLAY")[0].splitlines()


@pytest.fixture(scope="module")
def fleet(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two stand-in instances on each node, behind a load balancer."""
    lab_command("reset")
    lab = copy_inventory(lab_up, tmp_path_factory.mktemp("status"))
    (lab.inventory / "balancer.yml").write_text(f"load_balancer:\n  hosts:\n    {HOST}:\n")
    lab.write_vars(vllm_deployments=[deployment(instances_per_host=2, engine_args={"shutdown_timeout": 5})])
    run = lab.play("site", "--skip-tags", "benchmark")
    assert run.rc == 0, run.out[-3000:]
    yield lab
    lab_command("reset")


def test_what_runs_is_told(fleet: Lab) -> None:
    secrets = fleet.inventory / ".secrets"
    text = (secrets / "endpoint.pem").read_text()
    ca = fleet.tmp / "ca.crt"
    ca.write_text(text[: text.index("-----BEGIN PRIVATE KEY-----")])
    key = first_key(secrets / "api-keys.yml")
    with Load(Target("https://172.30.77.11:8443", MODEL, key, str(ca)), 20):
        run = play(fleet, "status.yml -e status_file=status.json")
    assert run.rc == 0, run.out
    assert run.modules(OTHER) == ["instance_status"]
    data = json.loads((fleet.tmp / "status.json").read_text())
    assert data["verdict"] == ""
    (sums,) = data["deployments"].values()
    assert (sums["total"], sums["serving"], sums["balanced"], sums["inside"]) == (4, 4, 4, 4)
    assert 50 < sums["tokens"] < 2000
    assert {(row["state"], row["version"], row["generation"]) for row in data["instances"]} == {
        ("serving", "0.32.0", 1)
    }
    lines = table(run)
    assert max(map(len, lines)) <= 100
    assert re.match(r"  lab-n1,lab-n2  2 each    serving  0.32.0     1 ", lines[-1]), lines
    detailed = table(play(fleet, "status.yml -e detail=true"))
    assert len(detailed) == len(lines) + 3


def test_trouble_comes_first_with_the_next_step(fleet: Lab) -> None:
    path = fleet.inventory / "hosts.yml"
    before = path.read_text()
    inventory = yaml.safe_load(before)
    inventory["instinct"]["hosts"]["lab-gone"] = {"ansible_host": "172.30.77.250"}
    path.write_text(yaml.safe_dump(inventory))
    fleet.on(OTHER, "docker stop instinct-llama-1")
    fleet.on(HOST, "docker pause instinct-llama-0")
    try:
        run = play(fleet, "status.yml -e strict=true", "-e", "ansible_timeout=3")
    finally:
        fleet.on(HOST, "docker unpause instinct-llama-0")
        fleet.on(OTHER, "docker start instinct-llama-1")
        path.write_text(before)
    assert run.rc == 2, run.out
    lines = "\n".join(table(run))
    assert (
        lines.index("lab-gone: not reached")
        < lines.index("paused")
        < lines.index("stopped")
        < lines.index("serving")
    )
    assert "→ docker unpause instinct-llama-0 on lab-n1" in lines
    assert (
        "2 of 4 instances do not serve: llama-0 on lab-n1 (paused), llama-1 on lab-n2 (stopped)." in run.out
    )

    def well() -> bool:
        return play(fleet, "status.yml").rc == 0 and play(fleet, "status.yml -e strict=true").rc == 0

    wait_for("the fleet", well, 40)
