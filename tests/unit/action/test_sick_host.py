# SPDX-License-Identifier: Apache-2.0
"""Every playbook on three hosts of which one is sick: the others get everything, and exactly the sick one fails.

The playbooks, the roles and the planner are the real ones; what works on hosts only notes that it was called.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.helpers.actions import write_runtime
from tests.helpers.playbooks import Playbooks
from tests.playbook_variables import load, tasks
from tests.worlds.generations_world import llama, run
from tests.worlds.plan_world import LOCK, state

CONTROLLERS = ("fleet_plan", "rollout_verdict", "balancer_verdict")
HOSTS = ("n1", "n2", "n3")
DEAD = {"installed": True, "available": False, "root_dir": None, "error": "timed out"}
WRONG = "its Docker engine does not answer (timed out). Start it"
NO_BALANCER = {
    "installed": True,
    "keepalived": False,
    "running": True,
    "files": {},
    "applied": "",
    "config": {},
    "out": {},
}
# In the place of each action that works on hosts. node_state answers from a file, and from another after a reboot.
ACTION = """
import json, os
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        host, name, place = task_vars["inventory_hostname"], self._task.action.rpartition(".")[2], os.environ["FAKE"]
        with open(place + "/log") as log:
            rebooted = json.dumps([host, "rebooted", {}]) in log.read()
        with open(place + "/log", "a") as log:
            log.write(json.dumps([host, name, dict(self._task.args)], default=str) + chr(10))
        if name == "node_state":
            with open(f"{place}/{host}.{'after' if rebooted else 'json'}") as file:
                return {"changed": False, "node_state": json.load(file)}
        if name == "host_audit":
            with open(place + "/audit.json") as file:
                return json.load(file)
        return {"changed": True, "servers": [], "verdict": "ok", "baseline": {}, "more": 0, "looks": [], "client": {}}
