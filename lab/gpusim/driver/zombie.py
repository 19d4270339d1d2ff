# SPDX-License-Identifier: Apache-2.0
"""A real zombie process for the fault of that name: it has ended, and its parent does not wait for it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ..machine.state import StateError

# The parent prints the child's pid once that has ended, and then waits for a signal.
_KEEPER = """
import os, signal, sys
pid = os.posix_spawn(sys.argv[1], [sys.argv[1]], {})
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(pid, flush=True)
signal.pause()
"""


def make(name: str) -> tuple[int, int]:
    """Return (pid of the zombie, pid of its parent). The kernel names a process after its executable file."""
    if not name or "/" in name or len(name) > 15:
        raise StateError(f"fault zombie: a name of 1 to 15 characters without / is needed, not {name!r}")
    program = shutil.which("true") or "/bin/true"
    with tempfile.TemporaryDirectory() as scratch:
        link = Path(scratch, name)
        link.symlink_to(program)
        keeper = subprocess.Popen(
            [sys.executable, "-S", "-c", _KEEPER, str(link)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, text=True,
        )  # fmt: skip
        assert keeper.stdout is not None
        pid = keeper.stdout.readline()
    if not pid:
        raise StateError("fault zombie: no process could be started")
    keeper.stdout.close()
    keeper.returncode = 0  # it outlives this process
    return int(pid), keeper.pid


def end(keeper: int) -> None:
    """End a zombie's parent, so that the zombie is reaped; do nothing if it is gone or another process."""
    with contextlib.suppress(OSError):
        if b"signal.pause" in Path(f"/proc/{keeper}/cmdline").read_bytes():
            os.kill(keeper, signal.SIGTERM)
