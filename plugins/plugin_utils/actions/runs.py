# SPDX-License-Identifier: Apache-2.0
"""Runs of ansible-playbook: the identity of this one, whether another one is over, and the lease of a run on a host.

A run is known by its controller process. Only the machine of that process can tell that it has ended; for others, its
lease ends by itself.
"""

from __future__ import annotations

import getpass
import multiprocessing
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath

from ansible import context
from ansible.errors import AnsibleError

from ...module_utils.common.errors import Problem
from ..base.text import join_names

RUNBOOK = "docs/runbooks/two-operators.md"
HOLD = 120
"""Seconds that a lease lasts after a call, as in module_utils/leases/lease.py."""
_LONGEST = 100


@dataclass(frozen=True)
class Run:
    """A run: who started it where, its command, and when."""

    id: str
    who: str
    command: str
    started: str


@dataclass(frozen=True)
class Lease:
    """The lease that node_state saw on a host; left: seconds that it still lasted; tag: that of the last change."""

    run: str
    who: str
    command: str
    started: str
    tag: str = ""
    at_work: bool = False
    left: float = 0.0

    @classmethod
    def from_json(cls, data: object) -> Lease | None:
        """Return the lease in a node's answer; None if there is none, or it is malformed."""
        if not isinstance(data, Mapping) or not data.get("run"):
            return None
        try:
            words = {key: _word(data.get(key)) for key in ("run", "who", "command", "started", "tag")}
            return cls(**words, at_work=bool(data.get("at_work")), left=float(data.get("left") or 0))
        except (TypeError, ValueError):
            return None

    @property
    def live(self) -> bool:
        """Return whether its run is still active, as far as the host knows."""
        return self.at_work or self.left > 0

    @property
    def text(self) -> str:
        """Return whose run it is."""
        return f"{self.who} runs {self.command} (since {self.started})"


def _word(value: object) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in str(value or ""))[:_LONGEST]


@cache
def _run(pid: int) -> Run:
    user = os.environ.get("SUDO_USER") or getpass.getuser()
    names = [PurePath(str(name)).name for name in context.CLIARGS.get("args") or ()]
    place, ticks = _place(), _ticks(pid)
    if place[1] and not ticks:
        # When killed, it leaves the task that was about to begin, whose lease would never be known to end.
        raise AnsibleError(
            f"/proc/{pid}/stat of this task's ansible-playbook cannot be read, so no other run could tell when this "
            "one ends. Nothing was changed. Run it as a user who can read the file."
            if ticks is None
            else "The ansible-playbook of this task has ended, so the task changed nothing. Run the playbook again."
        )
    ticks = ticks or ""
    parts = (*place, str(pid), ticks)
    return Run("/".join(parts), f"{user}@{socket.gethostname()}", " ".join(names) or "ansible", _begun(ticks))


def this_run() -> Run:
    """Return the run that this process belongs to: tasks run in children of the controller.

    Raise AnsibleError if the controller is gone.
    """
    parent = multiprocessing.parent_process()
    return _run(parent.pid if parent and parent.pid else os.getpid())


def is_over(run: str) -> bool:
    """Return whether a run is known to have ended: it ran on this machine, and its process is gone.

    Another user's process that /proc hides (hidepid) may still run.
    """
    *place, pid, ticks = ("//" + run).split("/")[-4:]
    here = _place()
    if not here[1] or tuple(place) != here or not (pid.isascii() and pid.isdigit()):
        return False
    return _ticks(int(pid)) not in (ticks, None)


def is_active(lease: Lease | None) -> bool:
    """Return whether the run of a lease may still change hosts."""
    return lease is not None and lease.live and not is_over(lease.run)


def other_runs(leases: Mapping[str, Lease | None]) -> dict[Lease, list[str]]:
    """Return the leases of other runs that are still active: the longest one of each run, with its hosts."""
    found: dict[str, list[tuple[float, str, Lease]]] = {}
    for host, lease in leases.items():
        if lease and is_active(lease) and lease.run != this_run().id:
            found.setdefault(lease.run, []).append((lease.left, host, lease))
    return {max(items)[2]: [host for _unused, host, _lease in items] for items in found.values()}


def ends_text(lease: Lease) -> str:
    """Return when a lease ends."""
    if lease.at_work:
        return f"It is in progress; its lease ends {HOLD} s after its last step"
    return f"If it makes no further step, its lease ends in {lease.left:.0f} s"


def refused_call(host: str, stale: bool, found: object) -> str:
    """Return why a host refused a call: another run has a lease on it, or has changed it since the plan."""
    lease = Lease.from_json(found)
    who = lease.text if lease else "another run changes it"
    if not stale:
        return (
            f"{host} was not changed: {who}. Wait until that run has ended, then run the same command again. If it is "
            f"known to be dead, take over with -e take_over=true ({RUNBOOK})."
        )
    return (
        f"{host} was not changed: it changed after this run looked at it, through another run: {who}. Run the same "
        f"command again; it plans from the present state ({RUNBOOK})."
    )


def refused_plan(found: Mapping[Lease, Sequence[str]]) -> tuple[Problem, ...]:
    """Return why nothing may be changed while other runs are active."""
    fix = (
        "Wait until that run has ended, and run the same command again. If it is known to be dead, take over with "
        f"-e take_over=true ({RUNBOOK})."
    )
    return tuple(
        Problem((), f"{lease.text}. {ends_text(lease)}.", fix, tuple(hosts)) for lease, hosts in found.items()
    )


def run_warnings(found: Mapping[Lease, Sequence[str]]) -> tuple[str, ...]:
    """Return a warning about each other run, in a run that changes nothing or takes over."""
    return tuple(
        f"on {join_names(hosts)}, {lease.text}: their state may change at any moment. {ends_text(lease)}"
        for lease, hosts in found.items()
    )


def _place() -> tuple[str, str]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return boot, os.readlink("/proc/self/ns/pid")[5:-1]
    except OSError:  # not Linux: nothing shows that a run is over
        return socket.gethostname(), ""


def _ticks(pid: int) -> str | None:
    """Return when a process started, in ticks since the boot; "" if it has ended, None if that cannot be read."""
    try:
        # The program's name is in parentheses and may contain any character.
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if _exists(pid) else ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in ("Z", "X") else fields[18]


def _exists(pid: int) -> bool:
    """Return whether such a process may exist. No mount option of /proc hides one from kill()."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _begun(ticks: str) -> str:
    passed = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK") if ticks else 0
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - passed))
