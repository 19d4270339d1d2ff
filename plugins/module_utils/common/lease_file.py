# SPDX-License-Identifier: Apache-2.0
"""The file that says which run changes a node, and until when; lease.py has the rules, node_state reads it."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost as much as reading eight GPUs
    from typing import Any
LEASE = "/run/instinct-fleet/lease"


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


def seconds_left(lease: dict[str, Any], now: float) -> float:
    """Return how long it lasts; now: CLOCK_BOOTTIME, which nobody sets."""
    begun = lease.get("at", now + 1)
    return max(0.0, lease["seconds"] - now + begun) if begun <= now else 0.0  # else written before a reboot
