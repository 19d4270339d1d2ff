# SPDX-License-Identifier: Apache-2.0
"""Converge the servers of a node: stop the old ones gracefully, start all, wait for tokens from each."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from ..common import paths
from ..common.abandoned import ControllerGone
from ..common.files import read_text, write_atomic
from ..common.module_main import NodeError, require_program
from ..common.redact import Redactor
from ..credentials import secret_files
from ..docker.client import DockerClient, DockerError, DockerTimeout, DockerUnavailable, Json
from ..docker.containers import create_container, remove_container, rename_container
from ..docker.lifecycle import comes_back, policy_action, set_policy, stop_gracefully
from ..docker.logs import container_log
from ..engines.failures import Diagnosis
from ..engines.restart_policy import NEVER
from ..leases.run_lock import run_lock
from ..observe import supervisor
from . import supervisor_versions
from .attention import ATTENTION_FILE, Proof, proof_of, warnings
from .health import port_holder
from .instance import (
    LABELS,
    LOG_FILE,
    READY_FILE,
    ObservedServer,
    ServerActions,
    ServerSpec,
    ServerSteps,
    actions_of,
    cache_of,
    decide,
    diff_of,
    observe_server,
)
from .readiness import StartFailure, wait_ready
from .staged_files import discard, put_in_place, stage
from .start_errors import NO_DEVICE, explain_refusal
from .start_lines import START_FILE, start_text

POLL_SECONDS = 0.5  # between two checks of a server that is starting

CANNOT_STOP = (
    "It was left as it is. A process that even SIGKILL does not end is waiting in the kernel, usually for "
    "a GPU that hangs "
    "(state D in ps, lines of amdgpu in dmesg): drain this node's other instances (playbooks/drain.yml), and reboot it."
)
CANNOT_REMOVE = (
    "Its container is stopped and stays. Check the Docker engine (journalctl -u docker), and run again."
)


@dataclass
class ServerTask:
    """One server that is being converged."""

    server: ServerSpec
    observed: ObservedServer
    steps: ServerSteps
    actions: ServerActions
    outcome: Json = field(default_factory=dict)
    failure: Diagnosis | None = None
    attention: Proof | None = None
    warning: str = ""

    def fail(self, finding: Diagnosis) -> None:
        """Note why it failed; the first reason stands."""
        if self.failure is None:
            self.failure = finding


@dataclass
class Removal:
    """An instance to remove, with its container and its files."""

    name: str
    failure: Diagnosis | None = None

    @property
    def container(self) -> str:
        """Return the container's name."""
        return paths.container_name(self.name)

    def fail(self, finding: Diagnosis) -> None:
        """Note why it is still there; the first reason stands."""
        if self.failure is None:
            self.failure = finding


@dataclass(frozen=True)
class ConvergeContext:
    """How to reach the engine, what to mask, and the limit for readiness (seconds; None: their own).

    program: the supervisor's files, by their paths. wait False: start servers, and do not wait for them. secrets: of
    their deployments, as far as the control node has them.
    """

    connect: Callable[[], DockerClient]
    redact: Redactor
    limit: int | None
    program: Mapping[str, str]
    wait: bool = True
    secrets: secret_files.Sets = field(default_factory=dict)


def converge(
    fleet: ConvergeContext, servers: Sequence[ServerSpec], remove: Sequence[str], state: str, check: bool
) -> dict[str, Any]:
    """Bring all servers to the state. Raise NodeError if one failed, after the others are done.

    If Docker refuses something for one server, even to stop it, the others are not affected.
    """
    longest = max((server.ready_timeout + server.stop_timeout for server in servers), default=600)
    with contextlib.nullcontext() if check else run_lock("vllm_server", longest):
        return _converge(fleet, servers, remove, state, check)


