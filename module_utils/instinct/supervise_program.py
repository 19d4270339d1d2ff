# SPDX-License-Identifier: Apache-2.0
"""Runs in an instance's container, around `vllm serve`: restarts with a bound, clean GPUs, no orphans.

    supervise.py [options] -- vllm serve …

vLLM's own end, whatever its code (it is 0 when its engine dies), is a failure: it is classified, noted in
state.json, and the exit code is 1, so that Docker starts the container again. After three in a row it says
so and stays, with no vLLM. A stop that was asked for ends with 0. Standard library of Python 3.9 only.

    --state DIR             where state.json and failure-N.log are kept (/cache/supervise)
    --gpu renderDNNN        wait until this GPU's memory is free before vLLM starts; repeatable
    --time NAME=SECONDS     another time than that of Times below, for tests; repeatable
    --sysfs DIR             in place of /sys, for tests
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields

from .logs import Finding, classify
from .redact import Redactor, is_secret_name
from .supervise_child import Child, Event, Events, Output, adopt_orphans
from .supervise_gpus import NEXT_STEP, unclean
from .supervise_state import GAVE_UP, RUNNING, STARTING, STOPPING, WAITING, Failure, Memory

_NO_COMMAND = 127
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


@dataclass(frozen=True)
class Times:
    """Seconds. gpu: until GPUs that are not clean are a failure; poll, tell: how often they are looked at, and
    told of; grace: between SIGTERM and SIGKILL for what vLLM leaves.
    """

    gpu: float = 600.0
    poll: float = 2.0
    tell: float = 30.0
    grace: float = 10.0


@dataclass(frozen=True)
class Options:
    """The command line."""

    argv: tuple[str, ...]
    state: str
    gpus: tuple[str, ...]
    sysfs: str
    times: Times

    @property
    def headless(self) -> bool:
        """vLLM works for another server, and never says that it answers requests."""
        return "--headless" in self.argv


class Asked(Exception):
    """A signal asked us to stop."""


class Failed(Exception):
    """It cannot go on."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.line)
        self.finding = finding


