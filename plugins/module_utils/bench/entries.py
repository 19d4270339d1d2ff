# SPDX-License-Identifier: Apache-2.0
"""Build what vllm_bench returns of each cell, from the runs in a target's directory."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from ..common import paths
from ..common.module_main import NodeError
from ..disk.beneath import read_below, remove_below
from ..docker.client import DockerClient, DockerError, DockerUnavailable, Json
from ..docker.logs import container_log
from ..engines.failure_signatures import SIGNATURES
from ..engines.failures import UNSPECIFIC, classify, tail
from ..engines.mounts import BENCH_OUTPUT
from .containers import BenchmarkTarget
from .jobs import recorded_runs
from .results import LOG_LINES, outcome, run_entry

_LARGEST_LOG = 64 * 2**20


@dataclass(frozen=True)
class Measurement:
    """What all targets have in common.

    run: its name, a label of the containers and a directory. timeout: seconds for all runs of an instance. program:
    programs/bench_job.py.
    """

    kind: str
    run: str
    timeout: int
    program: str

    @property
    def directory(self) -> str:
        """Return the node's directory of the run; each target has one below it."""
        return os.path.join(paths.DATA_DIR, "bench", self.run)

    def directory_of(self, target: BenchmarkTarget) -> str:
        """Return the directory of a target."""
        return os.path.join(self.directory, f"{target.name}-{self.kind}")


@dataclass(frozen=True)
class ContainerEnd:
    """How a benchmark's container ended: exit code (None: stopped at its time limit), log, or why it did not run."""

    code: int | None
    log: str
    error: str


def entries_of(
    client: DockerClient, target: BenchmarkTarget, wanted: Measurement, carried: int, end: ContainerEnd
) -> list[Json]:
    """Return a target's entries from the runs in its directory."""
    directory = wanted.directory_of(target)
    runs: list[list[Json]] = [[] for _cell in target.job.cells]
    stored, wrong = recorded_runs(directory)
    for run in stored:
        try:
            runs[run.position].append(run_entry(wanted.kind, run.record, carried))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            remove_below(directory, run.name)  # so that the next call measures it again
            wrong = wrong or f"{os.path.join(directory, run.name)} is not the record of a run. Run again."
    # What a run that was cut off printed is in its own file.
    log = end.log
    with contextlib.suppress(NodeError):
        log = read_below(directory, BENCH_OUTPUT, _LARGEST_LOG) or end.log
    plan = {key: value for key, value in target.plan.items() if key != "server"}
    entries = []
    for cell, own in zip(target.job.cells, runs):
        error, kind_of_error = next((run["error"] for run in own if run["error"]), None), None
        if error and any(run["result"] for run in own if run["error"]):
            try:
                error += cause(client, target.server)
            except DockerUnavailable as problem:  # then nothing is known of the release either
                error, kind_of_error = f"{error} {problem}", "docker"
        done = [run for run in own if not run["error"]]
        if error is None and len(done) < target.job.blocks:
            error, kind_of_error = _incomplete(wanted, end, log, len(done), target.job.blocks)
            error = f"{error} {wrong}".rstrip()
        entry: Json = {
            "instance": target.name,
            "deployment": target.deployment,
            "kind": wanted.kind,
            "suite": target.job.data.get("suite"),
            **{key: cell.get(key) for key in ("cell", "shape", "load", "metric")},
            "slos": cell.get("slos") or [],
            "model": target.model,
            "commit": target.commit or None,
            "image": target.image,
            "digest": target.image.partition("@")[2] or None,
            "command": list(cell["argv"]),
            "runs": own,
            "log": "\n".join(tail(log, LOG_LINES)) if error else "",
            "error": error,
            "live": target.live,
            "instance_plan": plan,
        }
        entries.append({**entry, "class": kind_of_error} if kind_of_error else entry)
    return entries


def _incomplete(
    wanted: Measurement, end: ContainerEnd, log: str, done: int, blocks: int
) -> tuple[str, str | None]:
    """Return (why a cell has too few runs, class of the error or None)."""
    some = f" {done} of {blocks} runs were finished before that." if done else ""
    if end.error:
        return f"{end.error}{some}", "docker"
    if end.code is None:
        what = f"stopped after {wanted.timeout} s. Raise benchmark_timeout, or ask for fewer prompts."
        return what + some, None
    _result, error = outcome(wanted.kind, end.code, log, None)
    return f"{error}{some}", None


def cause(client: DockerClient, server: str) -> str:
    """Return why requests failed according to the server container's log, with a leading space.

    Raise DockerUnavailable if Docker does not answer: then nothing is known of the server.
    """
    try:
        container = client.container(server)
        log = container_log(client, server, 2000)
    except DockerUnavailable:
        raise
    except DockerError as error:
        return f" The server cannot be inspected: {error}"
    if container is None:
        return f" The server's container {server} is gone."
    finding = classify(SIGNATURES, log)
    state = (
        "" if container["State"]["Status"] == "running" else f" The server is {container['State']['Status']}."
    )
    if finding.kind == "unknown":
        return f"{state} Its log does not show why: docker logs {server}."
    # The advice for an unknown cause refers to a log that vllm_server keeps; a benchmark has none.
    advice = "" if finding.kind in UNSPECIFIC else f" | {finding.next_step}"
    return f"{state} The server's log shows: {finding.line}{advice}"
