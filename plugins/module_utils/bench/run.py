# SPDX-License-Identifier: Apache-2.0
"""Run vLLM's benchmarks on a node, one container per instance, all at once, and return their JSON."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..common import paths
from ..common.abandoned import leave_if_abandoned
from ..common.bench_metrics import ResultError, finite, normalise
from ..common.failure_signatures import SIGNATURES
from ..common.failures import UNSPECIFIC, classify, tail
from ..common.files import make_private, read_text
from ..common.module_main import NodeError
from ..common.mounts import BENCH_RESULT
from ..common.run_lock import Busy, run_lock
from ..docker.client import DockerClient, DockerError, DockerUnavailable, Json, NotFound
from ..docker.containers import create_container, remove_container, wait_container
from ..docker.lifecycle import stop_gracefully
from ..docker.logs import container_log
from ..serving.store import GenerationStore
from .containers import BenchmarkTarget, RepeatedRuns, container_body

LOG_LINES = 60
_STOP_SECONDS = 30
_WAIT_SLICE = 5.0  # seconds of one wait request
_LEAVE_SECONDS = 45.0  # time for a run whose controller died to clean up and exit


def complete_target(target: Mapping[str, Any], store: GenerationStore) -> Mapping[str, Any]:
    """Return a target's INSTANCE; if it refers to a stored generation, read it from the node's store.

    A stored server's files may contain secrets. Raise NodeError if the generation is not stored.
    """
    server = target.get("server") or {}
    stands_for = server if server.get("generation") else target
    if server.get("container") or not stands_for.get("generation"):
        return target
    found = store.instance({"name": target.get("name"), "deployment": target.get("deployment"), **stands_for})
    return {**found, "client": target.get("client") or {}}


def measure(
    connect: Callable[[], DockerClient],
    targets: Sequence[BenchmarkTarget],
    kind: str,
    run: str,
    timeout: int,
    check: bool,
    repeat: RepeatedRuns | None = None,
) -> dict[str, Any]:
    """Measure all targets at once. Raise NodeError, with the results of the others, if one failed."""
    if check:
        return _measure(connect, targets, kind, run, timeout, check, repeat)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(run_lock("vllm_bench", _LEAVE_SECONDS))
        except Busy:
            # Nobody waits for its result any more. Without its benchmark container it ends at once.
            for target in targets:
                stop_and_remove(connect(), target.container)
            held.enter_context(run_lock("vllm_bench", 2 * _LEAVE_SECONDS))
        return _measure(connect, targets, kind, run, timeout, check, repeat)


def _measure(
    connect: Callable[[], DockerClient],
    targets: Sequence[BenchmarkTarget],
    kind: str,
    run: str,
    timeout: int,
    check: bool,
    repeat: RepeatedRuns | None,
) -> dict[str, Any]:
    client = connect()
    times = f", {repeat.warmups + repeat.runs} times" if repeat else ""
    actions = [text for target in targets for text in _actions(client, target, times)]
    for target in targets:
        _check_state(client, target, kind)
    if check or not targets:
        return {"changed": False, "actions": actions, "benchmarks": []}
    with ThreadPoolExecutor(max_workers=len(targets)) as pool:
        entries = list(
            pool.map(lambda target: _measure_target(connect(), target, kind, run, timeout, repeat), targets)
        )
    shutil.rmtree(os.path.join(paths.DATA_DIR, "bench", run), ignore_errors=True)
    result = {"changed": False, "actions": actions, "benchmarks": entries}
    failed = [entry for entry in entries if entry["error"]]
    if failed:
        message = " || ".join(f"{entry['instance']}: {entry['error']}" for entry in failed)
        raise NodeError(f"{len(failed)} of {len(entries)} {kind} benchmarks failed. {message}", **result)
    return result


def _actions(client: DockerClient, target: BenchmarkTarget, times: str) -> list[str]:
    actions = []
    if client.container(target.container) is not None:
        actions.append(f"DELETE /containers/{target.container} (left by an earlier run)")
    return [
        *actions,
        f"POST /containers/create?name={target.container} ({shlex.join(target.command)}{times})",
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


def _measure_target(
    client: DockerClient,
    target: BenchmarkTarget,
    kind: str,
    run: str,
    timeout: int,
    repeat: RepeatedRuns | None,
) -> Json:
    """Measure one target; the entry has the results, or the error and any results before it."""
    directory = os.path.join(paths.DATA_DIR, "bench", run, f"{target.name}-{kind}")
    entry: Json = {
        "instance": target.name,
        "deployment": target.deployment,
        "kind": kind,
        "model": target.model,
        "commit": target.commit or None,
        "image": target.image,
        "digest": target.image.partition("@")[2] or None,
        "command": list(target.command),
        "started": time.time(),
        "seconds": None,
        "result": None,
        "results": [],
        "log": "",
        "error": None,
        "instance_plan": dict(target.plan),
    }
    try:
        stop_and_remove(client, target.container)
        shutil.rmtree(directory, ignore_errors=True)
        make_private(directory)
        create_container(client, target.container, container_body(target, run, directory, repeat))
        client.start(target.container)
        code = _wait(client, target.container, timeout)
        log = container_log(client, target.container)
        entry["log"] = "\n".join(tail(log, LOG_LINES))
        texts = _read(directory, repeat.runs if repeat else 0)
        for text in texts:
            # A run that wrote its result succeeded; the code is that of the first one that did not.
            ended = 0 if repeat and text else code
            result, entry["error"] = outcome(kind, ended, log, text, timeout)
            entry["result"] = result or entry["result"]
            entry["results"] += [_scalars(result)] if result and not entry["error"] else []
            if entry["error"]:
                break
        if entry["result"] is not None and entry["error"]:
            entry["error"] += cause(client, target.server)
    except (NodeError, OSError) as error:
        entry["error"] = f"the benchmark's container could not be run: {error}"
        entry["class"] = "docker"
    finally:
        entry["seconds"] = round(time.time() - entry["started"], 1)
        with contextlib.suppress(NodeError):
            stop_and_remove(client, target.container)
        shutil.rmtree(directory, ignore_errors=True)
    return entry


def stop_and_remove(client: DockerClient, container: str) -> None:
    """Stop a benchmark (gracefully: an offline one holds GPUs) and remove it; do nothing if it does not exist."""
    with contextlib.suppress(NotFound):
        stop_gracefully(client, container, _STOP_SECONDS)
        remove_container(client, container)


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


def _scalars(result: Mapping[str, Any]) -> Json:
    """Return the result without the per-request lists, which clients before 0.8 write unasked."""
    return {key: value for key, value in result.items() if not isinstance(value, (list, dict))}


def _read(directory: str, runs: int) -> list[str]:
    """Return each run's result text, "" for a missing one; 0 runs: the single result of a benchmark without repeats."""
    names = [f"{BENCH_RESULT}.{number}" for number in range(runs)] or [BENCH_RESULT]
    return [read_text(os.path.join(directory, name)) or "" for name in names]


