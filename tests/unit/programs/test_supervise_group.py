# SPDX-License-Identifier: Apache-2.0
"""Supervisors of one engine over several hosts, on this one: they start together, and end together."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.programs.supervisor.state import (
    FailureHistory,
    RunFailure,
)

from tests.helpers.eventually import GENEROUS
from tests.helpers.ports import free_port
from tests.worlds.supervise_world import SERVES, Ranks, Supervised, group, wait_for, write_lib

SILENT = 15.0  # seconds; a machine that is busy may give a rank no turn for some of them
HEADLESS = "exec sleep 60"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lib(tmp_path_factory.mktemp("lib"))


@pytest.fixture
def ranks(program: Path, tmp_path: Path) -> Iterator[Ranks]:
    with group(program, tmp_path, free_port()) as make:
        yield make


def start(items: list[Supervised], *scripts: str) -> None:
    for item, script in zip(items, scripts or (SERVES, *[HEADLESS] * (len(items) - 1)), strict=True):
        item.sh(script)


def all_running(items: list[Supervised]) -> None:
    for item in items:
        item.until("running")


@pytest.mark.parametrize(("count", "order"), [(2, 1), (3, -1)])
def test_they_wait_for_one_another(ranks: Ranks, count: int, order: int) -> None:
    items = ranks(count)
    # None of them ends before all were asked: who hears first that another one ended would count that.
    asked = items[0].directory.with_name("asked")
    runs = f"trap 'until [ -e {asked} ]; do sleep 0.05; done; exit 0' TERM; while :; do sleep 0.05; done"
    scripts = [f"echo 'INFO:     Application startup complete.'; {runs}", *[runs] * (count - 1)]
    for item in items:
        item.times |= {"stop": GENEROUS, "grace": GENEROUS}
    begun = list(zip(items, scripts, strict=True))[::order]
    for number, (item, script) in enumerate(begun):
        for earlier, _ in begun[:number]:
            earlier.until("waiting")
            assert earlier.children() == []
        item.sh(script)
    # The first one's word that it serves is the others' too: a headless server never says so.
    all_running(items)
    if order == 1:
        assert f"waits for n{count - 1} (rank {count - 1})" in items[0].output
    for item in items:
        assert item.process
        item.process.terminate()
    asked.touch()
    assert [item.end() for item in items] == [0] * count


@pytest.mark.parametrize(("count", "killed"), [(2, 0), (2, 1), (3, 1), (3, 2)])
def test_when_one_vllm_is_killed_all_end_and_come_back(ranks: Ranks, count: int, killed: int) -> None:
    items = ranks(count)
    start(items)
    all_running(items)
    os.kill(items[killed].children()[0], signal.SIGKILL)
    assert [item.end() for item in items] == [1] * count
    for rank, item in enumerate(items):
        mine = [failure["kind"] for failure in item.state["failures"]]
        assert mine == (["killed"] if rank == killed else [])
        if rank != killed:
            peer = item.state["peer"]
            assert (peer["rank"], peer["host"], peer["kind"]) == (killed, f"n{killed}", "killed")
            assert f"n{killed} (rank {killed}) ended: killed" in item.output
    start(items)
    all_running(items)
    assert items[-1].state["peer"] is None


@pytest.mark.parametrize("killed", [0, 2])
def test_when_one_supervisor_is_killed_the_others_end_their_vllm(ranks: Ranks, killed: int) -> None:
    items = ranks(3)
    start(items)
    all_running(items)
    process = items[killed].process
    assert process is not None
    os.kill(items[killed].children()[0], signal.SIGSTOP)  # its vLLM may not be what tells the others
    process.kill()
    others = [item for rank, item in enumerate(items) if rank != killed]
    assert [item.end() for item in others] == [1, 1]
    for item in others:
        assert (item.state["failures"], item.state["peer"]["kind"]) == ([], "peer_lost")


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_silent_peer_is_given_up(ranks: Ranks, frozen: int) -> None:
    items = ranks(2)
    items[1 - frozen].times["silent"] = SILENT
    begun = time.monotonic()
    start(items)
    all_running(items)
    process = items[frozen].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    assert items[1 - frozen].end() == 1
    assert time.monotonic() - begun > SILENT
    assert f"silent for {SILENT:.0f} s" in items[1 - frozen].state["peer"]["line"]
    process.send_signal(signal.SIGCONT)
    assert items[frozen].end() == 1  # it finds the connection closed


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stop_of_one_ends_the_run_and_is_nobodys_failure(ranks: Ranks, stopped: int) -> None:
    items = ranks(2)
    start(items)
    all_running(items)
    assert items[stopped].stop() == 0
    assert items[1 - stopped].end() == 1
    assert items[1 - stopped].state["failures"] == []
    assert items[1 - stopped].state["peer"]["kind"] == "stopped"
    items[1 - stopped].sh(HEADLESS)
    items[1 - stopped].until("waiting", f"n{stopped} (rank {stopped})")


CONNECTION = "echo 'RuntimeError: NCCL error: remote process exited or there was a network error'; exit 1"


@pytest.mark.parametrize("cause", [0, 1])
def test_the_cause_is_told_and_not_what_followed_from_it(ranks: Ranks, cause: int) -> None:
    """Rank `cause` runs out of memory, and says so after the other one has lost its connection."""
    items = ranks(2)
    lost = items[0].directory.with_name("lost")
    scripts = [f"sleep 0.1; touch {lost}; {CONNECTION}"] * 2
    noted = lost.with_name("noted")
    out_of_memory = (
        f"echo 'torch.OutOfMemoryError: HIP out of memory'; until [ -e {noted} ]; do sleep 0.1; done"
    )
    scripts[cause] = f"until [ -e {lost} ]; do sleep 0.1; done; {out_of_memory}"
    for item in items:
        item.times["settle"] = GENEROUS
    start(items, *scripts)
    # Its supervisor has read what it said before it ends.
    wait_for("the cause", lambda: "HIP out of memory" in items[cause].output)
    noted.touch()
    assert [item.end() for item in items] == [1, 1]
    assert [failure["kind"] for failure in items[cause].state["failures"]] == ["out_of_memory"]
    assert items[1 - cause].state["failures"] == []
    assert items[1 - cause].state["peer"]["kind"] == "out_of_memory"


def test_one_that_gave_up_holds_the_others_and_says_why(ranks: Ranks) -> None:
    items = ranks(2)
    items[1].directory.mkdir()
    memory = FailureHistory(str(items[1].directory))
    for at in (2, 1):
        memory.failed(
            RunFailure(time.time() - at, 0.1, 0, 1, "out_of_memory", "HIP out of memory", "Use more."), ""
        )
    start(items, HEADLESS, "echo 'ValueError: something else'; exit 1")
    assert items[0].end() == 1
    items[1].until("gave_up")
    items[0].sh(SERVES)
    items[0].until("waiting", "n1 (rank 1) gave up: out_of_memory: HIP out of memory")
    assert items[0].children() == []
    # Started by hand, it takes part again.
    assert items[1].stop() == 0
    items[1].sh(HEADLESS)
    all_running(items)


def test_who_does_not_belong_is_turned_away(ranks: Ranks) -> None:
    items = ranks(2)
    (_, other), (_, elsewhere) = ranks(2, engine="other-0"), ranks(2, hosts="n0,n7")
    start(items[:1], SERVES)
    items[0].until("waiting")
    for item, why in ((other, "its engine is 'other-0'"), (elsewhere, "its hosts is ['n0', 'n7']")):
        item.sh(HEADLESS)
        item.until("waiting", f"refuses it: {why}")
    items[1].sh(HEADLESS)
    all_running(items)
    assert other.state["state"] == elsewhere.state["state"] == "waiting"


NONSENSE = [
    b"",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x00\xff" * 40,
    b"[" * 20000 + b"\n",
    b'{"t": "go"}\n',
    b'{"t": "end", "rank": 1, "kind": "stopped", "line": "", "next_step": ""}\n',
    b'{"t": "hello"}\n',
    b'{"t": "hello", "v": 1, "engine": "llama-0", "hosts": ["n0", "n1"], "rank": 0}\n',
    b'{"t": "hello", "v": 1, "engine": "llama-0", "hosts": ["n0", "n1"], "rank": [1]}\n',
    b"x" * 100000,
    b'{"t": 1}\nnull\n{}\n',
]


def test_strangers_change_nothing(ranks: Ranks) -> None:
    items = ranks(2)
    items[0].times["hello"] = 0.5
    host, port = items[0].options[0].partition("=")[2].split(":")

    def talk(text: bytes) -> None:
        with suppress(OSError), socket.create_connection((host, int(port)), GENEROUS) as sock:
            sock.sendall(text)
            sock.settimeout(GENEROUS)
            while sock.recv(4096):
                pass

    start(items[:1], SERVES)
    items[0].until("waiting")
    wait_for("the port", lambda: "waits for n1" in items[0].output)
    threads = [threading.Thread(target=talk, args=(text,)) for text in NONSENSE * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # the one that says nothing was cut off, too
    assert items[0].state["state"] == "waiting"
    items[1].sh(HEADLESS)
    all_running(items)
    with pytest.raises(ConnectionRefusedError):  # once they run, nobody listens
        socket.create_connection((host, int(port)), GENEROUS)
    assert 0 < items[0].output.count("was disconnected") <= 5


def test_a_port_that_is_taken_is_waited_for(ranks: Ranks) -> None:
    items = ranks(2)
    host, port = items[0].options[0].partition("=")[2].split(":")
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        items[0].sh(SERVES)
        items[0].until("waiting", "Address already in use")
    items[1].sh(HEADLESS)
    all_running(items)


# ---- Ray ---------------------------------------------------------------------------------------------

RAY = r"""#!/bin/bash
echo "ray $*" | tee -a "$RAY_LOG"
case "$*" in
  *--block*) trap 'exit 0' TERM; touch "$RAY_LOG.worker"; while :; do sleep 0.05; done ;;
  stop*) rm -f "$RAY_LOG.worker" ;;
  *--head*) [ -z "$RAY_BROKEN" ] || { echo "Unable to start Ray: port is in use"; exit 1; } ;;