def _converge(
    fleet: ConvergeContext, servers: Sequence[ServerSpec], remove: Sequence[str], state: str, check: bool
) -> dict[str, Any]:
    client = fleet.connect()
    tasks = [_task(client, server, state) for server in servers]
    removals = [Removal(name) for name in remove if _exists(client, name)]
    diff = [part for task in tasks for part in diff_of(task.server, task.observed, task.steps, state)]
    diff += [_removal_diff(removal) for removal in removals]
    versions = [supervisor_versions.lib_of(task.server.body) for task in tasks]
    gone = [*(removal.container for removal in removals), *_replaced(tasks)]
    unused = supervisor_versions.unused_versions(fleet.program, client, versions, gone)
    marks = [task.server.secrets for task in tasks]
    secret_paths = _lacking_secrets(fleet, tasks)
    actions = [
        *supervisor_versions.write_actions(fleet.program, versions),
        *(f"write {path} (mode 0600)" for path in secret_paths),
        *_all_actions(client, tasks, removals),
        *(f"remove {paths.lib_dir(version)}" for version in unused),
        *(f"remove {path}" for path in secret_files.unused_files(marks)),
    ]
    result: dict[str, Any] = {"actions": actions, "diff": diff, "warnings": []}
    result["changed"] = bool(result["actions"])
    if not check:
        started = time.monotonic()
        _write_libs(fleet.program, tasks, versions)
        _write_secrets(fleet, tasks, secret_paths)
        _prepare(client, tasks)
        result["warnings"] += _stop_all(fleet, tasks, removals)
        for removal in removals:
            _remove(client, removal)
        for task in tasks:
            _change(client, task)
            if task.failure:
                discard(task.server)
        supervisor_versions.remove(supervisor_versions.unused_versions(fleet.program, client, versions, ()))
        for path in secret_files.unused_files(marks):
            with contextlib.suppress(OSError):  # the next run tries again
                os.unlink(path)
        if state != "stopped" and fleet.wait:
            _wait_all(fleet, tasks)
            result["warnings"] += warnings(
                {task.server.name: task.attention for task in tasks if task.attention}
            )
            result["warnings"] += [task.warning for task in tasks if task.warning]
        result["seconds"] = round(time.monotonic() - started, 1)
    result["servers"] = [_outcome(task, state, check, fleet.wait) for task in tasks]
    result["removed"] = [removal.name for removal in removals if not removal.failure]
    failed = [task for task in tasks if task.failure]
    remaining = [removal for removal in removals if removal.failure]
    if failed or remaining:
        raise NodeError(_message(failed, remaining, len(tasks), state), **result)
    return result


def _task(client: DockerClient, server: ServerSpec, state: str) -> ServerTask:
    observed = observe_server(client, server)
    if state == "started" and not observed.status:
        raise NodeError(
            f"Instance {server.name} has no container {server.container} to start. Deploy it first: "
            "playbooks/site.yml, or state: present."
        )
    steps = decide(server, observed, state)
    return ServerTask(server, observed, steps, actions_of(server, steps))


def _all_actions(client: DockerClient, tasks: Sequence[ServerTask], removals: Sequence[Removal]) -> list[str]:
    """Return all texts, in the order of the work: first what can fail without harm, then stops, then changes."""
    actions = [text for task in tasks for text in task.actions.prepare]
    actions += [text for removal in removals for text in _removal_stop(client, removal)]
    actions += [text for task in tasks for text in task.actions.stop]
    for removal in removals:
        if client.container(removal.container) is not None:
            actions.append(f"DELETE /containers/{removal.container}")
        actions += [f"remove {path}" for path in _directories(removal.name) if os.path.isdir(path)]
    return actions + [text for task in tasks for text in task.actions.change]


# ---- stopping and removing ---------------------------------------------------------------------------


def _directories(name: str) -> tuple[str, str]:
    return paths.instance_dir(name), paths.cache_dir(name)


def _exists(client: DockerClient, name: str) -> bool:
    container = client.container(paths.container_name(name))
    return container is not None or any(os.path.isdir(path) for path in _directories(name))


def _removal_stop(client: DockerClient, removal: Removal) -> list[str]:
    container = client.container(removal.container)
    if container is None or not container["State"]["Running"]:
        return []
    found = [policy_action(removal.container, NEVER)] if comes_back(container) else []
    return [*found, f"POST /containers/{removal.container}/stop?t={_own_timeout(container)}"]


def _own_timeout(container: Json) -> int:
    """Return the stop time-out that the container was made with; vLLM needs more than Docker's 10 s."""
    return int(container["Config"].get("StopTimeout") or 120)


def _removal_diff(removal: Removal) -> Json:
    what = f"container {removal.container}"
    return {"before_header": what, "after_header": what, "before": "there\n", "after": "absent\n"}


