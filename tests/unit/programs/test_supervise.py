# SPDX-License-Identifier: Apache-2.0
"""The program around vLLM, run for real: ends and signals, failures and giving up, orphans, output, GPUs."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.child import LogTee
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.options import parse
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.state import (
    LIMIT,
    STABLE,
    WINDOW,
    FailureHistory,
    RunFailure,
    extend_series,
)

from tests.helpers.eventually import GENEROUS
from tests.worlds.supervise_world import SERVES, Supervised, wait_for, write_lib

OOM = "echo 'torch.OutOfMemoryError: HIP out of memory' >&2"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lib(tmp_path_factory.mktemp("lib"))


@pytest.fixture
def made(program: Path, tmp_path: Path) -> Iterator[Supervised]:
    found = Supervised(program, tmp_path / "state")
    yield found
    if found.process and found.process.poll() is None:
        found.process.kill()
        found.process.wait()


@pytest.mark.parametrize(
    ("script", "code", "kind"),
    [
        ("exit 0", 0, "unknown"),  # so vLLM ends when its engine dies
        ("exit 3", 3, "unknown"),
        (f"{OOM}; exit 0", 0, "out_of_memory"),
        ("echo 'vllm: error: unrecognized arguments: --x'; exit 2", 2, "unknown_flag"),
        ("kill -9 $$", 137, "killed"),
        ("kill -ILL $$", 132, "illegal_instruction"),
        ("kill -SEGV $$", 139, "unknown"),
    ],
)
def test_an_end_that_nobody_asked_for_is_a_failure(
    made: Supervised, script: str, code: int, kind: str
) -> None:
    assert made.sh(f"echo begun; {script}").end() == 1
    state = made.state
    assert (state["state"], state["asked"]) == ("stopping", False)
    (failure,) = state["failures"]
    assert (failure["code"], failure["kind"]) == (code, kind)
    assert (made.directory / failure["log"]).read_text().startswith("begun\n")
    for name in ("state.json", failure["log"]):
        assert stat.S_IMODE((made.directory / name).stat().st_mode) == 0o600


def test_a_program_that_is_not_there(made: Supervised) -> None:
    assert made.start("vllm-that-is-not-there", "serve").end() == 1
    assert made.state["failures"][0]["code"] == 127
    assert "not found" in made.state["failures"][0]["line"]


def test_it_gives_up_after_three_and_tells_the_first(made: Supervised) -> None:
    made.sh(f"{OOM}; exit 1").end()
    made.sh("echo another; exit 1").end()
    made.sh("exit 1")
    made.until("gave_up", "3 failures in a row, the first one out_of_memory: torch.OutOfMemoryError")
    assert made.children() == []
    assert [item["kind"] for item in made.state["failures"]] == ["out_of_memory", "unknown", "unknown"]
    assert [item["log"] for item in made.state["failures"]] == [f"failure-{n}.log" for n in (1, 2, 3)]
    lines = [line for line in made.output.splitlines() if "gave up" in line]
    assert len(lines) == 1
    assert "out_of_memory" in lines[0]
    assert "gpu_memory_utilization" in lines[0]  # the next step
    assert made.stop() == 0
    assert made.state["state"] == "gave_up"  # what was, can still be read
    # Started by somebody, it begins anew.
    made.sh("exit 1").end()
    assert len(made.state["failures"]) == 1


@pytest.mark.parametrize(
    ("number", "trap", "said"),
    [
        (signal.SIGTERM, "trap 'echo drained; exit 5' TERM", "drained"),
        (signal.SIGINT, "trap 'echo interrupted; exit 5' INT", "interrupted"),
        (signal.SIGTERM, ":", ""),
    ],
)
def test_a_stop_that_was_asked_for_ends_with_0(made: Supervised, number: int, trap: str, said: str) -> None:
    made.sh(f"{trap}; echo 'Application startup complete.'; while :; do sleep 0.05; done")
    made.until("running")
    assert made.process is not None
    made.process.send_signal(number)
    assert made.end() == 0
    assert (made.state["state"], made.state["asked"], made.state["failures"]) == ("stopping", True, [])
    assert said in made.output


def test_a_stop_forgets_a_series_and_a_kill_does_not(made: Supervised) -> None:
    made.sh("exit 1").end()
    made.sh(SERVES)
    made.until("running")
    assert made.process is not None
    made.process.kill()
    made.process.wait()
    made.sh("exit 1").end()
    assert len(made.state["failures"]) == 2
    made.sh(SERVES)
    made.until("running")
    assert made.stop() == 0
    made.sh("exit 1").end()
    assert len(made.state["failures"]) == 1


WORKERS = """
import os, signal, subprocess, sys
worker = '''
import signal, sys, time
def end(*_):
    print("worker ends", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, end if sys.argv[1] == "ends" else signal.SIG_IGN)
print("ready", file=sys.stderr, flush=True)
time.sleep(3600)
'''
for kind in ("deaf", "ends"):
    child = subprocess.Popen([sys.executable, "-c", worker, kind], start_new_session=True, stderr=subprocess.PIPE)
    child.stderr.readline()
    print("worker", child.pid, flush=True)
