# SPDX-License-Identifier: Apache-2.0
"""A change of partition modes as a transaction: drain, wait, set, verify, restore; or all of it undone.

The journal is on disk before each step, so that a run after a crash knows where the one before it was. At
the end the node is in the new modes, verified, or in those it had, and what was stopped runs again. A node
that can be brought to neither keeps its journal, and the message says what to do by hand.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from . import partition_checks as checks
from .nodemodule import internal_error
from .partition_backends import backends, expected_steps
from .partition_gpus import (
    Gpu,
    PartitionError,
    Target,
    differing,
    listed,
    modes_text,
    named,
    predicted,
    present,
    select,
)
from .partition_holders import Holder, Service, busy_message, foreign, foreign_message, services
from .partition_journal import Journal
from .partition_modes import LOAD_SETTLE, LOOK_AGAIN, PAUSE_MAX, SETTLE, Driver, Modes
from .smi_set import DONE

GRACE = 2.0  # seconds after which a process that is in the way is looked at again: it may be a short one


@dataclass(frozen=True)
class Request:
    """What the module was asked for. Times are seconds.

    Without compute and memory, a change that was cut off is taken back. `servers`: containers of instances to
    stop. `clean`: reload the driver when VRAM is in use that no process holds.
    """

    compute: str | None = None
    memory: str | None = None
    gpus: tuple[str, ...] = ("all",)
    backend: str = "auto"
    timeout: float = 300.0
    retries: int = 5
    servers: tuple[Service, ...] = ()
    clean: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was done; `error` is None when every GPU is in its mode and that was verified."""

    changed: bool
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    backend: str | None
    actions: list[str]
    warnings: list[str]
    stopped: list[str]
    error: str | None = None


class Machine(Driver, Protocol):
    """The node that is changed."""

    def tools(self) -> tuple[dict[str, str | None], str | None]:
        """(paths of the management tools, ROCm's release)."""

    def euid(self) -> int:
        """Who we are."""

    def virtual(self) -> bool:
        """Whether the CPU reports a hypervisor."""

    def module_users(self) -> int:
        """Reference count of amdgpu: while it is not 0, the driver cannot be unloaded."""

    def alive(self, service: Service) -> bool:
        """Whether a service runs."""

    def monitors(self) -> list[Service]:
        """Known monitors that run as systemd units."""

    def stop(self, wanted: Sequence[Service]) -> list[str]:
        """Stop services gracefully, in parallel. Returns warnings."""

    def start(self, service: Service) -> None:
        """Start a service. Raises PartitionError."""

    def refresh_cdi(self) -> tuple[list[str], list[str]]:
        """Write the Container Device Interface specs anew that there are: (commands run, warnings)."""

    def load_journal(self) -> Journal | None:
        """The journal of a change that was cut off."""

    def save_journal(self, journal: Journal) -> None:
        """Put the journal on disk."""

    def drop_journal(self) -> None:
        """Remove the journal."""


@dataclass
class Plan:
    """What there is to do. `target` is all GPUs' modes; `journal` is of a change that was cut off."""

    gpus: tuple[Gpu, ...]
    target: Target
    backends: tuple[str, ...]
    tools: dict[str, str | None]
    release: str | None
    warnings: tuple[str, ...]
    holders: list[Holder]
    journal: Journal | None
    stranded: tuple[Gpu, ...]

    @property
    def needed(self) -> bool:
        """Whether anything has to be done."""
        return bool(self.journal or self.stranded or not self.target.reached(self.gpus))

    @property
    def reloads(self) -> bool:
        """Whether the driver is to be loaded again."""
        return bool(self.stranded) or self.target.memory_differs(self.gpus)


