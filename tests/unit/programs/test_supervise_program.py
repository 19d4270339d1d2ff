# SPDX-License-Identifier: Apache-2.0
"""The supervisor's decisions over a clock of its own: what it runs, tells, waits for, and remembers.

test_supervise and test_supervise_group run it for real; here programs, signals and the other ranks are scripted.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.engines.failure_signatures import SIGNATURES
from ansible_collections.instinct.fleet.plugins.module_utils.engines.failures import (
    SIGNATURES_FILE,
    Diagnosis,
    Signature,
    to_text,
)
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor import main
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.child import Event
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.main import (
    Supervisor,
    oom_kills,
)
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.options import parse
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.state import (
    FailureHistory,
    RunFailure,
)

OOM = "torch.OutOfMemoryError: HIP out of memory"
NCCL = "RuntimeError: NCCL error: remote process exited or there was a network error"


@dataclass
class Program:
    """A program as vLLM. ends: after so many seconds by itself; obeys: so many after a signal, None: never."""

    ends: float | None = None
    code: int = 0
    says: str = ""
    says_at: float = 0.0
    obeys: float | None = 1.0


@dataclass
class World:
    """Everything around the supervisor. `events`: (seconds from the start, kind, value); `did`: in which order."""

    place: Path
    programs: list[Program | OSError] = field(default_factory=list)
    events: list[tuple[float, str, Any]] = field(default_factory=list)
    did: list[tuple[Any, ...]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    environments: list[Mapping[str, str] | None] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    child: ChildProcess | None = None
    memory: FailureHistory | None = None
    clock: float = 0.0
    waits: int = 0

    def __post_init__(self) -> None:
        self.signatures.write_text(to_text(SIGNATURES), encoding="utf-8")

    @property
    def signatures(self) -> Path:
        return self.place.parent / SIGNATURES_FILE

    def run(self, *options: str, argv: Sequence[str] = ("vllm", "serve")) -> int:
        """Run the supervisor to its end."""
        world = self

        class Remembered(FailureHistory):
            def note(self, state: str, why: str = "") -> None:
                super().note(state, why)
                world.did.append((state, why))

        self.memory = Remembered(str(self.place))
        given = parse([f"--state={self.place}", f"--signatures={self.signatures}", *options, "--", *argv])
        return Supervisor(given, self.memory, self, self).run()  # type: ignore[arg-type]

    @property
    def failures(self) -> tuple[RunFailure, ...]:
        assert self.memory
        return self.memory.failures

    def names(self, *wanted: str) -> list[tuple[Any, ...]]:
        """What it did of these kinds."""
        return [item for item in self.did if item[0] in wanted]

    # As Output.

    def say(self, text: str) -> None:
        self.said.append(text)

    def kept(self) -> str:
        return self.child.heard() if self.child else ""

    def forget(self) -> None:
        self.did.append(("forget",))

    # As Events.

    def get(self, seconds: float | None = None) -> Event | None:
        self.waits += 1
        assert self.waits < 10_000, "it waits for ever"
        limit = None if seconds is None else self.clock + max(0.0, seconds)
        end = self.child.end if self.child and self.child.code is None else None
        at, kind, value = min(
            [*self.events[:1], *([(end, "child", None)] if end is not None else [])],
            key=lambda event: event[0],
            default=(None, "", None),
        )
        if at is None or (limit is not None and at > limit):
            assert limit is not None, "it waits for ever"
            self.clock = limit
            return None
        self.clock = max(self.clock, at)
        if kind != "child":
            self.events.pop(0)
        return Event(kind, value)


class ChildProcess:
    """As supervise_child has it."""

    world: World

    def __init__(
        self, argv: Sequence[str], output: Any, events: Any, env: Mapping[str, str] | None = None
    ) -> None:
        world = self.world
        found = world.programs.pop(0)
        if isinstance(found, OSError):
            raise found
        self.program, self.begun, self.code = found, world.clock, None
        self.end = None if found.ends is None else world.clock + found.ends
        world.child = self
        world.environments.append(env)
        world.did.append(("run", *argv))
        world.started.append(world.clock)

    def heard(self) -> str:
        return self.program.says if self.world.clock >= self.begun + self.program.says_at else ""

    @property
    def seconds(self) -> float:
        return self.world.clock - self.begun

    def ended(self) -> bool:
        if self.end is not None and self.world.clock >= self.end:
            self.code = self.program.code
        return self.code is not None

    def signal(self, number: int) -> None:
        self.world.did.append(("signal", number))
        if self.code is None and self.program.obeys is not None:
            self.end = self.world.clock + self.program.obeys

    def wait(self, seconds: float) -> bool:
        deadline = self.world.clock + seconds
        self.world.did.append(("wait", seconds))
        self.world.clock = deadline if self.end is None else max(self.world.clock, min(self.end, deadline))
        return self.ended()

    def settle(self) -> None:
        self.world.did.append(("settle",))

    def end_all(self, grace: float) -> None:
        self.world.did.append(("end_all", grace))


class RankGroup:
    """As supervise_group has it; what others say comes from the world's events."""

    world: World

    def __init__(self, member: Any, events: Any, say: Any, pulse: Any, gave_up: str = "") -> None:
        self.world.did.append(("join", member.rank, gave_up))

    def start(self) -> None:
        self.world.did.append(("start",))

    def tell(self, what: str, **data: Any) -> None:
        self.world.did.append(("tell", what, data.get("kind") or data.get("name") or ""))

    def close(self) -> None:
        self.world.did.append(("close",))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path / "state")
    for kind in (ChildProcess, RankGroup):
        monkeypatch.setattr(kind, "world", made, raising=False)
        monkeypatch.setattr(main, kind.__name__, kind)
    clock = SimpleNamespace(monotonic=lambda: made.clock, time=lambda: 1e9 + made.clock)
    monkeypatch.setattr(main, "time", clock)
    monkeypatch.setattr(main, "oom_kills", lambda: 0)
    return made


