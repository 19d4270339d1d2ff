# SPDX-License-Identifier: Apache-2.0
"""Runs in an instance's container, around `vllm serve`: restarts with a bound, clean GPUs, no orphans.

    supervise.py [options] -- vllm serve …

vLLM's own end, whatever its code (it is 0 when its engine dies), is a failure: it is classified, noted in
state.json, and the exit code is 1, so that Docker starts the container again. After three in a row it says
so and stays, with no vLLM. A stop that was asked for ends with 0. Standard library of Python 3.9 only.

An engine over several hosts has a supervisor per rank. They start vLLM together; when one of them ends, all do,
and a peer's end is no failure of one's own. The options are in options.py.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...common.failures import UNSPECIFIC, Finding, Signature, classify, from_text
from ...common.redact import Redactor, is_secret_name
from .child import Child, Event, Events, Output, adopt_orphans
from .gpus import NEXT_STEP, unclean
from .group import Group
from .options import Options, parse
from .state import GAVE_UP, RUNNING, STARTING, STOPPING, WAITING, Failure, Memory

_NO_COMMAND = 127
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_STOPPED = ("stopped", "it was stopped", "Start it: playbooks/site.yml.")
SECONDARY = (*UNSPECIFIC, "collective_failed", "peer_lost")
"""Kinds of failure that may follow from another rank's, and then that one's counts."""


class Asked(Exception):
    """A signal asked us to stop."""


class Failed(Exception):
    """It cannot go on. code: the exit code of what ended; served: seconds for which it served."""

    def __init__(self, finding: Finding, code: int = 1, seconds: float = 0.0, served: float = 0.0) -> None:
        super().__init__(finding.line)
        self.finding, self.code, self.seconds, self.served = finding, code, seconds, served


class PeerLost(Exception):
    """Another rank ended the run; what the group said of it."""

    def __init__(self, peer: Mapping[str, Any]) -> None:
        super().__init__(str(peer["line"]))
        self.peer = dict(peer)


class Supervisor:
    """One run: from the start of the container until vLLM ends."""

    def __init__(self, options: Options, memory: Memory, output: Output, events: Events) -> None:
        self._options = options
        self._memory = memory
        self._output = output
        self._events = events
        self._begun = time.monotonic()
        self._group: Group | None = None
        self._child: Child | None = None

    def run(self) -> int:
        """The exit code."""
        try:
            self._wait_for_gpus()
            self._join()
            self._start_ray()
            self._serve()
        except Asked:
            self._memory.asked()
            self._tell_end(*_STOPPED)
        except PeerLost as error:
            return self._left_alone(error.peer)
        except Failed as error:
            return self._fail(error)
        finally:
            self._clean_up()
        return 0

    # Before vLLM.

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
            self._next(times.poll)

    def _join(self, gave_up: str = "") -> None:
        """Meet the other ranks, and wait until all are ready. One that gave up waits for a signal here."""
        member = self._options.member
        if member is None:
            return
        self._group = Group(member, self._events, self._output.say, self._options.pulse, gave_up)
        self._group.start()
        while True:
            event = self._next(None)
            if event and event.kind == "go":
                return self._output.say(f"all {len(member.hosts)} ranks of {member.engine} are there")
            if event and event.kind == "waits" and not gave_up:
                self._output.say(str(event.value))
                self._note(WAITING, str(event.value))

    def _start_ray(self) -> None:
        ray = self._options.ray
        if ray is None or not self._options.member:
            return
        nodes, seconds = len(self._options.member.hosts), self._options.times.ray
        if not ray.head:
            self._note(WAITING, "waits for the head of its Ray cluster")
            event = None
            while event is None or event.kind != "step":
                event = self._next(None)
            return
        self._note(WAITING, f"waits for the {nodes} nodes of its Ray cluster")
        self._command(ray.start, seconds, "ray start")
        if self._group:
            self._group.tell("step", name="ray")
        self._command(ray.wait(nodes, seconds), seconds + 30, f"waiting for {nodes} Ray nodes")

    def _command(self, argv: Sequence[str], seconds: float, what: str) -> None:
        """Run a program that ends soon. Raises Failed, Asked, PeerLost."""
        child = self._run(argv)
        deadline = time.monotonic() + seconds
        while not child.ended():
            if time.monotonic() >= deadline:
                child.end_all(self._options.times.grace)
                line = f"{what} did not end within {seconds:.0f} s"
                raise Failed(Finding("ray_failed", line, "The log of the instance says more."))
            self._next(min(1.0, deadline - time.monotonic()))
        if child.code:
            child.settle()
            finding = self._classify(self._output.kept(), child.code)
            line = f"{what} ended with exit code {child.code}: {finding.line}"
            raise Failed(Finding("ray_failed", line, finding.next_step), child.code)

    def _next(self, seconds: float | None) -> Event | None:
        """The next event. Raises Asked, PeerLost."""
        event = self._events.get(seconds)
        if event and event.kind == "signal":
            raise Asked
        if event and event.kind == "lost":
            raise PeerLost(event.value)
        return event

    # vLLM.

    def _run(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
        self._output.forget()
        try:
            self._child = Child(argv, self._output, self._events, env)
        except OSError as error:
            line = f"exec: {argv[0]}: not found ({error.strerror})"
            self._output.say(line)
            raise Failed(self._classify(line), _NO_COMMAND) from error
        return self._child

    def _what(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """What is run, with which environment."""
        options, env = self._options, dict(os.environ)
        if options.ray is None:
            return options.argv, env
        if not options.ray.head:
            return options.ray.start, env
        env["RAY_ADDRESS"] = options.ray.address
        return options.argv, env

    def _serve(self) -> None:
        """Run vLLM. Comes back by an exception only: Asked, Failed, PeerLost."""
        options = self._options
        # A headless server never says that it answers; one in a group hears it from the first rank.
        silent = "--headless" in options.argv and options.member is None
        kills = oom_kills()
        self._note(RUNNING if silent else STARTING)
        argv, env = self._what()
        child = self._run(argv, env)
        serving = time.monotonic() if silent else None
        asked = False
        while not child.ended():
            event = self._events.get()
            if event is None:
                continue
            if event.kind == "signal":
                asked = True
                self._memory.asked()
                if options.member and options.member.rank:
                    self._tell_end(*_STOPPED)  # without this rank the others cannot go on
                child.signal(signal.SIGINT if event.value == signal.SIGINT else signal.SIGTERM)
            elif event.kind == "lost" and not asked:
                self._stop_alone(child, event.value)
                raise PeerLost(event.value)
            elif event.kind == "serving" and not asked and serving is None:
                serving = time.monotonic()
                self._memory.lost(None)
                self._note(RUNNING)
                if self._group and options.member and options.member.rank == 0:
                    self._group.tell("serving")
        if asked:
            raise Asked
        seconds = child.seconds
        served = time.monotonic() - serving if serving is not None else 0.0
        self._note(STOPPING, "vLLM ended")
        child.settle()
        finding = self._classify(self._output.kept(), child.code, oom_kills() > kills)
        self._tell_end(finding.kind, finding.line, finding.next_step)
        if self._group and finding.kind in SECONDARY:
            self._another_cause(2 * self._options.times.settle)
        raise Failed(finding, child.code or 0, seconds, served)

    def _another_cause(self, seconds: float) -> None:
        """Wait whether another rank names the cause of an end that may be a consequence. Raises PeerLost, Asked."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                self._next(deadline - time.monotonic())
            except PeerLost as error:
                if error.peer["kind"] not in SECONDARY:
                    raise

    def _stop_alone(self, child: Child, peer: Mapping[str, Any]) -> None:
        """Another rank is gone: end vLLM, which cannot go on. Raises Failed if the cause turns out to be here."""
        times = self._options.times
        self._note(STOPPING, _of_peer(peer))
        self._output.say(f"{_of_peer(peer)}; stops vLLM")
        if peer["kind"] in SECONDARY:
            if child.wait(times.settle):
                child.settle()
            finding = self._classify(self._output.kept(), child.code)
            if finding.kind not in SECONDARY:
                self._tell_end(finding.kind, finding.line, finding.next_step)
                raise Failed(finding, child.code or 0, child.seconds)
        child.signal(signal.SIGTERM)
        child.wait(times.stop)

    # After.

    def _classify(self, text: str, code: int | None = None, oom_killed: bool = False) -> Finding:
        return classify(self._signatures(), text, code, oom_killed)

    def _signatures(self) -> tuple[Signature, ...]:
        """As they are now: a deploy may have written them anew since the container was started."""
        path = self._options.signatures
        try:
            with open(path, encoding="utf-8") as stream:
                return from_text(stream.read())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self._output.say(
                f"{path} cannot be read: {why}; only exit code and exception tell failures apart"
            )
            return ()

    def _tell_end(self, kind: str, line: str, next_step: str) -> None:
        if self._group:
            self._group.tell("end", kind=kind, line=line, next_step=next_step)

    def _clean_up(self) -> None:
        """End what vLLM and Ray left, and leave the group."""
        if self._child and self._options.ray:
            try:
                self._child = Child(self._options.ray.stop, self._output, self._events)
                self._child.wait(self._options.times.grace)
            except OSError as error:
                self._output.say(f"ray stop: {error.strerror}")
        if self._child:
            self._child.end_all(self._options.times.grace)
            self._child = None
        if self._group:
            self._group.close()
            self._group = None

    def _left_alone(self, peer: Mapping[str, Any]) -> int:
        self._memory.lost({**peer, "at": round(time.time(), 1)})
        self._note(STOPPING, _of_peer(peer))
        self._clean_up()
        if self._was_asked():
            self._memory.asked()
            return 0
        return 1

    def _fail(self, error: Failed) -> int:
        """Remember a failure, and say it. The exit code: 1 for another try; 0 once it gave up and was stopped."""
        ran = error.seconds or time.monotonic() - self._begun
        kept = self._output.kept()
        if self._group:
            self._tell_end(error.finding.kind, error.finding.line, error.finding.next_step)
        self._clean_up()
        if self._was_asked():
            self._memory.asked()
            return 0
        failure = self._memory.failed(
            Failure(
                round(time.time(), 1), round(ran, 1), round(error.served, 1), error.code,
                error.finding.kind, error.finding.line, error.finding.next_step,
            ),
            kept,
        )  # fmt: skip
        what = f"ended after {ran:.0f} s with exit code {error.code}" if error.seconds else "was not started"
        self._output.say(f"vLLM {what}: {failure.text}")
        if not self._memory.gave_up:
            self._note(STOPPING, failure.text)
            return 1
        return self._give_up()

    def _give_up(self) -> int:
        failures = self._memory.failures
        why = f"{len(failures)} failures in a row, the first one {failures[0].text}"
        self._output.say(f"gave up after {why} | {failures[0].next_step}")
        self._note(GAVE_UP, why)
        try:
            self._join(gave_up=failures[0].text)
            while True:
                self._next(3600)
        except Asked:
            self._memory.asked()
            return 0

    def _was_asked(self) -> bool:
        while event := self._events.get(0):
            if event.kind == "signal":
                return True
        return False

    def _note(self, state: str, why: str = "") -> None:
        self._memory.note(state, why)
        if self._memory.trouble:
            self._output.say(self._memory.trouble)


def _of_peer(peer: Mapping[str, Any]) -> str:
    return f"{peer['host']} (rank {peer['rank']}) ended: {peer['kind']}: {peer['line']}"


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run it. Returns the exit code."""
    options = parse(sys.argv[1:] if argv is None else argv)
    redact = Redactor(value for name, value in os.environ.items() if is_secret_name(name) and len(value) > 7)
    events = Events()
    events.take_signals()
    adopt_orphans()
    return Supervisor(options, Memory(options.state), Output(redact), events).run()
