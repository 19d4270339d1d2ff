# SPDX-License-Identifier: Apache-2.0
"""Work under the lease that an earlier call of the run took with lease.py, or that nobody has."""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any, Callable

from ..common.files import make_private
from ..common.module_main import NodeError
from . import lease_file
from .lease_file import OTHER_RUN, at_work, lock_of, now, seconds_left

_SECONDS = 120.0  # as in lease.py


def under_lease(given: Any, work: Callable[[], Any]) -> Any:
    """Return work(), during which this run counts as at work here. Raise NodeError if another one has the lease."""
    if not given:
        return work()
    make_private(os.path.dirname(lease_file.LEASE))
    file = os.open(lease_file.LEASE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # nobody else takes it between the check and the lock
        run, found = given["run"], json.loads(os.pread(file, 4096, 0) or "{}")
        other = found.get("run", "")  # "" in a new file
        if other not in ("", run, *given["void"]) and (at_work(file, other) or seconds_left(found, now())):
            raise NodeError("Another run.", **{"class": OTHER_RUN, "why": OTHER_RUN, "lease": found})
        if not other:
            mine = {key: given[key] for key in ("run", "who", "command", "started")}
            lease = {**mine, "tag": f"{run}:1", "before": [], "at": now(), "seconds": _SECONDS}
            os.pwrite(file, json.dumps(lease).encode(), 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock_of(fcntl.F_RDLCK, run))
        fcntl.flock(file, fcntl.LOCK_UN)
        return work()
    finally:
        os.close(file)