TERM = ("signal", signal.SIGTERM)
FIRST = ("--group=127.0.0.1:9000", "--hosts=n0,n1", "--engine=llama-0", "--rank=0")
SECOND = (*FIRST[:3], "--rank=1")
GO = (0.0, "go", None)


def lost(at: float, kind: str = "killed", rank: int = 1) -> tuple[float, str, Any]:
    return (
        at,
        "lost",
        {"rank": rank, "host": f"n{rank}", "kind": kind, "line": "it ended", "next_step": "Look."},
    )


# ---- an engine of one host --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "says", "kind"),
    [(0, "", "unknown"), (3, "", "unknown"), (0, OOM, "out_of_memory"), (137, "", "killed")],
)
def test_an_end_is_a_failure(world: World, code: int, says: str, kind: str) -> None:
    world.programs = [Program(5.0, code, says)]
    assert world.run() == 1
    (failure,) = world.failures
    assert (failure.seconds, failure.served, failure.code, failure.kind) == (5.0, 0.0, code, kind)
    assert failure.at == 1e9 + 5
    assert world.said == [f"vLLM ended after 5 s with exit code {code}: {failure.text}"]
    assert world.did == [
        ("starting", ""), ("forget",), ("run", "vllm", "serve"), ("stopping", "vLLM ended"), ("settle",),
        ("end_all", 10.0), ("stopping", failure.text),
    ]  # fmt: skip
    assert (world.place / failure.log).read_text() == says


@pytest.mark.parametrize("text", [None, "{", '{"schema": 99}'])
def test_without_signatures_the_exit_code_tells_failures_apart(world: World, text: str | None) -> None:
    if text is None:
        world.signatures.unlink()
    else:
        world.signatures.write_text(text, encoding="utf-8")
    world.programs = [Program(5.0, 137, OOM)]
    assert world.run() == 1
    assert [failure.kind for failure in world.failures] == ["killed"]
    (said,) = [text for text in world.said if str(world.signatures) in text]
    assert "cannot be read" in said


