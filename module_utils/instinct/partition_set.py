# SPDX-License-Identifier: Apache-2.0
"""Bring a node's GPUs to a compute partition mode: read, run, read back, and set back what did not work out.

The decisions are in partition.py; this file does what they say, on the node it runs on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import observe, partition, smi
from .nodemodule import internal_error
from .partition import Command, Gpu, Holder, PartitionError, Step, Write

SETTLE = 10.0  # seconds for KFD's nodes and udev's device files to appear after a change
PAUSE_MAX = 16.0
RESTORE_TRIES = 5

_WRITE_ERRORS = {
    errno.EBUSY: (smi.BUSY, "the driver has users"),
    errno.EINVAL: (
        smi.REFUSED,
        "the driver does not accept this mode for this GPU and memory partition mode",
    ),
    errno.EPERM: (smi.REFUSED, "the GPU is being reset; wait for the end of the reset and run again"),
    errno.EACCES: (smi.REFUSED, "no permission to write"),
    errno.EIO: (smi.REFUSED, "KFD did not start in the new mode; see dmesg"),
}


@dataclass(frozen=True)
class Request:
    """What the module was asked for. Times are seconds."""

    compute: str
    gpus: tuple[str, ...] = ("all",)
    backend: str = "auto"
    timeout: float = 120.0
    retries: int = 5


@dataclass(frozen=True)
class Plan:
    """What there is to do on the node as it is now.

    `modes`: wanted mode by GPU index. `others`: present mode of the GPUs that are to stay as they are.
    """

    gpus: tuple[Gpu, ...]
    compute: str
    modes: Mapping[int, str]
    others: Mapping[int, str]
    backends: tuple[str, ...]
    tools: Mapping[str, str | None]
    warnings: tuple[str, ...]
    ast_loaded: bool

    @property
    def targets(self) -> tuple[Gpu, ...]:
        """GPUs that must change."""
        return partition.differing(self.gpus, self.modes)

    def steps(self, backend: str, gpus: Sequence[Gpu], targets: Sequence[Gpu]) -> tuple[Step, ...]:
        """What `backend` would run for `targets`."""
        return partition.steps(backend, self.tools.get(backend), gpus, targets, self.compute)


@dataclass(frozen=True)
class Outcome:
    """What was done; `error` is None when every GPU is in its mode and that was verified."""

    changed: bool
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    backend: str | None
    actions: list[str]
    warnings: list[str]
    error: str | None = None


class Node:
    """The machine: its files under `root`, its programs, its clock."""

    def __init__(self, root: str = "/", docker_socket: str = "/var/run/docker.sock") -> None:
        self.root = root
        self.docker_socket = docker_socket
        self.source = observe.Source(root)

    def path(self, path: str) -> str:
        """Where `path` really is."""
        return self.root.rstrip("/") + path

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs as the driver shows them now."""
        self.source.problems.clear()
        state = observe.read_gpus(self.source)
        ending = "/current_compute_partition"
        unread = {
            problem["what"][: -len(ending)]: problem["error"]
            for problem in self.source.problems
            if problem["what"].endswith(ending)
        }
        writable = {}
        for entry in state:
            try:
                status = os.stat(self.path(entry["sysfs_path"] + ending))
                writable[entry["sysfs_path"]] = bool(status.st_mode & 0o200)
            except OSError:
                writable[entry["sysfs_path"]] = False
        return partition.gpus_of(state, writable, frozenset(self.source.names("/dev/dri")), unread)

    def tools(self) -> Mapping[str, str | None]:
        """Paths of the management tools."""
        tools: Mapping[str, str | None] = observe.read_rocm(self.source)["tools"]
        return tools

    def virtual(self) -> bool:
        """Whether the CPU reports a hypervisor."""
        return "hypervisor" in (self.source.text("/proc/cpuinfo", 8192) or "").split()

    def loaded(self, module: str) -> bool:
        """Whether a kernel module is loaded."""
        return self.source.exists(f"/sys/module/{module}")

    def euid(self) -> int:
        """Who we are."""
        return os.geteuid()

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def holders(self) -> list[Holder]:
        """Processes that KFD knows, with what they are."""
        return [self.holder(pid) for pid in observe.kfd_processes(self.source)]

    def holder(self, pid: int) -> Holder:
        """One process. Words after the first flag of its command line are not shown: they may be secrets."""
        words = (self.source.text(f"/proc/{pid}/cmdline") or "").split("\0")
        shown: list[str] = []
        for word in words[:3]:
            if word.startswith("-") or "=" in word:
                break
            shown.append(word)
        command = " ".join(shown).strip() or self.source.text(f"/proc/{pid}/comm") or "(ended)"
        return Holder(pid, command, self.container(self.source.text(f"/proc/{pid}/cgroup") or ""))

    def container(self, cgroup: str) -> str | None:
        """The Docker name of the container whose id is in a cgroup path; the short id when Docker is down."""
        for word in cgroup.replace("docker-", "/").replace(".scope", "/").split("/"):
            if len(word) == 64 and all(letter in "0123456789abcdef" for letter in word):
                try:
                    answer = observe.Request(self.docker_socket, f"/containers/{word}/json", 5.0).answer()
                    return str(answer["Name"]).lstrip("/")
                except (OSError, ValueError, KeyError, TypeError):
                    return word[:12]
        return None

    def run(self, command: Command, timeout: float) -> tuple[str, str]:
        """(stdout, stderr) of a program. Raises PartitionError if it cannot start or does not end in time."""
        argv = [self.path(command.argv[0]), *command.argv[1:]]
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            raise PartitionError(f"{command.argv[0]} does not start: {error.strerror}") from None
        try:
            return process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(
                subprocess.TimeoutExpired
            ):  # waits in the kernel, ends when that lets it
                process.communicate(timeout=5)
            raise PartitionError(
                f"{command.argv[0]} did not end within {timeout:.0f} s and was killed"
            ) from None

    def write(self, step: Write) -> None:
        """Write a mode. Raises OSError with the driver's errno."""
        fd = os.open(self.path(step.path), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, step.value.encode())
        finally:
            os.close(fd)