def make_plan(node: Machine, request: Request) -> Plan:
    """Step 1: look at the node and refuse what cannot work. Raises PartitionError; nothing was touched."""
    journal = node.load_journal()
    gpus = node.gpus()
    if not gpus and journal and not node.loaded("amdgpu") and node.euid() == 0:
        # A change was cut off between unloading and loading: its own last step is made up for.
        Modes(node, (), {}, 0, node.now() + LOAD_SETTLE).ensure_loaded()
        gpus = node.gpus()
    if not gpus:
        hint = "shows no GPU" if node.loaded("amdgpu") else "is not loaded (modprobe amdgpu)"
        raise PartitionError(f"No AMD GPU on this node: the amdgpu driver {hint}.")
    chosen = select(gpus, request.gpus)
    target = _target(gpus, request, chosen, journal)
    tools, release = node.tools()
    ways, warnings = backends(request.backend, tools)
    found: list[Holder] = []
    stranded: tuple[Gpu, ...] = ()
    if request.clean or not target.reached(gpus) or journal:
        found = node.holders()
        if request.clean and not found:
            stranded = checks.stranded(gpus)
    plan = Plan(gpus, target, ways, tools, release, warnings, found, journal, stranded)
    if not target.reached(gpus) or stranded:
        checks.refuse(gpus, target, chosen, euid=node.euid(), virtual=node.virtual())
        if foreign(found):
            node.sleep(GRACE)
            plan.holders = node.holders()
            if foreign(plan.holders):
                raise PartitionError(foreign_message(foreign(plan.holders)))
    return plan


def _target(gpus: Sequence[Gpu], request: Request, chosen: Sequence[int], journal: Journal | None) -> Target:
    now = present(gpus)
    if request.compute is None and request.memory is None:
        return _earlier(gpus, journal) if journal else now
    compute = dict(now.compute)
    if request.compute is not None:
        compute.update(dict.fromkeys(chosen, request.compute))
    return Target(request.memory, compute)


def _earlier(gpus: Sequence[Gpu], journal: Journal) -> Target:
    """What the GPUs were in before a change that was cut off."""
    compute = {
        gpu.index: journal.before_compute[gpu.bdf] for gpu in gpus if gpu.bdf in journal.before_compute
    }
    return Target(journal.before_memory, compute)


def predict(node: Machine, plan: Plan, request: Request) -> Outcome:
    """What `Transaction.run` would do, for check mode."""
    actions: list[str] = []
    changing = not plan.target.reached(plan.gpus)
    error = None
    if plan.needed:
        stops = _stops(node, plan, request) if changing or plan.stranded else ()
        actions += [f"stop {item.text}" for item in stops]
        if plan.stranded and not plan.target.memory_differs(plan.gpus):
            actions += ["modprobe -r amdgpu", "modprobe amdgpu"]
        way = plan.backends[0]
        actions += expected_steps(way, plan.tools.get(way), plan.release, plan.gpus, plan.target)
        earlier = plan.journal.stopped if plan.journal else ()
        restored = [item for item in dict.fromkeys((*earlier, *stops)) if item.kind != "instance"]
        actions += [f"start {item.text}" for item in reversed(restored)]
    else:
        error = checks.verify(plan.gpus, plan.target, node.loaded("ast"))
    return Outcome(
        changed=plan.needed,
        before=listed(plan.gpus),
        after=listed(predicted(plan.gpus, plan.target)),
        backend=plan.backends[0] if changing else None,
        actions=actions,
        warnings=list(plan.warnings) if changing else [],
        stopped=[],
        error=error,
    )


def _stops(node: Machine, plan: Plan, request: Request) -> tuple[Service, ...]:
    """What has to be stopped: the instances that were named and run, and the holders that may be stopped."""
    named = [item for item in request.servers if node.alive(item)]
    return tuple(dict.fromkeys((*named, *services(plan.holders))))


