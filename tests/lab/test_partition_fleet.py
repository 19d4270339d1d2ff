# SPDX-License-Identifier: Apache-2.0
"""partition.yml on the lab: modes change under running instances, which serve again; what fails is contained."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
import yaml

from tests import ROOT
from tests.load import Load, Target

from .conftest import BIN, Lab, Run, copy_inventory
from .helpers import MODEL, completion, deployment, wait_for

SHOW = "cd /sys/class/drm; cat card*/device/current_{compute,memory}_partition | sort -u | xargs"
OLD, NEW = "NPS1 SPX", "CPX NPS4"
CHECKED = "$ ansible-playbook -i inventory/mine playbooks/partition.yml --check --diff"
LIMITED = "$ ansible-playbook -i inventory/mine playbooks/partition.yml --limit mi300x-01,lb-01"
WHOLE = "$ ansible-playbook -i inventory/mine playbooks/partition.yml"
CLEANED = (
    "$ ansible-playbook -i inventory/mine playbooks/partition.yml -e gpu_clean=true --limit mi300x-01,lb-01"
)
TAKEN_BACK = "$ ansible -i inventory/mine mi300x-01 -b -m rocm_partition"
HURRIED = '$ ansible -i inventory/mine mi300x-01 -b -m rocm_partition -a "compute=SPX memory=NPS1"'
LOCK = "/run/instinct-fleet/rocm_partition.lock"
JOURNAL = "/var/lib/instinct-fleet/partition.json"
RECORD = "/var/lib/instinct-fleet/partition/modes.json"
MODES = {"gpu_partition_compute": "CPX", "gpu_partition_memory": "NPS4"}
BACK = {"gpu_partition_compute": "SPX", "gpu_partition_memory": "NPS1"}
RUNBOOK = (ROOT / "docs/runbooks/partition.md").read_text(encoding="utf-8")
BLOCKS = "".join(re.findall(r"```console\n(.+?)```", RUNBOOK, re.DOTALL))
COMMANDS = re.findall(r"^[$#] .+$", BLOCKS, re.MULTILINE)
RAN: set[str] = set()  # by the present test
COMMANDS_OF: dict[str, set[str]] = {}  # by test
Test = TypeVar("Test", bound=Callable[..., None])
RATE = 10  # requests per second
# There is no load balancer: clients come to the instances.
SERVED = {"vllm_deployments": [deployment(instances_per_host=2, listen="0.0.0.0")]}


def load(lab: Lab, host: str) -> Load:
    """Streaming requests to the first instance of a host."""
    hosts = yaml.safe_load((lab.inventory / "hosts.yml").read_text())["instinct"]["hosts"]
    return Load(Target(f"http://{hosts[host]['ansible_host']}:8000", MODEL), RATE)


def book(lab: Lab, command: str) -> Run:
    """Run a command of the runbook; its host is the first node."""
    assert command in COMMANDS
    RAN.add(command)
    text = command[2:].replace(",lb-01", "").replace("mi300x-01", lab.hosts[0])  # there is no balancer
    if command.startswith("# "):
        return Run(0, lab.on(lab.hosts[0], text), [])
    words = shlex.split(text.replace("-i inventory/mine ", ""))
    if words[0] == "ansible-playbook":
        return lab.play(words[1].removeprefix("playbooks/").removesuffix(".yml"), *words[2:])
    done = subprocess.run(
        [str(BIN / "ansible"), "-i", str(lab.inventory), *words[1:]], cwd=ROOT, env=lab.environment()[0], text=True,
        check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return Run(done.returncode, done.stdout, [])


def runs(*commands: str) -> Callable[[Test], Test]:
    """Says which commands of the runbook a test runs; the fixture `fleet` holds it to that."""

    def named(test: Test) -> Test:
        COMMANDS_OF[test.__name__] = set(commands)
        return test

    return named


def serving(lab: Lab, host: str) -> bool:
    """Both instances of a host answer."""
    return all(completion(lab, host, port)["usage"]["completion_tokens"] == 4 for port in (8000, 8001))


def deploy(lab: Lab) -> None:
    """Two instances per node, in SPX/NPS1, whatever was there before."""
    for host in lab.hosts:
        lab.on(host, f"gpusim fault clear; gpusim config release=7.0.0; rm -f {JOURNAL}; modprobe amdgpu")
    lab.write_vars(**SERVED, **BACK)
    run = lab.play("site", "--skip-tags", "benchmark")
    assert run.rc == 0, run.out


@pytest.fixture(scope="module")
def as_it_was(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Afterwards the nodes are in SPX/NPS1 again."""
    yield
    deploy(copy_inventory(lab_up, tmp_path_factory.mktemp("afterwards")))