def make_plan(node: Node, request: Request) -> Plan:
    """Look at the node and decide. Raises PartitionError when it cannot work, before anything is touched."""
    gpus = node.gpus()
    if not gpus:
        hint = "shows no GPU" if node.loaded("amdgpu") else "is not loaded (modprobe amdgpu)"
        raise PartitionError(f"No AMD GPU on this node: the amdgpu driver {hint}.")
    wanted = partition.select(gpus, request.gpus)
    tools = node.tools()
    backends, warnings = partition.backends(request.backend, tools)
    plan = Plan(
        gpus,
        request.compute,
        dict.fromkeys(wanted, request.compute),
        {gpu.index: gpu.mode for gpu in gpus if gpu.mode and gpu.index not in wanted},
        backends,
        tools,
        warnings,
        node.loaded("ast"),
    )
    if plan.targets:
        partition.refuse(gpus, plan.targets, request.compute, euid=node.euid(), virtual=node.virtual())
    return plan


def predict(plan: Plan) -> Outcome:
    """What `converge` would do, for check mode."""
    targets = plan.targets
    actions = [step.text for step in plan.steps(plan.backends[0], plan.gpus, targets)] if targets else []
    return Outcome(
        changed=bool(targets),
        before=partition.listed(plan.gpus),
        after=partition.predicted(plan.gpus, plan.modes),
        backend=plan.backends[0] if targets else None,
        actions=actions,
        warnings=list(plan.warnings) if targets else [],
        error=None if targets else partition.verify(plan.gpus, plan.modes, plan.ast_loaded),
    )


def converge(node: Node, plan: Plan, request: Request) -> Outcome:
    """Set the modes and verify them; on failure set every GPU back to the mode it had."""
    if not plan.targets:
        return predict(plan)
    work = _Work(node, plan, request)
    try:
        error = work.set_modes() or work.verify()
    except PartitionError as failure:
        error = str(failure)
    except Exception as failure:  # a bug must not leave GPUs in between either
        error = internal_error(failure)
    if error:
        error = f"{error} {work.restore()}"
    gpus = node.gpus()
    before = {gpu.index: gpu.mode for gpu in plan.gpus}
    return Outcome(
        changed=any(gpu.mode != before.get(gpu.index) for gpu in gpus),
        before=partition.listed(plan.gpus),
        after=partition.listed(gpus),
        backend=work.backend,
        actions=work.actions,
        warnings=work.warnings,
        error=error,
    )