class Transaction:
    """One change in progress."""

    def __init__(self, node: Machine, plan: Plan, request: Request) -> None:
        self.node, self.plan, self.request = node, plan, request
        self.modes = Modes(node, plan.gpus, plan.tools, request.retries, node.now() + request.timeout)
        self.modes.warnings += plan.warnings if not plan.target.reached(plan.gpus) else ()
        self.earlier = _earlier(plan.gpus, plan.journal) if plan.journal else present(plan.gpus)
        by_bdf = {gpu.index: gpu.bdf for gpu in plan.gpus}
        self.journal = Journal(
            step="drain",
            started=plan.journal.started
            if plan.journal
            else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            before_memory=self.earlier.memory,
            before_compute={by_bdf[index]: mode for index, mode in self.earlier.compute.items()},
            wanted_memory=plan.target.memory,
            wanted_compute={by_bdf[index]: mode for index, mode in plan.target.compute.items()},
            stopped=plan.journal.stopped if plan.journal else (),
        )

    def run(self) -> Outcome:
        """Steps 2 to 7. The outcome's error says what went wrong; PartitionError when nothing was touched."""
        if not self.plan.needed:
            return predict(self.node, self.plan, self.request)
        target = self.plan.target
        changing = not target.reached(self.plan.gpus) or bool(self.plan.stranded)
        error: str | None = None
        self.enter("drain" if changing else "verify")
        try:
            if changing:
                self.drain()
                self.wait()
                self.enter("set")
                if self.plan.stranded and not target.memory_differs(self.plan.gpus):
                    self.reload()
                self.modes.reach(target, self.plan.backends)
                self.enter("verify")
            error = self.verify()
        except PartitionError as failure:
            error = str(failure) if str(failure).endswith(".") else f"{failure}."
        except Exception as failure:  # a bug must not leave GPUs in between either
            error = internal_error(failure)
        stopped = [item.name for item in self.journal.stopped]
        if error is None:
            self.enter("restore")
            # Where a change is to come, the instances start by its plan.
            self.restore(instances=self.request.compute is None and self.request.memory is None)
        else:
            error = f"{error} {self.undo()}"
        return self.outcome(error, stopped)

    def outcome(self, error: str | None, stopped: list[str]) -> Outcome:
        """The result, with the GPUs as they are now."""
        gpus = self.node.gpus()
        return Outcome(
            changed=error is None or listed(gpus) != listed(self.plan.gpus) or bool(stopped),
            before=listed(self.plan.gpus),
            after=listed(gpus),
            backend=self.modes.backend,
            actions=self.modes.actions,
            warnings=self.modes.warnings,
            stopped=stopped,
            error=error,
        )

    def enter(self, step: str) -> None:
        """Put on disk which step begins."""
        self.journal = replace(self.journal, step=step)
        self.node.save_journal(self.journal)

    # ---- steps 2 and 3 ---------------------------------------------------------------------------------

    def drain(self) -> None:
        """Stop what may be stopped. Its names are on disk before."""
        # Issue 5: take the node out of the load balancer here, and wait for the requests in flight.
        self.stop(_stops(self.node, self.plan, self.request))

    def stop(self, wanted: Sequence[Service]) -> None:
        """Stop services, and remember them. A unit that goes with a stopped one is remembered as well."""
        if not wanted:
            return
        beside = self.node.monitors() if any(item.kind == "unit" for item in wanted) else []
        known = dict.fromkeys((*self.journal.stopped, *wanted, *beside))
        self.journal = replace(self.journal, stopped=tuple(known))
        self.node.save_journal(self.journal)
        self.modes.actions += [f"stop {item.text}" for item in wanted]
        self.modes.warnings += self.node.stop(wanted)

    def wait(self) -> None:
        """Until nobody holds the GPUs. Raises PartitionError with the names of those who still do."""
        self.enter("wait")
        attempts, pause, tried = 0, 0.5, False
        while True:
            attempts += 1
            found = self.node.holders()
            users = self.node.module_users() if self.plan.reloads and not found else 0
            if not found and not users:
                return
            again = services([holder for holder in found if not holder.zombie])
            if again and not tried:  # something started it again meanwhile
                tried = True
                self.stop(again)
                continue
            if attempts > self.request.retries or self.node.now() + pause >= self.modes.end:
                strangers = [holder for holder in foreign(found) if not holder.zombie]
                if strangers:
                    raise PartitionError(foreign_message(strangers))
                if users:
                    raise PartitionError(
                        f"amdgpu cannot be unloaded: {users} users, and no process that has a device open. See "
                        "lsmod | grep amdgpu, and fuser -v /dev/dri/*; a reboot frees it."
                    )
                raise PartitionError(busy_message("they do not end", found, attempts))
            self.node.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX)

    # ---- steps 4 and 5 ---------------------------------------------------------------------------------

    def reload(self) -> None:
        """Reload the driver to free VRAM that no process holds."""
        judgement = self.modes.reload()
        if judgement.verdict != DONE:
            raise PartitionError(f"{judgement.message}.")
        self.modes.settled()

    def verify(self) -> str | None:
        """Read back through sysfs, KFD and /dev/dri, allowing for the time that they need."""
        end = self.node.now() + SETTLE
        while True:
            gpus = self.modes.look()
            wrong = checks.verify(gpus, self.plan.target, self.node.loaded("ast"))
            left = checks.stranded(gpus) if self.plan.stranded else ()
            if wrong is None and left:
                wrong = (
                    f"VRAM is still in use on {len(left)} GPUs after a reload of the driver: reboot the node."
                )
            if wrong is None or self.node.now() >= end:
                return wrong
            self.node.sleep(LOOK_AGAIN)

    # ---- steps 6 and 7 ---------------------------------------------------------------------------------

    def restore(self, *, instances: bool) -> str:
        """Start what was stopped, and drop the journal. Instances start by the new plan, or here again."""
        commands, warnings = self.node.refresh_cdi()
        self.modes.actions += commands
        self.modes.warnings += warnings
        started = []
        for item in reversed(self.journal.stopped):
            if (item.kind == "instance" and not instances) or self.node.alive(item):
                continue
            self.modes.actions.append(f"start {item.text}")
            try:
                self.node.start(item)
                started.append(item.name)
            except PartitionError as error:
                self.modes.warnings.append(f"{item.text} was stopped for this and does not start: {error}")
        self.node.drop_journal()
        return f"Started again: {', '.join(started)}." if started else ""

    def undo(self) -> str:
        """Back to the earlier modes and services. Returns the sentences for the message."""
        try:
            self.enter("undo")
            self.modes.end = self.node.now() + self.request.timeout
            self.modes.ensure_loaded()
            gpus = self.modes.settled()
            changed = differing(gpus, self.earlier.compute)
            all_of_them = self.earlier.memory_differs(gpus)
            backend = self.modes.backend
            self.modes.reach(self.earlier, ("sysfs",))
            self.modes.backend = backend
        except Exception as failure:
            reason = str(failure) if isinstance(failure, PartitionError) else internal_error(failure)
            return self.stuck(reason)
        told = ["No GPU was changed."]
        if all_of_them:
            text = modes_text(self.plan.gpus, self.earlier.memory, self.earlier.compute)
            told = [f"Set back to the earlier modes: {text}."]
        elif changed:
            told = [f"Set back to the earlier mode: {named(changed)}."]
        if self.modes.requested and self.modes.requested != self.earlier.memory:
            told.append(
                f"The driver keeps the request for {self.modes.requested} and carries it out when it is next "
                "unloaded."
            )
        told.append(self.restore(instances=True))
        return " ".join(text for text in told if text)

    def stuck(self, reason: str) -> str:
        """Neither there nor back: what an operator has to know."""
        gpus = self.node.gpus()
        wrong = [
            f"{gpu.name} is {gpu.mode or 'unreadable'}, was {self.earlier.compute[gpu.index]}"
            for gpu in differing(gpus, self.earlier.compute)
        ]
        if self.earlier.memory_differs(gpus):
            wrong.append(f"the memory mode was {self.earlier.memory}")
        stopped = ", ".join(item.text for item in self.journal.stopped)
        return (
            f"Could not set back: {reason.rstrip('.')}. "
            + (f"{'; '.join(wrong)}. " if wrong else "")
            + (f"Still stopped: {stopped}. " if stopped else "")
            + "Run again when that is mended: it goes on from here."
        )
