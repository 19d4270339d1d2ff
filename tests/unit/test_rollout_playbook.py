# SPDX-License-Identifier: Apache-2.0
"""The rollout's tasks for real, on modules that only note that they were called: their order, and the way back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
# The word WANT_JSON in it makes Ansible hand over any parameters, in a file.
MODULE = """#!/usr/bin/python
# WANT_JSON
import json, os, sys
with open(sys.argv[1]) as file:
    given = {key: value for key, value in json.load(file).items() if not key.startswith("_ansible")}
text = json.dumps([NAME, given], sort_keys=True)
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(text + chr(10))
answer = {"changed": True, "servers": [], "verdict": "ok", "more": 0, "baseline": {"tps": 5}, "client": {}, "looks": []}
if any(all(word in text for word in part) for part in json.loads(os.environ["FAKE_FAIL"])):
    answer = {"failed": True, "msg": "broken by the test: " + NAME}
print(json.dumps(answer))
"""
PLAY = """
- hosts: instinct
  gather_facts: false
  vars: {rollout_verdict_result: {stop: false, back: false, turned: false}}
  tasks:
    - ansible.builtin.include_role: {name: instinct.fleet.rollout, rolespec_validate: false}
      loop: "{{ fleet_host_plan.rollout.batches }}"
      loop_control: {loop_var: rollout_batch, label: "{{ rollout_batch.text }}"}
    - instinct.fleet.rollout_verdict: {rollout: "{{ fleet_host_plan.rollout }}"}
      run_once: true
