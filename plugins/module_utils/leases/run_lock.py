# SPDX-License-Identifier: Apache-2.0
"""A lock that lets one run of a module work on a node at a time.

When a controller dies, the module that it started may live on: it has no terminal, and OpenSSH's master connection
keeps its session. The next run must not work at the same time. So every run that changes something takes a lock.
abandoned.py: how a run notices that its controller is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from ..common.files import make_private
from ..common.module_main import NodeError

LOCK_DIR = "/run/instinct-fleet"
_POLL_SECONDS = 0.5


class Busy(NodeError):
    """Another run holds the lock."""


@contextlib.contextmanager
def run_lock(name: str, seconds: float) -> Iterator[None]:
    """Hold the lock of module `name`; wait for another run at most `seconds`, then raise Busy."""
    make_private(LOCK_DIR)
    path = os.path.join(LOCK_DIR, f"{name}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
                raise Busy(
                    f"Another run of {name} is in progress on this node (pid {holder}) and did not end within "
                    f"{seconds:.0f} s. Wait for it; if it hangs, kill {holder} there, and run again."
                )
            time.sleep(_POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(
            descriptor
        )  # releases the lock; the file stays, because removing it would race with the next run


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
