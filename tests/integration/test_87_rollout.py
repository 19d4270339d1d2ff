# SPDX-License-Identifier: Apache-2.0
"""Upgrades without a lost request, also after a controller that died; what the runbook of upgrades says."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.load import Summary

from .conftest import ROOT, Lab, Run, copy_inventory, reset_lab
from .helpers import deployment
from .test_85_balancer import Endpoint

HOST = "lab-n1"  # the balancer's, and a GPU host too
RATE = 30  # requests per second: two cores run a second lab and the unit tests as well
BOOK = ROOT / "docs/runbooks/upgrade.md"
COMMANDS = [
    line
    for block in re.findall(
        r"^```console\n(.*?)^```", BOOK.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    for line in block.splitlines()
]
RAN: set[str] = set()
CANARY: dict[str, Any] = {
    "canary_runs": 4,
    "canary_max_runs": 6,
    "canary_tolerance": 40,  # two cores, and a load beside it
    "canary_latency_tolerance": 300,
    "canary_args": {
        "dataset_name": "random",
        "random_input_len": 32,
        "random_output_len": 16,
        "num_prompts": 16,
        "max_concurrency": 4,
        "temperature": 0,
        "ignore_eos": True,
    },
}


def serve(lab: Lab, requests: int, compute: str = "SPX", **keys: Any) -> None:
    """What the inventory wants: two instances on each node, with so many requests at once; compute: of lab-n2."""
    wanted = {"instances_per_host": 2, "engine_args": {"max_num_seqs": requests}, **keys}
    mode = f"{{{{ '{compute}' if inventory_hostname == 'lab-n2' else 'SPX' }}}}"
    lab.write_vars(
        vllm_deployments=[deployment(**wanted)], upgrade_soak=2, gpu_partition_compute=mode, **CANARY
    )


def book(lab: Lab, command: str, *more: str) -> Run:
    """Run a command of the runbook, on the lab's hosts."""
    assert command in COMMANDS, command
    RAN.add(command)
    text = command.removeprefix("$ ").replace("-i inventory/mine ", "")
    words = shlex.split(text.replace("mi300x-01,lb-01", "lab-n2,lab-n1").replace("mi300x-01", "lab-n2"))
    return lab.play(words[1].removeprefix("playbooks/").removesuffix(".yml"), *words[2:], *more)


def runs(lab: Lab) -> set[str]:
    """How many requests at once the instances take, over all nodes."""
    show = "grep -ho 'max-num-seqs [0-9]*' /etc/instinct-fleet/instances/llama-*/serve.sh"
    return {line.split()[1] for host in lab.hosts for line in lab.on(host, show).splitlines()}


def settled(lab: Lab) -> None:
    """Nothing is out, nothing on trial, all instances answer."""
    assert lab.on(HOST, "cat /var/lib/instinct-fleet/balancer/out.json 2> /dev/null || true").strip() in (
        "",
        "{}",
    )
    for host in lab.hosts:
        state = lab.on(host, "cat /etc/instinct-fleet/generations/llama/state.json 2> /dev/null || echo '{}'")
        assert '"canary"' not in state
        for port in (8000, 8001):
            assert answers(lab, host, port)


def answers(lab: Lab, host: str, port: int) -> bool:
    """An instance on its node says that it is well."""
    place = lab.on(host, f"ss -Hltn sport = :{port} | awk '{{print $4}}'").strip()
    program = f"import urllib.request as u; print(u.urlopen('http://{place}/health', timeout=10).status)"
    return lab.on(host, f'python3 -c "{program}"').strip() == "200"