def _stop_all(fleet: ConvergeContext, tasks: Sequence[ServerTask], removals: Sequence[Removal]) -> list[str]:
    """Stop in parallel what must stop. Return warnings about those that had to be killed."""
    client = fleet.connect()
    stops: list[tuple[ServerTask | Removal, str, int]] = []
    for removal in removals:
        container = client.container(removal.container)
        if container is not None and container["State"]["Running"]:
            stops.append((removal, removal.container, _own_timeout(container)))
    stops += [
        (task, task.server.container, task.server.stop_timeout)
        for task in tasks
        if (task.steps.stop or task.steps.keep_down) and not task.failure
    ]
    if not stops:
        return []

    def stop(owner: ServerTask | Removal, container: str, seconds: int) -> str:
        try:
            return stop_gracefully(fleet.connect(), container, seconds)
        except DockerError as error:
            # A stop that does not end in time is this container's failure.
            dead = isinstance(error, DockerUnavailable) and not isinstance(error, DockerTimeout)
            owner.fail(_no_docker(error) if dead else Diagnosis("cannot_stop", str(error), CANNOT_STOP))
            return ""

    with ThreadPoolExecutor(max_workers=len(stops)) as pool:
        return [warning for warning in pool.map(lambda each: stop(*each), stops) if warning]


def _remove(client: DockerClient, removal: Removal) -> None:
    if removal.failure:
        return
    try:
        remove_container(client, removal.container)
    except DockerError as error:
        removal.fail(Diagnosis("cannot_remove", str(error), CANNOT_REMOVE))
        return
    for path in _directories(removal.name):
        with contextlib.suppress(RecursionError):  # a container nested directories: prune.yml says what to do
            shutil.rmtree(path, ignore_errors=True)


# ---- creating and starting ---------------------------------------------------------------------------


def _replaced(tasks: Sequence[ServerTask]) -> list[str]:
    return [task.server.container for task in tasks if task.steps.replace]


def _write_libs(program: Mapping[str, str], tasks: Sequence[ServerTask], versions: Sequence[str]) -> None:
    """Write the program around vLLM before a container mounts it: Docker creates empty directories for missing ones."""
    try:
        supervisor_versions.write(program, versions)
    except OSError as error:
        raise NodeError(  # a full disk has no file's name
            f"{error.filename or paths.lib_dir()} cannot be written: {error.strerror}. Nothing was stopped. "
            "Check that disk, and run again."
        ) from error
    for task, version in zip(tasks, versions):
        if task.steps.start and supervisor_versions.is_missing(program, version):
            require_program(program)
            next_step = (
                "Deploy the instance as the inventory now has it: playbooks/site.yml creates its container "
                "again."
            )
            task.fail(
                Diagnosis("supervisor_missing", f"{paths.lib_dir(version)} is not on this node", next_step)
            )


def _lacking_secrets(fleet: ConvergeContext, tasks: Sequence[ServerTask]) -> list[str]:
    wanted: dict[str, dict[str, None]] = {}
    for task in tasks:
        if task.server.secrets:
            wanted.setdefault(task.server.deployment, {})[task.server.secrets] = None
    return [
        path
        for name, marks in wanted.items()
        for path in secret_files.missing_files(name, marks, fleet.secrets)
    ]


def _write_secrets(fleet: ConvergeContext, tasks: Sequence[ServerTask], lacking: Sequence[str]) -> None:
    """Write the variables that instances read when they start; an instance whose set is not available fails alone."""
    try:
        secret_files.write(lacking, fleet.secrets)
    except OSError as error:
        raise NodeError(
            f"{error.filename or secret_files.secrets_dir('')} cannot be written: {error.strerror}. Nothing was "
            "stopped. Check that disk, and run again."
        ) from error
    for task in tasks:
        path = os.path.join(secret_files.secrets_dir(task.server.deployment), task.server.secrets)
        if task.steps.start and task.server.secrets and not os.path.isfile(path):
            what = f"{path}, with the secret variables that it was made with, is not on this node"
            next_step = (
                "Deploy the instance as the inventory now has it: playbooks/site.yml writes its secrets."
            )
            task.fail(Diagnosis("secrets_missing", what, next_step))


def _prepare(client: DockerClient, tasks: Sequence[ServerTask]) -> None:
    """Create the successors while the old ones serve: a refusal of the engine is known before a stop."""
    for task in tasks:
        if task.steps.tidy:
            remove_container(client, task.server.next_container)  # it was never started
        missing = _missing_device(task.server) if task.steps.start else ""
        if missing:
            task.fail(Diagnosis("no_device", f"{missing} does not exist on this node", NO_DEVICE))
        if task.failure or not task.steps.start:  # an instance that only stops must not depend on a disk
            continue
        try:
            stage(task.server, task.steps.write)
            if task.steps.replace:
                create_container(client, task.server.next_container, task.server.body)
        except DockerUnavailable as error:
            task.fail(_no_docker(error))
        except DockerError as error:
            kind, next_step = explain_refusal(str(error), task.server)
            task.fail(Diagnosis(kind, str(error), f"{next_step} {_untouched(task)}"))
        except OSError as error:
            task.fail(_not_written(task.server, error, _untouched(task)))


