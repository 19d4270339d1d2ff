# SPDX-License-Identifier: Apache-2.0
"""The lab as a fixture: one for all tests of a process, brought up when it does not run, left running afterwards.

With pytest-xdist each worker has a lab of its own, side by side on this machine; a file's tests stay together
(--dist loadfile), for they go on from what its fixtures made.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.config import Config
from tests import ROOT
from tests.helpers.playbooks import Playbooks

from .helpers import wait_for

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    first = int(os.environ.get("LAB_NUMBER", "1"))
    os.environ["LAB_NUMBER"] = str(first + int(worker.removeprefix("gw")))
LAB = Config.of_environment()
BIN = Path(sys.executable).parent
HERE = Path(__file__).resolve().parent
# The order in which files are handed out to the labs. Those that take longest come first, so that in the end no lab
# waits for the other. The real vLLM (main_job) comes beside tests without a load: no load keeps its rate beside it.
ORDER = (
    "faults",
    "real_upgrade",
    "edits",
    "edit_list",
    "edit_sequences",
    "warm_start",
    "killed_controller",
    "two_operators",
    "rollout",
    "benchmark_service",
    "balancer",
    "partition_fleet",
    "fleet",
    "canary",
    "accuracy",
    "multinode",
    "secrets",
    "crash_and_boot",
    "host_prep",
    "main_job",
    "partition_faults",
    # The others.
    "real_parsers",
    "fit_real_vllm",
    "advice",
    "check_mode",
    "generations",
    "bad_input",
    "lab_nodes",
    "hosts",
    "image_probe",
    "build",
    "virtual_address",
    "router",
    "offline_benchmarks",
    "suites",
    "real_suites",
    "slo_search",
    "compare",
    "burnin",
    "storage",
    "prune",
    "forget",
    "distribution",
    "air_gap",
    "real_accuracy",
    "quantize",
    "cold_rollout",
)


def place(item: pytest.Item) -> int:
    """Return where an item comes: with its file, and after all files when it is none of the lab's.

    Raise UsageError where ORDER lacks the file.
    """
    if HERE not in item.path.parents:
        return len(ORDER)
    name = item.path.stem.removeprefix("test_")
    if name not in ORDER:
        raise pytest.UsageError(f"{item.path}: ORDER in {__file__} has to say when {name} is run.")
    return ORDER.index(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A lab test may take longer than a unit test, its fixtures' time included. Files come in ORDER."""
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))
    items.sort(key=place)


def pytest_sessionfinish() -> None:
    """End what runs were forked from."""
    for running in _playbooks.values():
        running.close()


@dataclass
class Run:
    """A finished ansible-playbook: its exit code, what it printed, and every task's result."""

    rc: int
    out: str
    records: list[dict[str, Any]]

    def modules(self, host: str | None = None) -> list[str]:
        """Names of the modules that ran, in order, on one host or on all."""
        return [r["module"] for r in self.records if host in (None, r["host"])]

    def actions(self) -> dict[str, list[str]]:
        """Every action that modules reported, by host, in order."""
        found: dict[str, list[str]] = {}
        for record in self.records:
            result = record["result"]
            for item in result.get("results", [result]):
                found.setdefault(record["host"], []).extend(item.get("actions", []))
        return {host: actions for host, actions in found.items() if actions}

    def plan(self) -> dict[str, Any]:
        """The plan that this run made."""
        return next(r["result"]["plan"] for r in self.records if r["module"] == "fleet_plan")

    def changed(self) -> list[str]:
        """Tasks that changed something, as host: task."""
        return [f"{r['host']}: {r['task']}" for r in self.records if r["result"].get("changed")]