@pytest.fixture(scope="module")
def endpoint(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    reset_lab()
    lab = copy_inventory(lab_up, tmp_path_factory.mktemp("rollout"))
    (lab.inventory / "balancer.yml").write_text(f"load_balancer:\n  hosts:\n    {HOST}:\n")
    serve(lab, 101)
    run = lab.play("deploy")
    assert run.rc == 0, run.out[-3000:]
    made = Endpoint(lab)
    made.trust()
    yield made
    reset_lab()


def test_an_upgrade_loses_no_request(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    before = runs(lab)
    serve(lab, int(next(iter(before))) + 1)
    check = book(lab, "$ ansible-playbook -i inventory/mine playbooks/upgrade.yml --check --diff")
    assert check.rc == 0, check.out[-3000:]
    assert "Upgrade of llama: 4 units in 4 batches" in check.out
    assert runs(lab) == before
    under_load(endpoint, "upgrade", requests=1000)


def under_load(endpoint: Endpoint, *steps: str, requests: int) -> Summary:
    """A streaming load during these steps, and until there were so many requests: none of them may be lost."""
    lab = endpoint.lab
    with endpoint.load(RATE) as load:
        time.sleep(1)
        for step in steps:
            begun = time.monotonic()
            during(lab, step)
            print(f"{step}: {time.monotonic() - begun:.0f} s, {load.summary()}", flush=True)
            assert load.problems() == {}
        load.wait_for(requests)
    found = load.assert_nothing_lost(at_least=requests)
    print(f"{found} at {RATE}/s")
    return found


def during(lab: Lab, step: str) -> None:
    """One of the things during which nothing may be lost."""
    before = runs(lab)
    if step == "upgrade":
        run = book(lab, "$ ansible-playbook -i inventory/mine playbooks/upgrade.yml")
        assert run.rc == 0, run.out[-4000:]
        assert "Upgrade: 4 units of 4 done." in run.out
        assert len(runs(lab) - before) == 1
    elif step == "rollback":
        run = book(lab, "$ ansible-playbook -i inventory/mine playbooks/rollback.yml -e deployment=llama")
        assert run.rc == 0, run.out[-4000:]
        assert len(runs(lab) - before) == 1
        again = lab.play("deploy")
        assert again.changed() == []
        assert "held at generation" in again.out
    elif step == "partition":
        number = int(next(iter(before)))
        serve(lab, number)
        assert lab.play("deploy").rc == 0  # the inventory says what runs: it is held no longer
        serve(lab, number, "CPX")
        run = lab.play("partition")
        assert run.rc == 0, run.out[-4000:]
    else:
        out = book(lab, "$ ansible-playbook -i inventory/mine playbooks/drain.yml --limit mi300x-01")
        assert out.rc == 0, out.out
        lab.reboot("lab-n2")
        back = book(lab, "$ ansible-playbook -i inventory/mine playbooks/undrain.yml --limit mi300x-01")
        assert back.rc == 0, back.out


# A task of the rollout; how far the run has come when it is killed there: whether the canary is still to be judged.
MOMENTS = [
    ("Leave the load balancer", True),
    ("Measure the old generation", True),
    ("Serve", True),
    ("Watch", True),
]
DEEP = [
    ("Record generations", True),
    ("Note what the old generation is measured with", True),
    ("Compare with the old generation", True),
    ("Come back into the load balancer", True),
    ("Note that the canary was judged", True),
    ("Note that nothing is on trial any more", False),
]


def killed_at(lab: Lab, task: str, times: int = 1) -> bool:
    """Run upgrade.yml, and kill the controller shortly after a task began; False: it never did."""
    victim = lab.start("upgrade")
    assert victim.stdout is not None
    reached = False
    try:
        for line in victim.stdout:
            if (
                line.startswith("TASK [")
                and line.partition("[")[2].partition("]")[0].rpartition(" : ")[2] == task
            ):
                times -= 1
                if not times:
                    time.sleep(0.7)
                    reached = True
                    break
    finally:
        if victim.poll() is None:
            os.killpg(victim.pid, signal.SIGKILL)
        victim.stdout.close()
        victim.wait()
    return reached


def goes_on(lab: Lab, task: str, canary: bool) -> None:
    """A run that is killed at a task, and the next one, which ends what it began."""
    now = int(next(iter(runs(lab))))
    serve(lab, now + 1)
    assert killed_at(lab, task), task
    run = book(lab, "$ ansible-playbook -i inventory/mine playbooks/upgrade.yml")
    assert run.rc == 0, run.out[-4000:]
    assert runs(lab) == {str(now + 1)}
    judged = [r for r in run.records if r["module"] == "canary_verdict"]
    assert bool(judged) == canary
    settled(lab)
    again = lab.play("upgrade")
    assert (again.rc, again.changed()) == (0, []), again.out[-3000:]


@pytest.mark.parametrize(("task", "canary"), MOMENTS[2:3])
def test_a_run_that_died_is_ended_by_the_next(endpoint: Endpoint, task: str, canary: bool) -> None:
    goes_on(endpoint.lab, task, canary)


@pytest.mark.deep
@pytest.mark.parametrize(("task", "canary"), [*MOMENTS[:2], *MOMENTS[3:], *DEEP])
def test_wherever_it_died(endpoint: Endpoint, task: str, canary: bool) -> None:
    goes_on(endpoint.lab, task, canary)


@pytest.mark.deep  # in every run, test_88 stops one that dies at its first request
def test_one_that_does_not_start_stops_the_upgrade(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    before = runs(lab)
    serve(lab, 90, env={"STANDIN_FAIL": "oom"})
    with endpoint.load(RATE) as load:
        run = lab.play("upgrade")
        assert run.rc != 0
    print(load.assert_nothing_lost(at_least=RATE))
    assert "Upgrade: 0 units of 4 done." in run.out
    assert "is held there until upgrade.yml finds another definition" in run.out
    assert runs(lab) == before
    settled(lab)
    site = lab.play("deploy")
    assert (site.rc, site.changed()) == (0, []), site.out[-3000:]
    refused = lab.play("upgrade")
    assert "-e again=true" in refused.out
    assert refused.changed() == []


@pytest.mark.deep
def test_the_rest_of_the_runbook(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    number = int(next(iter(runs(lab))))
    serve(lab, number)
    for command in COMMANDS:
        if command in RAN or not command.startswith("$ ansible-playbook"):
            continue
        run = book(lab, command, *(("--check",) if "again=true" in command else ()))
        assert run.rc == 0, f"{command}\n{run.out[-3000:]}"
    assert lab.play("deploy").rc == 0
    settled(lab)
    assert {line for line in COMMANDS if line.startswith("$ ")} <= RAN


SERIAL = "upgrade_serial: [3] lets 3 units change at a time, which leaves 1 of 4 engines of llama in"


def test_refused_before_anything_stops(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    number = int(next(iter(runs(lab))))
    serve(lab, number + 10)
    for args, text in (
        (("upgrade", "-e", "upgrade_serial=3"), SERIAL),
        (("upgrade", "--limit", "lab-n2"), "cannot leave load balancer lab-n1"),
        (("rollback", "-e", "deployment=llama", "-e", "generation=77"), "generation 77 is kept on no host"),
        (("rollback",), "-e deployment=NAME"),
    ):
        run = lab.play(*args)
        assert run.rc != 0
        assert text in run.out, run.out[-2000:]
        assert run.changed() == []


@pytest.mark.deep
def test_ten_thousand_requests_and_none_is_lost(endpoint: Endpoint) -> None:
    """The last one: a node's GPUs are in another mode afterwards."""
    number = int(next(iter(runs(endpoint.lab))))
    serve(endpoint.lab, number + 20)
    under_load(endpoint, "upgrade", "rollback", "partition", "reboot", requests=10_000)
    settled(endpoint.lab)
