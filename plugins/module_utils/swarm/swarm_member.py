# SPDX-License-Identifier: Apache-2.0
"""Start a node's part in a swarm, which outlives the controller, and wait until its store is complete."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from ..common.abandoned import leave_if_abandoned
from ..common.disk_space import human_size
from ..common.files import make_private, write_atomic
from ..common.module_main import NodeError
from ..common.processes import Program, run_program
from ..store.blobs import Store
from ..store.manifest import Manifest, parse_manifest
from .swarm_job import SwarmJob, parse_job, run_directory, write_job
from .swarm_state import SwarmState, read_state

PYTHON = "/usr/bin/python3"  # the system's, which the distribution's libtorrent belongs to
PROGRAM = "swarm.pyz"
_POLL_SECONDS = 1.0
_STOP_POLL_SECONDS = 0.1
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_KILL_SECONDS = 10.0  # a process inside the kernel, such as on a dead disk, does not end
_ENGINE_SECONDS = 60


def start(params: Mapping[str, Any], check: bool) -> dict[str, Any]:
    """Start the program, unless there is nothing to receive or to offer. Raise NodeError."""
    job = _job(params)
    store = Store(job.root)
    missing = store.missing(job.manifest)
    if not missing and not job.serve:
        return _result(job.manifest, [], 0)
    amount = human_size(sum((missing or job.manifest.blobs).values()))
    count = len(missing or job.manifest.blobs)
    verb = "receive" if missing else "offer"
    actions = [f"{verb} {job.manifest.name} ({count} blobs, {amount}) at {job.me.address}:{job.me.port}"]
    if check:
        return _result(job.manifest, actions, 0)
    _require_engine()
    directory = run_directory(job.manifest.id)
    _stop(directory)
    make_private(directory)
    program = os.path.join(directory, PROGRAM)
    write_atomic(program, base64.b64decode(str(params["program"])), 0o600)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, "state.json"))
    path = write_job(job, directory)
    log = os.path.join(directory, "log")
    with open(log, "wb", opener=_private) as output:
        process = subprocess.Popen(
            [PYTHON, program, path],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
    deadline = time.monotonic() + _START_SECONDS
    while (state := read_state(directory)) is None and process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            break
        time.sleep(0.05)
    if (state or read_state(directory)) is None:
        raise _not_started(job, directory, _last_line(log))
    if state is not None and state.phase == "ended" and state.error:
        raise _not_started(job, directory, state.error)
    return _result(job.manifest, actions, sum(missing.values()))


def _not_started(job: SwarmJob, directory: str, why: str) -> NodeError:
    _forget_key(directory)
    return NodeError(f"The transfer of {job.manifest.name} did not start: {why}", changed=True)


def finish(params: Mapping[str, Any], check: bool) -> dict[str, Any]:
    """Wait until the store is complete, and record that. A node that only serves waits for nothing. Raise NodeError."""
    manifest, store = parse_manifest(params["manifest"]), Store(params["store"])
    directory = run_directory(manifest.id)
    if check:
        return _result(manifest, [], 0)
    if store.manifest(manifest.name) == manifest:
        _forget_key(directory)
        return _result(manifest, [], 0)
    deadline = time.monotonic() + params["timeout"]
    while True:
        leave_if_abandoned()
        state = read_state(directory)
        if not store.missing(manifest):
            break
        if state is None or state.phase == "ended" or not _runs(directory, state):
            store.adopt(manifest)
            if not store.missing(manifest):
                break
            _forget_key(directory)
            raise NodeError(_why(manifest, state, os.path.join(directory, "log")), changed=True)
        if time.monotonic() > deadline:
            _forget_key(directory)
            _stop(directory)
            raise NodeError(
                f"{manifest.name} did not arrive within {params['timeout']} s. What arrived is kept: run "
                "again, or raise "
                "distribution_timeout.",
                changed=True,
            )
        time.sleep(_POLL_SECONDS)
    store.record(manifest)
    _forget_key(directory)
    received = state.received if state else 0
    actions = [f"record {manifest.name} as complete in {store.root} ({human_size(received)} received)"]
    result = _result(manifest, actions, received)
    return {**result, "warnings": _warnings(manifest, state)}


def _job(params: Mapping[str, Any]) -> SwarmJob:
    manifest = parse_manifest(params["manifest"])
    own = [item for item in params["members"] if item.get("name") == params["own"]]
    serves = bool(own and own[0].get("serves"))
    try:
        return parse_job(
            {
                "manifest": manifest.to_json(),
                "root": params["store"],
                "own": params["own"],
                "members": params["members"],
                "serve": sorted(manifest.blobs) if serves else [],
                "key": str(params["key"]).lower(),
                "limit": params["limit"],
                "deadline": float(params["timeout"]),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NodeError(
            f"members: each needs name, address and port ({type(error).__name__}: {error})."
        ) from error


def _require_engine() -> None:
    done = run_program(Program([PYTHON, "-c", "import libtorrent"]), _ENGINE_SECONDS)
    if done.code is None:
        raise NodeError(
            f"{PYTHON} did not load libtorrent within {_ENGINE_SECONDS} s. Check this node's disk (dmesg), and run "
            "again."
        )
    if done.code:
        raise NodeError(
            f"{PYTHON} has no libtorrent, so this node cannot take part in the transfer. Install python3-libtorrent, "
            "or set fetch_from: origin for it."
        )


def _why(manifest: Manifest, state: SwarmState | None, log: str) -> str:
    if state is None and not os.path.exists(log):
        reason = "its program was not started on this host; the previous task says why."
    else:
        reason = state.error if state and state.error else f"the program ended: {_last_line(log)}"
    return f"{manifest.name} did not arrive completely from other nodes: {reason}"


def _warnings(manifest: Manifest, state: SwarmState | None) -> list[str]:
    if state is None:
        return []
    messages = {
        "slow, so look at its network and disk": state.slow,
        "not reached": state.dead,
        "sent wrong content, so look at its disk and memory (dmesg)": state.wrong,
    }
    return [f"{manifest.name}: {', '.join(names)}: {what}." for what, names in messages.items() if names]


def _runs(directory: str, state: SwarmState) -> bool:
    """Return whether the program of this directory runs under the process id of its state."""
    try:
        with open(f"/proc/{state.pid}/cmdline", "rb") as file:
            return os.path.join(directory, PROGRAM).encode() in file.read().split(b"\0")
    except OSError:
        return False


def transferring(manifest_id: str) -> bool:
    """Return whether a program of this node moves this manifest's blobs."""
    directory = run_directory(manifest_id)
    state = read_state(directory)
    return state is not None and _runs(directory, state)


def _stop(directory: str) -> None:
    """End an earlier run's program, whose key others no longer have; what it received stays.

    Raise NodeError if it does not end, not even when it is killed.
    """
    state = read_state(directory)
    for number, seconds in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
        deadline = time.monotonic() + seconds
        if state is None or not _runs(directory, state):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(state.pid, number)
        while _runs(directory, state) and time.monotonic() < deadline:
            time.sleep(_STOP_POLL_SECONDS)
    if state is not None and _runs(directory, state):
        raise NodeError(
            f"Process {state.pid}, which transfers blobs for an earlier run, did not end although it was killed: it "
            f"is waiting for a disk or a network file system (dmesg). Repair that or reboot the node, and run again.",
            changed=True,
        )


def _forget_key(directory: str) -> None:
    """Remove the file that has the key of the run, which a program that did not start left."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, "job.json"))


def _last_line(log: str) -> str:
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        lines = []
    return lines[-1] if lines else "without any output"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _result(manifest: Manifest, actions: list[str], received: int) -> dict[str, Any]:
    return {
        "changed": bool(actions),
        "actions": actions,
        "bytes": received,
        "manifest_id": manifest.id,
        "warnings": [],
    }