def test_a_signature_counts_that_was_written_after_the_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deploy writes the file anew, and starts nothing again for it."""
    text = to_text([Signature("cosmic_ray", ("bit flipped",), "Look up."), *SIGNATURES])
    monkeypatch.setattr(
        ChildProcess, "settle", lambda self: world.signatures.write_text(text, encoding="utf-8")
    )
    world.programs = [Program(5.0, says="bit flipped")]
    assert world.run() == 1
    assert [failure.kind for failure in world.failures] == ["cosmic_ray"]


def test_the_environment_is_its_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "x")
    world.programs = [Program(1.0)]
    world.run()
    (env,) = world.environments
    assert env is not None
    assert env["CANARY"] == "x"
    assert "RAY_ADDRESS" not in env


@pytest.mark.parametrize(
    ("argv", "events", "served", "running_at"),
    [
        (("vllm",), [], 0.0, None),
        (("vllm",), [(2.0, "serving", None)], 8.0, 2.0),
        (("vllm",), [(2.0, "serving", None), (6.0, "serving", None)], 8.0, 2.0),
        (("vllm",), [(2.0, "other", None)], 0.0, None),
        (("vllm", "--headless"), [], 10.0, 0.0),  # it never says that it answers
    ],
)
def test_how_long_it_served(
    world: World, argv: tuple[str, ...], events: list[Any], served: float, running_at: float | None
) -> None:
    world.programs, world.events = [Program(10.0)], events
    assert world.run(argv=argv) == 1
    assert world.failures[0].served == served
    assert world.names("running") == ([] if running_at is None else [("running", "")])
    assert world.names("starting") == ([] if "--headless" in argv else [("starting", "")])


def test_a_server_that_serves_ends_what_another_rank_did(world: World) -> None:
    FailureHistory(str(world.place)).lost(
        {"rank": 1, "host": "n1", "kind": "killed", "line": "", "next_step": ""}
    )
    world.programs, world.events = [Program(None)], [(1.0, "serving", None), (2.0, "signal", signal.SIGTERM)]
    assert world.run() == 0
    assert world.memory
    assert world.memory.peer is None


@pytest.mark.parametrize(
    ("number", "passed"),
    [
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGHUP, signal.SIGTERM),
        (signal.SIGQUIT, signal.SIGTERM),
    ],
)
def test_a_stop_is_passed_on(world: World, number: int, passed: int) -> None:
    world.programs = [Program(None, 5, OOM)]
    world.events = [(1.0, "signal", number), (1.5, "serving", None)]
    assert world.run() == 0
    assert world.names("signal", "running") == [("signal", passed)]
    assert (world.failures, world.said, world.clock) == ((), [], 2.0)
    assert world.did[-2:] == [("stopping", "asked to"), ("end_all", 10.0)]


def test_each_signal_is_passed_on(world: World) -> None:
    world.programs = [Program(None, obeys=None)]
    world.events = [(1.0, "signal", 15), (2.0, "signal", 15), (3.0, "signal", 2), (4.0, "end", None)]
    with pytest.raises(AssertionError, match="waits for ever"):
        world.run()
    assert world.names("signal") == [TERM, TERM, ("signal", 2)]


@pytest.mark.parametrize(("before", "after", "kind"), [(0, 1, "killed"), (3, 4, "killed"), (3, 3, "unknown")])
def test_what_the_kernel_killed_for_memory(
    world: World, monkeypatch: pytest.MonkeyPatch, before: int, after: int, kind: str
) -> None:
    counts = [before, after]
    monkeypatch.setattr(main, "oom_kills", lambda: counts.pop(0))
    world.programs = [Program(5.0, 1)]
    assert world.run() == 1
    assert world.failures[0].kind == kind
    assert ("runtime.memory" in world.failures[0].next_step) == (kind == "killed")


EVENTS = "low 0\nhigh 0\nmax 7\noom 5\noom_kill 3\noom_group_kill 9\n"


@pytest.mark.parametrize(
    ("first", "second", "kills"),
    [
        (EVENTS, None, 3),
        (None, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", 2),
        (EVENTS, "oom_kill 2\n", 3),
        ("low 0\n", "oom_kill 2\n", 2),
        ("oom_kill x\n", "oom_kill 2\n", 2),
        ("low 0\n", None, 0),
        (None, None, 0),
    ],
)
def test_counters_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str | None, second: str | None, kills: int
) -> None:
    paths = tuple(str(tmp_path / name) for name in ("memory.events", "memory.oom_control"))
    monkeypatch.setattr(main, "_OOM_COUNTERS", paths)
    for path, text in zip(paths, (first, second), strict=True):
        if text is not None:
            Path(path).write_text(text)
    assert oom_kills() == kills


def test_where_the_counters_are() -> None:
    """Of control groups version 2, and version 1, as a container sees its own."""
    assert main._OOM_COUNTERS == (
        "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control",
    )  # fmt: skip


def test_a_program_that_is_not_there(world: World) -> None:
    world.programs = [FileNotFoundError(2, "No such file or directory")]
    assert world.run() == 1
    (failure,) = world.failures
    assert (failure.code, failure.seconds, failure.served) == (127, 0.0, 0.0)
    assert failure.line == "exec: vllm: not found (No such file or directory)"
    assert world.said == [failure.line, f"vLLM was not started: {failure.text}"]
    assert world.names("end_all") == []  # there is nothing to end


def test_a_stop_that_comes_while_a_failure_is_dealt_with_counts(world: World) -> None:
    world.programs = [Program(5.0, 1)]
    world.events = [(5.0, "other", None), (5.0, "signal", 15)]
    assert world.run() == 0
    assert world.failures == ()
    assert world.did[-1] == ("stopping", "vLLM ended")


def test_a_disk_that_cannot_be_written_is_told(world: World) -> None:
    world.place.write_text("a file")
    world.programs = [Program(5.0, 1)]
    assert world.run() == 1
    assert f"{world.place}/state.json cannot be written: File exists" in world.said


def failed(count: int) -> Callable[[World], None]:
    def remember(world: World) -> None:
        memory = FailureHistory(str(world.place))
        for number in range(count):
            at = 1e9 - count + number
            memory.failed(RunFailure(at, 1.0, 0.0, 1, f"kind{number}", f"line {number}", f"Do {number}."), "")

    return remember


@pytest.mark.parametrize(("before", "gives_up"), [(0, False), (1, False), (2, True)])
def test_it_gives_up_and_waits(world: World, before: int, gives_up: bool) -> None:
    failed(before)(world)
    world.programs, world.events = [Program(5.0, 1)], [(4000.0, "other", None), (9000.0, "signal", 15)]
    assert world.run() == (0 if gives_up else 1)
    assert len(world.failures) == before + 1
    if gives_up:
        why = "3 failures in a row, the first one kind0: line 0"
        assert world.said[-1] == f"gave up after {why} | Do 0."
        assert world.did[-2:] == [
            ("gave_up", why),
            ("gave_up", why),
        ]  # the second as somebody asked it to stop
        assert world.clock == 9000.0


# ---- GPUs -------------------------------------------------------------------------------------------


def test_gpus_are_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def look(nodes: Sequence[str], sysfs: str) -> str:
        asked.append((nodes, sysfs, world.clock))
        return "in use" if world.clock < 65 else ""

    monkeypatch.setattr(main, "unclean", look)
    world.programs = [Program(5.0)]
    assert world.run("--gpu=renderD128", "--gpu=renderD136", "--sysfs=/s") == 1
    assert asked[0] == (("renderD128", "renderD136"), "/s", 0.0)
    assert [at for _, _, at in asked] == [2.0 * number for number in range(34)]
    assert world.said[:3] == ["in use; waiting until it is free"] * 3  # every thirty seconds: 0, 30, 60
    assert "in use" not in world.said[3]
    assert set(world.did[:33]) == {("waiting", "in use")}
    assert world.did[33] == ("starting", "")
    assert world.failures[0].seconds == 5.0


def test_gpus_that_stay_in_use_are_a_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "unclean", lambda *_: "in use")
    assert world.run("--gpu=renderD128") == 1
    (failure,) = world.failures
    assert (failure.kind, failure.line) == ("gpu_not_clean", "in use, for 600 s")
    assert (failure.code, failure.seconds, failure.served) == (1, 600.0, 0.0)
    assert "gpu_clean=true" in failure.next_step
    assert world.said[-1] == f"vLLM was not started: {failure.text}"
    assert world.clock == 600.0


def test_a_stop_while_it_waits_for_gpus(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "unclean", lambda *_: "in use")
    world.events = [(7.0, "signal", 15)]
    assert world.run("--gpu=renderD128") == 0
    assert (world.failures, world.clock) == ((), 7.0)


# ---- ranks ------------------------------------------------------------------------------------------


def test_ranks_meet_before_vllm_starts(world: World) -> None:
    world.programs = [Program(None)]
    world.events = [
        (0.0, "waits", "waits for n1 (rank 1)"), (3.0, "other", None), (4.0, "go", None), (5.0, "serving", None),
        (6.0, "signal", 15),
    ]  # fmt: skip
    assert world.run(*FIRST) == 0
    assert world.said == ["waits for n1 (rank 1)", "all 2 ranks of llama-0 are there"]
    assert world.did == [
        ("join", 0, ""), ("start",), ("waiting", "waits for n1 (rank 1)"), ("starting", ""), ("forget",),
        ("run", "vllm", "serve"), ("running", ""), ("tell", "serving", ""), ("stopping", "asked to"), TERM,
        ("stopping", "asked to"), ("tell", "end", "stopped"), ("end_all", 10.0), ("close",),
    ]  # fmt: skip


def test_a_rank_that_is_stopped_tells_the_others_at_once(world: World) -> None:
    """Without it the first one cannot go on; the first one's vLLM may finish what it was asked before."""
    world.programs, world.events = [Program(None)], [GO, (5.0, "serving", None), (6.0, "signal", 15)]
    assert world.run(*SECOND, argv=("vllm", "--headless")) == 0
    assert world.names("tell", "signal", "starting", "running") == [
        ("starting", ""), ("running", ""), ("tell", "end", "stopped"), TERM, ("tell", "end", "stopped"),
    ]  # fmt: skip


