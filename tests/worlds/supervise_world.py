# SPDX-License-Identifier: Apache-2.0
"""The supervisor as a container has it: its files in a directory, run by Python, with programs in place of vLLM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.instinct.fleet.plugins.module_utils.engines.failure_signatures import SIGNATURES
from ansible_collections.instinct.fleet.plugins.module_utils.engines.failures import SIGNATURES_FILE, to_text
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import bundle

from tests.helpers.eventually import GENEROUS

SUPERVISOR = bundle("supervisor")

SERVES = "echo 'INFO:     Application startup complete.'; exec sleep 3600"
# What nobody waits for is long: on a busy machine, a rank that got no turn would be taken for lost.
QUICK = {
    "poll": 0.05,
    "grace": 20,
    "settle": 0.3,
    "stop": 20,
    "ray": GENEROUS,
    "beat": 0.1,
    "silent": GENEROUS,
    "hello": GENEROUS,
    "retry": 0.1,
}


def write_lib(place: Path) -> Path:
    """The program's files as vllm_server writes them; supervise.py."""
    for name, text in SUPERVISOR.files.items():
        path = place / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (place / "lib" / SIGNATURES_FILE).write_text(to_text(SIGNATURES), encoding="utf-8")
    return place / "lib/supervise.py"


def wait_for(what: str, condition: Callable[[], bool], seconds: float = 90) -> None:
    """AssertionError with `what` when it does not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.02)


@dataclass
class Supervised:
    """A supervisor of one rank: its state outlives its runs, as a container's cache directory does."""

    program: Path
    directory: Path
    options: Sequence[str] = ()
    times: dict[str, float] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self, *argv: str) -> Supervised:
        """Start it around a program."""
        times = [f"--time={name}={value}" for name, value in {**QUICK, **self.times}.items()]
        self.directory.mkdir(exist_ok=True)
        with (self.directory / "out").open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(self.program), f"--state={self.directory}", *times, *self.options, "--", *argv],
                stdout=out, stderr=out, env={**os.environ, **self.env},
            )  # fmt: skip
        return self

    def sh(self, script: str) -> Supervised:
        """Start it around a shell script."""
        return self.start("sh", "-c", script)

    def end(self, seconds: float = 90) -> int:
        """Its exit code."""
        assert self.process is not None
        return self.process.wait(seconds)

    def stop(self) -> int:
        """Ask it to stop; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    @property
    def state(self) -> dict[str, Any]:
        """state.json; {} before there is one."""
        try:
            return json.loads((self.directory / "state.json").read_text())
        except FileNotFoundError:
            return {}

    @property
    def output(self) -> str:
        """All that it and its programs said."""
        return (self.directory / "out").read_text(errors="replace")

    def until(self, state: str, why: str = "") -> None:
        """Wait for a state."""
        wait_for(
            f"{state} {why}: {self.state}",
            lambda: (found := self.state).get("state") == state and why in found["why"],
        )

    def children(self) -> list[int]:
        """What runs below it."""
        assert self.process is not None
        done = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        return [int(word) for word in done.stdout.split()]


def vllms(item: Supervised) -> list[int]:
    """Programs in place of vLLM that a supervisor, living or killed, has left."""
    done = subprocess.run(
        ["pgrep", "-f", f"sh -c .*{item.directory}"], capture_output=True, text=True, check=False
    )
    return [int(word) for word in done.stdout.split()]


Ranks = Callable[..., list[Supervised]]


@contextmanager
def group(program: Path, tmp: Path, port: int) -> Iterator[Ranks]:
    """Make supervisors of one engine over several hosts, none of which is started; they end with this."""
    made: list[Supervised] = []

    def make(count: int, engine: str = "llama-0", hosts: str = "") -> list[Supervised]:
        names = hosts or ",".join(f"n{rank}" for rank in range(count))
        for rank in range(count):
            options = (
                f"--group=127.0.0.1:{port}",
                f"--rank={rank}",
                f"--hosts={names}",
                f"--engine={engine}",
            )
            made.append(Supervised(program, tmp / f"rank{len(made)}", options))
        return made[-count:]

    try:
        yield make
    finally:
        for item in made:
            if item.process and item.process.poll() is None:
                item.process.send_signal(signal.SIGCONT)
                item.process.kill()
                item.process.wait()
            for pid in vllms(item):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
