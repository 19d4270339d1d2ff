# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM's benchmarks on a node: one container per instance, all at once, and brings their JSON home."""

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

from . import places
from .alone import Busy, alone, leave_if_abandoned
from .bench import RESULT_FILE, Target, command, container_body
from .engine import Engine, EngineError, Json, NotFound
from .files import make_private
from .logs import classify, tail
from .nodemodule import NodeError
from .results import ResultError, finite, normalise
from .servers import stop_gracefully

LOG_LINES = 60
_STOP_SECONDS = 30
_WAIT_SLICE = 5.0  # seconds of one wait request
_LEAVE_SECONDS = 45.0  # in which a run whose controller died has cleaned up and left


def measure(
    connect: Callable[[], Engine],
    targets: Sequence[Target],
    kind: str,
    args: Mapping[str, Any],
    run: str,
    timeout: int,
    check: bool,
) -> dict[str, Any]:
    """Measure all targets at once; raises NodeError when one failed, with the results of the others."""
    if check:
        return _measure(connect, targets, kind, args, run, timeout, check)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(alone("vllm_bench", _LEAVE_SECONDS))
        except Busy:
            # It measures for nobody, and would for as long as its benchmark takes: without it, it ends.
            for target in targets:
                stop_and_remove(connect(), target.container)
            held.enter_context(alone("vllm_bench", 2 * _LEAVE_SECONDS))
        return _measure(connect, targets, kind, args, run, timeout, check)


def _measure(
    connect: Callable[[], Engine],
    targets: Sequence[Target],
    kind: str,
    args: Mapping[str, Any],
    run: str,
    timeout: int,
    check: bool,
) -> dict[str, Any]:
    engine = connect()
    commands = {target.name: command(kind, target, args) for target in targets}
    actions = [text for target in targets for text in _actions(engine, target, commands[target.name])]
    for target in targets:
        _check_state(engine, target, kind)
    if check or not targets:
        return {"changed": False, "actions": actions, "benchmarks": []}
    with ThreadPoolExecutor(max_workers=len(targets)) as pool:
        entries = list(
            pool.map(
                lambda target: _one(connect(), target, kind, commands[target.name], run, timeout), targets
            )
        )
    result = {"changed": False, "actions": actions, "benchmarks": entries}
    failed = [entry for entry in entries if entry["error"]]
    if failed:
        told = " || ".join(f"{entry['instance']}: {entry['error']}" for entry in failed)
        raise NodeError(f"{len(failed)} of {len(entries)} {kind} benchmarks failed. {told}", **result)
    return result


def _actions(engine: Engine, target: Target, words: Sequence[str]) -> list[str]:
    actions = []
    if engine.container(target.container) is not None:
        actions.append(f"DELETE /containers/{target.container} (left by an earlier run)")
    return [
        *actions,
        f"POST /containers/create?name={target.container} ({shlex.join(words)})",
        f"POST /containers/{target.container}/start",
    ]


def _check_state(engine: Engine, target: Target, kind: str) -> None:
    """A served instance has to run, and one that is measured offline has to leave its GPUs."""
    container = engine.container(target.server)
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


def _one(engine: Engine, target: Target, kind: str, words: Sequence[str], run: str, timeout: int) -> Json:
    """Measure one target; the entry has the result, or the error."""
    directory = os.path.join(places.DATA_DIR, "bench", run, f"{target.name}-{kind}")
    entry: Json = {
        "instance": target.name,
        "deployment": target.deployment,
        "kind": kind,
        "model": target.model,
        "commit": target.commit or None,
        "image": target.image,
        "digest": target.image.partition("@")[2] or None,
        "command": list(words),
        "started": time.time(),
        "seconds": None,
        "result": None,
        "log": "",
        "error": None,
        "instance_plan": dict(target.plan),
    }
    try:
        stop_and_remove(engine, target.container)
        shutil.rmtree(directory, ignore_errors=True)
        make_private(directory)
        engine.create(target.container, container_body(target, words, run, directory))
        engine.start(target.container)
        code = _wait(engine, target.container, timeout)
        log = engine.logs(target.container)
        entry["log"] = "\n".join(tail(log, LOG_LINES))
        entry["result"], entry["error"] = outcome(kind, code, log, _read(directory), timeout)
        if entry["result"] is not None and entry["error"]:
            entry["error"] += _cause(engine, target)
    except (NodeError, OSError) as error:
        entry["error"] = f"the benchmark's container could not be run: {error}"
    finally:
        entry["seconds"] = round(time.time() - entry["started"], 1)
        with contextlib.suppress(NodeError):
            stop_and_remove(engine, target.container)
        shutil.rmtree(directory, ignore_errors=True)
    return entry


def stop_and_remove(engine: Engine, container: str) -> None:
    """Stop a benchmark (gracefully: an offline one holds GPUs) and remove it; nothing when there is none."""
    with contextlib.suppress(NotFound):
        stop_gracefully(engine, container, _STOP_SECONDS)
        engine.remove(container)


def _wait(engine: Engine, container: str, timeout: int) -> int | None:
    """The exit code; None when it is not done in time."""
    deadline = time.monotonic() + timeout
    while True:
        leave_if_abandoned()
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        code = engine.wait(container, min(left, _WAIT_SLICE))
        if code is not None:
            return code


def _read(directory: str) -> str:
    try:
        with open(os.path.join(directory, RESULT_FILE), encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def outcome(kind: str, code: int | None, log: str, text: str, timeout: int) -> tuple[Any, str | None]:
    """(result, error) of a benchmark that ended, or that did not (code None)."""
    if code is None:
        return (
            None,
            f"not done after {timeout} s, and stopped. Raise benchmark_timeout, or ask for fewer prompts.",
        )
    if code != 0:
        finding = classify(log, code)
        mend = finding.next_step
        if finding.kind == "unknown_flag":  # the client's, where a server's would be those of the deployment
            mend = f"Correct benchmark_{kind}_args: this image's vLLM does not accept that."
        return None, f"{finding.kind}: {finding.line} | {mend}"
    try:
        # vLLM writes NaN where it has no sample; JSON for others has no such number.
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


def _cause(engine: Engine, target: Target) -> str:
    """What the server's log says of requests that failed."""
    try:
        container = engine.container(target.server)
        log = engine.logs(target.server, 2000)
    except EngineError as error:
        return f" The server cannot be looked at: {error}"
    if container is None:
        return f" The server's container {target.server} is gone."
    finding = classify(log)
    state = (
        "" if container["State"]["Status"] == "running" else f" The server is {container['State']['Status']}."
    )
    if finding.kind == "unknown":
        return f"{state} Its log does not say why: docker logs {target.server}."
    return f"{state} The server says: {finding.line} | {finding.next_step}"