def test_a_stop_while_it_waits_for_the_others(world: World) -> None:
    world.events = [(3.0, "signal", 15)]
    assert world.run(*SECOND) == 0
    assert world.names("run", "tell", "close") == [("tell", "end", "stopped"), ("close",)]


def test_a_rank_that_is_lost_before_vllm_started(world: World) -> None:
    world.events = [GO, lost(0.0)]
    world.programs = [Program(None)]
    assert world.run(*FIRST) == 1
    assert world.failures == ()
    assert world.memory
    assert world.memory.peer == {
        "rank": 1, "host": "n1", "kind": "killed", "line": "it ended", "next_step": "Look.", "at": 1e9 + 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["killed", "out_of_memory", "stopped"])
def test_when_another_rank_ends_by_itself_vllm_is_stopped(world: World, kind: str) -> None:
    world.programs, world.events = [Program(None, 0, OOM)], [GO, lost(9.0, kind)]
    assert world.run(*FIRST) == 1
    text = f"n1 (rank 1) ended: {kind}: it ended"
    assert world.said[-1] == f"{text}; stopping vLLM"
    assert world.names("signal", "wait", "stopping", "end_all", "close") == [
        ("stopping", text), TERM, ("wait", 30.0), ("stopping", text), ("end_all", 10.0), ("close",),
    ]  # fmt: skip
    assert world.failures == ()
    assert world.clock == 10.0


