# SPDX-License-Identifier: Apache-2.0
"""Run vLLM's benchmarks on a node, one container per instance, all at once, and return their results."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ..common.abandoned import leave_if_abandoned
from ..common.module_main import NodeError
from ..disk.beneath import remove_below
from ..disk.write_below import write_below
from ..docker.client import DockerClient, Json
from ..docker.containers import create_container, wait_container
from ..docker.logs import container_log
from ..leases.run_lock import Busy, run_lock
from .containers import CLIENT_CA, CLIENT_ENV, BenchmarkTarget, container_body, stop_and_remove
from .entries import ContainerEnd, Measurement, entries_of
from .jobs import prepare
from .results import CARRIED_BYTES
from .telemetry import Recorder

_WAIT_SLICE = 5.0  # seconds of one wait request
_LEAVE_SECONDS = 45.0  # time for a run whose controller died to clean up and exit


def measure(
    connect: Callable[[], DockerClient], targets: Sequence[BenchmarkTarget], wanted: Measurement, check: bool
) -> dict[str, Any]:
    """Measure all targets at once. Raise NodeError, with the results of the others, if one failed."""
    if check:
        return _measure(connect, targets, wanted, check)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(run_lock("vllm_bench", _LEAVE_SECONDS))
        except Busy:
            # Nobody waits for its result any more. Without its benchmark container it ends at once.
            for target in targets:
                stop_and_remove(connect(), target.container)
            held.enter_context(run_lock("vllm_bench", 2 * _LEAVE_SECONDS))
        return _measure(connect, targets, wanted, check)


def _measure(
    connect: Callable[[], DockerClient], targets: Sequence[BenchmarkTarget], wanted: Measurement, check: bool
) -> dict[str, Any]:
    client = connect()
    actions = [text for target in targets for text in _actions(client, target)]
    for target in targets:
        _check_state(client, target, wanted.kind)
    if check or not targets:
        return {"changed": False, "actions": actions, "benchmarks": []}
    carried = CARRIED_BYTES // max(1, sum(target.job.most_runs for target in targets))
    recorder = Recorder()
    with ThreadPoolExecutor(max_workers=len(targets)) as pool:
        measured = list(pool.map(lambda target: _measure_target(connect(), target, wanted, carried), targets))
    entries = [entry for target in measured for entry in target.entries]
    recorder.finish(entries)
    warnings = [target.kept for target in measured if target.kept]
    result = {"changed": False, "actions": actions, "benchmarks": entries, "warnings": warnings}
    failed = [entry for entry in entries if entry["error"]]
    if failed:
        one = len(entries) == len(targets)
        message = " || ".join(
            f"{entry['instance']}{'' if one else ', ' + entry['cell']}: {entry['error']}" for entry in failed
        )
        raise NodeError(
            f"{len(failed)} of {len(entries)} {wanted.kind} benchmarks failed. {message}", **result
        )
    return result


def _actions(client: DockerClient, target: BenchmarkTarget) -> list[str]:
    actions = []
    if client.container(target.container) is not None:
        actions.append(f"DELETE /containers/{target.container} (left by an earlier run)")
    cells, times = target.job.cells, target.job.least_runs
    what = shlex.join(cells[0]["argv"]) if len(cells) == 1 else f"{len(cells)} cells"
    return [
        *actions,
        f"POST /containers/create?name={target.container} ({what}{f', {times} runs' if times > 1 else ''})",
        f"POST /containers/{target.container}/start",
    ]


def _check_state(client: DockerClient, target: BenchmarkTarget, kind: str) -> None:
    """Check that a served instance runs, and that one to be measured offline does not hold its GPUs."""
    container = client.container(target.server)
    running = container is not None and container["State"]["Status"] == "running"
    if kind == "serve" and not running:
        raise NodeError(
            f"Instance {target.name} does not run, and the serve benchmark measures a running one. Deploy "
            "it first: playbooks/site.yml."
        )
    if kind != "serve" and running:
        raise NodeError(
            f"Instance {target.name} runs and holds its GPUs, which the {kind} benchmark needs. Stop it "
            "first (vllm_server, state: stopped); playbooks/benchmark.yml does."
        )


@dataclass(frozen=True)
class _Measured:
    """The entries of a target, one for each cell, and what was kept of an earlier call, "" for nothing."""

    entries: list[Json]
    kept: str


def _measure_target(
    client: DockerClient, target: BenchmarkTarget, wanted: Measurement, carried: int
) -> _Measured:
    """Measure one target. `carried`: bytes for the per-request lists of each run.

    The directory stays: a call of the same name continues, until the results were reported.
    """
    directory = wanted.directory_of(target)
    code: int | None = 0
    log, error, earlier = "", "", 0
    try:
        stop_and_remove(client, target.container)
        served = {"spec": target.plan.get("spec_hash"), "image": target.image, "client": target.client}
        earlier = prepare(directory, target.job, served, wanted.timeout)
        write_client_files(directory, target)
        body = container_body(target, wanted.run, directory, wanted.program)
        create_container(client, target.container, body)
        client.start(target.container)
        code = _wait(client, target.container, wanted.timeout)
        log = container_log(client, target.container)
    except (NodeError, OSError) as problem:
        error = f"the benchmark's container could not be run: {problem}"
    finally:
        with contextlib.suppress(NodeError):
            stop_and_remove(client, target.container)
        remove_client_files(directory)  # a directory that is kept for the next call holds no key
    entries = entries_of(client, target, wanted, carried, ContainerEnd(code, log, error))
    kept = (
        f"{target.name}: {_finished_runs(earlier)} of {wanted.run} kept from an interrupted call"
        if earlier
        else ""
    )
    return _Measured(entries, kept)


def write_client_files(directory: str, target: BenchmarkTarget) -> None:
    """Write what the client needs for a load balancer, readable by root only."""
    for name, text in target.client_files().items():
        write_below(directory, name, text, 0o600)


def remove_client_files(directory: str) -> None:
    """Remove them again; do nothing if there are none."""
    for name in (CLIENT_ENV, CLIENT_CA):
        remove_below(directory, name)


def _finished_runs(count: int) -> str:
    """Return a number of finished runs in words."""
    return "1 finished run" if count == 1 else f"{count} finished runs"


def _wait(client: DockerClient, container: str, timeout: int) -> int | None:
    """Wait for the exit code; None if the container is not done in time."""
    deadline = time.monotonic() + timeout
    while True:
        leave_if_abandoned()
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        code = wait_container(client, container, min(left, _WAIT_SLICE))
        if code is not None:
            return code
