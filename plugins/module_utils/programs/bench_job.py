# SPDX-License-Identifier: Apache-2.0
"""Measure the cells of one instance with vLLM's benchmark client, inside a benchmark's container.

Its text is sent there and put into a file in a directory of its own, so that no neighbouring file can be imported.
The only argument is the directory of results, which contains job.json:

    cells       [{cell, kind, argv, metric}]: name, kind of benchmark, command line without --seed, a key of METRICS
    blocks      passes over all cells; most: the same with the repeats of cells that are not yet precise enough
    half_width  relative half width of the interval of a cell's median at which it is precise enough
    warmups     discarded runs of each cell before the first block
    seed        of the first run; each further run has another, so that no prompt is in the prefix cache
    order       names of all cells for each of `most` blocks, in the order in which they run
    seconds     time after which no repeat is started

Each run leaves one file, POSITION.BLOCK.json, complete or not at all. A run whose file is there already is not
repeated, so a job that was killed continues. A cell with a failed run is not run again, and the exit code is 1 then.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..benchmarks.bench_metrics import normalise
from ..benchmarks.bench_record import has_result, record_name
from ..benchmarks.bench_results import ResultError, number
from ..benchmarks.intervals import MIN_RUNS, half_width
from ..common.files import write_atomic
from ..engines.mounts import BENCH_JOB, BENCH_OUTPUT, BENCH_RESULT
from .bench_client import ClientRun, cpu_share, leave, run_client

Client = Callable[[Mapping[str, Any], Sequence[str]], ClientRun]
"""Runs a cell with these words."""


class Job:
    """The runs of a job, in a directory. `say`: prints which run begins."""

    def __init__(
        self, data: Mapping[str, Any], directory: str, client: Client, say: Callable[[str], None]
    ) -> None:
        self.data, self.cells, self.directory, self.client, self.say = (
            data,
            data["cells"],
            directory,
            client,
            say,
        )
        self.records: dict[tuple[int, int], dict[str, Any]] = {}
        for position, block in itertools.product(range(len(self.cells)), range(1, data["most"] + 1)):
            with contextlib.suppress(FileNotFoundError), open(self._path(position, block), "rb") as stream:
                self.records[position, block] = json.load(stream)

    def perform(self) -> bool:
        """Run what is missing. Return whether all runs succeeded."""
        begun, blocks = time.monotonic(), self.data["blocks"]
        for position in range(len(self.cells)):
            for warmup in range(self.data["warmups"] if self._unfinished(position) else 0):
                self._run(position, 0, 0, position * self.data["warmups"] + warmup)
        positions = {cell["cell"]: position for position, cell in enumerate(self.cells)}
        for block, names in enumerate(self.data["order"], 1):
            for place, name in enumerate(names, 1):
                position = positions[name]
                if (position, block) in self.records or self._failed(position):
                    continue
                if block > blocks and not (self._imprecise(position) and self._time_left(position, begun)):
                    continue
                self._run(
                    position, block, place, len(self.cells) * (self.data["warmups"] + block - 1) + position
                )
        return not any(map(self._failed, range(len(self.cells))))

    def _unfinished(self, position: int) -> bool:
        missing = any((position, block) not in self.records for block in range(1, self.data["blocks"] + 1))
        return missing or self._imprecise(position)

    def _failed(self, position: int) -> bool:
        return any(
            not has_result(record) for (own, _block), record in self.records.items() if own == position
        )

    def _imprecise(self, position: int) -> bool:
        """Return whether the interval of the cell's median is still too wide. Fewer than three runs have none."""
        metric = self.cells[position].get("metric")
        values = [
            value for record in self._of(position) if (value := metric_value(record, metric)) is not None
        ]
        width = half_width(values)
        return (
            MIN_RUNS <= len(values) < self.data["most"]
            and width is not None
            and width > self.data["half_width"]
        )

    def _time_left(self, position: int, begun: float) -> bool:
        longest = max((record["seconds"] for record in self._of(position)), default=0.0)
        return bool(time.monotonic() - begun + longest <= self.data["seconds"])

    def _of(self, position: int) -> list[dict[str, Any]]:
        return [record for (own, _block), record in sorted(self.records.items()) if own == position]

    def _path(self, position: int, block: int) -> str:
        return os.path.join(self.directory, record_name(position, block))

    def _run(self, position: int, block: int, place: int, number_of_run: int) -> None:
        """Run a cell once and record it; block 0 is a warm-up, of which only a failure is recorded."""
        cell, seed = self.cells[position], self.data["seed"] + number_of_run
        if self._failed(position):
            return
        self.say(f"{cell['cell']}, {f'block {block}' if block else 'warm-up'}, seed {seed}")
        result = os.path.join(self.directory, BENCH_RESULT)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(result)
        started, begun = time.time(), time.monotonic()
        ran = self.client(cell, [*cell["argv"], "--seed", str(seed)])
        found, problem = read_result(result)
        record = {
            "cell": cell["cell"],
            "kind": cell["kind"],
            "block": block,
            "order": place,
            "seed": seed,
            "started": started,
            "seconds": round(time.monotonic() - begun, 3),
            "code": ran.code,
            "client_cpu_share": cpu_share(ran.cpu, found) if cell["kind"] == "serve" else None,
            "log": ran.log,
            "problem": problem,
            "result": found,
        }
        if block or not has_result(record):
            write_atomic(self._path(position, block), json.dumps(record), 0o600)
            self.records[position, block] = record


def metric_value(record: Mapping[str, Any], metric: str | None) -> float | None:
    """Return a run's value of a key of METRICS; None if it has none."""
    try:
        return number(normalise(record["kind"], record["result"], record["log"]).get(metric or ""))
    except ResultError:
        return None


def read_result(path: str) -> tuple[Any, str]:
    """Return (the JSON that the client wrote, ""), or (None, why it cannot be used; "" if there is none)."""
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream), ""
    except FileNotFoundError:
        return None, ""
    except ValueError as error:
        return None, str(error)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Perform the job of a directory."""
    (directory,) = arguments
    signal.signal(signal.SIGTERM, leave)
    with open(os.path.join(directory, BENCH_JOB), encoding="utf-8") as stream:
        data = json.load(stream)
    output = os.path.join(directory, BENCH_OUTPUT)
    job = Job(
        data,
        directory,
        lambda cell, words: run_client(cell, words, output),
        _say,
    )
    return 0 if job.perform() else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