@pytest.fixture
def fleet(lab: Lab, as_it_was: None, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The lab with two instances per node, in SPX/NPS1."""
    deploy(lab)
    RAN.clear()
    yield lab
    for host in lab.hosts:
        lab.on(host, "gpusim fault clear")
    assert COMMANDS_OF.get(request.node.name, set()) == RAN


@runs(CHECKED, LIMITED, WHOLE)
def test_there_and_back_while_the_other_node_serves(fleet: Lab) -> None:
    first, second = fleet.hosts[:2]
    fleet.write_vars(**SERVED, **MODES)
    foreseen = book(fleet, CHECKED)
    assert foreseen.rc == 0, foreseen.out
    assert "CPX/NPS4 x 8" in foreseen.out
    assert fleet.on(first, SHOW).strip() == OLD
    with load(fleet, second) as requests:
        run = book(fleet, LIMITED)
        requests.wait_for(5 * RATE)
    assert run.rc == 0, run.out
    print(requests.assert_nothing_lost(at_least=5 * RATE))
    assert [fleet.on(host, SHOW).strip() for host in (first, second)] == [NEW, OLD]
    assert serving(fleet, first)
    shown = fleet.on(first, "docker inspect -f '{{json .HostConfig.Devices}}' instinct-llama-1")
    assert "/dev/dri/renderD160" in shown  # on a GPU of the other socket

    run = book(fleet, WHOLE)
    assert run.rc == 0, run.out
    assert set(run.actions()) == {second}
    again = fleet.play("partition")
    assert again.changed() == []
    assert "nothing to do" in again.out

    fleet.write_vars(**SERVED, **BACK)
    run = fleet.play("partition")
    assert run.rc == 0, run.out
    assert [fleet.on(host, SHOW).strip() for host in fleet.hosts] == [OLD, OLD]
    assert all(serving(fleet, host) for host in fleet.hosts)


def test_the_first_failure_ends_the_change_for_the_others(fleet: Lab) -> None:
    first, second = fleet.hosts[:2]
    fleet.on(first, "gpusim fault nps-change-fails")
    fleet.write_vars(**SERVED, **MODES)
    before = fleet.on(second, "docker inspect -f '{{.State.StartedAt}}' instinct-llama-0")
    run = fleet.play("partition")
    assert run.rc != 0
    assert "did not change to NPS4; look at dmesg | grep 'NPS mode'" in run.out
    assert "Started again: instinct-llama-" in run.out
    assert [fleet.on(host, SHOW).strip() for host in (first, second)] == [OLD, OLD]
    assert fleet.on(second, "docker inspect -f '{{.State.StartedAt}}' instinct-llama-0") == before
    wait_for("the instances to serve again", lambda: _answers(fleet, first))


def _answers(lab: Lab, host: str) -> bool:
    try:
        return serving(lab, host)
    except (AssertionError, ValueError):
        return False


def cut_off(fleet: Lab) -> None:
    """Start a change on the first node, and kill the controller, the module and its tool while the driver is gone."""
    first = fleet.hosts[0]
    fleet.on(first, "gpusim fault slow-reload=600")
    victim = fleet.start("partition", "--limit", first)
    try:
        unloaded = f'grep -q \'"step": "set"\' {JOURNAL} && ! test -e /sys/module/amdgpu && echo yes'
        wait_for("the change", lambda: "yes" in fleet.on(first, unloaded, check=False))
    finally:
        os.killpg(victim.pid, signal.SIGKILL)
        victim.communicate()
    # The module holds its lock, and may live on when its controller is gone; what it started, too. The brackets keep
    # pkill from finding the shell that runs it.
    fleet.on(first, f"kill -9 $(cat {LOCK}); pkill -9 -f '[s]etmemorypartition'; gpusim fault clear")


@runs(
    f"# cat {JOURNAL}",
    "# dmesg | grep amdgpu | tail -n 20",
    "# modprobe amdgpu",
    LIMITED,
    "# ls /sys/class/kfd/kfd/proc",
    "# systemctl is-enabled instinct-partition.service",
)
@pytest.mark.deep
def test_what_was_cut_off_is_finished(fleet: Lab) -> None:
    first = fleet.hosts[0]
    fleet.write_vars(**SERVED, **MODES)
    cut_off(fleet)
    assert '"SPX"' in book(fleet, f"# cat {JOURNAL}").out
    book(fleet, "# dmesg | grep amdgpu | tail -n 20")
    book(fleet, "# modprobe amdgpu")
    run = book(fleet, LIMITED)
    assert run.rc == 0, run.out
    assert fleet.on(first, SHOW).strip() == NEW
    assert "No such file" in fleet.on(first, f"ls {JOURNAL}", check=False)
    assert serving(fleet, first)
    book(fleet, "# ls /sys/class/kfd/kfd/proc")
    assert book(fleet, "# systemctl is-enabled instinct-partition.service").out.strip() == "enabled"


@pytest.mark.deep
@runs(TAKEN_BACK)
def test_what_was_cut_off_is_taken_back(fleet: Lab) -> None:
    first = fleet.hosts[0]
    fleet.write_vars(**SERVED, **MODES)
    cut_off(fleet)
    fleet.on(first, "modprobe amdgpu")
    run = book(fleet, TAKEN_BACK)
    assert run.rc == 0, run.out
    assert fleet.on(first, SHOW).strip() == OLD
    wait_for("the instances to serve again", lambda: _answers(fleet, first))


@runs(HURRIED)
@pytest.mark.deep
def test_back_in_a_hurry(fleet: Lab) -> None:
    first = fleet.hosts[0]
    fleet.write_vars(**SERVED, **MODES)
    assert fleet.play("partition", "--limit", first).rc == 0
    run = book(fleet, HURRIED)
    assert run.rc == 0, run.out
    assert fleet.on(first, SHOW).strip() == OLD
    # The next boot sets these modes, and not the ones of before.
    kept = json.loads(fleet.on(first, f"cat {RECORD}"))
    assert (kept["memory"], set(kept["compute"].values())) == ("NPS1", {"SPX"})


@pytest.mark.deep
@runs(CLEANED)
def test_a_host_with_stranded_vram_is_set_aside_and_cleaned_with_permission(fleet: Lab) -> None:
    first, second = fleet.hosts[:2]
    fleet.on(first, "docker stop instinct-llama-0 instinct-llama-1; gpusim fault stranded=46111@3")
    run = fleet.play("plan")
    assert run.rc == 0, run.out
    assert "GPU 3: VRAM in use that no process holds, up to 45 GiB" in " ".join(run.out.split())
    assert "Run again with -e gpu_clean=true" in " ".join(run.out.split())
    assert set(run.plan()["hosts"]) == {second}
    run = book(fleet, CLEANED)
    assert run.rc == 0, run.out
    assert "modprobe -r amdgpu" in run.actions()[first]
    assert serving(fleet, first)
    used = fleet.on(first, "cat /sys/class/drm/card24/device/mem_info_vram_used")
    assert int(used) < 1 << 30


def test_every_command_of_the_runbook_is_run_by_a_test() -> None:
    assert set(COMMANDS) == set().union(*COMMANDS_OF.values())