class _Work:
    """One change in progress: what was run so far and until when it may go on."""

    def __init__(self, node: Node, plan: Plan, request: Request) -> None:
        self.node, self.plan, self.request = node, plan, request
        self.end = node.now() + request.timeout
        self.backend = plan.backends[0]
        self.actions: list[str] = []
        self.warnings = list(plan.warnings)

    def look(self) -> tuple[Gpu, ...]:
        """The GPUs now. Raises PartitionError when they are not the same ones: indices would mean others."""
        gpus = self.node.gpus()
        there = {gpu.bdf for gpu in gpus}
        gone = [gpu for gpu in self.plan.gpus if gpu.bdf not in there]
        if gone or len(gpus) != len(self.plan.gpus):
            raise PartitionError(
                f"The list of GPUs changed meanwhile: {partition.named(gone) or 'one'} is "
                f"{'gone' if gone else 'new'}. Look at dmesg | grep amdgpu before anything else."
            )
        return gpus

    def set_modes(self) -> str | None:
        """Try the backends in order until every GPU reads back its mode. Returns why none works."""
        for number, backend in enumerate(self.plan.backends):
            self.backend = backend
            following = self.plan.backends[number + 1 :]
            judgement = self.try_backend(last=not following)
            if judgement.verdict == smi.DONE:
                if judgement.message:
                    self.warnings.append(f"{self.backend} set the mode, but said: {judgement.message}")
                return None
            if judgement.verdict != smi.BROKEN:
                return judgement.message if judgement.message.endswith(".") else f"{judgement.message}."
            if following:
                self.warnings.append(
                    f"{self.backend} does not work: {judgement.message}. Using {following[0]}."
                )
        return f"{self.backend} did not set the mode: {judgement.message}."

    def try_backend(self, *, last: bool) -> partition.Judgement:
        """Run one backend, again with growing pauses while the driver is busy."""
        attempts, pause = 0, 1.0
        while True:
            attempts += 1
            judgement = self.attempt(last=last)
            if judgement.verdict != smi.BUSY:
                return judgement
            if attempts > self.request.retries or self.node.now() + pause >= self.end:
                holders = self.node.holders()
                return partition.Judgement(
                    smi.BUSY, partition.busy_message(judgement.message, holders, attempts)
                )
            self.node.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX)

    def attempt(self, *, last: bool) -> partition.Judgement:
        """Set the mode of the GPUs that still differ, and read them back."""
        gpus = self.look()
        targets = partition.differing(gpus, self.plan.modes)
        if not targets:
            return partition.Judgement(smi.DONE)
        places = (
            {gpu.index: gpu.index for gpu in gpus}
            if self.backend == "sysfs"
            else partition.tool_indices(gpus)
        )
        results = [self.step(step, last) for step in self.plan.steps(self.backend, gpus, targets)]
        gpus = self.look()
        strays = partition.differing(gpus, self.plan.others)
        if strays:
            message = f"{self.backend} changed {partition.named(strays)}, which it was not told to"
            return partition.Judgement(smi.REFUSED, message)
        left = partition.differing(gpus, self.plan.modes)
        judgement = partition.judge(results, places, left)
        noise = [result.failure[1] for result in results if result.failure]
        return partition.Judgement(smi.DONE, "; ".join(noise)) if not left else judgement

    def step(self, step: Step, last: bool) -> smi.SetResult:
        """Run or write one step. A tool gets half of the time left while there is another one to try."""
        self.actions.append(step.text)
        if isinstance(step, Write):
            try:
                self.node.write(step)
            except OSError as error:
                verdict, meaning = _WRITE_ERRORS.get(error.errno or 0, (smi.BROKEN, "unexpected"))
                return smi.SetResult({step.covers[0]: (verdict, f"{error.strerror}: {meaning}")})
            return smi.SetResult({step.covers[0]: (smi.DONE, "written")})
        left = max(self.end - self.node.now(), 1.0)
        try:
            stdout, stderr = self.node.run(step, left if last else left / 2)
        except PartitionError as error:
            return smi.SetResult({}, (smi.BROKEN, str(error)))
        judge = smi.rocm_smi_set if self.backend == "rocm-smi" else smi.amd_smi_set
        return judge(stdout, stderr, self.request.compute)

    def verify(self) -> str | None:
        """Read back through sysfs, KFD and /dev/dri, allowing for the time that they need."""
        end = self.node.now() + SETTLE
        while True:
            wrong = partition.verify(self.look(), self.plan.modes, self.plan.ast_loaded)
            if wrong is None or self.node.now() >= end:
                return wrong
            self.node.sleep(0.25)

    def restore(self) -> str:
        """Set every GPU back to the mode it had, through sysfs. Returns the sentence for the message."""
        before = {gpu.index: gpu.mode for gpu in self.plan.gpus if gpu.mode}
        try:
            changed = partition.differing(self.look(), before)
        except PartitionError:
            return "Nothing was set back."
        if not changed:
            return "No GPU was changed."
        wrong: Sequence[Gpu] = changed
        for number in range(RESTORE_TRIES):
            for gpu in wrong:
                for step in partition.steps("sysfs", None, (gpu,), (gpu,), before[gpu.index]):
                    self.step(step, True)
            wrong = partition.differing(self.node.gpus(), before)
            if not wrong:
                return f"Set back to the earlier mode: {partition.named(changed)}."
            self.node.sleep(float(2**number))
        stuck = ", ".join(
            f"{gpu.name} is {gpu.mode or 'unreadable'}, was {before[gpu.index]}" for gpu in wrong
        )
        return f"Could not set back: {stuck}. Set these by hand before starting anything on the node."
