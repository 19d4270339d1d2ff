# SPDX-License-Identifier: Apache-2.0
"""Two operators' runs of ansible-playbook on one node: the second is refused, warned, or takes over."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.helpers.eventually import GENEROUS, eventually
from tests.helpers.playbooks import Playbooks

CALL = {"instinct.fleet.serving_generation": {"journal": ["{{ word }}"]}}
# The word comes after several runs of the test, each of which may take long; who ends the test ends the wait. Ansible's
# own wait_for looks once a second, or without a pause.
WAIT = {"ansible.builtin.command": {"argv": ["sh", "-c", "until [ -e {{ go }} ]; do sleep 0.05; done"]}}
SEE = {"instinct.fleet.node_state": {}, "register": "node_state_result"}
# What a run does to the node: it changes it, waits for a word, and changes it again.
LONG = [SEE, CALL, WAIT, CALL]
LATE = [SEE, WAIT, CALL]


@dataclass
class Operators:
    """A copy of the collection whose node is a directory, and an inventory of one host. place: the test's own."""

    place: Path
    copy: Path
    playbooks: Playbooks

    @property
    def node(self) -> Path:
        return self.copy / "node"

    @property
    def journal(self) -> str:
        path = self.node / "etc/journal.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def command(self, name: str, *args: str, tasks: Any = None) -> list[str]:
        playbook = self.copy / "fleet/playbooks" / name
        if tasks is not None:
            play = {"hosts": "n1", "gather_facts": False, "tasks": tasks}
            playbook.write_text(yaml.safe_dump([play], sort_keys=False), encoding="utf-8")
        program = str(Path(sys.executable).parent / "ansible-playbook")
        return [program, "-i", str(self.copy / "hosts.yml"), str(playbook), *args]

    @property
    def options(self) -> dict[str, Any]:
        env = {**os.environ, **of_copy(self.copy)}
        return {"cwd": self.copy / "fleet", "env": env, "text": True, "stdin": subprocess.DEVNULL}

    def run(self, name: str, *args: str, tasks: Any = None) -> tuple[int, str]:
        done = self.playbooks.run(*self.command(name, *args, tasks=tasks)[1:], cwd=self.copy / "fleet")
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    @contextmanager
    def running(self, name: str, word: str, tasks: Any) -> Iterator[Running]:
        """A run that has come to the point where it waits."""
        go, log = self.place / f"go-{word}", self.place / f"log-{word}"
        args = ("-e", f"word={word}", "-e", f"go={go}")
        with log.open("w") as output:
            process = subprocess.Popen(
                self.command(name, *args, tasks=tasks),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self.options,
            )
            try:
                if tasks is LONG:
                    eventually("its change", lambda: word in self.journal or process.poll() is not None)
                else:
                    eventually("its look", lambda: "TASK" in log.read_text() or process.poll() is not None)
                yield Running(process, go, log)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(GENEROUS)


@dataclass
class Running:
    """A run that waits."""

    process: subprocess.Popen[str]
    go: Path
    log: Path

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(GENEROUS)

    def end(self) -> tuple[int, str]:
        """Let it go on; its exit code and output."""
        self.go.touch()
        return self.process.wait(GENEROUS), " ".join(self.log.read_text().split())