def _no_docker(error: NodeError) -> Diagnosis:
    return Diagnosis("docker", str(error), "Check the Docker engine, and run again.")


def _untouched(task: ServerTask) -> str:
    return "The running instance was not touched." if task.observed.alive else "Fix that and run again."


def _missing_device(server: ServerSpec) -> str:
    """Return the first device file that the container needs and the node does not have; "" if all are there."""
    devices = (server.body.get("HostConfig") or {}).get("Devices") or []
    paths = (str(device["PathOnHost"]) for device in devices)
    return next((path for path in paths if not os.path.exists(path)), "")


def _change(client: DockerClient, task: ServerTask) -> None:
    """Create the container of one server, write its files, and start it."""
    if task.failure or task.steps == ServerSteps():
        return
    server, steps = task.server, task.steps
    try:
        if steps.create:
            create_container(client, server.container, server.body)
        put_in_place(server, steps.write)
        if steps.replace:
            remove_container(client, server.container)
            rename_container(client, server.next_container, server.container)
        if steps.start:
            _before_start(server)
        if steps.policy:
            set_policy(client, server.container, steps.policy)
        if steps.start:
            client.start(server.container)
    except DockerUnavailable as error:
        task.fail(_no_docker(error))
    except DockerError as error:
        kind, next_step = explain_refusal(str(error), server)
        task.fail(Diagnosis(kind, str(error), f"{next_step} {_go_on(steps)}"))
    except StartFailure as error:
        task.fail(error.finding)
    except OSError as error:
        task.fail(_not_written(server, error, _go_on(steps)))


def _not_written(server: ServerSpec, error: OSError, then: str) -> Diagnosis:
    where = error.filename or server.directory  # a full disk has no file's name
    return Diagnosis("files", f"{where}: {error.strerror}", f"Check that disk. {then}")


def _go_on(steps: ServerSteps) -> str:
    if steps.replace:
        return "The old instance is stopped; fix that and run again, which continues from here."
    return "Fix that and run again."


def _before_start(server: ServerSpec) -> None:
    listens = server.endpoint.port and not server.headless
    holder = port_holder(server.endpoint.host, server.endpoint.port) if listens else None
    if holder:
        raise StartFailure(
            "port_in_use",
            f"port {server.endpoint.port} is taken by {holder}",
            "Stop that process, or give the deployment another port; then run again.",
        )
    for name in (LOG_FILE, READY_FILE, ATTENTION_FILE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(server.directory, name))
    supervisor.reset_state(cache_of(server))


# ---- waiting -----------------------------------------------------------------------------------------


def _wait_all(fleet: ConvergeContext, tasks: Sequence[ServerTask]) -> None:
    """Wait for every server in parallel; one that fails is stopped, and its log kept."""
    waiting = [task for task in tasks if not task.failure]
    if not waiting:
        return

    gone: list[ControllerGone] = []

    def wait(task: ServerTask) -> None:
        client = fleet.connect()
        seconds = min(task.server.ready_timeout, fleet.limit or task.server.ready_timeout)
        restarts = 0 if task.steps.start else task.observed.restarts
        try:
            ready = wait_ready(client, task.server, seconds, restarts, POLL_SECONDS)
            task.outcome = {"tokens": ready.tokens, "ready_seconds": ready.seconds}
            _note_ready(client, fleet, task)
        except ControllerGone as error:
            gone.append(error)  # what was started continues to start, and the next run waits for it
            return
        except StartFailure as error:
            task.fail(error.finding)
        except NodeError as error:
            task.fail(_no_docker(error))
        if task.failure:
            _give_up(client, fleet, task)

    with ThreadPoolExecutor(max_workers=len(waiting)) as pool:
        list(pool.map(wait, waiting))
    if gone:
        raise gone[0]


