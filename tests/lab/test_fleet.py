# SPDX-License-Identifier: Apache-2.0
"""A fleet with a load balancer as status.yml tells it, and as somebody who should not see anything finds it."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests import ROOT
from tests.load import first_key

from .conftest import Lab, Run, node_address
from .endpoint import Endpoint
from .helpers import deployment, wait_for
from .leaks import found_by_nobody, found_on, readable_by_nobody, search_by_nobody_works, search_works

RUNBOOK = (ROOT / "docs/runbooks/status.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ ansible-playbook -i inventory/mine playbooks/(.+)$", RUNBOOK, re.MULTILINE)
HOST, OTHER = "lab-n1", "lab-n2"  # the first one has the load balancer too
# The only files that hold a secret: the key that instances ask for, and what HAProxy sends and shows.
KEY_FILE = "/etc/instinct-fleet/keys/instances"
BALANCER_FILES = [f"/etc/instinct-fleet/balancer/VERSION/{name}" for name in ("endpoint.pem", "instance.map")]
RATE = 30  # requests per second


def play(lab: Lab, command: str, *more: str) -> Run:
    """Run a command of the runbook."""
    assert command in COMMANDS, f"not in the runbook: {command}"
    playbook, *args = shlex.split(command.replace("=status.json", f"={lab.tmp}/status.json"))
    return lab.play(playbook.removesuffix(".yml"), *args, *more)


def table(run: Run) -> list[str]:
    """Lines of the status in a run's output."""
    return run.out[run.out.index("Status: ") :].partition("\n\nTASK")[0].partition("\n\nPLAY")[0].splitlines()


@pytest.fixture(scope="module")
def fleet(balanced_lab: Lab) -> Lab:
    """Two stand-in instances on each node, behind a load balancer."""
    wanted = deployment(instances_per_host=2, engine_args={"shutdown_timeout": 5})
    balanced_lab.write_vars(vllm_deployments=[wanted])
    Endpoint.deployed(balanced_lab)
    return balanced_lab


def test_what_runs_is_told(fleet: Lab) -> None:
    with Endpoint(fleet).load(20) as requests:
        run = play(fleet, "status.yml -e status_file=status.json")
        requests.wait_for(50)
    requests.assert_nothing_lost(at_least=50)
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
    # As planned for it: without a word in the table.
    assert {row["backend"] for row in data["instances"]} == {"rocm_attn"}
    lines = table(run)
    assert max(map(len, lines)) <= 100
    assert re.match(r"  lab-n1,lab-n2  2 each    serving  0.32.0     1 ", lines[-1]), lines
    detailed = table(play(fleet, "status.yml -e detail=true"))
    assert len(detailed) == len(lines) + 3


def test_trouble_comes_first_with_the_next_step(fleet: Lab) -> None:
    path = fleet.inventory / "hosts.yml"
    before = path.read_text()
    inventory = yaml.safe_load(before)
    inventory["instinct"]["hosts"]["lab-gone"] = {"ansible_host": node_address(239), "ansible_ssh_timeout": 3}
    path.write_text(yaml.safe_dump(inventory))
    fleet.on(OTHER, "docker stop instinct-llama-1")
    fleet.on(HOST, "docker pause instinct-llama-0")
    try:
        run = play(fleet, "status.yml")
    finally:
        fleet.on(HOST, "docker unpause instinct-llama-0")
        fleet.on(OTHER, "docker start instinct-llama-1")
        path.write_text(before)
    assert run.rc == 2, run.out
    lines = "\n".join(table(run)[1:])
    assert (
        lines.index("lab-gone: not reached")
        < lines.index("paused")
        < lines.index("stopped")
        < lines.index("serving")
    )
    assert "→ docker unpause instinct-llama-0 on lab-n1" in lines
    assert (
        "2 of 4 instances do not serve as they should: llama-0 on lab-n1 (paused), "
        "llama-1 on lab-n2 (stopped)." in run.out
    )

    def well() -> bool:
        return play(fleet, "status.yml").rc == 0

    assert play(fleet, "status.yml -e strict=false").rc == 0

    wait_for("the fleet", well)


def test_every_command_of_the_runbook_is_run() -> None:
    """By the tests of this file."""
    played = re.findall(r'play\(fleet, "(.+?)"', Path(__file__).read_text(encoding="utf-8"))
    assert COMMANDS
    assert set(played) == set(COMMANDS)


@pytest.mark.deep
def test_an_instance_that_gave_up_shows_its_first_error(fleet: Lab) -> None:
    bad = deployment(
        name="bad", gpus=[7], port=8100, served_model_name="bad", hosts=[OTHER], endpoint=False,
        env={"STANDIN_FAIL": "oom"},
    )  # fmt: skip
    other = deployment(
        name="other", gpus=[6], port=8200, served_model_name="other", hosts=[OTHER], endpoint=False,
        env={"STANDIN_ATTENTION": "TRITON_ATTN"},
    )  # fmt: skip
    good = deployment(instances_per_host=2, engine_args={"shutdown_timeout": 5})
    fleet.write_vars(vllm_deployments=[good, bad, other])
    assert fleet.play("site", "--skip-tags", "benchmark").rc == 2
    state = "/var/lib/instinct-fleet/cache/bad-0/supervise/state.json"
    # It may have given up already while the run above looked on, which its file would go on saying until it starts.
    fleet.on(OTHER, f"docker stop instinct-bad-0; rm -f {state}; docker start instinct-bad-0")
    wait_for("it to give up", lambda: '"gave_up"' in fleet.on(OTHER, f"cat {state}", check=False))
    lines = table(fleet.play("status"))
    fleet.write_vars(vllm_deployments=[good])
    assert fleet.play("site", "--skip-tags", "benchmark").rc == 0
    place = next(number for number, line in enumerate(lines) if " gave up " in line and "bad-0" in line)
    assert (
        "3 failures, the first: out_of_memory: torch.OutOfMemoryError: HIP out of memory." in lines[place + 1]
    )
    below = list(itertools.takewhile(lambda line: line.startswith(" " * 6), lines[place + 1 :]))
    assert any(line.strip().startswith("→ ") for line in below), lines
    # It serves, and its log names another attention backend than the plan.
    place = next(number for number, line in enumerate(lines) if " serving " in line and "other-0" in line)
    assert lines[place + 1] == "      runs attention backend triton, not the planned rocm_attn"