@pytest.mark.parametrize(
    ("kind", "says_at", "own"),
    [
        ("collective_failed", 10.0, True),  # vLLM has a moment to say that the cause is here
        ("peer_lost", 10.0, True),
        ("unknown", 11.0, True),
        ("python_exception", 11.5, False),
        ("killed", 9.0, False),
    ],
)
def test_the_cause_may_turn_out_to_be_here(world: World, kind: str, says_at: float, own: bool) -> None:
    world.programs, world.events = [Program(None, 0, OOM, says_at)], [GO, lost(9.0, kind)]
    assert world.run(*FIRST) == 1
    assert [failure.kind for failure in world.failures] == (["out_of_memory"] if own else [])
    assert (("tell", "end", "out_of_memory") in world.did) == own
    assert (world.names("signal") == []) == own
    if own:
        assert (world.failures[0].seconds, world.failures[0].served, world.failures[0].code) == (
            2.0 + 9.0,
            0.0,
            0,
        )
        assert world.clock == 11.0


def test_a_code_of_its_own_counts_in_it(world: World) -> None:
    world.programs, world.events = [Program(10.0, 137)], [GO, lost(9.0, "peer_lost")]
    assert world.run(*FIRST) == 1
    assert [(failure.kind, failure.code) for failure in world.failures] == [("killed", 137)]


def test_who_was_asked_to_stop_hears_of_nobody(world: World) -> None:
    world.programs, world.events = [Program(None, obeys=3.0)], [GO, (5.0, "signal", 15), lost(6.0)]
    assert world.run(*FIRST) == 0
    assert world.names("signal") == [TERM]
    assert world.clock == 8.0