def _note_ready(client: DockerClient, fleet: ConvergeContext, task: ServerTask) -> None:
    """Record it for node_state, so that a run after a killed one knows whether tokens were seen."""
    container = client.container(task.server.container)
    if container is None:
        return
    path = os.path.join(task.server.directory, READY_FILE)
    try:
        write_atomic(path, f"{container['Id']}\n", 0o600)
    except OSError as error:
        task.warning = (
            f"{task.server.name} serves, but {path} cannot be written: {error.strerror}. "
            "Make room on that disk: until then each run asks this instance for tokens again."
        )
    with contextlib.suppress(NodeError, OSError):  # it serves, whatever its log proves
        _note_attention(client, fleet, task, str(container["Id"]))
        _note_memory(client, task.server, container)


def _note_attention(client: DockerClient, fleet: ConvergeContext, task: ServerTask, container: str) -> None:
    """Note which attention backend the log of the start proves, for the result and for instance_status.

    A proof stays valid once found: a log does not keep its beginning for ever.
    """
    server, expected = task.server, task.server.attention
    if expected is None:
        return
    path = os.path.join(server.directory, ATTENTION_FILE)
    proof = Proof.from_text(read_text(path) or "", container)
    if proof is None or not proof.running:
        proof = proof_of(expected, container, container_log(client, server.container))
    proof = replace(proof, planned=expected.planned, line=fleet.redact(proof.line))
    task.attention = proof
    task.outcome["attention_backend"] = ", ".join(proof.running) or None
    write_atomic(path, proof.to_text(), 0o600)


def _note_memory(client: DockerClient, server: ServerSpec, container: Json) -> None:
    """Note once what this start measured, under the plan that made it."""
    path, made = os.path.join(server.directory, START_FILE), container["Config"].get("Labels") or {}
    if (
        not server.memory
        or made.get(LABELS[2]) != server.spec_hash
        or container["Id"] in (read_text(path) or "")
    ):
        return
    text = start_text(container["Id"], server.memory, container_log(client, server.container))
    if text:
        write_atomic(path, text, 0o600)


def _give_up(client: DockerClient, fleet: ConvergeContext, task: ServerTask) -> None:
    """Keep the log of a server that failed, and stop it gracefully; its container stays, for a new try.

    One that this run did not start, and that still runs, is only reported: it may be serving clients.
    """
    server = task.server
    with contextlib.suppress(NodeError, OSError):
        text = container_log(client, server.container, 20000)
        path = os.path.join(server.directory, LOG_FILE)
        if os.path.isdir(server.directory):
            write_atomic(path, fleet.redact(text), 0o600)
            task.outcome["log_file"] = path
    with contextlib.suppress(NodeError):
        container = client.container(server.container)
        if container is None or (not task.steps.start and container["State"]["Status"] == "running"):
            return
        stop_gracefully(client, server.container, server.stop_timeout)


# ---- the outcome -------------------------------------------------------------------------------------


def _outcome(task: ServerTask, state: str, check: bool, waited: bool) -> Json:
    status = "stopped" if state == "stopped" else "ready" if waited else "started"
    found: Json = {
        "name": task.server.name,
        "changed": task.steps != ServerSteps(),
        "state": "failed"
        if task.failure
        else ("would be " + status if check and task.steps != ServerSteps() else status),
        **task.outcome,
    }
    if task.failure:
        found.update(
            {"class": task.failure.kind, "log_line": task.failure.line, "next_step": task.failure.next_step}
        )
    return found


def _message(failed: Sequence[ServerTask], remaining: Sequence[Removal], total: int, state: str) -> str:
    """Return all failures in one text; instances that failed for the same reason together."""
    reasons: dict[Diagnosis, list[str]] = {}
    logs: dict[Diagnosis, list[str]] = {}
    for task in failed:
        if task.failure:
            reasons.setdefault(task.failure, []).append(task.server.name)
            if "log_file" in task.outcome:
                logs.setdefault(task.failure, []).append(str(task.outcome["log_file"]))
    for removal in remaining:
        if removal.failure:
            reasons.setdefault(removal.failure, []).append(f"{removal.name} (to be removed)")
    parts = []
    for finding, names in reasons.items():
        where = f" Log: {', '.join(logs[finding])}." if finding in logs else ""
        parts.append(f"{', '.join(names)}: {finding.kind}: {finding.line} | {finding.next_step}{where}")
    others = total - len(failed)
    does = ("stopped", "stopped") if state == "stopped" else ("serve", "serves")
    rest = f" The other {others} {does[0]}." if others > 1 else f" The other one {does[1]}." if others else ""
    return (
        f"{len(failed) + len(remaining)} of {total + len(remaining)} instances failed.{rest} "
        + " || ".join(parts)
    )