# ---- as somebody finds it who should not see anything ------------------------------------------------


def test_containers_have_what_serving_needs_and_no_more(fleet: Lab) -> None:
    """What AMD's documents give to `docker run`, but one render node each instead of all, and nothing more."""
    for host in fleet.hosts:
        label = "label=instinct-fleet.instance"
        found = json.loads(fleet.on(host, f"docker ps -aq --filter {label} | xargs docker inspect"))
        assert len(found) == 2
        for item in found:
            config = item["HostConfig"]
            assert not config["Privileged"]
            assert [name.removeprefix("CAP_") for name in config["CapAdd"]] == ["SYS_PTRACE"]
            assert "NET_RAW" in {name.removeprefix("CAP_") for name in config["CapDrop"]}
            # Docker itself adds the second one to whatever shares the host's IPC.
            assert set(config["SecurityOpt"]) - {"label=disable"} == {
                "no-new-privileges",
                "seccomp=unconfined",
            }
            assert (config["NetworkMode"], config["IpcMode"], config["PidMode"]) == ("host", "host", "")
            assert [mount["Destination"] for mount in item["Mounts"] if mount["RW"]] == ["/cache"]
            assert not any("docker.sock" in mount["Source"] for mount in item["Mounts"])
        devices = [sorted(device["PathOnHost"] for device in item["HostConfig"]["Devices"]) for item in found]
        assert sorted(devices) == [[f"/dev/dri/renderD{number}", "/dev/kfd"] for number in (128, 136)]


def test_nothing_listens_but_what_has_to(fleet: Lab) -> None:
    ssh = {"0.0.0.0:22", "[::]:22"}
    ports = {
        HOST: {"0.0.0.0:8443", "127.0.0.1:8405", "127.0.0.1:8406", "127.0.0.1:8000", "127.0.0.1:8001"},
        OTHER: {f"{node_address(2)}:{port}" for port in (8000, 8001)},
    }
    for host, expected in ports.items():
        found = fleet.on(host, "ss -Hltn | awk '{print $4}' | grep -v 127.0.0.11").split()
        assert set(found) == expected | ssh, host


PUBLIC = re.compile(r"/hf/|/images/")  # weights, and what images answered


def test_no_secret_where_it_does_not_belong(fleet: Lab) -> None:
    """The endpoint's key, that between load balancer and instances, and the certificate's; the hub's: test_secrets."""
    directory = fleet.inventory / ".secrets"
    secrets = [first_key(directory / "api-keys.yml"), (directory / "instance-key").read_text().strip()]
    secrets.append((directory / "endpoint.pem").read_text().partition("PRIVATE KEY-----")[2].split()[0])
    assert all(len(secret) >= 20 for secret in secrets)
    allowed = {HOST: {KEY_FILE, *BALANCER_FILES}, OTHER: {KEY_FILE}}
    for host in fleet.hosts:
        found = {
            re.sub(r"/[0-9a-f]{12}-[^/]+/", "/VERSION/", place) for place in found_on(fleet, host, secrets)
        }
        # Root sees every environment; that nobody else does is looked at below.
        assert {place for place in found if not place.startswith("environ ")} == {
            f"file {name}" for name in allowed[host]
        }
        search_works(fleet, host)
        assert found_by_nobody(fleet, host, secrets) == set()
        search_by_nobody_works(fleet, host)
        readable = readable_by_nobody(fleet, host)
        assert [path for path in readable if not PUBLIC.search(path)] == []
        assert readable  # the weights: the search finds what may be read


# ---- a host reboots ----------------------------------------------------------------------------------


@pytest.mark.deep
def test_no_request_is_lost_while_a_host_is_prepared_and_reboots(fleet: Lab) -> None:
    path = fleet.inventory / "hosts.yml"
    before = path.read_text()
    inventory = yaml.safe_load(before)
    # A word of the kernel's command line.
    inventory["instinct"]["hosts"][OTHER]["host_prep_also"] = ["pcie-aspm"]
    path.write_text(yaml.safe_dump(inventory))
    booted = fleet.on(OTHER, "cat /proc/sys/kernel/random/boot_id")
    try:
        with Endpoint(fleet).load(RATE) as requests:
            run = fleet.play("prepare", "-e", "reboot=true")
            assert run.rc == 0, run.out[-3000:]
            assert fleet.on(OTHER, "cat /proc/sys/kernel/random/boot_id") != booted
            back = fleet.play("status")
            assert back.rc == 0, back.out
            requests.wait_for(500)
    finally:
        path.write_text(before)
    print(requests.assert_nothing_lost(at_least=500))
