# SPDX-License-Identifier: Apache-2.0
"""A planned rollout played for real, on modules that only note that they were called: their order, and the way back."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.instinct.fleet.plugins.module_utils.service.generations import (
    BENCHMARK,
    RESTART,
    STOP,
    UPGRADE,
    OperationRequest,
)
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.plan import plan_rollout_steps
from ansible_collections.instinct.fleet.plugins.plugin_utils.planning.rollout.policy import RolloutRequest

from tests import ROOT
from tests.helpers.playbooks import Playbooks
from tests.playbook_variables import load
from tests.worlds.plan_world import deployment
from tests.worlds.rollout_balancer_world import PAIR, SEQS, planned, served
from tests.worlds.rollout_balancer_world import SPANNING as ENGINE

CHANGED = [deployment(gpus=[0, 1], instances_per_host=2, **SEQS)]
NEW = 2  # what comes has no number of its own, and files; what is recorded has a number
SPAN, SPAN_CHANGED = [ENGINE], [{**ENGINE, **SEQS}]
# Actions, as programs on a host take ten times as long; they need a connection as those do.
ACTION = """
import json, os
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        self._connection._connect()
        given = self._task.args
        text = json.dumps([NAME, given], sort_keys=True)
        with open(os.environ["FAKE_LOG"], "a") as log:
            log.write(text + chr(10))
        baseline = {"tps": 5, "accuracy": {"n": 1}}
        answer = {
            "changed": True, "servers": [], "verdict": "ok", "more": 0, "baseline": baseline, "client": {}, "looks": [],
        }
        kept = os.environ["FAKE_LOG"] + ".kept"
        if NAME == "bench_report" and os.path.exists(kept):
            answer["on_nodes"] = kept
        if NAME == "instance_status":
            names = ("llama-0", "llama-1")
            instances = [{"name": name, **json.loads(os.environ["FAKE_ASKED"])} for name in names]
            answer["instance_status"] = {"instances": instances}
        for part in json.loads(os.environ["FAKE_FAIL"]):
            if all(word in text for word in part if not word.startswith(("class=", "verdict="))):
                answer = {"failed": True, "msg": "broken by the test: " + NAME}
                for word in part:
                    if word.startswith("class=") and NAME in ("vllm_server", "vllm_watch"):
                        answer["servers"] = [{"name": "llama-0", "class": word[6:]}]
                    elif word.startswith("class="):
                        answer["class"] = word[6:]
                    elif word.startswith("verdict="):
                        answer["verdict"] = word[8:]
        return answer
"""

# A host to which there is no connection any more once its text stands in the log.
DYING = """
from __future__ import annotations
DOCUMENTATION = '''
name: dying
short_description: Local, until it dies
description: Local, until it dies.
extends_documentation_fragment: connection_pipelining
options:
  dead_when: {description: A text of the log., vars: [{name: dead_when}], required: true}
'''
import os
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local

class Connection(Local):
    transport = "dying"

    def _connect(self):
        with open(os.environ["FAKE_LOG"]) as log:
            if self.get_option("dead_when") in log.read():
                raise AnsibleConnectionFailure("No route to host")
        return super()._connect()

    def exec_command(self, *given, **more):
        self._connect()
        return super().exec_command(*given, **more)
