# SPDX-License-Identifier: Apache-2.0
"""Upgrades and rollbacks without a lost request, also after a controller that died; what their runbooks say."""

from __future__ import annotations

import itertools
import math
import re
import shlex
import subprocess
import time
from typing import Any

import pytest

from tests import ROOT
from tests.load import Summary

from .conftest import Lab, Run
from .endpoint import Endpoint
from .helpers import LEFT_OUT, MODEL, deployment

HOST = "lab-n1"  # the balancer's, and a GPU host too
RATE = 30  # requests per second: two cores run a second lab and the unit tests as well
NIGHTLY_RATE = 50  # what is promised


def commands(book: str) -> list[str]:
    """The commands of a runbook, in its order."""
    blocks = re.findall(r"```console\n(.+?)```", (ROOT / book).read_text(encoding="utf-8"), re.DOTALL)
    return re.findall(r"^[$#] .+$", "".join(blocks), re.MULTILINE)


UPGRADE, ROLLBACK = commands("docs/runbooks/upgrade.md"), commands("docs/runbooks/rollback.md")
ENDPOINT = commands("docs/runbooks/endpoint.md")
RAN: set[str] = set()
# Requests at once: a definition that no generation has, so that nothing comes again that was turned back.
FRESH = itertools.count(101)
CANARY: dict[str, Any] = {
    "canary_runs": 4,
    "canary_max_runs": 6,
    "canary_tolerance": 40,  # two cores, and a load beside it
    "canary_latency_tolerance": 300,
    "canary_accuracy_tolerance": 100,  # test_canary asks; it would take a minute each time
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
        vllm_deployments=[deployment(**wanted)], rollout_soak=2, gpu_partition_compute=mode, **CANARY
    )


def book(lab: Lab, command: str, *more: str, generation: int = 2) -> Run:
    """Run a command of the runbooks, on the lab's hosts; generation: the one that is meant by its 2."""
    assert command in (*UPGRADE, *ROLLBACK, *ENDPOINT), command
    RAN.add(command)
    text = command[2:].replace("generation=2", f"generation={generation}")
    text = text.replace("/2.json", f"/{generation}.json")
    if command.startswith("# "):
        return Run(0, lab.on("lab-n2", text), [])
    text = text.replace("mi300x-01,lb-01", "lab-n2,lab-n1").replace("mi300x-01", "lab-n2")
    playbook, _, pipe = text.replace("-i inventory/mine ", "").partition(" | ")
    words = shlex.split(playbook)
    run = lab.play(words[1].removeprefix("playbooks/").removesuffix(".yml"), *words[2:], *more)
    if not pipe or run.rc:
        return run
    done = subprocess.run(["bash", "-c", pipe], input=run.out, capture_output=True, text=True, check=False)
    return Run(done.returncode, done.stdout, run.records)


def runs(lab: Lab) -> set[str]:
    """How many requests at once the instances take, over all nodes."""
    show = "grep -ho 'max-num-seqs [0-9]*' /etc/instinct-fleet/instances/llama-*/serve.sh"
    return {line.split()[1] for host in lab.hosts for line in lab.on(host, show).splitlines()}


def let_go(lab: Lab) -> None:
    """The inventory says what runs, so that it is held no longer."""
    serve(lab, int(next(iter(runs(lab)))))
    run = lab.play("deploy")
    assert run.rc == 0, run.out[-3000:]
    assert "held at generation" not in lab.play("deploy").out


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
    program = f"import urllib.request as u; print(u.urlopen('http://{place}/health', timeout=60).status)"
    return lab.on(host, f'python3 -c "{program}"').strip() == "200"


@pytest.fixture(scope="module")
def endpoint(balanced_lab: Lab) -> Endpoint:
    serve(balanced_lab, next(FRESH))
    return Endpoint.deployed(balanced_lab, "deploy")


