# SPDX-License-Identifier: Apache-2.0
"""One run of a module at a time on a node.

When a controller dies, the module that it started may live on: it holds no terminal, and OpenSSH's master
connection keeps its session. The next run must not work beside it. So every run that changes something takes
a lock, and one that notices that its controller is gone leaves.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
from collections.abc import Iterator

from .files import make_private
from .module_main import NodeError

LOCK_DIR = "/run/instinct-fleet"
_POLL_SECONDS = 0.5


class Busy(NodeError):
    """Another run holds the lock."""


class ControllerGone(NodeError):
    """Nobody will read this run's result. The next run goes on from here."""


@contextlib.contextmanager
def alone(name: str, seconds: float) -> Iterator[None]:
    """Hold the lock of module `name`; wait for another run at most `seconds`, then raise Busy."""
    make_private(LOCK_DIR)
    path = os.path.join(LOCK_DIR, f"{name}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while not _try(descriptor):
            if time.monotonic() >= deadline:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
                raise Busy(
                    f"Another run of {name} is at work on this node (pid {holder}) and did not end within "
                    f"{seconds:.0f} s. Wait for it; if it hangs, kill {holder} there, and run again."
                )
            time.sleep(_POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(
            descriptor
        )  # releases the lock; the file stays, as removing it would race with its next user


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def leave_if_abandoned() -> None:
    """Raise ControllerGone when nobody can read this process's output any more."""
    poll = select.poll()
    poll.register(1, 0)  # errors and hang-ups are reported without being asked for
    if any(event & (select.POLLERR | select.POLLHUP) for _descriptor, event in poll.poll(0)):
        raise ControllerGone("The control node has gone away. Run again: it goes on from here.")
