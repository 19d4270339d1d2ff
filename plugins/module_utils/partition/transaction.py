# SPDX-License-Identifier: Apache-2.0
"""A change of partition modes as a transaction: drain, wait, set, verify, restore; on failure, all of it is undone.

The journal is on disk before each step, so that a run after a crash knows where the previous one stopped. At the end
the node is in the new modes, verified, or in its earlier ones, and all stopped services run again. If the node can be
brought to neither, it keeps its journal, and the message says what to do by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..common.module_main import internal_error
from . import checks
from .gpus import PartitionError, differing, gpu_entries, gpu_names, modes_text, present
from .holders import GpuHolder, Service, busy_message, foreign_message, services, unmanaged_holders
from .journal import Journal
from .modes import LOOK_AGAIN, PAUSE_MAX, SETTLE, ModeChange
from .request import (
    NodeInterface,
    PartitionPlan,
    PartitionRequest,
    PartitionResult,
    earlier,
    predict,
    stops_of,
)
from .smi_set_output import DONE


def _stoppable(found: Sequence[GpuHolder]) -> tuple[Service, ...]:
    """Return the services to stop; a zombie's has been stopped already."""
    return services([holder for holder in found if not holder.zombie])


class Transaction:
    """One change in progress."""

    def __init__(self, node: NodeInterface, plan: PartitionPlan, request: PartitionRequest) -> None:
        self.node, self.plan, self.request = node, plan, request
        self.modes = ModeChange(node, plan.gpus, plan.tools, request.retries, node.now() + request.timeout)
        self.modes.make_way = lambda: self.stop(_stoppable(node.holders()))
        self.modes.warnings += plan.warnings if not plan.target.reached(plan.gpus) else ()
        self.earlier = earlier(plan.gpus, plan.journal) if plan.journal else present(plan.gpus)
        # Without a journal no mode is changed; but whatever happens to it, modes and services are put back.
        self.putting_back = bool(plan.journal) and request.compute is None and request.memory is None
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

    def run(self) -> PartitionResult:
        """Run steps 2 to 7. The outcome's error says what went wrong. Raise PartitionError if nothing was touched."""
        if not self.plan.needed:
            return predict(self.node, self.plan, self.request)
        target = self.plan.target
        changing = not target.reached(self.plan.gpus) or bool(self.plan.stranded)
        error: str | None = None
        self.journalled(self.node.reserve_journal)
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
        except Exception as failure:  # even a bug must not leave GPUs half changed
            error = internal_error(failure)
        stopped = [item.name for item in self.journal.stopped]
        self.putting_back = True
        if error is None:
            self.enter("restore")
            # If the modes change, a later task starts the instances by the new plan.
            self.restore(instances=self.request.compute is None and self.request.memory is None)
        else:
            error = f"{error} {self.undo()}"
        return self.outcome(error, stopped)

    def outcome(self, error: str | None, stopped: list[str]) -> PartitionResult:
        """Return the result, with the GPUs' present state."""
        gpus = self.node.gpus()
        return PartitionResult(
            changed=error is None or gpu_entries(gpus) != gpu_entries(self.plan.gpus) or bool(stopped),
            before=gpu_entries(self.plan.gpus),
            after=gpu_entries(gpus),
            backend=self.modes.backend,
            actions=self.modes.actions,
            warnings=self.modes.warnings,
            stopped=stopped,
            error=error,
        )

    def enter(self, step: str) -> None:
        """Write to disk which step begins."""
        self.note(step=step)

    def note(self, **changes: Any) -> None:
        """Write to disk what becomes of the change."""
        self.journal = replace(self.journal, **changes)
        self.journalled(lambda: self.node.save_journal(self.journal))

    def journalled(self, act: Callable[[], None]) -> None:
        """Do something to the journal. Raise PartitionError if that fails; while putting back, it is a warning."""
        try:
            act()
        except PartitionError as error:
            if not self.putting_back:
                raise PartitionError(
                    f"{error}: without it no mode is changed. Make room on that disk, and run again."
                ) from None
            text = f"{error}: this was completed without it."
            if text not in self.modes.warnings:
                self.modes.warnings.append(text)

    # ---- steps 2 and 3 ---------------------------------------------------------------------------------

    def drain(self) -> None:
        """Stop the services that may be stopped, after writing their names to disk."""
        # The playbook has already drained this host from the load balancer.
        self.stop(stops_of(self.node, self.plan, self.request))

    def stop(self, wanted: Sequence[Service]) -> None:
        """Stop services, and record them. A unit that stops along with another one is recorded as well."""
        if not wanted:
            return
        beside = self.node.monitors() if any(item.kind == "unit" for item in wanted) else []
        known = dict.fromkeys((*self.journal.stopped, *wanted, *beside))
        self.note(stopped=tuple(known))
        self.modes.actions += [f"stop {item.text}" for item in wanted]
        self.modes.warnings += self.node.stop(wanted)

    def wait(self) -> None:
        """Wait until no process holds the GPUs. Raise PartitionError with the names of those that still do."""
        self.enter("wait")
        attempts, pause, tried = 0, 0.5, False
        while True:
            attempts += 1
            found = self.node.holders()
            users = self.node.module_users() if self.plan.reloads and not found else 0
            if not found and not users:
                return
            again = _stoppable(found)
            if again and not tried:  # something started it again in the meantime
                tried = True
                self.stop(again)
                continue
            if attempts > self.request.retries or self.node.now() + pause >= self.modes.end:
                strangers = [holder for holder in unmanaged_holders(found) if not holder.zombie]
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
            raise PartitionError(judgement.message)
        self.modes.settled()

    def verify(self) -> str | None:
        """Read back through sysfs, KFD and /dev/dri, allowing for delays."""
        end = self.node.now() + SETTLE
        while True:
            gpus = self.modes.look()
            wrong = checks.verify(gpus, self.plan.target, self.node.loaded("ast"))
            left = checks.stranded_gpus(gpus) if self.plan.stranded else ()
            if wrong is None and left:
                wrong = (
                    f"VRAM is still in use on {len(left)} GPUs after a reload of the driver: reboot the node."
                )
            if wrong is None or self.node.now() >= end:
                return wrong
            self.node.sleep(LOOK_AGAIN)

    # ---- steps 6 and 7 ---------------------------------------------------------------------------------

    def restore(self, *, instances: bool) -> str:
        """Start the stopped services, and remove the journal. `instances`: start those here, too."""
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
        self.journalled(self.node.drop_journal)
        return f"Started again: {', '.join(started)}." if started else ""

    def undo(self) -> str:
        """Restore the earlier modes and services. Return the sentences for the message."""
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
        lines = ["No GPU was changed."]
        if all_of_them:
            text = modes_text(self.plan.gpus, self.earlier.memory, self.earlier.compute)
            lines = [f"Set back to the earlier modes: {text}."]
        elif changed:
            lines = [f"Set back to the earlier mode: {gpu_names(changed)}."]
        if self.modes.requested and self.modes.requested != self.earlier.memory:
            lines.append(
                f"The driver keeps the request for {self.modes.requested} and carries it out when it is next "
                "unloaded."
            )
        lines.append(self.restore(instances=True))
        return " ".join(text for text in lines if text)

    def stuck(self, reason: str) -> str:
        """Describe a node that could be neither changed nor restored."""
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
            + "Fix the cause and run again; the change continues from here."
        )