def test_an_upgrade_and_a_rollback_lose_no_request(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    before = runs(lab)
    serve(lab, next(FRESH))
    check = book(lab, "$ ansible-playbook -i inventory/mine playbooks/upgrade.yml --check --diff")
    assert check.rc == 0, check.out[-3000:]
    assert "Upgrade of llama: 4 groups in 4 batches" in check.out
    assert runs(lab) == before
    under_load(endpoint, "upgrade", "rollback", requests=1000)
    assert runs(lab) == before
    let_go(lab)


def under_load(endpoint: Endpoint, *steps: str, requests: int, rate: float = RATE) -> Summary:
    """A streaming load during these steps, and until there were so many requests: none of them may be lost."""
    lab = endpoint.lab
    with endpoint.load(rate) as load:
        load.wait_for(math.ceil(rate))
        for step in steps:
            begun = time.monotonic()
            during(lab, step)
            print(f"{step}: {time.monotonic() - begun:.0f} s, {load.summary()}", flush=True)
            assert load.problems() == {}
        load.wait_for(requests)
    found = load.assert_nothing_lost(at_least=requests)
    print(f"{found} at {rate}/s")
    return found


def during(lab: Lab, step: str) -> None:
    """One of the things during which nothing may be lost."""
    before = runs(lab)
    if step == "upgrade":
        run = book(lab, "$ ansible-playbook -i inventory/mine playbooks/upgrade.yml")
        assert run.rc == 0, run.out[-4000:]
        assert "Upgrade: 4 groups of 4 done." in run.out
        assert len(runs(lab) - before) == 1
    elif step == "rollback":
        run = book(lab, "$ ansible-playbook -i inventory/mine playbooks/rollback.yml -e deployment=llama")
        assert run.rc == 0, run.out[-4000:]
        assert len(runs(lab) - before) == 1
        again = lab.play("deploy")
        assert again.changed() == []
        assert "held at generation" in again.out
    elif step == "partition":
        let_go(lab)
        serve(lab, int(next(iter(before))), "CPX")
        run = lab.play("partition")
        assert run.rc == 0, run.out[-4000:]
    else:
        out = book(lab, "$ ansible-playbook -i inventory/mine playbooks/drain.yml --limit mi300x-01")
        assert out.rc == 0, out.out
        lab.reboot("lab-n2")
        back = book(lab, "$ ansible-playbook -i inventory/mine playbooks/undrain.yml --limit mi300x-01")
        assert back.rc == 0, back.out


# A task at which the run is killed, and whether the canary is still to be judged then; None: that may have been noted.
MOMENTS = [
    ("Set servers of the load balancers, phase drain", True),
    ("Compare with the old generation, phase measure", True),
    ("Change instances, phase serve", True),
    ("Watch instances, phase watch", False),
    ("Record generations", True),
    ("Record the progress of the rollout, phase record_baseline", True),
    ("Compare with the old generation, phase judge", True),
    ("Set servers of the load balancers, phase undrain", False),
    ("Record the progress of the rollout, phase record_verdict", None),
    ("Record that nothing is on trial any more", False),
]


@pytest.mark.deep
@pytest.mark.parametrize(("task", "canary"), MOMENTS)
def test_wherever_it_died(endpoint: Endpoint, task: str, canary: bool | None) -> None:
    """The next run ends what a killed one began."""
    lab = endpoint.lab
    new = next(FRESH)
    serve(lab, new)
    assert lab.killed_at(task, "upgrade"), task
    run = book(lab, "$ ansible-playbook -i inventory/mine playbooks/upgrade.yml")
    assert run.rc == 0, run.out[-4000:]
    assert runs(lab) == {str(new)}
    judged = [r for r in run.records if r["module"] == "canary_verdict"]
    assert canary in (None, bool(judged))
    settled(lab)
    again = lab.play("upgrade")
    assert (again.rc, again.changed()) == (0, []), again.out[-3000:]


@pytest.mark.deep
def test_one_that_does_not_start_stops_the_upgrade(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    before = runs(lab)
    serve(lab, 90, env={"STANDIN_FAIL": "oom"})
    with endpoint.load(RATE) as load:
        run = lab.play("upgrade")
        assert run.rc != 0
    print(load.assert_nothing_lost(at_least=RATE))
    assert "Upgrade: 0 groups of 4 done." in run.out
    assert "llama is held. It ends when the inventory defines something else" in run.out
    assert runs(lab) == before
    settled(lab)
    site = lab.play("deploy")
    assert (site.rc, site.changed()) == (LEFT_OUT, []), site.out[-3000:]
    again = lab.play("upgrade")
    assert (again.rc, again.changed()) == (LEFT_OUT, []), again.out[-3000:]
    assert "-e retry=true" in again.out


@pytest.mark.deep
def test_every_command_of_the_rollback_runbook(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    check, back, chosen, kept, *on_host = ROLLBACK
    old, new = next(FRESH), next(FRESH)
    # Other weights, which only the older generation needs.
    for number, keys in ((old, {"revision": "v1"}), (new, {})):
        serve(lab, number, **keys)
        run = lab.play("upgrade", "-e", "canary=false")
        assert run.rc == 0, run.out[-4000:]
    generations = [
        int(name.removesuffix(".json"))
        for name in lab.on("lab-n2", "cd /etc/instinct-fleet/generations/llama; ls [0-9]*.json").split()
    ]
    *_, before, newest = sorted(generations)

    foreseen = book(lab, check)
    assert foreseen.rc == 0, foreseen.out[-3000:]
    assert "Rollback of llama: 4 groups" in foreseen.out
    assert runs(lab) == {str(new)}
    run = book(lab, back)
    assert run.rc == 0, run.out[-4000:]
    assert runs(lab) == {str(old)}
    run = book(lab, chosen, generation=newest)
    assert run.rc == 0, run.out[-4000:]
    assert runs(lab) == {str(new)}
    run = book(lab, kept)
    assert run.rc == 0, run.out
    assert re.search(rf"weights {MODEL}@[0-9a-f]+: generation {before} of llama", run.out), run.out

    journal, names, record, state, spec, which = (
        book(lab, command, generation=newest).out for command in on_host
    )
    assert f"llama is held at generation {newest} (answers got worse)" in journal
    assert {f"{before}.json", f"{newest}.json", "state.json"} <= set(names.split())
    shown = set(re.findall(r'^ *"(\w+)":', record, re.MULTILINE))
    assert {"made", "why", "image_ref", "vllm", "commit", "command"} <= shown
    assert "answers got worse" in state
    assert spec.strip()
    assert which.split()[-1].endswith(f"/{newest}.json")
    let_go(lab)
    settled(lab)
    assert set(ROLLBACK) <= RAN


@pytest.mark.deep
def test_every_other_command_of_the_runbooks(endpoint: Endpoint) -> None:
    """Those of upgrades and of the endpoint."""
    lab = endpoint.lab
    serve(lab, int(next(iter(runs(lab)))))
    for command in dict.fromkeys((*UPGRADE, *ENDPOINT)):
        if command in RAN:
            continue
        run = book(lab, command, *(("--check",) if "retry=true" in command else ()))
        assert run.rc == 0, f"{command}\n{run.out[-3000:]}"
    assert lab.play("deploy").rc == 0
    settled(lab)
    assert {*UPGRADE, *ENDPOINT} <= RAN


def hold(lab: Lab) -> None:
    """Hold the deployment at the generation before the newest, and stop what lab-n2 runs: an upgrade failed there."""
    program = (
        "import json, pathlib, time; d = pathlib.Path('/etc/instinct-fleet/generations/llama'); p = d / 'state.json'; "
        "s = json.loads(p.read_text()) if p.exists() else {}; "
        "n = sorted(int(f.stem) for f in d.glob('[0-9]*.json'))[-2]; "
        "s['held'] = {'generation': n, 'why': 'Docker died', "
        "'since': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}; "
        "p.write_text(json.dumps(s))"
    )
    for host in lab.hosts:
        lab.on(host, f'python3 -c "{program}"')
    lab.on("lab-n2", "docker stop instinct-llama-0 instinct-llama-1")


@pytest.mark.deep  # three minutes; the unit tests of batches hold what it may take
def test_a_deploy_never_takes_the_last_that_serve(endpoint: Endpoint) -> None:
    """A change loses nothing; nor does what leads back to a held generation, where only half of the fleet serves."""
    lab = endpoint.lab
    old, new = runs(lab), next(FRESH)
    lab.batches = True
    try:
        serve(lab, new)
        with endpoint.load(RATE) as load:
            load.wait_for(RATE)
            begun = time.monotonic()
            change = lab.play("deploy")
            print(f"a change by batches: {time.monotonic() - begun:.0f} s")
        assert change.rc == 0, change.out[-4000:]
        assert "Deploy: 4 groups of 4 done." in change.out
        assert runs(lab) == {str(new)}
        print(load.assert_nothing_lost(at_least=RATE))
        hold(lab)
        time.sleep(
            5
        )  # until the load balancer has noticed: what lab-n2 loses by that is not lost by the deploy
        with endpoint.load(RATE) as load:
            load.wait_for(RATE)
            begun = time.monotonic()
            back = lab.play("deploy")
            print(f"back to what is held: {time.monotonic() - begun:.0f} s")
        assert back.rc == LEFT_OUT, back.out[-4000:]
        assert "Rollback of llama: 2 groups in 2 batches" in back.out
        assert "Deploy: 2 groups of 2 done." in back.out
        assert runs(lab) == old
        print(load.assert_nothing_lost(at_least=RATE))
        again = lab.play("deploy")
        assert (again.rc, again.changed()) == (LEFT_OUT, []), again.out[-3000:]
    finally:
        lab.batches = False
    settled(lab)
    for host in lab.hosts:  # no upgrade of these tests has to end this hold
        lab.on(host, "rm /etc/instinct-fleet/generations/llama/state.json")


SERIAL = "rollout_serial: [3] lets 3 groups change at a time, which leaves 1 of 4 engines of llama in service"


def test_refused_before_anything_stops(endpoint: Endpoint) -> None:
    lab = endpoint.lab
    serve(lab, next(FRESH))
    for args, text in (
        (("upgrade", "-e", "rollout_serial=3"), SERIAL),
        (("upgrade", "--limit", "lab-n2"), "cannot be drained from load balancer lab-n1"),
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
    serve(endpoint.lab, next(FRESH))
    steps = ("upgrade", "rollback", "partition", "reboot")
    under_load(endpoint, *steps, requests=10_000, rate=NIGHTLY_RATE)
    settled(endpoint.lab)
