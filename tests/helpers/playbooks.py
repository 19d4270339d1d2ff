# SPDX-License-Identifier: Apache-2.0
"""Real runs of ansible-playbook that cost what the playbook does: Ansible is imported once for all of them.

A process imports Ansible and the planner, with the environment that it is given, and each run is a fork of it, as if it
had just started. That costs a second of computing, which a file of tests would otherwise pay for each of its runs. They
come one after the other.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import ROOT

PROGRAM = str(Path(sys.executable).parent / "ansible-playbook")


class Playbooks:
    """ansible-playbook with one environment, for any number of runs. A run may have more variables, none of Ansible's.

    env: beside the path and this checkout's ansible.cfg; home: the home directory. imports: what a run may need of the
    collection that the environment has.
    """

    def __init__(
        self,
        home: Path,
        env: Mapping[str, str] | None = None,
        imports: Sequence[str] = ("action.fleet_plan",),
    ) -> None:
        every = {
            "PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            **{key: value for key, value in os.environ.items() if key.startswith("COVERAGE_")},
        }  # fmt: skip
        self._env, self._imports = {**every, **(env or {})}, imports
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, PROGRAM, *self._imports],
            cwd=ROOT, env=self._env, text=True, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(
        self,
        *args: str,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        merged: bool = False,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end; what it printed, and its exit code, which is negative for a signal.

        merged: what it prints as errors is part of its output, as on a terminal. timeout: seconds after which it is
        killed, with TimeoutExpired.
        """
        assert not [name for name in env or () if name.startswith("ANSIBLE_")]
        if self._process.poll() is not None:  # such as where no process could be forked
            self._start()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            files = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in ((out,) if merged else (out, err))]
            order = {"args": args, "cwd": str(cwd), "env": dict(env or {}), "files": files}
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], timeout)[0]:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(60)
                raise subprocess.TimeoutExpired([PROGRAM, *args], timeout or 0)
            answer = self._process.stdout.readline()
            assert answer, f"what runs are forked from ended with {self._process.wait(60)}"
            code = int(answer)
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read().decode())
        return subprocess.CompletedProcess([PROGRAM, *args], code, *said)

    def close(self) -> None:
        """End the process that runs are forked from."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def _serve() -> None:
    """Fork a run for each line of the input; return in a run alone, with its arguments in sys.argv."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _begin(json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.exit()


def _begin(order: dict[str, Any]) -> None:
    """Become a process that has just imported Ansible."""
    os.chdir(order["cwd"])
    os.environ.update(order["env"])
    out, *others = (os.open(name, os.O_WRONLY) for name in order["files"])
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, *(others or (out,)))):
        os.dup2(file, number)
    sys.argv = [sys.argv[1], *order["args"]]
    # What it made when it was imported, and removes at its end, is the process's own.
    atexit._clear()
    constants = importlib.import_module("ansible.constants")
    parent = Path(constants.DEFAULT_LOCAL_TMP).parent
    own = tempfile.TemporaryDirectory(prefix=f"ansible-local-{os.getpid()}", dir=parent)
    constants.DEFAULT_LOCAL_TMP = own.name
    atexit.register(own.cleanup)


def _import(modules: Sequence[str]) -> None:
    """Import what every run imports, and these modules of the collection."""
    cli = importlib.import_module("ansible.cli")
    importlib.import_module("ansible.cli.playbook")
    cli.init_plugin_loader()
    cli.init_plugin_loader = lambda *_: None  # a run's own call
    for name in ("plugin_utils.actions.bytecode", *modules):
        importlib.import_module(f"ansible_collections.instinct.fleet.plugins.{name}")
    gc.freeze()


if __name__ == "__main__":
    sys.path.remove(str(ROOT))  # where this file was found, and no ansible-playbook looks
    _import(sys.argv[2:])
    _serve()
    sys.modules["ansible.cli.playbook"].PlaybookCLI.cli_executor()