class Supervisor:
    """One run: from the start of the container until vLLM ends."""

    def __init__(self, options: Options, memory: Memory, output: Output, events: Events) -> None:
        self._options = options
        self._memory = memory
        self._output = output
        self._events = events
        self._begun = time.time()
        self._serving_since: float | None = None
        self._child: Child | None = None

    def run(self) -> int:
        """The exit code."""
        try:
            self._wait_for_gpus()
            return self._serve()
        except Asked:
            self._memory.asked()
            return 0
        except Failed as error:
            return self._fail(error.finding, 1)

    # Before.

    def _wait_for_gpus(self) -> None:
        times, nodes = self._options.times, self._options.gpus
        deadline, told = time.monotonic() + times.gpu, 0.0
        while nodes:
            wrong = unclean(nodes, self._options.sysfs)
            if not wrong:
                return
            if time.monotonic() >= deadline:
                raise Failed(Finding("gpu_not_clean", f"{wrong}, for {times.gpu:.0f} s", NEXT_STEP))
            if time.monotonic() >= told:
                told = time.monotonic() + times.tell
                self._output.say(f"{wrong}; waits until it is free")
            self._note(WAITING, wrong)
            self._pause(times.poll)

    def _pause(self, seconds: float) -> Event | None:
        """Wait for an event but not longer. Raises Asked."""
        event = self._events.get(seconds)
        if event and event.kind == "signal":
            raise Asked
        return event

    # vLLM.

    def _serve(self) -> int:
        options, memory = self._options, self._memory
        self._output.forget()
        kills = oom_kills()
        self._note(RUNNING if options.headless else STARTING)
        try:
            self._child = child = Child(options.argv, self._output, self._events)
        except OSError as error:
            line = f"exec: {options.argv[0]}: not found ({error.strerror})"
            self._output.say(line)
            return self._fail(classify(line), _NO_COMMAND)
        if options.headless:
            self._serving_since = time.monotonic()
        asked = False
        while not child.ended():
            event = self._events.get()
            if event is None:
                continue
            if event.kind == "signal":
                asked = True
                memory.asked()
                child.signal(signal.SIGINT if event.value == signal.SIGINT else signal.SIGTERM)
            elif event.kind == "serving" and not asked:
                self._serving_since = time.monotonic()
                self._note(RUNNING)
        seconds = child.seconds
        served = time.monotonic() - self._serving_since if self._serving_since is not None else 0.0
        if not asked:
            self._note(STOPPING, "vLLM ended")
        child.end_all(options.times.grace)
        if asked or self._was_asked():
            memory.asked()
            return 0
        code = child.code or 0
        finding = classify(self._output.kept(), code, oom_kills() > kills)
        return self._fail(finding, code, seconds, served)

    def _was_asked(self) -> bool:
        while event := self._events.get(0):
            if event.kind == "signal":
                return True
        return False

    # After.

    def _fail(self, finding: Finding, code: int, seconds: float | None = None, served: float = 0.0) -> int:
        """Remember a failure, and say it. The exit code: 1 for another try; 0 once it gave up and was stopped."""
        ran = time.time() - self._begun if seconds is None else seconds
        failure = self._memory.failed(
            Failure(
                round(time.time(), 1), round(ran, 1), round(served, 1), code,
                finding.kind, finding.line, finding.next_step,
            ),
            self._output.kept(),
        )  # fmt: skip
        self._output.say(f"vLLM ended after {ran:.0f} s with exit code {code}: {failure.text}")
        if not self._memory.gave_up:
            self._note(STOPPING, failure.text)
            return 1
        failures = self._memory.failures
        first = failures[0]
        why = f"{len(failures)} failures in a row, the first one {first.text}"
        self._output.say(f"gave up after {why} | {first.next_step}")
        self._note(GAVE_UP, why)
        try:
            while True:
                self._pause(3600)
        except Asked:
            self._memory.asked()
            return 0

    def _note(self, state: str, why: str = "") -> None:
        self._memory.note(state, why)
        if self._memory.trouble:
            self._output.say(self._memory.trouble)


def oom_kills() -> int:
    """Processes that the kernel has killed as the container used more memory than it may."""
    for path in _OOM_COUNTERS:
        try:
            with open(path, encoding="ascii") as stream:
                for line in stream:
                    name, _, count = line.partition(" ")
                    if name == "oom_kill":
                        return int(count)
        except (OSError, ValueError):
            continue
    return 0


def parse(argv: Sequence[str]) -> Options:
    """The options; exits with code 2 for wrong ones."""
    parser = argparse.ArgumentParser(prog="supervise.py", allow_abbrev=False)
    parser.add_argument("--state", default="/cache/supervise")
    parser.add_argument("--gpu", action="append", default=[])
    parser.add_argument("--sysfs", default="/sys")
    parser.add_argument("--time", action="append", default=[])
    if "--" not in argv:
        parser.error("-- and the command to run are missing")
    border = list(argv).index("--")
    known = parser.parse_args(argv[:border])
    command = tuple(argv[border + 1 :])
    if not command:
        parser.error("after -- comes the command to run")
    names = [item.name for item in fields(Times)]
    given: dict[str, float] = {}
    for text in known.time:
        name, _, value = text.partition("=")
        if name not in names:
            parser.error(f"--time: {name} is none of {', '.join(names)}")
        given[name] = float(value)
    return Options(command, known.state, tuple(known.gpu), known.sysfs, Times(**given))


def main(argv: Sequence[str]) -> int:
    """Run it. Returns the exit code."""
    options = parse(argv)
    redact = Redactor(value for name, value in os.environ.items() if is_secret_name(name) and len(value) > 7)
    events = Events()
    events.take_signals()
    adopt_orphans()
    memory = Memory(options.state)
    return Supervisor(options, memory, Output(redact), events).run()