def outcome(kind: str, code: int | None, log: str, text: str, timeout: int) -> tuple[Any, str | None]:
    """Return (result, error) of a benchmark that ended, or was stopped at its time limit (code None)."""
    if code is None:
        return (
            None,
            f"not done after {timeout} s, and stopped. Raise benchmark_timeout, or ask for fewer prompts.",
        )
    if code != 0:
        finding = classify(SIGNATURES, log, code)
        mend = finding.next_step
        if finding.kind == "unknown_flag":  # of the client, not of the deployment
            mend = f"Correct benchmark_{kind}_args: this image's vLLM does not accept that."
        return None, f"{finding.kind}: {finding.line} | {mend}"
    try:
        # vLLM writes NaN if it has no sample; standard JSON has no such number.
        result = finite(json.loads(text)) if text else None
        metrics = normalise(kind, result, log)
    except (ValueError, ResultError) as error:
        what = f"wrote no usable result: {error}" if text else "ended well, but wrote no result"
        return None, f"the client {what}. Last line: {' '.join(tail(log, 1)) or 'none'}"
    completed, failed = metrics.get("completed"), metrics.get("failed")
    if kind == "serve" and not completed:
        return result, f"no request of {metrics.get('num_prompts')} completed."
    if failed:
        return result, f"{failed} of {metrics.get('num_prompts')} requests failed."
    return result, None


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