@dataclass
class Lab:
    """The running lab and a private copy of its inventory, which a test may change."""

    inventory: Path
    tmp: Path
    hosts: list[str]
    runs: int = 0
    env: dict[str, str] = field(default_factory=dict)
    batches: bool = False  # deploys replace what serves as users' do; at once, they take a fifth of the time

    def write_vars(self, **variables: Any) -> None:
        """Replace the group variables of this test's inventory; the lab's own files keep the others."""
        group = self.inventory / "group_vars" / "instinct"
        for path in (ROOT / "inventory/lab/group_vars/instinct").glob("*.yml"):
            given = yaml.safe_load(path.read_text(encoding="utf-8"))
            kept = {name: value for name, value in given.items() if name not in variables}
            (group / path.name).write_text(yaml.safe_dump(kept), encoding="utf-8")
        (group / "test.yml").write_text(yaml.safe_dump(variables), encoding="utf-8")

    def write_balancer(self, *hosts: str, **variables: Any) -> None:
        """Give this test's inventory a load balancer on these hosts, with the group's variables."""
        group = {"hosts": {host: {} for host in hosts}, "vars": variables}
        (self.inventory / "balancer.yml").write_text(
            yaml.safe_dump({"load_balancer": group}), encoding="utf-8"
        )

    def command(self, playbook: str, *args: str) -> list[str]:
        mark_used()
        if playbook in ("site", "deploy") and not self.batches:
            args = (*args, "-e", "at_once=true")
        return [str(BIN / "ansible-playbook"), "-i", str(self.inventory), f"playbooks/{playbook}.yml", *args]

    def environment(self) -> tuple[dict[str, str], Path]:
        own, record = self._own_environment()
        return {**os.environ, **own}, record

    def _own_environment(self) -> tuple[dict[str, str], Path]:
        self.runs += 1
        record = self.tmp / f"record-{self.runs}.jsonl"
        return {
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tests/lab/callback"),
            "ANSIBLE_CALLBACKS_ENABLED": "recorder,instinct.fleet.exit_code",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_TIMEOUT": "40",  # a node, and sudo on it, may be starved for longer than a server's
            "FLEET_RECORD": str(record),
            "XDG_CACHE_HOME": str(self.tmp / "cache"),  # bundles of caches, which another test must not find
            **self.env,
        }, record

    def start(self, playbook: str, *args: str, **env: str) -> subprocess.Popen[str]:
        """Start a playbook and do not wait; its process group is its own, so that it can be killed whole."""
        usual, _ = self.environment()
        return subprocess.Popen(
            self.command(playbook, *args), cwd=ROOT, env={**usual, **env}, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def killed_at(self, task: str, playbook: str, *args: str, times: int = 1, later: float = 0.7) -> bool:
        """Run a playbook, and kill its controller seconds after a task began for the nth time; False: it never did."""
        started = Path(tempfile.mkdtemp(dir=self.tmp)) / "started"
        started.touch()
        victim = self.start(playbook, *args, FLEET_STARTED=str(started))
        assert victim.stdout is not None
        reader = threading.Thread(target=victim.stdout.read)  # or it would wait for one
        reader.start()

        def reached() -> bool:
            lines = started.read_text(encoding="utf-8").splitlines()
            return sum(line.endswith(task) for line in lines) >= times

        try:
            wait_for(task, lambda: reached() or victim.poll() is not None)
            time.sleep(later)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(victim.pid, signal.SIGKILL)
            reader.join()
            victim.stdout.close()
            victim.wait()
        return reached()

    def play(self, playbook: str, *args: str, timeout: float = 1800) -> Run:
        """Run a playbook to its end; one at a time, others are started."""
        own, record = self._own_environment()
        done = playbooks(own).run(
            *self.command(playbook, *args)[1:],
            env={key: value for key, value in own.items() if not of_ansible(key)},
            merged=True,
            timeout=timeout,
        )
        lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
        return Run(done.returncode, done.stdout, [json.loads(line) for line in lines])

    def on(self, host: str, command: str, *, check: bool = True) -> str:
        """Run a shell command as root on a node, and return what it printed."""
        # Not `python -m lab exec`, of which most is the start of Python: tests ask hundreds of times.
        done = subprocess.run(
            ["docker", "exec", container(host), "bash", "-c", command], text=True, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0 or not check, f"{host}: {command}: {done.returncode}:\n{done.stdout}"
        return done.stdout

    def reboot(self, host: str) -> None:
        """Restart a node, as a power cycle would, and wait until it can be reached."""
        lab_command("reboot", host)

    def hub_faults(self, **faults: Any) -> None:
        """Let the lab's hub misbehave (bytes_per_second, …); without arguments, no longer."""
        lab_command("hub", json.dumps(faults))


_playbooks: dict[tuple[tuple[str, str], ...], Playbooks] = {}


def of_ansible(variable: str) -> bool:
    """Ansible reads it when it is imported."""
    return variable.startswith("ANSIBLE_")


def playbooks(env: Mapping[str, str]) -> Playbooks:
    """What runs are forked from whose variables of Ansible are those of an environment."""
    settings = {key: value for key, value in env.items() if of_ansible(key)}
    key = tuple(sorted(settings.items()))
    if key not in _playbooks:
        _playbooks[key] = Playbooks(Path.home(), settings)
    return _playbooks[key]


def container(host: str) -> str:
    """The container on this machine that is the node `host`."""
    mark_used()
    return LAB.container(host)


def node_address(number: int) -> str:
    """Address of node `number`, from 1."""
    return LAB.address(number)


_used = True  # since its nodes were made anew; what an earlier run left is not known


def mark_used() -> None:
    """From now on there may be something on the nodes."""
    global _used
    _used = True


def reset_lab() -> None:
    """Make the nodes anew, unless nothing has been done with them since the last time."""
    global _used
    if _used:
        lab_command("reset")
        _used = False


def lab_command(*args: str, check: bool = True) -> str:
    mark_used()
    done = subprocess.run(
        [sys.executable, "-m", "lab", *args], cwd=ROOT, text=True, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if check and done.returncode:
        raise AssertionError(f"lab {' '.join(args)} failed ({done.returncode}):\n{done.stdout}")
    return done.stdout


@pytest.fixture(scope="session")
def lab_up() -> list[str]:
    """Bring the lab up, with nodes on which nothing of an earlier run is left; returns its hosts' names."""
    print(lab_command("up"))
    reset_lab()
    inventory = yaml.safe_load(LAB.inventory.read_text(encoding="utf-8"))
    hosts = sorted(inventory["instinct"]["hosts"])
    assert len(hosts) >= 2  # tests say what holds for each of them
    return hosts


def copy_inventory(hosts: list[str], tmp_path: Path) -> Lab:
    inventory = tmp_path / "inventory"
    shutil.copytree(
        ROOT / "inventory/lab", inventory, ignore=shutil.ignore_patterns("fleet.lock.json", "hosts.yml")
    )
    shutil.copy(LAB.inventory, inventory / "hosts.yml")
    results = str(tmp_path / "results")
    everywhere = {"benchmark_results_dir": results, "canary_results_dir": results}
    (inventory / "group_vars/all.yml").write_text(yaml.safe_dump(everywhere), encoding="utf-8")
    return Lab(inventory, tmp_path, hosts)


@pytest.fixture
def lab(lab_up: list[str], tmp_path: Path) -> Lab:
    """The lab as it is, with an inventory of this test's own."""
    return copy_inventory(lab_up, tmp_path)


@pytest.fixture
def fresh_lab(lab_up: list[str], tmp_path: Path) -> Lab:
    """The lab with its nodes made anew: nothing of an earlier test is on them."""
    reset_lab()
    return copy_inventory(lab_up, tmp_path)


@pytest.fixture(scope="module")
def module_lab(lab_up: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The nodes made anew, with an inventory of a test file's own; nothing is deployed yet."""
    reset_lab()
    yield copy_inventory(lab_up, tmp_path_factory.mktemp("fleet"))
    reset_lab()


@pytest.fixture(scope="module")
def balanced_lab(module_lab: Lab) -> Lab:
    """The nodes made anew, and an inventory with a load balancer on the first one."""
    module_lab.write_balancer(module_lab.hosts[0])
    return module_lab
