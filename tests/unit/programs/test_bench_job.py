# SPDX-License-Identifier: Apache-2.0
"""The program that performs the runs of a benchmark: order, repeats, failures, and that it continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.instinct.fleet.plugins.module_utils.programs.bench_client import ClientRun, cpu_share
from ansible_collections.instinct.fleet.plugins.module_utils.programs.bench_job import Job
from ansible_collections.instinct.fleet.plugins.plugin_utils.base.bundle import script

from tests.helpers.eventually import GENEROUS
from tests.worlds.bench_world import RESULT, job

CELLS = ("a", "b", "c", "d", "e")
Answer = Callable[[str, int], Any]
"""What the client writes for a cell, in its n-th run."""


class Killed(BaseException):
    """The container is gone."""


def perform(
    directory: Path, work: Mapping[str, Any], answer: Answer, limit: int | None = None
) -> tuple[bool | None, list[tuple[str, int]]]:
    """Run a job until it is killed after `limit` runs. Return its outcome and (cell, seed) of each run."""
    ran: list[tuple[str, int]] = []

    def client(cell: Mapping[str, Any], words: Sequence[str]) -> ClientRun:
        if limit is not None and len(ran) == limit:
            raise Killed
        ran.append((cell["cell"], int(words[-1])))
        found = answer(cell["cell"], sum(name == cell["cell"] for name, _seed in ran))
        if isinstance(found, int):
            return ClientRun(found, "broken", ())
        (directory / "result.json").write_text(json.dumps(found))
        return ClientRun(0, "", ())

    data = {"seconds": 1e9, **work}
    try:
        return Job(data, str(directory), client, lambda text: None).perform(), ran
    except Killed:
        return None, ran


def results(directory: Path) -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text()) for path in sorted(directory.glob("*.*.json"))}


def steady(_cell: str, _number: int) -> dict[str, Any]:
    return RESULT


def test_runs_are_recorded_in_their_order_with_seeds_of_their_own(tmp_path: Path) -> None:
    order = [list("cabed"), list("edcba"), list("abcde")]
    work = job("serve", *CELLS, blocks=3, most=3, warmups=2, seed=100, order=order)
    good, ran = perform(tmp_path, work, steady)
    assert good
    assert [name for name, _seed in ran[:10]] == [name for name in CELLS for _ in range(2)]  # warm-ups
    seeds = [seed for _name, seed in ran]
    assert len(set(seeds)) == len(seeds) == 25
    assert (min(seeds), max(seeds)) == (100, 124)
    found = results(tmp_path)
    assert len(found) == 15
    for block, names in enumerate(order, 1):
        places = sorted(
            (record["order"], record["cell"]) for record in found.values() if record["block"] == block
        )
        assert places == list(enumerate(names, 1))
    assert {(record["cell"], record["seed"]) for record in found.values()} == set(ran[10:])


def noisy(number: int, spread: float) -> dict[str, Any]:
    return {**RESULT, "output_throughput": 100.0 + (spread if number % 2 else -spread)}


@pytest.mark.parametrize(
    ("spread", "runs"),
    [
        (0.0, 3),
        (0.5, 3),  # ±1.4 %
        (1.0, 4),  # ±2.9 % after 3 runs, ±1.8 % after 4
        (2.0, 7),
        (9.0, 10),
    ],
)
def test_a_cell_is_repeated_until_its_interval_is_narrow_enough(
    tmp_path: Path, spread: float, runs: int
) -> None:
    work = job("serve", "steady", "noisy", blocks=3, most=10)
    good, ran = perform(
        tmp_path, work, lambda cell, number: noisy(number, spread if cell == "noisy" else 0.0)
    )
    assert good
    count = {name: sum(cell == name for cell, _seed in ran) for name in ("steady", "noisy")}
    assert count == {"steady": 3, "noisy": runs}


@pytest.mark.parametrize("blocks", [1, 2])
def test_fewer_than_three_runs_have_no_interval_to_narrow(tmp_path: Path, blocks: int) -> None:
    _good, ran = perform(tmp_path, job(blocks=blocks, most=10), lambda _cell, number: noisy(number, 9.0))
    assert len(ran) == blocks


def test_nothing_is_repeated_when_the_time_is_over(tmp_path: Path) -> None:
    work = {**job(blocks=3, most=10), "seconds": 0}
    _good, ran = perform(tmp_path, work, lambda _cell, number: noisy(number, 9.0))
    assert len(ran) == 3


def test_the_metric_of_other_kinds_and_of_none_at_all(tmp_path: Path) -> None:
    latency = {"avg_latency": 1.0, "latencies": [1.0], "percentiles": {}}
    answer: Answer = lambda _cell, number: {**latency, "avg_latency": 1.0 + 0.2 * (number % 2)}  # noqa: E731
    _good, ran = perform(tmp_path, job("latency", blocks=3, most=5), answer)
    assert len(ran) == 5
    (tmp_path / "other").mkdir()
    work = job("latency", blocks=3, most=5)
    work["cells"][0]["metric"] = "output_throughput"
    assert len(perform(tmp_path / "other", work, answer)[1]) == 3


FAILURES: list[tuple[Any, int]] = [(3, 3), ({**RESULT, "completed": 0, "failed": 10}, 0)]


@pytest.mark.parametrize(("failure", "code"), FAILURES)
def test_a_failing_cell_does_not_stop_the_others(tmp_path: Path, failure: Any, code: int) -> None:
    work = job("serve", "a", "b", blocks=3, most=3, warmups=0)
    good, ran = perform(
        tmp_path, work, lambda cell, number: failure if (cell, number) == ("b", 2) else RESULT
    )
    assert good is False
    assert [sum(cell == name for cell, _seed in ran) for name in "ab"] == [3, 2]  # b is not run again
    found = results(tmp_path)
    assert [record["code"] for record in found.values() if record["cell"] == "b"] == [0, code]


def test_a_cell_whose_warm_up_fails_is_not_measured(tmp_path: Path) -> None:
    good, ran = perform(
        tmp_path, job("serve", "a", "b", warmups=2), lambda cell, _number: 1 if cell == "a" else RESULT
    )
    assert good is False
    assert [cell for cell, _seed in ran] == ["a", "b", "b", "b"]
    assert [name for name in results(tmp_path) if name.startswith("0")] == ["0.0.json"]


def test_a_client_that_writes_no_json(tmp_path: Path) -> None:
    def client(_cell: Any, _words: Any) -> ClientRun:
        (tmp_path / "result.json").write_text("{broken")
        return ClientRun(0, "", ())

    assert not Job({**job(), "seconds": 9}, str(tmp_path), client, lambda text: None).perform()
    (record,) = results(tmp_path).values()
    assert record["result"] is None
    assert record["problem"].startswith("Expecting property name")


@pytest.mark.parametrize("limit", range(0, 20, 3))
def test_a_killed_job_goes_on(tmp_path: Path, limit: int) -> None:
    """After a kill at any run the results are the same, and none is measured twice."""
    work = job("serve", *CELLS, blocks=3, most=6, warmups=1)
    answer: Answer = lambda cell, _number: {**RESULT, "output_throughput": float(ord(cell))}  # noqa: E731
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    perform(whole, work, answer)
    assert perform(parts, work, answer, limit)[0] is None
    before = {name: (parts / name).stat().st_mtime_ns for name in results(parts)}
    assert len(before) == max(0, limit - 5)
    good, ran = perform(parts, work, answer)
    assert good
    times = ("started", "seconds")
    assert [{k: v for k, v in record.items() if k not in times} for record in results(parts).values()] == [
        {k: v for k, v in record.items() if k not in times} for record in results(whole).values()
    ]
    assert all((parts / name).stat().st_mtime_ns == at for name, at in before.items())
    unfinished = {record["cell"] for name, record in results(parts).items() if name not in before}
    assert len(ran) == 15 - len(before) + len(unfinished)  # those are warmed up again


@pytest.mark.parametrize(
    ("samples", "result", "share"),
    [
        ([(10.0, 0.0), (14.0, 4.0), (20.0, 5.0)], {"duration": 6.0}, 1 / 6),  # the last 6 seconds
        ([(10.0, 0.0), (14.0, 4.0), (20.0, 5.0)], {"duration": 6.0, "start_times": [13.0, 12.0]}, 2.667 / 6),
        ([(10.0, 0.0), (20.0, 5.0)], {"duration": 60.0}, 0.5),  # all that is known
        ([(10.0, 0.0), (20.0, 5.0)], {}, None),
        ([(10.0, 0.0)], {"duration": 1.0}, None),
        ([(10.0, 0.0), (20.0, 5.0)], None, None),
    ],
)
def test_cpu_share_is_that_of_the_measurement(samples: Any, result: Any, share: float | None) -> None:
    assert cpu_share(samples, result) == (None if share is None else pytest.approx(share, abs=1e-3))


# ---- as a process ------------------------------------------------------------------------------------

CLIENT = f"""\
#!{sys.executable}
import json, os, sys, time
words = sys.argv[1:]
directory = words[words.index("--dir") + 1]
open(os.path.join(directory, "ran"), "a").write(f"{{os.getpid()}}\\n")
begun = time.perf_counter()
if "--busy" in words:
    while time.process_time() < 1.5:
        pass