"""


@dataclass
class Played:
    """A run: its exit code, what it printed, and the calls in short."""

    rc: int
    out: str
    calls: list[str]


def server(name: str, generation: int) -> dict[str, Any]:
    return {"name": name, "generation": generation, "deployment": "llama"}


def step(batch: int, host: str, name: str, canary: bool = False, spans: bool = False) -> dict[str, Any]:
    there = [{"balancer": "lb", "servers": [f"llama/{host}.{name}:8000"]}]
    return {
        "batch": batch,
        "servers": [server(name, 2)],
        "remove": [],
        "spans": spans,
        "out": there,
        "into": there,
        "back": {"servers": [server(name, 1)], "remove": [], "into": there, "lost": []},
        "canary": {
            "id": f"{host}/{name}", "old": server(name, 1), "new": server(name, 2), "reference": {}, "measure": True,
            "baseline": {},
        }
        if canary
        else None,
    }  # fmt: skip


def batch(number: int, *units: str) -> dict[str, Any]:
    hosts = sorted({unit.partition("/")[0] for unit in units})
    return {
        "number": number, "of": 2, "deployment": "llama", "generation": 2, "held": 1, "why": "other flags",
        "canary": units[0] if number == 1 else "", "hosts": hosts, "all_hosts": ["n1", "n2"],
        "units": [list(units)], "text": f"batch {number} of 2",
    }  # fmt: skip


STEPS = {
    "n1": [step(1, "n1", "llama-0", canary=True), step(2, "n1", "llama-1")],
    "n2": [step(2, "n2", "llama-0")],
}
BATCHES = [batch(1, "n1/llama-0"), batch(2, "n1/llama-1", "n2/llama-0")]


def play(
    tmp_path: Path,
    *fail: list[str],
    operation: str = "upgrade",
    steps: dict[str, list[dict[str, Any]]] = STEPS,
) -> Played:
    collections = tmp_path / "collections"
    collection = collections / "ansible_collections/instinct/fleet"
    modules, actions = collection / "plugins/modules", collection / "plugins/action"
    for path in (modules, actions):
        path.mkdir(parents=True)
    for name in (
        "balancer_server", "vllm_server", "vllm_watch", "serving_generation", "vllm_smoke", "vllm_bench",
        "canary_verdict",
    ):  # fmt: skip
        (modules / f"{name}.py").write_text(MODULE.replace("NAME", repr(name)))
    for name in (
        "roles", "playbooks", "plugins/callback", "plugins/module_utils", "plugins/plugin_utils",
        "plugins/modules/rollout_verdict.py", "plugins/action/rollout_verdict.py",
    ):  # fmt: skip
        (collection / name).symlink_to(ROOT / name)
    batches = [item if operation == "upgrade" else {**item, "canary": ""} for item in BATCHES]
    hosts: dict[str, Any] = {
        name: {
            "fleet_host_plan": {
                "rollout": {
                    "operation": operation,
                    "batches": batches,
                    "soak": 7,
                    "steps": mine,
                    "finish": None,
                }
            }
        }
        for name, mine in steps.items()
    }
    local = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
    }
    inventory = {"all": {"hosts": {"lb": {}}, "vars": local, "children": {"instinct": {"hosts": hosts}}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    (tmp_path / "play.yml").write_text(PLAY)
    log = tmp_path / "log"
    log.touch()
    env = {
        **os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_NOCOLOR": "1",
        "FAKE_LOG": str(log), "FAKE_FAIL": json.dumps(fail),
    }  # fmt: skip
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(tmp_path / "hosts.yml"),
         str(tmp_path / "play.yml")],
        env=env, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    calls = [short(*json.loads(line)) for line in log.read_text().splitlines()]
    return Played(done.returncode, done.stdout + done.stderr, calls)


def short(name: str, given: dict[str, Any]) -> str:
    if name == "balancer_server":
        return f"{given['state']} {given['servers'][0].partition('/')[2].partition(':')[0]}"
    if name == "vllm_server":
        server = given["servers"][0]
        words = [given.get("state", ""), "start" if str(given.get("wait")) == "False" else "serve"]
        return f"{words[0] or words[1]} {server['name']} {server['generation']}"
    if name == "serving_generation":
        found = given["bindings"][0]
        if found.get("held"):
            return f"hold {found['held']['generation']}"
        return "trial judged" if found["trial"]["units"] else f"trial {found['trial']['baseline']['found']}"
    if name == "vllm_watch":
        return f"watch {given['servers'][0]}"
    return f"{name} {given.get('phase', '')}".strip()


CANARY = [
    "drain n1.llama-0", "vllm_smoke", "vllm_bench", "canary_verdict before", "trial {'tps': 5}", "serve llama-0 2",
    "vllm_smoke", "canary_verdict after", "ready n1.llama-0", "watch llama-0", "ready n1.llama-0", "trial judged",
]  # fmt: skip


def test_the_canary_first_then_the_others_at_the_same_time(tmp_path: Path) -> None:
    done = play(tmp_path)
    assert done.rc == 0, done.out
    assert done.calls[: len(CANARY)] == CANARY
    rest = done.calls[len(CANARY) :]
    assert sorted(rest[:2]) == ["drain n1.llama-1", "drain n2.llama-0"]
    assert sorted(rest[2:4]) == ["serve llama-0 2", "serve llama-1 2"]
    assert len(rest) == 10
    assert "Upgrade: 2 units of 2 done." in done.out


BACK = ["hold 1", "hold 1", "drain n1.llama-0"]
SERVES = ["serve llama-0 1", "ready n1.llama-0"]


@pytest.mark.parametrize(
    ("fail", "until", "report"),
    [
        (['["vllm_server"', '"generation": 2'], "serve llama-0 2", ["canary_verdict failed"]),
        (['["canary_verdict"', '"after"'], "canary_verdict after", []),
    ],
)
def test_a_canary_that_fails_goes_back_and_nothing_else_begins(
    tmp_path: Path, fail: list[str], until: str, report: list[str]
) -> None:
    done = play(tmp_path, fail)
    assert done.rc != 0
    before = CANARY[: CANARY.index(until) + 1]
    assert done.calls == [*before, *BACK, *report, *SERVES]
    assert "0 units of 2 done" in done.out
    assert "back at generation 1 and serves" in done.out


def test_all_of_a_batch_goes_back(tmp_path: Path) -> None:
    done = play(tmp_path, ['["vllm_server"', '"generation": 2', "llama-1"])
    assert done.rc != 0
    assert "trial judged" in done.calls
    back = ["ready n1.llama-1", "ready n2.llama-0", "serve llama-0 1", "serve llama-1 1"]
    assert sorted(done.calls[-4:]) == back
    assert "1 unit of earlier batches still runs generation 2" in done.out


def test_what_does_not_come_back_is_told(tmp_path: Path) -> None:
    done = play(tmp_path, ['["vllm_server"'])
    assert done.rc != 0
    assert "n1 did not come back to generation 1" in done.out
    assert done.calls[-1] == "serve llama-0 1"


def test_it_serves_again_though_it_cannot_be_held(tmp_path: Path) -> None:
    done = play(tmp_path, ['["vllm_watch"'], ['"held": {'])
    assert done.calls[-2:] == SERVES
    assert "is not held: broken by the test" in done.out


def test_a_restart_stops_first_and_does_not_go_back(tmp_path: Path) -> None:
    steps = {name: [{**item, "canary": None} for item in mine] for name, mine in STEPS.items()}
    done = play(tmp_path, ['["vllm_server"', "llama-1", "remove"], operation="restart", steps=steps)
    assert done.rc != 0
    assert done.calls[:3] == ["drain n1.llama-0", "stopped llama-0 2", "serve llama-0 2"]
    assert not [call for call in done.calls if call.startswith(("hold", "trial"))]


def test_servers_of_several_hosts_all_start_before_one_is_waited_for(tmp_path: Path) -> None:
    steps = {
        "n1": [{**STEPS["n1"][0], "canary": None}, {**STEPS["n1"][1], "spans": True}],
        "n2": [{**STEPS["n2"][0], "spans": True}],
    }
    done = play(tmp_path, steps=steps)
    starts = [call for call in done.calls if call.startswith(("start", "serve"))][1:]
    assert sorted(starts[:2]) == ["start llama-0 2", "start llama-1 2"]
    assert sorted(starts[2:]) == ["serve llama-0 2", "serve llama-1 2"]
