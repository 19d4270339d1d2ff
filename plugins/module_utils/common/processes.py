# SPDX-License-Identifier: Apache-2.0
"""Run a program that ends: at its time limit it is killed with all that it started, and nobody waits for it longer."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Callable

KEPT = 16 * 2**20  # bytes of each output
_DEAD_SECONDS = 5.0  # a killed process that is inside the kernel ends later, or never
_SLICE = 1.0


@dataclass(frozen=True)
class Program:
    """What to run. stdin: what it reads, a few lines. merged: both of its outputs are `out`."""

    words: Sequence[str]
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    stdin: str = ""
    merged: bool = False


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended. code: None if it was killed at its time limit. out, err: the last KEPT bytes of each."""

    code: int | None
    out: str
    err: str = ""


def run_program(program: Program, limit: float, watch: Callable[[], None] = lambda: None) -> ProgramEnd:
    """Run a program for up to `limit` seconds. Raise OSError if it cannot be started.

    watch: called about every second; what it raises ends the program.
    """
    process = subprocess.Popen(
        list(program.words),
        stdin=subprocess.PIPE if program.stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if program.merged else subprocess.PIPE,
        env=None if program.env is None else dict(program.env),
        cwd=program.cwd,
        start_new_session=True,
    )
    pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe]
    outputs = {pipe.fileno(): bytearray() for pipe in pipes}
    try:
        if process.stdin:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(program.stdin.encode())
        code = _end_of(process, outputs, time.monotonic() + limit, watch)
    finally:
        kill_session(process)
        for pipe in pipes:
            pipe.close()
    return ProgramEnd(code, *(text.decode("utf-8", "replace") for text in outputs.values()))


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a program that leads a session with the rest of it, unless it has ended; wait a few seconds for its end."""
    if process.returncode is None:  # else its number may be another's
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DEAD_SECONDS)


def _end_of(
    process: subprocess.Popen[bytes],
    outputs: Mapping[int, bytearray],
    deadline: float,
    watch: Callable[[], None],
) -> int | None:
    """Collect the outputs until the program's end, and return its exit code; None if the time is over."""
    with selectors.DefaultSelector() as open_pipes:
        for descriptor in outputs:
            open_pipes.register(descriptor, selectors.EVENT_READ)
        while True:
            watch()
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            if not open_pipes.get_map():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(min(left, _SLICE))
                continue
            for key, _events in open_pipes.select(min(left, _SLICE)):
                data = os.read(key.fd, 65536)
                if not data:
                    open_pipes.unregister(key.fd)
                kept = outputs[key.fd]
                kept += data
                del kept[:-KEPT]
