# SPDX-License-Identifier: Apache-2.0
"""The file that says which run changes a node, and until when; lease.py has the rules, node_state reads it."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import time
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any
RUN_DIR = "/run/instinct-fleet"
LEASE = RUN_DIR + "/lease"
OTHER_RUN = "other_run"


def lock_of(kind: int, run: str) -> bytes:
    """Return the kernel's struct flock of the byte in the file that is a run's own."""
    return struct.pack("hhlli", kind, 0, zlib.crc32(run.encode()), 1, 0)


def at_work(file: int, run: str) -> bool:
    """Return whether a call of the run is at work on this node: the kernel ends its lock with its process."""
    found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, lock_of(fcntl.F_WRLCK, run))
    return bool(struct.unpack("hhlli", found)[0] != fcntl.F_UNLCK)


def read_lease(file: int) -> dict[str, Any]:
    """Return the lease, or {}."""
    fcntl.flock(file, fcntl.LOCK_SH)
    try:
        return dict(json.loads(os.pread(file, 4096, 0) or "{}"))
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def now() -> float:
    """Return the seconds since the boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def seconds_left(lease: dict[str, Any], at: float) -> float:
    """Return how long it lasts from `at` on."""
    begun = lease.get("at", at + 1)
    return max(0.0, lease["seconds"] - at + begun) if begun <= at else 0.0  # else written before a reboot