"""
REBOOT = re.compile(r"ansible\.builtin\.reboot:\n(    .*\n)+")


@dataclass
class Played:
    """A run: its exit code, what it printed, what was called on each host, and how load balancers were asked."""

    rc: int
    out: str
    calls: dict[str, list[str]]
    asked: list[dict[str, Any]]

    @property
    def failed(self) -> list[str]:
        """The hosts that failed, or could not be reached."""
        return re.findall(r"^(\S+) +: ok=.*(?:unreachable=[1-9]|failed=[1-9])", self.out, re.MULTILINE)


@cache
def served() -> dict[str, Any]:
    """Three hosts that ran generation 1, and run 2."""
    states = run(run({name: state(hostname=name) for name in HOSTS}, llama()), llama(16))
    return {name: {**found, "balancer": NO_BALANCER} for name, found in states.items()}


@dataclass
class Fakes:
    """The collection, whose modules only note that they were called."""

    collection: Path
    playbooks: Playbooks


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fakes]:
    place = tmp_path_factory.mktemp("fakes")
    collection = place / "collections/ansible_collections/instinct/fleet"
    (collection / "plugins/action").mkdir(parents=True)
    (collection / "plugins/modules").mkdir()
    for part in ("playbooks", "roles"):
        shutil.copytree(ROOT / part, collection / part)
    for name in ("catalog", "templates", "galaxy.yml"):
        (collection / name).symlink_to(ROOT / name)
    write_runtime(collection / "meta")
    for path in (ROOT / "plugins").iterdir():
        if path.name not in ("action", "modules"):
            (collection / "plugins" / path.name).symlink_to(path)
    for path in (ROOT / "plugins/modules").glob("*.py"):
        (collection / "plugins/modules" / path.name).symlink_to(path)
        target = collection / "plugins/action" / path.name
        if path.stem in CONTROLLERS:
            target.symlink_to(ROOT / "plugins/action" / path.name)
        else:
            target.write_text(ACTION, encoding="utf-8")
    for name in ("rebooted.py",):
        (collection / "plugins/modules" / name).write_text("", encoding="utf-8")
        (collection / "plugins/action" / name).write_text(ACTION, encoding="utf-8")
    reboot = collection / "roles/host_prep/tasks/reboot.yml"
    text, count = REBOOT.subn("instinct.fleet.rebooted:\n", reboot.read_text(encoding="utf-8"))
    assert count == 1
    reboot.write_text(text, encoding="utf-8")
    more = {
        "ANSIBLE_COLLECTIONS_PATH": str(place / "collections"), "ANSIBLE_ROLES_PATH": str(collection / "roles"),
        "ANSIBLE_ACTION_PLUGINS": "", "ANSIBLE_LIBRARY": "",
    }  # fmt: skip
    playbooks = Playbooks(place, more)
    yield Fakes(collection, playbooks)
    playbooks.close()


def play(
    fakes: Fakes,
    place: Path,
    playbook: str,
    states: Mapping[str, Any],
    wanted: Any,
    *args: str,
    after: Mapping[str, Any] | None = None,
    balancers: tuple[str, ...] = (),
    **variables: Any,
) -> Played:
    """Run a playbook of the collection."""
    for name, found in states.items():
        (place / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
        (place / f"{name}.after").write_text(json.dumps((after or {}).get(name, found)), encoding="utf-8")
    todo = {"cmdline": [], "settings": {}, "instances": []}
    audit = {
        "changed": False, "hosts": {}, "failing": [], "verdict": "", "spanning": {}, "waiting": {}, "text": "",
        "todo": [{"name": name, "groups": ["todo_prepare", "todo_reboot"], "todo": todo} for name in after or ()],
    }  # fmt: skip
    if after:
        audit["waiting"] = {"nobody": ["a reboot"]}
    (place / "audit.json").write_text(json.dumps(audit), encoding="utf-8")
    inventory = place / "inventory"
    inventory.mkdir()
    local = {
        "ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False,
        "load_balancer_instance_auth": False, "load_balancer_auth": False, "load_balancer_tls": False,
    }  # fmt: skip
    hosts = {name: {"instinct_address": f"192.0.2.{name[1:]}"} for name in states}
    children = {
        "instinct": {"hosts": hosts, "vars": {"vllm_deployments": wanted, **variables}},
        **({"load_balancer": {"hosts": dict.fromkeys(balancers)}} if balancers else {}),
    }
    (inventory / "hosts.yml").write_text(
        yaml.safe_dump({"all": {"vars": local, "children": children}}), encoding="utf-8"
    )
    (inventory / "fleet.lock.json").write_text(json.dumps(LOCK.to_json()), encoding="utf-8")
    (place / "log").touch()
    done = fakes.playbooks.run(
        "-i", str(inventory), str(fakes.collection / f"playbooks/{playbook}.yml"), *args,
        cwd=place, env={"FAKE": str(place)},
    )  # fmt: skip
    calls: dict[str, list[str]] = {}
    asked = []
    for line in (place / "log").read_text(encoding="utf-8").splitlines():
        host, name, given = json.loads(line)
        calls.setdefault(host, []).append(name)
        asked += [given] if name == "balancer_server" else []
    return Played(done.returncode, done.stdout + done.stderr, calls, asked)


def sick(states: Mapping[str, Any], *stopped: str) -> dict[str, Any]:
    """The hosts with a dead Docker on n3, and without a running instance on some of the others."""
    found: dict[str, Any] = copy.deepcopy(dict(states))
    found["n3"]["docker"] = DEAD
    for name in stopped:
        found[name]["instances"][0]["state"] = "exited"
    return found


NOW, NEXT = llama(16), llama(32)
SERVER = "vllm_server"


@pytest.mark.parametrize(
    ("playbook", "wanted", "args", "called"),
    [
        pytest.param("plan", NOW, (), "node_state", marks=pytest.mark.deep),
        pytest.param("deploy", NOW, (), SERVER, marks=pytest.mark.deep),
        ("site", NOW, (), "vllm_bench"),
        ("upgrade", NEXT, ("-e", "canary=false", "-e", "rollout_soak=0"), SERVER),
        pytest.param(
            "rollback",
            NOW,
            ("-e", "deployment=llama", "-e", "rollout_soak=0"),
            SERVER,
            marks=pytest.mark.deep,
        ),
        pytest.param("restart", NOW, ("-e", "rollout_soak=0"), SERVER, marks=pytest.mark.deep),
        pytest.param("partition", NOW, (), SERVER, marks=pytest.mark.deep),
        pytest.param("benchmark", NOW, (), "vllm_bench", marks=pytest.mark.deep),
        pytest.param("stop", NOW, ("-e", "at_once=true"), SERVER, marks=pytest.mark.deep),
        ("stop", NOW, ("--limit", "n3"), ""),
        pytest.param("restart", NOW, ("--limit", "n3", "-e", "deployment=llama"), "", marks=pytest.mark.deep),
    ],
)
def test_one_of_three(
    fakes: Fakes, tmp_path: Path, playbook: str, wanted: Any, args: tuple[str, ...], called: str
) -> None:
    stopped = HOSTS[:2] if playbook in ("deploy", "site", "partition") else ()
    done = play(fakes, tmp_path, playbook, sick(served(), *stopped), wanted, *args)
    assert done.rc == 2, done.out
    assert done.failed == ["n3"], done.out
    assert f"failed: [n3]: {WRONG}" in done.out
    assert done.calls["n3"] == ["node_state"]
    for name in HOSTS[:2] if called else ():
        assert called in done.calls[name]


def test_without_a_sick_host_nothing_fails(fakes: Fakes, tmp_path: Path) -> None:
    done = play(fakes, tmp_path, "site", served(), NOW)
    assert done.rc == 0, done.out
    assert "failed: [" not in done.out


@pytest.mark.deep
def test_a_sick_host_that_is_the_load_balancer_still_changes_it(fakes: Fakes, tmp_path: Path) -> None:
    """It fails at the end of the run, as the instances of the others need it until then."""
    done = play(fakes, tmp_path, "deploy", sick(served(), "n1", "n2"), NOW, balancers=("n3",))
    assert (done.rc, done.failed) == (2, ["n3"]), done.out
    assert "haproxy_config" in done.calls["n3"]
    assert SERVER not in done.calls["n3"]
    assert done.out.index(f"failed: [n3]: {WRONG}") > done.out.rindex("Update the load balancers")


def test_a_reboot_mends_what_kept_a_host_from_being_planned(fakes: Fakes, tmp_path: Path) -> None:
    states = sick(served())
    done = play(fakes, tmp_path, "prepare", states, NOW, "-e", "reboot=true", after={"n3": served()["n3"]})
    assert (done.rc, done.failed) == (0, []), done.out
    assert "rebooted" in done.calls["n3"]


def test_a_host_that_no_reboot_mends_fails_with_what_is_wrong(fakes: Fakes, tmp_path: Path) -> None:
    states = sick(served())
    done = play(fakes, tmp_path, "prepare", states, NOW, "-e", "reboot=true", after={"n3": states["n3"]})
    assert (done.rc, done.failed) == (2, ["n3"]), done.out
    assert "rebooted" in done.calls["n3"]
    assert f"failed: [n3]: {WRONG}" in done.out


@pytest.mark.parametrize("playbook", ["drain", "undrain"])
def test_draining_asks_nothing_of_the_hosts_of_instances(playbook: str) -> None:
    """A sick one can be drained: the only task is delegated to the load balancers."""
    for path in (f"playbooks/{playbook}.yml", "playbooks/parts/set_server_state.yml"):
        for task in tasks(load(ROOT / path)):
            assert not {"instinct.fleet.node_state", "instinct.fleet.fleet_plan"} & set(task)


def balanced() -> dict[str, Any]:
    """The hosts with a load balancer on n1, which reaches the instances of its own host."""
    states = copy.deepcopy(served())
    servers = [
        {"name": f"n1.llama-{index}:{8000 + index}", "host": "n1", "instance": f"llama-{index}",
         "address": "127.0.0.1", "port": 8000 + index, "limit": 16}
        for index in (0, 1)
    ]  # fmt: skip
    backend = {"name": "llama", "models": ["lab/tiny-llama"], "servers": servers}
    states["n1"]["balancer"] = {**NO_BALANCER, "config": {"backends": [backend]}}
    return states


@pytest.mark.deep
def test_an_offline_benchmark_drains_what_it_stops_and_returns_all_of_it(
    fakes: Fakes, tmp_path: Path
) -> None:
    args = ("--tags", "latency", "-e", "at_once=true")
    done = play(fakes, tmp_path, "benchmark", balanced(), NOW, *args, balancers=("n1",))
    assert (done.rc, done.failed) == (0, []), done.out
    asked: dict[str, set[str]] = {"drain": set(), "ready": set()}
    for given in done.asked:
        asked[given["state"]] |= set(given["servers"])
    assert asked["drain"] == {f"llama/n1.llama-{index}:{8000 + index}" for index in (0, 1)}
    assert asked["ready"] == asked["drain"]
