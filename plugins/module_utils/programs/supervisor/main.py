# SPDX-License-Identifier: Apache-2.0
"""Run `vllm serve` in an instance's container: wait for clean GPUs, limit restarts, leave no orphans.

    supervise.py [options] -- vllm serve …

Every exit of vLLM that nobody requested is a failure, whatever its exit code (vLLM exits with 0 when its engine dies).
The supervisor classifies the failure, records it in state.json and exits with 1, so that Docker restarts the
container. After three failures in a row it gives up: it reports that and keeps running without vLLM. A requested stop
exits with 0; load balancers leave the instance first. An engine that hangs is ended like one that failed. It uses the
standard library of Python 3.9 only.

An engine that spans hosts has one supervisor per rank. The ranks start vLLM together and stop together; a peer's
failure does not count as this rank's own. options.py describes the options.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...common.redact import MIN_LENGTH, Redactor, is_secret_name
from ...credentials.secret_files import NAMES
from ...engines.failures import UNSPECIFIC, Diagnosis, Signature, classify
from .child import ChildProcess, Event, Events, LogTee, adopt_orphans
from .engine import Engine, GuardSwitch
from .gpus import NEXT_STEP, unclean
from .group import RankGroup
from .hang import HangWatch
from .options import Options, parse
from .signatures import parse_signatures
from .state import GAVE_UP, RUNNING, STARTING, STOPPING, WAITING, FailureHistory, RunFailure
from .warm_start import cache_variables

_NO_COMMAND = 127
_ARRIVAL_SECONDS = 0.5
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_HUNG = "It was ended, to start again. If it hangs again: dmesg (amdgpu) on its host, VLLM_LOGGING_LEVEL=DEBUG in env."
_STOPPED = ("stopped", "it was stopped", "Start it: playbooks/site.yml.")
SECONDARY = (*UNSPECIFIC, "collective_failed", "peer_lost")
"""Kinds of failure that another rank's failure may have caused; the other rank's failure then counts."""


class StopRequest(Exception):
    """A signal requested a stop."""


class FailedRun(Exception):
    """The run failed. code: exit code of the process that ended; served: seconds during which it served."""

    def __init__(
        self, diagnosis: Diagnosis, code: int = 1, seconds: float = 0.0, served: float = 0.0
    ) -> None:
        super().__init__(diagnosis.line)
        self.diagnosis, self.code, self.seconds, self.served = diagnosis, code, seconds, served


class PeerLost(Exception):
    """Another rank ended the run. peer: what that rank reported."""

    def __init__(self, peer: Mapping[str, Any]) -> None:
        super().__init__(str(peer["line"]))
        self.peer = dict(peer)


class Supervisor:
    """One run, from the start of the container until vLLM ends."""

    def __init__(self, options: Options, memory: FailureHistory, output: LogTee, events: Events) -> None:
        self._options = options
        self._memory = memory
        self._output = output
        self._events = events
        self._begun = time.monotonic()
        self._group: RankGroup | None = None
        self._child: ChildProcess | None = None
        # A rank without a port of its own, such as a headless one, serves no requests by itself.
        self._engine = Engine(options.argv) if "--port" in options.argv else None
        self._switch = GuardSwitch()
        self._watch: HangWatch | None = None

    def run(self) -> int:
        """Run vLLM and return the exit code."""
        try:
            self._wait_for_gpus()
            self._join()
            self._start_ray()
            self._serve()
        except StopRequest:
            self._memory.asked()
            self._tell_end(*_STOPPED)
        except PeerLost as error:
            return self._end_after_peer(error.peer)
        except FailedRun as error:
            return self._fail(error)
        finally:
            self._clean_up()
        return 0

    # Before vLLM.

    def _wait_for_gpus(self) -> None:
        times, nodes = self._options.times, self._options.gpus
        deadline, next_message = time.monotonic() + times.gpu, 0.0
        while nodes:
            wrong = unclean(nodes, self._options.sysfs)
            if not wrong:
                return
            if time.monotonic() >= deadline:
                raise FailedRun(Diagnosis("gpu_not_clean", f"{wrong}, for {times.gpu:.0f} s", NEXT_STEP))
            if time.monotonic() >= next_message:
                next_message = time.monotonic() + times.tell
                self._output.say(f"{wrong}; waiting until it is free")
            self._note(WAITING, wrong)
            self._next(times.poll)

    def _join(self, gave_up: str = "") -> None:
        """Connect to the other ranks and wait until all are ready. A rank that gave up waits for a signal here."""
        member = self._options.member
        if member is None:
            return
        self._group = RankGroup(member, self._events, self._output.say, self._options.pulse, gave_up)
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
        """Run a short-lived program.

        Raise FailedRun, StopRequest or PeerLost.
        """
        child = self._run(argv)
        deadline = time.monotonic() + seconds
        while not child.ended():
            if time.monotonic() >= deadline:
                child.end_all(self._options.times.grace)
                line = f"{what} did not end within {seconds:.0f} s"
                raise FailedRun(Diagnosis("ray_failed", line, "Read the log of the instance."))
            self._next(min(1.0, deadline - time.monotonic()))
        if child.code:
            child.settle()
            diagnosis = self._classify(self._output.kept(), child.code)
            line = f"{what} ended with exit code {child.code}: {diagnosis.line}"
            raise FailedRun(Diagnosis("ray_failed", line, diagnosis.next_step), child.code)

    def _next(self, seconds: float | None) -> Event | None:
        """Return the next event, or None after the timeout.

        Raise StopRequest or PeerLost.
        """
        event = self._events.get(seconds)
        if event and event.kind == "signal":
            raise StopRequest
        if event and event.kind == "lost":
            raise PeerLost(event.value)
        return event

    # vLLM.

    def _run(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> ChildProcess:
        self._output.forget()
        try:
            self._child = ChildProcess(argv, self._output, self._events, env)
        except OSError as error:
            line = f"exec: {argv[0]}: not found ({error.strerror})"
            self._output.say(line)
            raise FailedRun(self._classify(line), _NO_COMMAND) from error
        return self._child

    def _what(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the command line of the main process, and its environment."""
        options = self._options
        env = self._switch.environment(os.environ, os.path.dirname(os.path.abspath(sys.argv[0])))
        env.update(cache_variables(options.argv, os.environ))
        if options.ray is None:
            return options.argv, env
        if not options.ray.head:
            return options.ray.start, env
        env["RAY_ADDRESS"] = options.ray.address
        return options.argv, env

    def _serve(self) -> None:
        """Run vLLM until it ends.

        Always raise: StopRequest, FailedRun or PeerLost.
        """
        options = self._options
        # A headless server never reports readiness; in a group, rank 0 reports it.
        headless = "--headless" in options.argv and options.member is None
        kills = oom_kills()
        self._note(RUNNING if headless else STARTING)
        argv, env = self._what()
        child = self._run(argv, env)
        serving = time.monotonic() if headless else None
        asked = False
        while not child.ended():
            event = self._events.get()
            if event is None:
                continue
            if event.kind == "signal":
                asked = True
                self._memory.asked()
                if serving is not None:
                    self._leave_balancers(child)
                if options.member and options.member.rank:
                    self._tell_end(*_STOPPED)  # without this rank the others cannot continue
                child.signal(signal.SIGINT if event.value == signal.SIGINT else signal.SIGTERM)
            elif event.kind == "lost" and not asked:
                self._stop_after_peer(child, event.value)
                raise PeerLost(event.value)
            elif event.kind == "hung" and not asked:
                finding = Diagnosis("hung", str(event.value), _HUNG)
                raise FailedRun(finding, 1, child.seconds, time.monotonic() - (serving or child.begun))
            elif event.kind == "serving" and not asked and serving is None:
                serving = time.monotonic()
                self._memory.lost(None)
                self._note(RUNNING)
                self._watch_for_hangs()
                if self._group and options.member and options.member.rank == 0:
                    self._group.tell("serving")
        if asked:
            raise StopRequest
        seconds = child.seconds
        served = time.monotonic() - serving if serving is not None else 0.0
        self._note(STOPPING, "vLLM ended")
        child.settle()
        diagnosis = self._classify(self._output.kept(), child.code, oom_kills() > kills)
        self._tell_end(diagnosis.kind, diagnosis.line, diagnosis.next_step)
        if self._group and diagnosis.kind in SECONDARY:
            self._await_cause_elsewhere(2 * self._options.times.settle)
        raise FailedRun(diagnosis, child.code or 0, seconds, served)

    def _watch_for_hangs(self) -> None:
        times = self._options.times
        if self._engine is not None and times.hang > 0:
            self._watch = HangWatch(
                self._engine.look, times.hang, times.look, lambda line: self._events.put("hung", line)
            )
            self._watch.start()

    def _leave_balancers(self, child: ChildProcess) -> None:
        """Let load balancers send nothing more, before vLLM refuses requests.

        An instance that no balancer counts on does not wait. A drained one does, until its check has failed twice:
        HAProxy reports a server that is up and drained as up.
        """
        if self._engine is None:
            return
        self._switch.leave()
        deadline = time.monotonic() + self._options.times.leave
        waited = False
        while not child.ended() and time.monotonic() < deadline:
            look = self._engine.look(1.0)
            if look is not None and not look.balancers:
                # Requests that were on their way when the last of them noticed arrive within this time.
                child.wait(_ARRIVAL_SECONDS if waited else 0)
                return
            waited = True
            child.wait(0.2)

    def _await_cause_elsewhere(self, seconds: float) -> None:
        """Wait for another rank to report the cause of a failure that may be a consequence.

        Raise PeerLost with that cause, or StopRequest.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                self._next(deadline - time.monotonic())
            except PeerLost as error:
                if error.peer["kind"] not in SECONDARY:
                    raise

    def _stop_after_peer(self, child: ChildProcess, peer: Mapping[str, Any]) -> None:
        """Stop vLLM, which cannot continue without the lost rank.

        Raise FailedRun if the cause turns out to be on this host.
        """
        times = self._options.times
        self._note(STOPPING, _of_peer(peer))
        self._output.say(f"{_of_peer(peer)}; stopping vLLM")
        if peer["kind"] in SECONDARY:
            if child.wait(times.settle):
                child.settle()
            diagnosis = self._classify(self._output.kept(), child.code)
            if diagnosis.kind not in SECONDARY:
                self._tell_end(diagnosis.kind, diagnosis.line, diagnosis.next_step)
                raise FailedRun(diagnosis, child.code or 0, child.seconds)
        child.signal(signal.SIGTERM)
        child.wait(times.stop)

    # After.

    def _classify(self, text: str, code: int | None = None, oom_killed: bool = False) -> Diagnosis:
        return classify(self._signatures(), text, code, oom_killed)

    def _signatures(self) -> tuple[Signature, ...]:
        """Read the signatures now: a deploy may have replaced them since the container was started."""
        path = self._options.signatures
        try:
            with open(path, encoding="utf-8") as stream:
                return parse_signatures(stream.read())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self._output.say(
                f"{path} cannot be read: {why}; failures are told apart by exit code and exception only"
            )
            return ()

    def _tell_end(self, kind: str, line: str, next_step: str) -> None:
        if self._group:
            self._group.tell("end", kind=kind, line=line, next_step=next_step)

    def _clean_up(self) -> None:
        """End the processes that vLLM and Ray left behind, and leave the group."""
        if self._child and self._options.ray:
            try:
                self._child = ChildProcess(self._options.ray.stop, self._output, self._events)
                self._child.wait(self._options.times.grace)
            except OSError as error:
                self._output.say(f"ray stop: {error.strerror}")
        if self._watch:
            self._watch.end()
        if self._child:
            self._child.end_all(self._options.times.grace)
            self._child = None
        if self._group:
            self._group.close()
            self._group = None

    def _end_after_peer(self, peer: Mapping[str, Any]) -> int:
        self._memory.lost({**peer, "at": round(time.time(), 1)})
        self._note(STOPPING, _of_peer(peer))
        self._clean_up()
        if self._stop_was_requested():
            self._memory.asked()
            return 0
        return 1

    def _fail(self, error: FailedRun) -> int:
        """Record and report a failure.

        Return the exit code: 1 for a restart; 0 after giving up and being stopped.
        """
        ran = error.seconds or time.monotonic() - self._begun
        kept = self._output.kept()
        if self._group:
            self._tell_end(error.diagnosis.kind, error.diagnosis.line, error.diagnosis.next_step)
        self._clean_up()
        if self._stop_was_requested():
            self._memory.asked()
            return 0
        failure = self._memory.failed(
            RunFailure(
                round(time.time(), 1), round(ran, 1), round(error.served, 1), error.code,
                error.diagnosis.kind, error.diagnosis.line, error.diagnosis.next_step,
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
        except StopRequest:
            self._memory.asked()
            return 0

    def _stop_was_requested(self) -> bool:
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
    """Count the processes that the kernel killed because the container exceeded its memory limit."""
    for path in _OOM_COUNTERS:
        try:
            with open(path, encoding="ascii") as stream:
                counters = dict(line.partition(" ")[::2] for line in stream)
            return int(counters["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


def secret_values(environ: Mapping[str, str]) -> list[str]:
    """Return the values of a process's secret variables that can be masked."""
    given = environ.get(NAMES, "").split()
    secret = (value for name, value in environ.items() if name in given or is_secret_name(name))
    return [value for value in secret if len(value) >= MIN_LENGTH]


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the supervisor and return its exit code."""
    options = parse(sys.argv[1:] if argv is None else argv)
    redact = Redactor(secret_values(os.environ))
    events = Events()
    events.take_signals()
    adopt_orphans()
    return Supervisor(options, FailureHistory(options.state), LogTee(redact), events).run()