"""


@dataclass
class Played:
    """A run: its exit code, what it printed, and the calls in short."""

    rc: int
    out: str
    calls: list[str]


def rollout(
    operation: str = UPGRADE,
    old: Any = PAIR,
    new: Any = CHANGED,
    lbs: tuple[str, ...] = ("lb",),
    **wanted: Any,
) -> dict[str, dict[str, Any]]:
    """The planner's own part of each host, of two hosts behind load balancers: the canary, then all others at once."""
    states, balancers = served(old, *lbs)
    plan = planned(states, new, balancers, OperationRequest(operation))
    policy = {"rollout_serial": [1, 3], "rollout_min_available": 0 if old is SPAN else 1, "rollout_soak": 7}
    made, problems = plan_rollout_steps(plan, RolloutRequest(operation, policy, at_once=True, **wanted))
    assert problems == ()
    parts = {name: made.host(name) for name in made.hosts}
    assert "{{" not in json.dumps(parts)  # an inventory's variables are templates
    return parts


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playbooks]:
    """Runs in which what works on hosts only notes that it was called."""
    place = tmp_path_factory.mktemp("fakes")
    collections = place / "collections"
    collection = collections / "ansible_collections/instinct/fleet"
    modules, actions = collection / "plugins/modules", collection / "plugins/action"
    for path in (modules, actions):
        path.mkdir(parents=True)
    for name in (
        "balancer_server", "vllm_server", "vllm_watch", "serving_generation", "vllm_smoke", "vllm_accuracy",
        "vllm_bench", "canary_verdict", "node_state", "bench_report", "instance_cache", "instance_status",
    ):  # fmt: skip
        (actions / f"{name}.py").write_text(ACTION.replace("NAME", repr(name)))
    for name in (
        "roles", "playbooks", "plugins/callback", "plugins/module_utils", "plugins/plugin_utils",
        "plugins/modules/rollout_verdict.py", "plugins/action/rollout_verdict.py",
        "plugins/modules/balancer_verdict.py", "plugins/action/balancer_verdict.py",
    ):  # fmt: skip
        (collection / name).symlink_to(ROOT / name)
    (place / "connection").mkdir()
    (place / "connection/dying.py").write_text(DYING)
    more = {
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_CONNECTION_PLUGINS": str(place / "connection"),
    }
    running = Playbooks(place, more, imports=("action.rollout_verdict",))
    yield running
    running.close()


