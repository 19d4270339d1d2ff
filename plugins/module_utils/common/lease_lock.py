# SPDX-License-Identifier: Apache-2.0
"""Work under the lease that an earlier call of the run took with lease.py."""

from __future__ import annotations

import fcntl
import os
from typing import Any, Callable

from .lease_file import LEASE, OTHER_RUN, at_work, lock_of, now, read_lease, seconds_left
from .module_main import NodeError


def under_lease(given: Any, work: Callable[[], Any]) -> Any:
    """Return work(), while which this run is at work here. Raise NodeError if another one has the lease."""
    if not given or not os.path.exists(LEASE):
        return work()
    file = os.open(LEASE, os.O_RDWR | os.O_CLOEXEC)
    try:
        found, run = read_lease(file), given["run"]
        other = found["run"]
        if other not in (run, *given["void"]) and (at_work(file, other) or seconds_left(found, now())):
            raise NodeError("Another run.", **{"class": OTHER_RUN, "why": OTHER_RUN, "lease": found})
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock_of(fcntl.F_RDLCK, run))
        return work()
    finally:
        os.close(file)
