# SPDX-License-Identifier: Apache-2.0
"""Work under the lease that an earlier call of the run took; lease.py, which takes it, is too much for some modules."""

from __future__ import annotations

import fcntl
import os
import time
from typing import Any, Callable

from .lease_file import LEASE, at_work, lock_of, read_lease, seconds_left
from .module_main import NodeError

OTHER_RUN = "other_run"


def under_lease(given: Any, work: Callable[[], Any]) -> Any:
    """Return work(), during which other runs see this one at work. Raise NodeError if another run has the lease."""
    if not given or not os.path.exists(LEASE):
        return work()
    file = os.open(LEASE, os.O_RDWR | os.O_CLOEXEC)
    try:
        found = read_lease(file)
        if found["run"] != given["run"] and (at_work(file, found["run"]) or seconds_left(found, now())):
            raise NodeError("Another run changes this node.", **{"class": OTHER_RUN, "lease": found})
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock_of(fcntl.F_RDLCK, given["run"]))
        return work()
    finally:
        os.close(file)


def now() -> float:
    """Return the seconds since the boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