def test_a_stop_while_vllm_is_stopped_for_another(world: World) -> None:
    world.programs, world.events = [Program(None)], [GO, lost(9.0), (9.5, "signal", 15)]
    assert world.run(*FIRST) == 0
    assert world.failures == ()
    assert world.memory
    assert world.memory.peer is not None


@pytest.mark.parametrize(
    ("says", "peer", "own", "clock"),
    [
        # Another one may name the cause of what followed from it …
        (NCCL, lost(7.0, "out_of_memory"), False, 7.0),
        (NCCL, lost(9.0, "killed"), False, 9.0),
        # … in time; and who only felt it as well names none.
        (NCCL, lost(9.5, "killed"), True, 9.0),
        (NCCL, lost(7.0, "collective_failed"), True, 9.0),
        (NCCL, lost(7.0, "unknown"), True, 9.0),
        ("", lost(7.0, "killed"), False, 7.0),
        # Its own cause is a cause.
        (OOM, lost(7.0, "killed"), True, 5.0),
    ],
)
def test_who_names_the_cause_of_an_end(world: World, says: str, peer: Any, own: bool, clock: float) -> None:
    world.programs, world.events = [Program(5.0, 1, says)], [GO, peer]
    assert world.run(*FIRST) == 1
    assert len(world.failures) == int(own)
    assert world.clock == clock
    assert world.memory
    assert (world.memory.peer is None) == own


def test_a_stop_while_it_waits_for_the_cause(world: World) -> None:
    world.programs, world.events = [Program(5.0, 1, NCCL)], [GO, (6.0, "signal", 15)]
    assert world.run(*FIRST) == 0
    assert world.failures == ()
    assert world.clock == 6.0


def test_without_a_group_nobody_is_asked_for_the_cause(world: World) -> None:
    world.programs = [Program(5.0, 1, NCCL)]
    assert world.run() == 1
    assert world.clock == 5.0


def test_the_others_hear_of_a_failure(world: World) -> None:
    world.programs, world.events = [Program(5.0, 1, OOM)], [GO]
    assert world.run(*FIRST) == 1
    assert world.names("tell", "close") == [
        ("tell", "end", "out_of_memory"), ("tell", "end", "out_of_memory"), ("close",),
    ]  # fmt: skip
    world.did.clear()
    world.programs, world.events = [FileNotFoundError(2, "none")], [(world.clock, "go", None)]
    world.run(*FIRST)
    assert world.names("tell", "close") == [("tell", "end", "command_missing"), ("close",)]


def test_who_gave_up_holds_the_others(world: World) -> None:
    failed(2)(world)
    world.programs = [Program(5.0, 1, OOM)]
    world.events = [GO, (6.0, "waits", "n1 gave up"), (7.0, "signal", 15)]
    assert world.run(*SECOND) == 0
    assert world.names("join") == [("join", 1, ""), ("join", 1, "kind0: line 0")]
    assert "n1 gave up" not in world.said
    assert world.names("waiting") == []
    assert world.names("close") == [("close",), ("close",)]


# ---- Ray --------------------------------------------------------------------------------------------

HEAD = (*FIRST, "--ray-head=6379", "--ray-ip=10.0.0.1")
WORKER = (*SECOND, "--ray-worker=10.0.0.1:6379", "--ray-ip=10.0.0.2")
STOP = Program(1.0)


def runs(world: World) -> list[str]:
    """The programs that were run, by their first words."""
    return [" ".join(item[1:4] if item[1] == "ray" else item[1:2]) for item in world.names("run")]