esac
"""
MODULE = """
import os
def init(**options): print("ray.init", options["address"], flush=True)
def nodes():
    there = 1 + os.path.exists(os.environ["RAY_LOG"] + ".worker")
    if there > 1:
        open(os.environ["RAY_LOG"] + ".formed", "w").close()
    return [{"Alive": n < there, "NodeManagerAddress": f"10.0.0.{n}", "Resources": {"GPU": 8.0}} for n in range(2)]
"""


@pytest.fixture
def ray(ranks: Ranks, tmp_path: Path) -> list[Supervised]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ray").write_text(RAY)
    (tmp_path / "bin/ray").chmod(0o755)
    (tmp_path / "bin/ray.py").write_text(MODULE)
    items = ranks(2)
    for rank, item in enumerate(items):
        where = "--ray-head=6379" if rank == 0 else "--ray-worker=10.0.0.0:6379"
        item.options = (
            *item.options, where, f"--ray-ip=10.0.0.{rank}", "--ray-gpus=8", "--ray-arg=--min-worker-port=20000",
        )  # fmt: skip
        item.times["grace"] = GENEROUS  # `ray stop` notes that it was run
        item.env = {
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHONPATH": f"{tmp_path}/bin",
            "RAY_LOG": str(tmp_path / "ray.log"),
        }  # fmt: skip
    return items


def test_ray_is_formed_around_vllm(ray: list[Supervised], tmp_path: Path) -> None:
    # What two programs say may come in any order; what the second one finds tells that the first had ended.
    start(ray, f'[ -e "$RAY_LOG.formed" ] && echo formed, address $RAY_ADDRESS; {SERVES}', "echo never")
    all_running(ray)
    for text in ("ray start --head", "ray: 10.0.0.1", "formed, address 10.0.0.0:6379"):
        wait_for(text, lambda text=text: text in ray[0].output)  # type: ignore[misc]
    assert "never" not in ray[1].output
    log = (tmp_path / "ray.log").read_text().splitlines()
    assert log == [
        "ray start --head --port=6379 --include-dashboard=false --disable-usage-stats "
        "--node-ip-address=10.0.0.0 --num-gpus=8 --min-worker-port=20000",
        "ray start --address=10.0.0.0:6379 --block --node-ip-address=10.0.0.1 --num-gpus=8 --min-worker-port=20000",
    ]
    os.kill(ray[0].children()[0], signal.SIGKILL)
    assert [item.end() for item in ray] == [1, 1]
    assert (tmp_path / "ray.log").read_text().splitlines()[2:] == ["ray stop", "ray stop"]
    assert ray[1].state["failures"] == []
    start(ray, SERVES, "echo never")
    all_running(ray)
    os.kill(ray[1].children()[0], signal.SIGKILL)  # a worker's daemons are what it runs
    assert [item.end() for item in ray] == [1, 1]
    assert [item["kind"] for item in ray[1].state["failures"]] == ["killed"]


def test_a_ray_that_does_not_start_is_a_failure(ray: list[Supervised]) -> None:
    ray[0].env["RAY_BROKEN"] = "1"
    start(ray, SERVES, "echo never")
    assert [item.end() for item in ray] == [1, 1]
    (failure,) = ray[0].state["failures"]
    assert failure["kind"] == "ray_failed"
    assert failure["line"].startswith("ray start ended with exit code 1: ")
    assert failure["line"].endswith("Unable to start Ray: port is in use")
    assert ray[1].state["peer"]["kind"] == "ray_failed"