else:
    time.sleep(float(words[words.index("--sleep") + 1]))
result = {{"completed": 1, "output_throughput": 1.0, "duration": time.perf_counter() - begun, "start_times": [begun]}}
with open(os.path.join(directory, "result.json"), "w") as stream:
    json.dump(result, stream)
print("done", words[-1])
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "vllm").write_text(CLIENT)
    (tmp_path / "vllm").chmod(0o755)
    (tmp_path / "program.py").write_text(script("bench_job"))
    return tmp_path


def start(place: Path, work: dict[str, Any], *words: str) -> subprocess.Popen[str]:
    work["cells"][0]["argv"] = [str(place / "vllm"), "--dir", str(place), *words]
    (place / "job.json").write_text(json.dumps({**work, "seconds": 60}))
    return subprocess.Popen(
        [sys.executable, str(place / "program.py"), str(place)], stdout=subprocess.PIPE, text=True
    )


def test_a_busy_client_is_measured_as_busy(place: Path) -> None:
    done = start(place, job(), "--busy")
    assert done.wait(GENEROUS) == 0
    busy = results(place)["0.1.json"]
    done = start(place, job("serve", "other", seed=8), "--sleep", "1")
    (place / "0.1.json").unlink()
    assert done.wait(GENEROUS) == 0
    idle = results(place)["0.1.json"]
    assert 0 <= idle["client_cpu_share"] < busy["client_cpu_share"] <= 1.1
    assert busy["log"] == "done 7\n"


def test_offline_runs_are_processes_of_their_own(place: Path) -> None:
    done = start(place, job("latency", blocks=2, most=2), "--sleep", "0")
    done.wait(GENEROUS)
    assert len(set((place / "ran").read_text().split())) == 2
    assert results(place)["0.1.json"]["client_cpu_share"] is None


@pytest.mark.parametrize("kind", ["serve", "latency"])
def test_it_ends_at_once_when_it_is_stopped(place: Path, kind: str) -> None:
    done = start(place, job(kind, blocks=3, most=3), "--sleep", str(10 * GENEROUS))
    end = time.monotonic() + GENEROUS
    while not ((place / "ran").exists() and (place / "ran").read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    done.send_signal(signal.SIGTERM)
    assert done.wait(GENEROUS) == 143
    client = int((place / "ran").read_text().split()[0])
    assert client == done.pid or not os.path.exists(f"/proc/{client}")
    assert results(place) == {}