def test_the_head_forms_a_cluster_and_serves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.ray.sys.executable",
        "python",
    )
    world.programs = [Program(2.0), Program(3.0), Program(None), STOP]
    world.events = [GO, (9.0, "serving", None), (10.0, "signal", 15)]
    assert world.run(*HEAD) == 0
    assert runs(world) == ["ray start --head", "python", "vllm", "ray stop"]
    assert world.names("run")[1][-3:] == ("10.0.0.1:6379", "2", "180.0")
    assert world.environments[2] is not None
    assert world.environments[2]["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert world.environments[0] is None
    assert world.names("waiting", "tell", "starting")[:3] == [
        ("waiting", "waits for the 2 nodes of its Ray cluster"), ("tell", "step", "ray"), ("starting", ""),
    ]  # fmt: skip
    assert world.did[-4:] == [("run", "ray", "stop"), ("wait", 10.0), ("end_all", 10.0), ("close",)]


def test_a_worker_joins_when_the_head_is_there(world: World) -> None:
    world.programs = [Program(None), STOP]
    world.events = [
        GO,
        (3.0, "other", None),
        (4.0, "step", "ray"),
        (9.0, "serving", None),
        (10.0, "signal", 15),
    ]
    assert world.run(*WORKER) == 0
    assert runs(world) == ["ray start --address=10.0.0.1:6379", "ray stop"]
    assert world.started == [4.0, 11.0]
    assert world.environments[0] is not None
    assert "RAY_ADDRESS" not in world.environments[0]
    assert world.names("waiting", "starting") == [
        ("waiting", "waits for the head of its Ray cluster"), ("starting", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("programs", "code", "seconds", "line"),
    [
        ([Program(2.0, 1, "port is in use")], 1, 2.0, "ray start ended with exit code 1: port is in use"),
        ([Program(None)], 1, 180.0, "ray start did not end within 180 s"),
        ([Program(2.0), Program(3.0, 3)], 3, 5.0, "waiting for 2 Ray nodes ended with exit code 3: "),
        ([Program(2.0), Program(None)], 1, 212.0, "waiting for 2 Ray nodes did not end within 210 s"),
    ],
)
def test_a_cluster_that_does_not_form(
    world: World, programs: list[Program | OSError], code: int, seconds: float, line: str
) -> None:
    world.programs, world.events = [*programs, STOP], [GO]
    assert world.run(*HEAD) == 1
    (failure,) = world.failures
    assert (failure.kind, failure.code, failure.seconds) == ("ray_failed", code, seconds)
    assert failure.line.startswith(line)
    assert failure.next_step
    late = "did not end" in line
    assert world.names("end_all", "settle") == [
        ("end_all" if late else "settle", *[10.0] * late),
        ("end_all", 10.0),
    ]


def test_a_cluster_has_its_time_and_no_more(world: World) -> None:
    world.programs, world.events = [Program(None), STOP], [GO]
    assert world.run(*HEAD, "--time=ray=2.5") == 1
    assert world.failures[0].seconds == 2.5


def test_a_stop_and_a_lost_rank_while_the_cluster_forms(world: World) -> None:
    world.programs, world.events = [Program(None), STOP], [GO, (5.0, "signal", 15)]
    assert world.run(*HEAD) == 0
    world.programs = [Program(None), STOP]
    world.events = [(world.clock, "go", None), lost(world.clock + 5)]
    assert world.run(*HEAD) == 1
    assert world.failures == ()


def test_a_ray_that_is_not_there_any_more(world: World) -> None:
    world.programs = [Program(2.0, 1), FileNotFoundError(2, "No such file or directory")]
    world.events = [GO]
    assert world.run(*HEAD) == 1
    assert "ray stop: No such file or directory" in world.said
    assert world.names("end_all") == [("end_all", 10.0)]


# ---- the program ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "masked"),
    [
        ("VLLM_API_KEY", "12345678", True),
        ("VLLM_API_KEY", "1234567", False),
        ("CANARY", "12345678", False),
        ("REDIS_URL", "12345678", True),
    ],
)
def test_secrets_of_its_environment_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, masked: bool
) -> None:
    found: dict[str, Any] = {}

    class Stands(Supervisor):
        def run(self) -> int:
            found.update(vars(self))
            return 5

    for other in ("Events.take_signals", "adopt_orphans"):
        monkeypatch.setattr(
            f"ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.main.{other}",
            lambda *_: found.update({"set": True}),
        )
    monkeypatch.setattr(main, "Supervisor", Stands)
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("INSTINCT_SECRETS", "REDIS_URL OTHER")  # the names in the deployment's secrets
    assert main.main([f"--state={tmp_path}", "--", "vllm"]) == 5
    assert (value not in found["_output"]._redact(f"<{value}>")) == masked
    assert found["_options"].argv == ("vllm",)


def test_how_its_exceptions_are_told() -> None:
    peer = {"host": "n1", "rank": 1, "kind": "killed", "line": "it ended", "next_step": ""}
    assert str(main.PeerLost(peer)) == "it ended"
    error = main.FailedRun(Diagnosis("kind", "line", "next"))
    assert (str(error), error.code, error.seconds, error.served) == ("line", 1, 0.0, 0.0)