@pytest.fixture(scope="session")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Playbooks]]:
    """The copy, in which the node's directories are below node/, and runs of it."""
    place = tmp_path_factory.mktemp("operators")
    fleet = place / "fleet"
    fleet.mkdir()
    for name in ("plugins", "playbooks"):  # with the bytecode, but for what is being written
        shutil.copytree(ROOT / name, fleet / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    for name in ("roles", "catalog", "templates", "meta", "library", "galaxy.yml"):
        (fleet / name).symlink_to(ROOT / name)
    text = (ROOT / "ansible.cfg").read_text(encoding="utf-8")
    (fleet / "ansible.cfg").write_text(
        text.replace("instinct.fleet.fleet", "ansible.builtin.default"), "utf-8"
    )
    places = {"/run/instinct-fleet": "run", "/etc/instinct-fleet": "etc", "/var/lib/instinct-fleet": "var"}
    for path in fleet.joinpath("plugins").rglob("*.py"):
        text = was = path.read_text(encoding="utf-8")
        for real, mine in places.items():
            text = text.replace(f'"{real}', f'"{place / "node" / mine}')
        if text != was:
            path.write_text(text, encoding="utf-8")
    (place / "collections/ansible_collections/instinct").mkdir(parents=True)
    (place / "collections/ansible_collections/instinct/fleet").symlink_to(fleet)
    local = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "instinct_gpus": {"model": "MI300X", "count": 8},
    }
    inventory = {"instinct": {"hosts": {"n1": local}}}
    (place / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    playbooks = Playbooks(place, of_copy(place))
    yield place, playbooks
    playbooks.close()


def of_copy(place: Path) -> dict[str, str]:
    """What Ansible is told by the environment."""
    return {
        "ANSIBLE_COLLECTIONS_PATH": str(place / "collections"),
        "ANSIBLE_CONFIG": str(place / "fleet/ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
    }


@pytest.fixture
def operators(copied: tuple[Path, Playbooks], tmp_path: Path) -> Operators:
    copy, playbooks = copied
    shutil.rmtree(copy / "node", ignore_errors=True)
    return Operators(tmp_path, copy, playbooks)


def test_the_second_is_refused_and_what_changes_nothing_is_warned(operators: Operators) -> None:
    changing = [{"import_playbook": "plan.yml", "vars": {"fleet_apply": True}}]
    (operators.copy / "fleet/playbooks/change.yml").write_text(yaml.safe_dump(changing), encoding="utf-8")
    with operators.running("first.yml", "one", LONG) as first:
        code, text = operators.run("change.yml")
        assert code != 0
        assert "The plan has 1 problem; nothing was changed." in text
        assert " runs first.yml (since 20" in text
        assert "its lease ends in " in text
        assert "-e take_over=true" in text
        code, text = operators.run("change.yml", "--check")
        assert (code, " runs first.yml (since 20" in text) == (0, True), text
        code, text = operators.run("plan.yml")
        assert (code, " runs first.yml (since 20" in text) == (0, True), text
        code, text = operators.run("call.yml", "-e", "word=two", tasks=[CALL])
        assert (code, "n1 was not changed: " in text) == (2, True), text
        assert "two" not in operators.journal
        assert first.end()[0] == 0
    code, text = operators.run("change.yml")
    assert code == 0, text


def test_the_work_of_a_killed_run_goes_on_at_once(operators: Operators) -> None:
    with operators.running("first.yml", "one", LONG) as first:
        first.kill()
        code, text = operators.run("call.yml", "-e", "word=two", tasks=[CALL])
        assert code == 0, text
        code, text = operators.run("seen.yml", "-e", "word=three", tasks=[SEE, CALL])
        assert code == 0, text
    assert "took over" not in operators.journal


def test_a_takeover_is_journalled_and_ends_the_first(operators: Operators) -> None:
    with operators.running("first.yml", "one", LONG) as first:
        code, text = operators.run("call.yml", "-e", "word=two", "-e", "take_over=true", tasks=[SEE, CALL])
        assert code == 0, text
        code, text = first.end()
        assert (code, "n1 was not changed: it changed after this run looked" in text) == (2, True), text
    lines = operators.journal.splitlines()
    assert " (call.yml) took over from " in lines[1]
    assert lines[1].endswith(" (first.yml)")
    assert [line.rpartition(" ")[2] for line in (lines[0], *lines[2:])] == ["one", "two"]


def test_a_plan_that_is_out_of_date_is_refused(operators: Operators) -> None:
    with operators.running("late.yml", "late", LATE) as late:
        eventually(
            "its look",
            lambda: (
                "node_state" in late.log.read_text()
                or "changed" in late.log.read_text()
                or "ok:" in late.log.read_text()
            ),
        )
        code, text = operators.run("call.yml", "-e", "word=two", tasks=[CALL])
        assert code == 0, text
        code, text = late.end()
        assert (code, "n1 was not changed: it changed after this run looked" in text) == (2, True), text
        assert " runs call.yml " in text
    code, text = operators.run("seen.yml", "-e", "word=three", tasks=[SEE, CALL, CALL])
    assert code == 0, text
    assert json.loads((operators.node / "run/lease").read_text())["command"] == "seen.yml"


@pytest.mark.deep
def test_prune_and_a_change_refuse_each_other(operators: Operators) -> None:
    """The prune's Docker answers nothing for as long as it is looked at."""
    path = str(operators.place / "docker.sock")
    lock = {"schema": 1, "images": {}, "models": {}}
    (operators.copy / "fleet.lock.json").write_text(json.dumps(lock), encoding="utf-8")
    prune = [{"instinct.fleet.host_prune": {"docker_socket": path, "cache_dirs": [str(operators.place)]}}]
    with socket.socket(socket.AF_UNIX) as docker:
        docker.bind(path)
        with operators.running("first.yml", "one", LONG) as first:
            code, text = operators.run("second.yml", tasks=prune)
            assert (code, "n1 was not changed: " in text, " runs first.yml " in text) == (2, True, True), text
            assert first.end()[0] == 0
        docker.listen()
        docker.settimeout(GENEROUS)
        with operators.running("prune.yml", "prunes", [SEE, *prune]):
            link, _ = docker.accept()
            with link:
                code, text = operators.run("call.yml", "-e", "word=two", tasks=[CALL])
        assert (code, "n1 was not changed: " in text, " runs prune.yml " in text) == (2, True, True), text
        assert "two" not in operators.journal