os._exit(0)
"""


def test_workers_that_outlive_vllm_are_asked_and_then_killed(made: Supervised) -> None:
    begun = time.monotonic()
    made.times["grace"] = 10  # as long as a busy machine may take to let a worker say that it ends
    assert made.start(sys.executable, "-c", WORKERS).end() == 1
    assert time.monotonic() - begun > 10
    pids = [
        int(line.split()[1])
        for line in made.output.splitlines()
        if line.startswith("worker ") and line[7].isdigit()
    ]
    assert len(pids) == 2
    for pid in pids:
        wait_for("the worker's end", lambda pid=pid: ended(pid))  # type: ignore[misc]
    assert "worker ends" in made.output


def ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for whoever it was left to to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_output_is_passed_on_byte_for_byte_and_only_its_end_is_kept(made: Supervised) -> None:
    script = (
        "import os, sys\n"
        "for n in range(3000):\n    os.write(1 + n % 2, b'line %d \\xff\\x00\\r\\n' % n)\n"
        "os.write(1, b'x' * 100000 + b'\\n')\n"
        "os.write(1, b'no end')\n"
    )
    made.start(sys.executable, "-c", script).end()
    said = (made.directory / "out").read_bytes()
    wanted = b"".join(b"line %d \xff\x00\r\n" % n for n in range(3000)) + b"x" * 100000 + b"\nno end"
    assert said.startswith(wanted + b"\nsupervise: ")
    kept = (made.directory / "failure-1.log").read_text(errors="replace").split("\n")
    assert len(kept) <= 2001
    assert kept[-1] == "no end"
    assert len(kept[-2]) == 4096


def test_output_comes_at_once_and_a_deaf_reader_stops_nothing(program: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(program), f"--state={tmp_path}", "--", "sh", "-c"]
    with subprocess.Popen([*command, "printf 12; sleep 600"], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert os.read(running.stdout.fileno(), 10) == b"12"
        running.terminate()
        assert running.wait(GENEROUS) == 0
    with subprocess.Popen([*command, "sleep 0.2; echo a; echo b; exit 4"], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.wait(GENEROUS) == 1


def test_vllm_and_a_stop_wait_for_no_reader(program: Path, tmp_path: Path) -> None:
    """A Docker daemon that is away leaves the pipe open, and does not empty it."""
    wrote = tmp_path / "wrote"
    command = [sys.executable, str(program), f"--state={tmp_path}", "--", "sh", "-c"]
    script = f"head -c 3000000 /dev/zero; touch {wrote}; sleep 600"
    with subprocess.Popen([*command, script], stdout=subprocess.PIPE) as running:
        wait_for("all output to be taken", wrote.exists)
        running.terminate()
        assert running.wait(GENEROUS) == 0


def test_what_nobody_read_is_counted(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    tee = LogTee(str, writing)
    first = b"x" * 80000 + b"\n"
    tee.write(first)  # a pipe holds 65,536 bytes
    tee.say("dropped, too")
    seen = len(os.read(reading, 1 << 20))
    tee.write(b"again\n")
    os.close(writing)
    dropped = len(first) - seen + len("supervise: dropped, too\n")
    with open(reading, "rb") as stream:
        assert (
            stream.read().decode()
            == f"\nsupervise: nobody read the log: {dropped} bytes of it are lost\nagain\n"
        )


def test_secrets_are_in_no_file_and_no_line_of_its_own(made: Supervised) -> None:
    made.env["VLLM_API_KEY"] = "sk-canary-12345678"
    made.sh("echo ValueError: key $VLLM_API_KEY is wrong; exit 1").end()
    for name in ("state.json", "failure-1.log"):
        assert "canary" not in (made.directory / name).read_text()
    assert [
        line for line in made.output.splitlines() if line.startswith("supervise:") and "canary" in line
    ] == []


def test_a_disk_that_cannot_be_written_stops_nothing(made: Supervised, tmp_path: Path) -> None:
    made.directory.mkdir()
    (tmp_path / "file").write_text("")
    made.options = (f"--state={tmp_path}/file/state",)
    made.sh(SERVES)
    wait_for("the server", lambda: "startup complete" in made.output)
    assert made.stop() == 0
    assert "cannot be written: Not a directory" in made.output


# ---- GPUs --------------------------------------------------------------------------------------------


def gpu(sysfs: Path, node: str, used: int) -> Path:
    path = sysfs / f"class/drm/{node}/device/mem_info_vram_used"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{used}\n")
    return path


def test_it_waits_until_its_gpus_are_clean(made: Supervised, tmp_path: Path) -> None:
    gpu(tmp_path, "renderD128", 283 << 20)
    held = gpu(tmp_path, "renderD136", 46 << 30)
    made.options = (f"--sysfs={tmp_path}", "--gpu=renderD128", "--gpu=renderD136", "--gpu=renderD144")
    made.sh(SERVES)
    made.until("waiting", "renderD136 (46.0 GiB)")
    assert made.children() == []
    assert "renderD136 (46.0 GiB); waiting until it is free" in made.output
    held.write_text("296747008\n")
    made.until("running")
    assert made.stop() == 0


def test_gpus_that_stay_unclean_are_a_failure(made: Supervised, tmp_path: Path) -> None:
    gpu(tmp_path, "renderD128", 46 << 30)
    made.options = (f"--sysfs={tmp_path}", "--gpu=renderD128")
    made.times = {"gpu": 0.2}
    assert made.sh(SERVES).end() == 1
    (failure,) = made.state["failures"]
    assert failure["kind"] == "gpu_not_clean"
    assert "gpu_clean=true" in failure["next_step"]
    assert "vLLM was not started" in made.output


def test_it_can_be_stopped_while_it_waits(made: Supervised, tmp_path: Path) -> None:
    gpu(tmp_path, "renderD128", 46 << 30)
    made.options = (f"--sysfs={tmp_path}", "--gpu=renderD128")
    made.sh(SERVES)
    made.until("waiting")
    assert made.stop() == 0


# ---- what counts together ----------------------------------------------------------------------------


def failure(at: float, seconds: float = 1, served: float = 0) -> RunFailure:
    return RunFailure(at, seconds, served, 1, "unknown", "", "")


HOUR = 3600.0


@pytest.mark.parametrize(
    ("what", "runs", "counted"),
    [
        ("three at once", [failure(0), failure(1), failure(2)], 3),
        ("each serves a little", [failure(0, 300, 250), failure(300, 300, 250), failure(600, 300, 250)], 3),
        ("one served long enough", [failure(0), failure(1), failure(STABLE + 5, STABLE + 3, STABLE)], 1),
        ("the earlier served long enough", [failure(0, HOUR, HOUR), failure(1)], 2),
        ("a start that takes an hour and fails", [failure(0, HOUR), failure(HOUR, HOUR), failure(2 * HOUR, HOUR)], 3),
        (
            "serves nine minutes after half an hour of loading",
            [failure(0, 2400, 540), failure(2400, 2400, 540), failure(4800, 2400, 540)],
            1,
        ),
        ("off for an hour in between", [failure(0), failure(1), failure(1 + WINDOW + 5)], 1),
    ],
)  # fmt: skip
def test_failures_that_are_a_series(what: str, runs: list[RunFailure], counted: int) -> None:
    found: tuple[RunFailure, ...] = ()
    for item in runs:
        found = extend_series(found, item)
    assert len(found) == counted, what
    assert LIMIT == 3


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "failures": [{"at": "x"}]}', "\x00"]
)
def test_a_broken_memory_is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert FailureHistory(str(tmp_path)).failures == ()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "-- and the command"),
        (("--",), "must follow --"),
        (("--gpus", "x", "--", "a"), "unrecognized"),
        (("--time=nap=1", "--", "a"), "nap is not one of"),
        (("--group=x", "--hosts=a,b", "--", "a"), "is not ADDRESS:PORT"),
        (("--group=x:1", "--hosts=a", "--", "a"), "two hosts or more"),
        (("--group=x:1", "--hosts=a,b", "--rank=2", "--", "a"), "rank 2 is not among"),
        (("--ray-head=1", "--ray-ip=1.2.3.4", "--", "a"), "Ray needs --group"),
    ],
)
def test_wrong_options(argv: tuple[str, ...], said: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


OTHER_THREAD = """
import signal, threading, time
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.child import Events

events = Events()
events.take_signals()

def get_it():
    time.sleep(0.3)  # until the main thread waits
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(3600)

threading.Thread(target=get_it, daemon=True).start()
print(events.get().value)
"""


def test_a_signal_that_another_thread_gets_is_heard() -> None:
    """As the kernel may choose any thread; the handler runs in the main one, which waits."""
    done = subprocess.run(
        [sys.executable, "-c", OTHER_THREAD], capture_output=True, text=True, timeout=GENEROUS, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.stdout.strip(), done.returncode) == (str(int(signal.SIGTERM)), 0), done.stderr
