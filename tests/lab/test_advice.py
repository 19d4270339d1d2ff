# SPDX-License-Identifier: Apache-2.0
"""Whatever status.yml advises is done as it is printed, under a streaming load: no request is lost, and it helps.

Two hosts with two stand-in instances each, behind HAProxy on the first one; the trouble is on the second. A row of
TROUBLES makes one state of an instance, waits until the status names it, and runs the commands of the next step that
is printed for it, in their order. What the trouble itself cost is not counted: the load begins when it has settled.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.plugin_utils.operations.status import rows as s

from .conftest import Lab
from .endpoint import RATE, Endpoint
from .faults import ENGINES, NetworkCut
from .helpers import LEFT_OUT, deployment, wait_for
from .test_rollout import FRESH, runs

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]
SICK = "lab-n2"
INSTANCES = 4
NOT_HOME = "-p tcp --dport 22 -j REJECT --reject-with tcp-reset"
CHECKS = "! -i lo -p tcp -m multiport --dports 8000,8001 -j REJECT --reject-with tcp-reset"
PLAYBOOK = re.compile(r"\b([a-z_]+)\.yml((?: (?:--limit|-e) [^\s,;]+)*)")
BY_DOCKER = re.compile(r"docker (unpause|logs) (instinct-\S+) on (\S+)")


@dataclass(frozen=True)
class Trouble:
    """begin: what goes wrong. end: what no advice can mend (a cable, a firewall); most need none.

    states: what the status may call it. named: a part of the advice. serves: it stays in the load balancer.
    """

    name: str
    states: tuple[str, ...]
    named: str
    begin: Callable[[Lab], None]
    end: Callable[[Lab], None] | None = None
    serves: bool = False


def on_sick(command: str) -> Callable[[Lab], None]:
    """What runs a shell command on the host with the trouble."""

    def run(lab: Lab) -> None:
        lab.on(SICK, command)

    return run


def want(lab: Lab, requests: int) -> None:
    """Let the inventory want so many requests at once: another number is another definition."""
    wanted = deployment(instances_per_host=2, engine_args={"max_num_seqs": requests})
    lab.write_vars(vllm_deployments=[wanted], rollout_soak=2, rollout_serial=[1], canary=False)


SERVE = "Change instances, phase serve"  # of the second batch: its instances have left the load balancer


def interrupted_upgrade(lab: Lab) -> None:
    want(lab, next(FRESH))
    assert lab.killed_at(SERVE, "upgrade", times=2, later=0)


def interrupted_rollback(lab: Lab) -> None:
    """The deployment is held at the generation to which only a part has returned."""
    want(lab, next(FRESH))
    run = lab.play("upgrade")
    assert run.rc == 0, run.out[-3000:]
    assert lab.killed_at(SERVE, "rollback", "-e", "deployment=llama", times=2, later=0)


def drained(lab: Lab) -> None:
    run = lab.play("drain", "--limit", SICK, "-e", "instance=llama-0")
    assert run.rc == 0, run.out[-3000:]


def refuse(where: str) -> tuple[Callable[[Lab], None], Callable[[Lab], None]]:
    """What lets the host refuse these packets, and what ends that."""
    return on_sick(f"iptables -I INPUT {where}"), on_sick(f"iptables -D INPUT {where}")


NETWORK = NetworkCut(SICK)
TROUBLES = (
    Trouble("paused", (s.PAUSED,), "docker unpause", on_sick("docker pause instinct-llama-0")),
    Trouble("stopped", (s.STOPPED,), "site.yml", on_sick("docker stop instinct-llama-0")),
    Trouble("killed", (s.CRASHED,), "site.yml", on_sick("docker kill instinct-llama-0")),
    Trouble("removed", (s.MISSING,), "site.yml", on_sick("docker rm --force instinct-llama-0")),
    Trouble("hangs", (s.SILENT,), "restart.yml", on_sick(f"kill -STOP $({ENGINES})")),
    Trouble("drained", (s.DRAINED,), "undrain.yml", drained),
    Trouble("interrupted upgrade", (s.DRAINED,), "upgrade.yml", interrupted_upgrade),
    Trouble("interrupted rollback", (s.DRAINED,), "rollback.yml", interrupted_rollback),
    Trouble("checks refused", (s.NO_TRAFFIC,), "journalctl", *refuse(CHECKS)),
    Trouble("no SSH", (s.NOT_REACHED,), f"ssh {SICK}", *refuse(NOT_HOME), serves=True),
    Trouble("no network", (s.NOT_REACHED,), "drain.yml", NETWORK.begin, NETWORK.end),
)


@pytest.fixture(scope="module")
def endpoint(balanced_lab: Lab) -> Endpoint:
    balanced_lab.batches = True
    want(balanced_lab, next(FRESH))
    return Endpoint.deployed(balanced_lab, "deploy")


def status(lab: Lab) -> dict[str, Any]:
    """Return what status.yml writes. SSH connections are not reused: a host that refuses new ones is not reached."""
    path = lab.tmp / "status.json"
    path.unlink(missing_ok=True)
    lab.play("status", "-e", f"status_file={path}", "-e", "strict=false")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def in_trouble(lab: Lab, trouble: Trouble) -> list[dict[str, Any]]:
    """Wait until the status names the trouble and the load balancer has noticed; return the instances that have it."""
    found: list[dict[str, Any]] = []

    def seen() -> bool:
        found[:] = [row for row in status(lab)["instances"] if row["state"] in trouble.states]
        settled = trouble.serves or all(row["balancer"] != s.IN for row in found)
        return settled and any(trouble.named in row["next_step"] for row in found)

    wait_for(f"the status to say {trouble.states} and {trouble.named}", seen, 180)
    return found


def follow(lab: Lab, advice: str) -> list[str]:
    """Do what the advice says, up to a word that means later; return the commands."""
    done = []
    for action, container, host in BY_DOCKER.findall(advice):
        lab.on(host, f"docker {action} {container}")
        done.append(f"docker {action}")
    # Of "site.yml or upgrade.yml" the first; undrain.yml comes after the trouble.
    for playbook, args in PLAYBOOK.findall(re.sub(r" or [a-z_]+\.yml|until undrain\.yml", "", advice)):
        words = shlex.split(args)
        run = lab.play(playbook, *(["--skip-tags", "benchmark"] if playbook == "site" else []), *words)
        # A host that is not reached is named; what can be done without it is done.
        assert run.rc in (0, LEFT_OUT) or "not reached" in run.out, f"{playbook} {args}:\n{run.out[-4000:]}"
        done.append(f"{playbook}.yml{args}")
    return done


@pytest.mark.parametrize("trouble", TROUBLES, ids=[item.name.replace(" ", "-") for item in TROUBLES])
def test_every_advice_is_followed_and_nothing_is_lost(endpoint: Endpoint, trouble: Trouble) -> None:
    lab = endpoint.lab
    done = []
    trouble.begin(lab)
    try:
        rows = in_trouble(lab, trouble)
        with endpoint.load(RATE) as load:
            load.wait_for(RATE)
            for advice in dict.fromkeys(row["next_step"] for row in rows):
                done += follow(lab, advice)
            if trouble.end:
                trouble.end(lab)
                time.sleep(5)
                if any(step.startswith("drain.yml") for step in done):
                    run = lab.play("undrain", "--limit", SICK)
                    assert run.rc == 0, run.out[-3000:]
            wait_for("the whole fleet to serve", lambda: not status(lab)["verdict"], 240)
            load.wait_for(load.begun + RATE)
        found = load.assert_nothing_lost(at_least=RATE)
    finally:
        if trouble.end:
            with suppress(AssertionError, subprocess.CalledProcessError):
                trouble.end(lab)  # it may have been ended above
    print(f"| {trouble.name} | {rows[0]['state']} | {'; '.join(done) or '-'} | {found.begun} |")
    assert len(runs(lab)) == 1
    site = lab.play("site", "--skip-tags", "benchmark")
    assert (site.rc in (0, LEFT_OUT), site.changed()) == (True, []), site.out[-3000:]


def test_every_advice_for_a_state_is_tried() -> None:
    """But for what passes by itself, and for what names a cause in the engine's log (unit/status/test_advice.py)."""
    tried = {state for trouble in TROUBLES for state in trouble.states}
    assert set(s.NEXT) - tried <= {s.DEAD}