def play(
    fakes: Playbooks,
    tmp_path: Path,
    *fail: list[str],
    operation: str = UPGRADE,
    parts: dict[str, dict[str, Any]] | None = None,
    dying: dict[str, str] | None = None,
    variables: dict[str, Any] | None = None,
    asked: dict[str, Any] | None = None,
    args: tuple[str, ...] = (),
) -> Played:
    """Run the play of upgrade.yml, of stop.yml or of benchmark.yml that works on what serves.

    dying: hosts that cannot be reached any more once a text stands in the log of calls. asked: what instance_status
    finds of each instance.
    """
    parts = rollout(operation) if parts is None else parts
    dying = dying or {}
    files, group = PLAYS.get(operation, ({"parts/rollout": "Roll out"}, "todo_rollout"))
    hosts: dict[str, Any] = {
        name: {
            "fleet_host_plan": {"rollout": part} if group == "todo_rollout" else part,
            **_connection(name, dying),
        }
        for name, part in parts.items()
    }
    local = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        **(variables or {}),
    }
    lbs = {name: _connection(name, dying) for name in dying if name not in parts}
    groups = {group: {"hosts": hosts}, "load_balancer": {"hosts": lbs or {"lb": {}}}}
    inventory = {"all": {"vars": local, "children": groups}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    plays = [
        item
        for file, name in files.items()
        for item in load(ROOT / f"playbooks/{file}.yml")
        if item["name"] == name
    ]
    assert len(plays) == len(files)
    (tmp_path / "play.yml").write_text(yaml.safe_dump(plays, sort_keys=False))
    log = tmp_path / "log"
    log.touch()
    env = {"FAKE_LOG": str(log), "FAKE_FAIL": json.dumps(fail), "FAKE_ASKED": json.dumps(asked or {})}
    done = fakes.run("-i", str(tmp_path / "hosts.yml"), str(tmp_path / "play.yml"), *args, env=env)
    calls = [short(*json.loads(line)) for line in log.read_text().splitlines()]
    return Played(done.returncode, done.stdout + done.stderr, calls)


SITE, RECORD = "site", "record"
PLAYS = {
    RECORD: ({"upgrade": "Record the generations to serve"}, "todo_vllm_serve"),
    STOP: ({"stop": "Stop"}, "todo_rollout"),
    BENCHMARK: ({"parts/measure": "Measure, a few instances at a time"}, "todo_rollout"),
    SITE: (
        {"parts/measure_new": "Measure what is new, before a load balancer uses it", "site": "Report"},
        "todo_benchmark",
    ),
}
"""The plays of each operation, by their files, and the group of their hosts."""


def _connection(name: str, dying: dict[str, str]) -> dict[str, Any]:
    return {"ansible_connection": "dying", "dead_when": dying[name]} if name in dying else {}


def short(name: str, given: dict[str, Any]) -> str:
    if name == "balancer_server":
        if given.get("hosts"):
            return f"{given['state']} all of {'+'.join(given['hosts'])}, at once: {given['at_once']}"
        return f"{given['state']} {given['servers'][0].partition('/')[2].partition(':')[0]}"
    if name == "vllm_server":
        servers = given["servers"]
        words = [given.get("state", ""), "start" if str(given.get("wait")) == "False" else "serve"]
        names = "+".join(server["name"] for server in servers)
        return f"{words[0] or words[1]} {names} {servers[0].get('generation', NEW)}"
    if name == "serving_generation":
        found = given["bindings"][0]
        if found.get("held"):
            return f"hold {found['held']['generation']}"
        if "trial" not in found:
            return "free"
        if found["trial"] is None:
            return "trial ended"
        return (
            "trial judged"
            if found["trial"]["units"]
            else f"trial {found['trial']['baseline']['found'].get('tps')}"
        )
    if name == "vllm_bench" and "run" in given:  # as the role benchmark calls it, and not that of the canary
        return f"measure {given['kind']} {'+'.join(target['name'] for target in given['targets'])}"
    if name == "bench_report" and "begin" in given:
        return f"begin {given['begin']['name']}"
    if name == "instance_cache":
        return f"keep caches of {'+'.join(item['name'] for item in given['instances'])}"
    if name == "vllm_watch":
        return f"watch {'+'.join(given['servers'])} {given['seconds']}"
    return f"{name} {given.get('phase', '')}".strip()


CANARY = [
    "drain n1.llama-0", "vllm_smoke", "vllm_accuracy", "vllm_bench", "canary_verdict before", "trial 5",
    "serve llama-0 2", "vllm_smoke", "vllm_accuracy", "canary_verdict after", "trial judged",
    "keep caches of llama-0", "ready n1.llama-0", "watch llama-0 7", "ready n1.llama-0",
]  # fmt: skip
TASKS = 48
"""Tasks of a host that is in one batch of two, and not the canary's. A skipped one costs time too, on every host."""


def test_the_canary_first_then_the_others_at_the_same_time(fakes: Playbooks, tmp_path: Path) -> None:
    done = play(fakes, tmp_path)
    assert done.rc == 0, done.out
    assert done.calls[: len(CANARY)] == CANARY
    rest = done.calls[len(CANARY) :]
    assert sorted(rest[:2]) == ["drain n1.llama-1", "drain n2.llama-0"]
    assert sorted(rest[2:4]) == ["serve llama-0+llama-1 2", "serve llama-1 2"]
    assert sorted(rest[4:10]) == [
        "ready n1.llama-1", "ready n1.llama-1", "ready n2.llama-0", "ready n2.llama-0", "watch llama-0+llama-1 7",
        "watch llama-1 7",
    ]  # fmt: skip
    assert rest[10:] == ["trial ended"] * 2
    assert "Upgrade: 4 groups of 4 done." in done.out
    counts = re.search(r"^n2 +: ok=(\d+) .*skipped=(\d+)", done.out, re.MULTILINE)
    assert counts is not None
    assert sum(map(int, counts.groups())) <= TASKS


BAD = "class=out_of_memory"
BACK = ["hold 1", "hold 1", "drain n1.llama-0"]
SERVES = ["serve llama-0 1", "ready n1.llama-0"]
CONFIRM = ["hold 1", "hold 1"]


@pytest.mark.parametrize(
    ("fail", "until", "report"),
    [
        (['["vllm_server"', '"files"', BAD], "serve llama-0 2", ["canary_verdict failed"]),
        pytest.param(
            ['["canary_verdict"', '"after"', "verdict=slower"],
            "canary_verdict after",
            [],
            marks=pytest.mark.deep,
        ),
    ],
)
def test_a_canary_that_fails_goes_back_and_nothing_else_begins(
    fakes: Playbooks, tmp_path: Path, fail: list[str], until: str, report: list[str]
) -> None:
    done = play(fakes, tmp_path, fail)
    assert done.rc != 0
    before = CANARY[: CANARY.index(until) + 1]
    assert done.calls == [*before, *BACK, *report, *SERVES, *CONFIRM]
    assert "0 groups of 4 done" in done.out
    assert "Rolled back: generation 1 serves again" in done.out


@pytest.mark.deep
def test_all_of_a_batch_goes_back(fakes: Playbooks, tmp_path: Path) -> None:
    """One of its hosts failed; the other one, which had changed already, goes back too."""
    done = play(fakes, tmp_path, ['["vllm_server"', '"files"', "llama-0", "llama-1", BAD])
    assert done.rc != 0
    assert "trial judged" in done.calls
    assert done.calls.count("watch llama-1 7") == 1
    back = ["ready n1.llama-1", "ready n2.llama-0", "serve llama-0+llama-1 1", "serve llama-1 1"]
    assert sorted(done.calls[-6:-2]) == back
    assert done.calls[-2:] == CONFIRM
    assert "1 group of earlier batches still runs generation 2" in done.out


@pytest.mark.deep
def test_what_does_not_come_back_is_told(fakes: Playbooks, tmp_path: Path) -> None:
    done = play(fakes, tmp_path, ['["vllm_server"', BAD])
    assert done.rc != 0
    assert "n1 could not be rolled back to generation 1" in done.out
    assert "serve llama-0 1" in done.calls
    assert done.calls.count("hold 1") == 3  # that of both hosts, and confirmed by the other one


@pytest.mark.deep
def test_it_serves_again_though_it_cannot_be_held(fakes: Playbooks, tmp_path: Path) -> None:
    done = play(fakes, tmp_path, ['["vllm_watch"', BAD], ['"held": {'])
    assert done.calls[-4:] == [*SERVES, *CONFIRM]
    assert "is not held: broken by the test" in done.out


def test_a_verdict_that_cannot_be_recorded_is_none(fakes: Playbooks, tmp_path: Path) -> None:
    done = play(fakes, tmp_path, ['["serving_generation"', '"units": ["n1/llama-0"]'])
    assert done.rc != 0
    before = CANARY[: CANARY.index("trial judged") + 1]
    assert done.calls == [*before, "drain n1.llama-0", *SERVES]
    assert "so llama is not held" in done.out


@pytest.mark.deep
def test_a_restart_stops_first_and_does_not_go_back(fakes: Playbooks, tmp_path: Path) -> None:
    done = play(fakes, tmp_path, ['["vllm_server"', "llama-1", "remove"], operation=RESTART)
    assert done.rc != 0
    assert done.calls[:3] == ["drain n1.llama-0", "stopped llama-0 1", "serve llama-0 1"]
    assert not [call for call in done.calls if call.startswith(("hold", "trial"))]


@pytest.mark.deep
@pytest.mark.parametrize("canary", [False, True])
def test_servers_of_several_hosts_all_start_before_one_is_waited_for(
    fakes: Playbooks, tmp_path: Path, canary: bool
) -> None:
    """The host with the canary has more phases than the other; they go through them together all the same."""
    done = play(fakes, tmp_path, parts=rollout(old=SPAN, new=SPAN_CHANGED, canary=canary))
    starts = [call for call in done.calls if call.startswith(("start", "serve"))]
    assert starts == ["start llama-0 2"] * 2 + ["serve llama-0 2"] * 2


def test_nothing_changes_while_what_has_to_start_first_does_not_serve(
    fakes: Playbooks, tmp_path: Path
) -> None:
    """n3 failed in an earlier play, so it is no longer there."""
    parts = rollout(canary=False)
    for part in parts.values():
        part["batches"][1]["awaits"] = ["n3"]
    done = play(fakes, tmp_path, parts=parts)
    assert done.rc != 0
    assert [call for call in done.calls if call.startswith("serve")] == ["serve llama-0 2"]
    assert not [call for call in done.calls if call.startswith(("hold", "trial ended"))]
    assert "n3 failed to start what must serve before others change" in done.out


# ---- what is no verdict on the release ---------------------------------------------------------------

AGAIN = "Fix the cause, then run the same command again: it continues from here."


def test_docker_that_is_dead_on_the_canary_is_no_verdict(fakes: Playbooks, tmp_path: Path) -> None:
    done = play(fakes, tmp_path, ['["vllm_server"', '"files"', "class=docker"])
    assert done.rc == 2
    until = CANARY.index("serve llama-0 2") + 1
    assert done.calls == [*CANARY[:until], "drain n1.llama-0", *SERVES]
    assert "not a verdict on generation 2, so llama is not held" in done.out
    assert "Serves with its earlier generation again: n1." in done.out
    assert AGAIN in done.out


@pytest.mark.deep
def test_docker_that_dies_in_a_late_batch_concerns_its_host_alone(fakes: Playbooks, tmp_path: Path) -> None:
    """The other host of the batch keeps the new generation, and serves."""
    done = play(fakes, tmp_path, ['["vllm_server"', '"llama-0"', '"llama-1"', "class=docker"])
    assert done.rc == 2
    assert not [call for call in done.calls if call.startswith("hold")]
    batch = done.calls[len(CANARY) :]
    assert batch.count("ready n1.llama-1") == 2  # undrained and confirmed
    assert batch.count("serve llama-1 1") == 0
    assert batch[-2:] == ["drain n2.llama-0", "serve llama-0+llama-1 1"]
    assert "n2 does not serve with its earlier generation yet: broken by the test" in done.out
    assert AGAIN in done.out


@pytest.mark.deep
@pytest.mark.parametrize(("health", "held"), [(200, False), (0, True)], ids=["it answers", "it hangs"])
def test_what_no_load_balancer_takes_is_asked_itself(
    fakes: Playbooks, tmp_path: Path, health: int, held: bool
) -> None:
    """The canary answers or not; what keeps the load balancer from it says nothing about the release."""
    asked = {"status": "running", "endpoint": {"port": 8000}, "health": health}
    done = play(fakes, tmp_path, ["balancer_server", '"ready"', "class=not_in_service"], asked=asked)
    assert done.rc == 2
    failed = CANARY[: CANARY.index("ready n1.llama-0") + 1]
    way_back = ["drain n1.llama-0", "serve llama-0 1", "ready n1.llama-0"]
    holds = ["hold 1", "hold 1"] if held else []
    # n1 fails on its way back, too; n2 confirms the hold.
    assert done.calls == [*failed, "instance_status", *holds, *way_back, *holds[:1]]
    text = "llama-0 does not answer either" if held else "not a verdict on generation 2, so llama is not held"
    assert text in done.out
    recorded = [line for line in (tmp_path / "log").read_text().splitlines() if '"failed": [2]' in line]
    assert len(recorded) == 3 * held
    assert all("Asked directly, llama-0 does not answer either" in line for line in recorded)


def test_upgrade_yml_records_where_no_instance_changes(fakes: Playbooks, tmp_path: Path) -> None:
    """Such as the end of a hold: the inventory says again what runs, so nobody is of a rollout."""
    ends = {"generations": [], "bindings": [{"deployment": "llama", "held": None}], "instances": []}
    done = play(fakes, tmp_path, operation=RECORD, parts={"n1": ends, "n2": {**ends, "bindings": []}})
    assert (done.rc, done.calls) == (0, ["free"])


# ---- load balancers that die -------------------------------------------------------------------------

TWO = ("lb1", "lb2")
NEVER, CHANGING, LATE = "never", '["vllm_server"', '"units": ["n1/llama-0"]'
"""Dead when an instance changed, and when the canary was judged."""


@pytest.mark.parametrize(
    ("operation", "when"),
    [
        (STOP, ""),
        pytest.param(UPGRADE, LATE, marks=pytest.mark.deep),
        pytest.param(UPGRADE, "", marks=pytest.mark.deep),
        pytest.param(UPGRADE, CHANGING, marks=pytest.mark.deep),
        pytest.param(RESTART, "", marks=pytest.mark.deep),
    ],
)
def test_one_of_two_balancers_suffices(fakes: Playbooks, tmp_path: Path, operation: str, when: str) -> None:
    parts = rollout(operation, lbs=TWO)
    done = play(fakes, tmp_path, operation=operation, parts=parts, dying={"lb1": when, "lb2": NEVER})
    assert done.rc == 0, done.out
    assert f"{operation.capitalize()}: 4 groups of 4 done." in done.out
    if when == "":
        assert "Load balancer lb1 does not answer: " in done.out
        assert "No route to host" in done.out
    assert "Unreachable: n" not in done.out


@pytest.mark.parametrize(
    ("when", "hosts"),
    [
        (LATE, ("n1",)),
        pytest.param(LATE, ("n1", "n2"), marks=pytest.mark.deep),
        pytest.param(CHANGING, ("n1", "n2"), marks=pytest.mark.deep),
        pytest.param("", ("n1", "n2"), marks=pytest.mark.deep),
    ],
)
def test_the_last_balancer_that_dies_is_blamed_and_no_host(
    fakes: Playbooks, tmp_path: Path, when: str, hosts: tuple[str, ...]
) -> None:
    """Also where all hosts of the rollout are in the batch, so that nobody else is left to judge it."""
    parts = {name: part for name, part in rollout(lbs=TWO).items() if name in hosts}
    for part in parts.values():
        for batch in part["batches"]:
            batch["hosts"] = [name for name in batch["hosts"] if name in hosts]
            batch["all_hosts"] = [name for name in batch["all_hosts"] if name in hosts]
    done = play(fakes, tmp_path, parts=parts, dying={"lb1": when, "lb2": when})
    assert done.rc == 2  # failed, and not unreachable
    assert "No load balancer answers: lb1: " in done.out
    assert "groups of 4 done." in done.out or "group of 4 done." in done.out
    assert "can no longer be reached" not in done.out
    assert AGAIN in done.out
    assert not [call for call in done.calls if call.startswith("hold")]


@pytest.mark.deep
def test_all_stop_at_once(fakes: Playbooks, tmp_path: Path) -> None:
    done = play(fakes, tmp_path, operation=STOP)
    assert done.rc == 0, done.out
    assert done.calls == ["drain all of n1+n2, at once: False", *["stopped llama-0+llama-1 1"] * 2]
    assert "Stop: 4 groups of 4 done." in done.out


def test_nothing_stops_that_could_not_be_drained(fakes: Playbooks, tmp_path: Path) -> None:
    done = play(fakes, tmp_path, ["balancer_server"], operation=STOP)
    assert done.rc != 0
    assert done.calls == ["drain all of n1+n2, at once: False"]


# ---- measurements ------------------------------------------------------------------------------------


def visit(host: str, *names: str, kinds: tuple[str, ...] = ("serve",), stops: bool = False) -> list[str]:
    """The calls of a batch on one host."""
    both = "+".join(names)
    measured = [f"measure {kind} {both}" for kind in kinds]
    if stops:
        measured = [f"stopped {both} 1", *measured, f"started {both} 1"]
    return [
        f"drain {host}.{names[0]}",
        "node_state",
        *measured,
        f"started {both} 1",
        f"ready {host}.{names[0]}",
    ]


def benchmark(fakes: Playbooks, tmp_path: Path, *fail: list[str], old: Any = PAIR, **more: Any) -> Played:
    """benchmark.yml, one instance at a time."""
    states, balancers = served(old)
    plan = planned(states, old, balancers, OperationRequest(BENCHMARK))
    made, problems = plan_rollout_steps(plan, RolloutRequest(BENCHMARK, {"rollout_serial": 1}))
    assert problems == ()
    parts = {name: made.host(name) for name in made.hosts}
    begun = {"_benchmark_begun": {"name": "r1"}}  # as benchmark.yml gives it
    return play(
        fakes,
        tmp_path,
        *fail,
        operation=BENCHMARK,
        parts=parts,
        **{**more, "variables": {**begun, **more.get("variables", {})}},
    )


EVERY = [("n1", "llama-0"), ("n2", "llama-0"), ("n1", "llama-1"), ("n2", "llama-1")]


@pytest.mark.parametrize("reported", [True, pytest.param(False, marks=pytest.mark.deep)])
def test_each_instance_is_drained_measured_and_returned(
    fakes: Playbooks, tmp_path: Path, reported: bool
) -> None:
    """What nodes keep of the run is removed once it is reported.

    All calls have the name that the plan decided on, whatever the operator's one is.
    """
    kept = tmp_path / "log.kept"
    kept.mkdir()
    named = {"benchmark_run": "mine"}
    # Both nodes are this machine, with one directory to remove: one after the other.
    fails = [] if reported else [["bench_report", '"run"']]
    done = benchmark(fakes, tmp_path, *fails, variables=named, args=("--forks", "1"))
    assert (done.rc, kept.exists()) == (0 if reported else 2, not reported), done.out
    assert done.calls == ["begin r1", *(call for item in EVERY for call in visit(*item)), "bench_report"]
    assert "Benchmark: 4 groups of 4 done." in done.out
    calls = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    runs = [
        given["run"] for name, given in calls if name in ("vllm_bench", "bench_report") and "run" in given
    ]
    assert runs == ["r1"] * (len(EVERY) + 1)
    assert calls[0] == ["bench_report", {"begin": {"name": "r1"}, "results_dir": "results"}]


@pytest.mark.deep
def test_the_offline_benchmarks_stop_it_too(fakes: Playbooks, tmp_path: Path) -> None:
    kinds = ("latency", "throughput")
    done = benchmark(fakes, tmp_path, variables={"benchmark_kinds": list(kinds)})
    assert done.rc == 0, done.out
    expected = (call for item in EVERY for call in visit(*item, kinds=kinds, stops=True))
    assert done.calls == ["begin r1", *expected, "bench_report"]


@pytest.mark.deep
def test_one_that_fails_returns_and_the_others_are_measured(fakes: Playbooks, tmp_path: Path) -> None:
    done = benchmark(fakes, tmp_path, ['["vllm_bench"', '"host": "n2"', '"llama-0"'])
    assert done.rc == 2
    assert done.calls == ["begin r1", *(call for item in EVERY for call in visit(*item)), "bench_report"]
    assert "Failed: n2: broken by the test: vllm_bench" in done.out


@pytest.mark.deep
def test_one_that_does_not_come_back_is_left_to_the_load_balancer(fakes: Playbooks, tmp_path: Path) -> None:
    """It died of the load and does not start; its server is set ready all the same, and it is tried once more."""
    done = benchmark(fakes, tmp_path, ['["vllm_server"', '"llama-0"', BAD], dying=None)
    assert done.rc == 2
    first = [*visit("n1", "llama-0")[:4], "ready n1.llama-0", "started llama-0 1"]
    assert done.calls[1 : len(first) + 1] == first
    assert [call for call in done.calls if call.startswith("measure")] == [
        f"measure serve {name}" for _host, name in EVERY
    ]
    assert "n1 has an instance that does not serve again: broken by the test: vllm_server" in done.out
    assert "Failed: batch 2 of 4: n2 llama-0: n2: broken by the test: vllm_server" in done.out
    assert "Benchmark: 4 groups of 4 done." in done.out


@pytest.mark.deep
def test_what_cannot_be_drained_gets_no_load(fakes: Playbooks, tmp_path: Path) -> None:
    done = benchmark(fakes, tmp_path, ['["balancer_server"', "n1.llama-0", '"drain"'])
    assert done.rc == 2
    # Part of it may be drained, so it is returned.
    assert done.calls[1:4] == ["drain n1.llama-0", "ready n1.llama-0", "started llama-0 1"]
    assert done.calls.count("measure serve llama-0") == 1
    assert done.calls[-2:] == ["ready n1.llama-0", "bench_report"]
    assert "Failed: batch 1 of 4: n1 llama-0: n1: broken by the test: balancer_server" in done.out


@pytest.mark.deep
def test_a_host_that_goes_away_does_not_end_it(fakes: Playbooks, tmp_path: Path) -> None:
    done = benchmark(fakes, tmp_path, dying={"n2": '["vllm_bench"'})
    assert done.rc != 0
    measured = [call for call in done.calls if call.startswith("measure")]
    assert measured == ["measure serve llama-0", "measure serve llama-1"]  # both of n1
    # Nobody else can return what was drained for it.
    assert done.calls[-2:] == ["ready n1.llama-0", "bench_report"]
    assert "Failed: batch 2 of 4: n2 llama-0: n2 can no longer be reached" in done.out


@pytest.mark.deep
def test_it_ends_where_no_load_balancer_answers(fakes: Playbooks, tmp_path: Path) -> None:
    done = benchmark(fakes, tmp_path, dying={"lb": '"started"'})
    assert done.rc == 2
    assert [call for call in done.calls if call.startswith("measure")] == ["measure serve llama-0"]
    assert "It stopped there." in done.out


@pytest.mark.deep
def test_an_engine_over_two_hosts_is_measured_once(fakes: Playbooks, tmp_path: Path) -> None:
    done = benchmark(fakes, tmp_path, old=SPAN)
    assert done.rc == 0, done.out
    assert [call for call in done.calls if call.startswith("measure")] == ["measure serve llama-0"]
    starts = [call for call in done.calls if call.startswith("started")]
    assert len(starts) == 4


@pytest.mark.deep
@pytest.mark.parametrize(
    ("fail", "said"),
    [
        (['["vllm_bench"', '"host": "n1"'], "broken by the test: vllm_bench"),
        (["node_state"], "broken by the test: node_state"),
        ([], ""),
    ],
)
def test_a_failed_measurement_of_what_is_new_is_reported_in_the_end(
    fakes: Playbooks, tmp_path: Path, fail: list[str], said: str
) -> None:
    """Until then the host is there: what it runs has to enter the load balancers."""
    new = {
        name: {"measure": [{"name": f"llama-{number}", "host": name, "server": {}} for number in range(2)]}
        for name in ("n1", "n2")
    }
    done = play(fakes, tmp_path, *([fail] if fail else []), operation=SITE, parts=new)
    assert (done.rc, said in done.out) == (2 if fail else 0, True)
    assert done.calls.count("measure serve llama-0+llama-1") == (0 if fail == ["node_state"] else 2)
    assert done.calls[-1] == "bench_report"
    assert done.calls.count("bench_report") == 1
