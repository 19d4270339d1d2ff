# SPDX-License-Identifier: Apache-2.0
"""An engine that hangs is started again, one that works or starts is not; one that stops leaves balancers first."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.engine import Look
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.hang import HangJudge
from hypothesis import given
from hypothesis import strategies as st

from tests import ROOT
from tests.helpers.ports import free_port
from tests.worlds.supervise_world import Supervised, wait_for, write_lib


def look(progress: int | None = 0, *, generated: bool = True, working: bool = True) -> Look:
    return Look(() if progress is None else (b"%d" % progress,), generated, working, None)


HANGS_WITH_REQUESTS = "it has requests, and has generated nothing for 600 s"


@pytest.mark.parametrize(
    ("looks", "found"),
    [
        # It generates, however slowly.
        ([(at, look(at // 500)) for at in range(0, 3000, 100)], ""),
        # It has nothing to do.
        ([(at, look(1, working=False)) for at in range(0, 3000, 100)], ""),
        # Its first token may need kernels to be compiled.
        ([(at, look(1, generated=False)) for at in range(0, 3000, 100)], ""),
        # It reports no figures.
        ([(at, look(None)) for at in range(0, 3000, 100)], ""),
        ([(at, look(1)) for at in range(0, 700, 100)], HANGS_WITH_REQUESTS),
        # The time counts from the request on, not from the last token before it.
        ([(0, look(1, working=False)), (5000, look(1, working=False)), (5010, look(1)), (5590, look(1))], ""),
        ([(0, look(1, working=False)), (5000, look(1, working=False)), (5010, look(1)), (5600, look(1))],
         HANGS_WITH_REQUESTS),
        # It was never seen to generate: what it begins with may take longer.
        ([(at, None) for at in range(0, 600, 100)], ""),
        ([(at, None) for at in range(0, 700, 100)], "the API server has not answered for 600 s"),
        ([(500, look(1, generated=False)), *((at, None) for at in range(600, 1100, 100))], ""),
        ([(500, look(1, generated=False)), (1000, None), (1100, None)], "the API server has not answered for 600 s"),
        # It has no requests.
        ([(0, look(working=False)), (60, None), (120, None)], "the API server has not answered for 120 s"),
        ([(0, look()), (60, None), (110, None)], ""),
        ([(0, look()), (60, None), (120, None)], "the API server has not answered for 120 s"),
        ([(0, look()), (100, None), (110, look(1)), (200, None)], ""),
    ],
)  # fmt: skip
def test_what_counts_as_a_hang(looks: list[tuple[int, Look | None]], found: str) -> None:
    judge = HangJudge(600, 0)
    said = [judge.judge(seen, at) for at, seen in looks]
    assert said[-1] == found
    assert not any(said[:-1])


LOOKS = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=30)


@given(LOOKS, st.integers(30, 900), st.integers(1, 30))
def test_a_silent_one_is_found_in_time_whatever_was_before(
    history: list[tuple[int, bool, bool]], limit: int, poll: int
) -> None:
    """Not earlier than its limit, and not later than one look after it."""
    judge, now = HangJudge(limit, 0), 0
    for progress, generated, working in history:
        now += poll
        if judge.judge(look(progress, generated=generated, working=working), now):
            return  # found already: it had requests, and generated nothing
    silent, wanted = 0, min(limit, 120) if any(generated for _, generated, _ in history) else limit
    while not judge.judge(None, now + silent):
        silent += poll
        assert silent < wanted + poll
    assert silent >= wanted


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lib(tmp_path_factory.mktemp("lib"))


STANDIN = "import sys; from lab.standin.cli import main; sys.exit(main())"


class Served:
    """The stand-in engine with its supervisor, as serve.sh starts them."""

    def __init__(
        self, program: Path, place: Path, times: dict[str, float] | None = None, **more: str
    ) -> None:
        self.port = free_port()
        env = {"PYTHONPATH": str(ROOT), "VLLM_API_KEY": "k" * 30, "STANDIN_TOKENS_PER_SECOND": "20", **more}
        usual = {"look": 0.2, "hang": 2.0, "leave": 8.0}
        self.supervised = Supervised(program, place, times={**usual, **(times or {})}, env=env)
        self.supervised.start(
            sys.executable, "-c", STANDIN, "serve", "m", "--host", "127.0.0.1", "--port", str(self.port),
            "--shutdown-timeout", "30", "--middleware", "instinct_guard.Guard",
        )  # fmt: skip
        self.supervised.until("running")

    def curl(self, path: str, *args: str) -> str:
        """Status of an answer."""
        words = ["curl", "-s", "-o", "/dev/null", "-m", "30", "-w", "%{http_code}", *args]
        done = subprocess.run(
            [*words, f"http://127.0.0.1:{self.port}{path}"], capture_output=True, text=True, check=False
        )
        return done.stdout

    def complete(self, tokens: int = 2) -> str:
        body = f'{{"model": "m", "prompt": "x", "max_tokens": {tokens}}}'
        return self.curl("/v1/completions", "-H", f"Authorization: Bearer {'k' * 30}", "-d", body)

    def end(self) -> None:
        process = self.supervised.process
        assert process is not None
        for pid in [*self.supervised.children(), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def check(self, state: str) -> str:
        return self.curl("/health", "-H", f"X-Haproxy-Server-State: {state}; name=llama/n1; node=lb")


@pytest.fixture
def served(program: Path, tmp_path: Path) -> Iterator[Served]:
    found = Served(program, tmp_path / "state")
    yield found
    found.end()


def test_a_stopped_engine_is_ended_and_counted(served: Served) -> None:
    assert served.complete() == "200"
    (engine,) = served.supervised.children()
    time.sleep(1)  # a look since the token
    os.kill(engine, signal.SIGSTOP)
    assert served.supervised.end() == 1
    (failure,) = served.supervised.state["failures"]
    assert (failure["kind"], "has not answered" in failure["line"]) == ("hung", True)


@pytest.mark.deep
def test_one_that_stops_before_its_first_token_is_ended_without_a_request(served: Served) -> None:
    (engine,) = served.supervised.children()
    os.kill(engine, signal.SIGSTOP)
    assert served.supervised.end() == 1
    (failure,) = served.supervised.state["failures"]
    assert (failure["kind"], "has not answered" in failure["line"]) == ("hung", True)


def test_what_comes_before_it_serves_is_no_silence(program: Path, tmp_path: Path) -> None:
    """Loading takes longer than the limit here."""
    made = Served(program, tmp_path / "state", times={"hang": 1.0}, STANDIN_STARTUP_SECONDS="3")
    try:
        assert made.supervised.state["failures"] == []
        assert made.complete() == "200"
    finally:
        made.end()


def test_one_that_works_or_idles_is_left_alone(served: Served) -> None:
    assert served.complete() == "200"
    assert served.complete(100) == "200"  # five seconds: more than twice the limit
    time.sleep(5)
    assert served.complete() == "200"
    assert served.supervised.state["failures"] == []


def test_a_stop_waits_until_no_balancer_counts_on_it(served: Served) -> None:
    assert served.check("UP; address=x; port=1") == "200"
    process = served.supervised.process
    assert process is not None
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    wait_for("the answer to a check", lambda: served.check("UP 2/3") == "503")
    assert served.complete() == "200"  # what a balancer sends before it notices
    served.check("DOWN 0/2")
    assert served.supervised.end() == 0
    assert time.monotonic() - begun < 60


def test_one_that_no_balancer_counts_on_stops_at_once(served: Served) -> None:
    served.check("DOWN 0/2")
    begun = time.monotonic()
    assert served.supervised.stop() == 0
    assert time.monotonic() - begun < 7


def test_the_guard_is_in_the_engine(served: Served) -> None:
    assert [served.curl(path) for path in ("/health", "/metrics", "/tokenize", "/version")] == [
        "200", "200", "401", "401",
    ]  # fmt: skip
