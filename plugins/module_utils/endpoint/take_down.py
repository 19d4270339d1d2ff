# SPDX-License-Identifier: Apache-2.0
"""Take a load balancer down on its host: running requests finish, and nothing that the toolkit made of it stays.

Packages stay, and so do a HAProxy and a keepalived that the host runs for other purposes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..common.files import write_atomic
from ..common.module_main import NodeError
from ..common.paths import DATA_DIR, ROUTER_DIR
from ..common.processes import Program, run_program
from ..disk.beneath import remove_tree
from ..leases.run_lock import run_lock
from .converge import AGENT_SERVICE, ROUTER_SERVICE, SERVICE, BalancerPaths, running
from .keepalived import PID_FILE
from .keepalived import SERVICE as ADDRESS_SERVICE

SERVICES = (ADDRESS_SERVICE, SERVICE, ROUTER_SERVICE, AGENT_SERVICE)
"""In the order in which they stop: another load balancer takes the virtual address first."""
ROUTER_FILES = (
    ROUTER_DIR,
    f"{DATA_DIR}/router-wheels",
    f"{DATA_DIR}/router-requirements.txt",
    f"{DATA_DIR}/router-pip.conf",
)
TRANSIENT_UNITS = "/run/systemd/system"
SYSTEMD_SECONDS = 60.0
"""Time for systemd itself, beyond what requests have to finish."""
# HAProxy's master and workers stop listening, finish their requests, and end.
SOFT_STOP = "[Service]\nKillSignal=SIGUSR1\nTimeoutStopSec={seconds}\n"

Run = Callable[[Sequence[str], float], "tuple[int, str]"]


def run(command: Sequence[str], seconds: float) -> tuple[int, str]:
    """Run a program; return its exit code and its output. One that does not end in time is killed, with code 124."""
    done = run_program(Program(command, merged=True), seconds)
    return (124, f"It did not end within {seconds:.0f} s.") if done.code is None else (done.code, done.out)


@dataclass(frozen=True)
class TakenDown:
    """Where the parts of a load balancer are; tests use other paths."""

    paths: BalancerPaths = field(default_factory=BalancerPaths)
    others: tuple[str, ...] = ROUTER_FILES
    transient: str = TRANSIENT_UNITS
    address_pid: str = PID_FILE

    def unit(self, service: str) -> str:
        """Return the path of a service's unit file."""
        return os.path.join(self.paths.units, service)

    @property
    def units(self) -> list[str]:
        """Return the services that have a unit file, in the order in which they stop."""
        return [service for service in SERVICES if os.path.lexists(self.unit(service))]

    @property
    def trees(self) -> list[str]:
        """Return what is removed once nothing runs; what says that there is a load balancer goes last."""
        found = (*self.others, self.paths.state, self.paths.directory)
        return [path for path in found if os.path.lexists(path)]

    @property
    def alive(self) -> list[str]:
        """Return the services of which a process runs."""
        files = {
            SERVICE: (self.paths.in_state("haproxy.pid"), "haproxy"),
            AGENT_SERVICE: (self.paths.in_state("agent.pid"), "agent.py"),
            ROUTER_SERVICE: (self.paths.in_state("router.pid"), "router.py"),
            ADDRESS_SERVICE: (self.address_pid, "keepalived"),
        }
        return [service for service in SERVICES if running(*files[service])]


def take_down(wait: int, check: bool, there: TakenDown = TakenDown(), run: Run = run) -> dict[str, Any]:
    """Stop and remove the load balancer; do nothing where there is none. Raise NodeError if any of it stays.

    wait: seconds that requests have to finish.
    """
    with contextlib.nullcontext() if check else run_lock("balancer", 300):
        units, trees = there.units, there.trees
        actions = [f"stop and remove {service}" for service in units] + [f"remove {path}" for path in trees]
        left = [f"{item}\n" for item in (*map(there.unit, units), *trees)]
        result: dict[str, Any] = {
            "changed": bool(actions),
            "actions": actions,
            "diff": {"before": "".join(left), "after": ""},
            "warnings": [],
        }
        if actions and not check:
            _remove(wait, there, run, result)
        return result


def _remove(wait: int, there: TakenDown, run: Run, result: dict[str, Any]) -> None:
    def systemctl(*words: str, seconds: float = SYSTEMD_SECONDS) -> None:
        code, said = run(["systemctl", *words], seconds)
        if code:
            last = (said.strip().splitlines() or [f"exit code {code}"])[-1]
            raise NodeError(f"systemctl {' '.join(words)} failed: {last} Run again.", **result)

    for service in there.units:
        systemctl("disable", service)
        if service == SERVICE:
            begun = time.monotonic()
            with _soft_stop(there, wait, systemctl):
                systemctl("stop", service, seconds=wait + SYSTEMD_SECONDS)
            if time.monotonic() - begun >= wait:
                result["warnings"].append(f"HAProxy still had requests after {wait} s; they were ended")
        else:
            systemctl("stop", service)
        os.unlink(there.unit(service))
    systemctl("daemon-reload")
    alive = there.alive
    if alive:
        raise NodeError(
            f"Still running after it was stopped: {', '.join(alive)}. End it (ps on this host shows what "
            "started it), and run again.",
            **result,
        )
    for path in there.trees:
        _remove_path(path)
    if there.units or there.trees:
        raise NodeError(f"Still there: {', '.join((*there.units, *there.trees))}. Run again.", **result)


@contextlib.contextmanager
def _soft_stop(there: TakenDown, wait: int, systemctl: Callable[..., None]) -> Iterator[None]:
    """Have systemd stop HAProxy by the signal on which requests finish, for as long as this lasts."""
    directory = os.path.join(there.transient, f"{SERVICE}.d")
    path = os.path.join(directory, "soft-stop.conf")
    os.makedirs(directory, exist_ok=True)
    write_atomic(path, SOFT_STOP.format(seconds=wait), 0o644)
    try:
        systemctl("daemon-reload")
        yield
    finally:
        os.unlink(path)
        with contextlib.suppress(OSError):  # somebody else's drop-in
            os.rmdir(directory)


def _remove_path(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        remove_tree(path)
    else:
        os.unlink(path)
