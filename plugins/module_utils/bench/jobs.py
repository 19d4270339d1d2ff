# SPDX-License-Identifier: Apache-2.0
"""The jobs of benchmarks, and their directories on the node, from which a job that was killed continues."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..benchmarks.bench_record import has_result
from ..common.files import make_private
from ..common.hashing import spec_hash
from ..common.module_main import NodeError
from ..disk.beneath import names_below, read_below, remove_below, remove_tree
from ..disk.write_below import write_below
from ..engines.mounts import BENCH_JOB

Record = Mapping[str, Any]
_NEEDED = ("cells", "blocks", "most", "half_width", "warmups", "seed", "order")
_NEEDED_OF_CELLS = ("cell", "kind", "argv")
_RECORD = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})\.json")
_LARGEST = 256 * 2**20  # bytes of a record, with its lists of all requests
_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("block", "order", "seed", "code"), int),
    **dict.fromkeys(("started", "seconds"), (int, float)),
    **dict.fromkeys(("log", "problem"), str),
    "client_cpu_share": (int, float, type(None)),
    "result": object,
}
"""What a record has, and of which type."""


@dataclass(frozen=True)
class BenchmarkJob:
    """What is measured of one instance: `data` as programs/bench_job.py reads it, less `seconds`."""

    data: Mapping[str, Any]

    @property
    def cells(self) -> list[Mapping[str, Any]]:
        return list(self.data["cells"])

    @property
    def blocks(self) -> int:
        return int(self.data["blocks"])

    @property
    def least_runs(self) -> int:
        """Return the number of runs without repeats of imprecise cells, with warm-ups."""
        return len(self.cells) * (int(self.data["warmups"]) + self.blocks)

    @property
    def most_runs(self) -> int:
        """Return the number of runs that may leave a result."""
        return len(self.cells) * int(self.data["most"])

    @property
    def seeds(self) -> int:
        """Return how many seeds the job may use."""
        return len(self.cells) * (int(self.data["warmups"]) + int(self.data["most"]))

    def same_work(self, other: Mapping[str, Any]) -> bool:
        """Return whether another job, read from a file, measures the same, whatever its seeds."""
        own = {key: value for key, value in self.data.items() if key not in ("seed", "order")}
        return all(other.get(key) == value for key, value in own.items())


@dataclass(frozen=True)
class RecordedRun:
    """A run that the program recorded: its file, the position of its cell, and the record."""

    name: str
    position: int
    record: Record


def parse_job(name: str, data: object) -> BenchmarkJob:
    """Return the job of an instance. Raise NodeError for one that cannot be performed."""
    where = f"jobs[{name or '?'}]"
    if not isinstance(data, Mapping):
        raise NodeError(f"{where} is missing. The action plugin vllm_bench composes it.")
    missing = [key for key in _NEEDED if data.get(key) is None]
    if missing:
        raise NodeError(f"{where}: {', '.join(missing)} is missing.")
    cells = data["cells"]
    for cell in cells:
        if any(not cell.get(key) for key in _NEEDED_OF_CELLS):
            raise NodeError(f"{where}: a cell needs {', '.join(_NEEDED_OF_CELLS)}; got {dict(cell)}.")
    names = [cell["cell"] for cell in cells]
    if not cells or len(names) != len(set(names)):
        raise NodeError(
            f"{where}: it needs cells, each with a name of its own; got {', '.join(names) or 'none'}."
        )
    if data["blocks"] < 1 or data["warmups"] < 0 or data["most"] < data["blocks"]:
        numbers = ", ".join(f"{key} {data[key]}" for key in ("blocks", "most", "warmups"))
        raise NodeError(f"{where}: {numbers}: 1 <= blocks <= most and 0 <= warmups must hold.")
    if len(data["order"]) != data["most"] or any(sorted(block) != sorted(names) for block in data["order"]):
        raise NodeError(f"{where}: order needs all cells once in each of {data['most']} blocks.")
    return BenchmarkJob(data)


def prepare(directory: str, job: BenchmarkJob, served: Mapping[str, Any], seconds: int) -> int:
    """Write the job into its directory. Return the number of finished runs that are kept of an earlier call.

    Runs are kept if that call had the same cells and numbers and measured the same (`served`). Runs of this call then
    have other seeds: the prompts of a run that was cut off may be in the prefix cache.
    """
    wanted = {**job.data, "served": spec_hash(dict(served)), "seconds": seconds}
    stored = _stored(directory)
    if stored and job.same_work(stored) and stored.get("served") == wanted["served"]:
        wanted |= {"order": stored["order"], "seed": stored["seed"] + job.seeds}
        kept = {run.name for run in recorded_runs(directory)[0] if has_result(run.record)}
        for name in names_below(directory):
            if name not in kept:
                remove_below(directory, name)
    else:
        remove_tree(directory)
        make_private(directory)
    write_below(directory, BENCH_JOB, json.dumps(wanted), 0o600)
    return len(recorded_runs(directory)[0])


def recorded_runs(directory: str) -> tuple[list[RecordedRun], str]:
    """Return what the program recorded of each run, in order of cells and blocks, and why others are not used.

    The container of the program writes there, so anything may have these names.
    """
    runs, problem = [], ""
    found = [match for name in names_below(directory) if (match := _RECORD.fullmatch(name))]
    for match in sorted(found, key=lambda match: (int(match.group(1)), int(match.group(2)))):
        name = match.group()
        try:
            record = json.loads(read_below(directory, name, _LARGEST) or "")
            if not all(isinstance(record[key], kinds) for key, kinds in _KINDS.items()):
                raise ValueError
            runs.append(RecordedRun(name, int(match.group(1)), record))
        except NodeError as error:
            problem = problem or str(error)
        except (ValueError, KeyError, TypeError, RecursionError):
            problem = problem or f"{os.path.join(directory, name)} is not the record of a run. Run again."
    return runs, problem


def _stored(directory: str) -> Mapping[str, Any] | None:
    """Return the job of an earlier call; None if there is none that could be performed."""
    with contextlib.suppress(NodeError, FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        found = json.loads(read_below(directory, BENCH_JOB, _LARGEST) or "null")
        return parse_job("", found).data if isinstance(found["seed"], int) else None
    return None
