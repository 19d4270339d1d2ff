# SPDX-License-Identifier: Apache-2.0
"""A program that the supervisor runs: pass its output through, detect its end, end its orphans."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import queue
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LINES = 2000
"""Number of output lines kept in memory."""
LINE_BYTES = 4096
"""Bytes kept of one line."""
SERVING = b"Application startup complete"
"""uvicorn's message that vLLM's server answers requests."""
PATIENCE_SECONDS = 1.0
"""How long output waits for a reader. Docker does not read while its daemon is down, and vLLM must not wait for it."""
SLICE_SECONDS = 1.0
"""The longest time for which the handler of a signal that another thread received is delayed."""
_SET_CHILD_SUBREAPER = 36  # prctl(2), linux/prctl.h


@dataclass(frozen=True)
class Event:
    """Something that happened: signal (its number), child, serving, or an event of the rank group (group.py)."""

    kind: str
    value: Any = None


class Events:
    """The queue on which the supervisor waits. SimpleQueue is safe in signal handlers."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, kind: str, value: Any = None) -> None:
        """Add an event."""
        self._queue.put(Event(kind, value))

    def get(self, seconds: float | None = None) -> Event | None:
        """Return the next event, or None after the timeout in seconds.

        Wait in short slices: the kernel may deliver a signal to another thread, and Python runs its handler only when
        the main thread, which waits here, continues.
        """
        end = None if seconds is None else time.monotonic() + max(0.0, seconds)
        while True:
            left = SLICE_SECONDS if end is None else min(SLICE_SECONDS, max(0.0, end - time.monotonic()))
            try:
                return self._queue.get(timeout=left)
            except queue.Empty:
                if end is not None and time.monotonic() >= end:
                    return None

    def take_signals(self) -> None:
        """Turn signals into events from now on."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, lambda got, _frame: self.put("signal", got))
        signal.signal(signal.SIGCHLD, lambda _got, _frame: self.put("child"))


class LogTee:
    """Standard output: the program's output, byte for byte, and the supervisor's own lines. Keep the last lines.

    Nobody waits for its reader: while Docker's daemon is down, what does not fit into the pipe is lost, and counted.
    """

    def __init__(self, redact: Callable[[str], str], descriptor: int = 1) -> None:
        self._redact = redact
        self._descriptor = descriptor
        self._patience = PATIENCE_SECONDS
        self._dropped = 0
        self._lock = threading.Lock()
        self._fresh = True  # at the start of a line
        self._part = b""
        self._last: collections.deque[bytes] = collections.deque(maxlen=LINES)

    def write(self, data: bytes) -> None:
        """Pass on output of the program."""
        with self._lock:
            self._out(data)
            self._fresh = data.endswith(b"\n")
            *lines, part = (self._part + data).split(b"\n")
            self._last.extend(line[:LINE_BYTES] for line in lines)
            self._part = part[-LINE_BYTES:]

    def say(self, text: str) -> None:
        """Print a line of the supervisor's own. It is not kept, since it is not output of the program."""
        with self._lock:
            line = f"supervise: {self._redact(text)}\n".encode(errors="backslashreplace")
            self._out(line if self._fresh else b"\n" + line)
            self._fresh = True

    def kept(self) -> str:
        """Return the last lines of the program, with secrets masked."""
        with self._lock:
            text = b"\n".join([*self._last, self._part])
        return self._redact(text.decode(errors="replace"))

    def forget(self) -> None:
        """Discard the kept lines, before another program starts."""
        with self._lock:
            self._last.clear()
            self._part = b""

    def _out(self, data: bytes) -> None:
        if self._dropped and self._writable(0):
            note = f"supervise: nobody read the log: {self._dropped} bytes of it are lost\n"
            self._dropped = 0
            self._out(b"\n" + note.encode())
        while data:
            if not self._writable(self._patience):
                self._dropped += len(data)
                self._patience = 0.0
                return
            try:
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
            except OSError:
                return  # it is closed; the program must continue anyway
        self._patience = PATIENCE_SECONDS

    def _writable(self, seconds: float) -> bool:
        """Wait until the pipe takes PIPE_BUF bytes. The pipe stays in blocking mode, as others write to it too."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(seconds * 1000))


class ChildProcess:
    """A running program in its own session. One runs at a time, so all our descendants are its own."""

    def __init__(
        self, argv: Sequence[str], output: LogTee, events: Events, env: Mapping[str, str] | None = None
    ) -> None:
        """Start the program.

        Raise OSError if it cannot be started.
        """
        self._events = events
        self._output = output
        self.code: int | None = None
        self.begun = time.monotonic()
        reading, writing = os.pipe()
        try:
            # close_fds: keep descriptors that Docker's runtime opened for the program; ours are never inheritable.
            self._process = subprocess.Popen(
                list(argv), stdout=writing, stderr=writing, env=env, start_new_session=True, close_fds=False
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._pump = threading.Thread(target=self._copy, args=(reading,), daemon=True)
        self._pump.start()

    def _copy(self, reading: int) -> None:
        watched = b""
        serving = False
        while True:
            try:
                data = os.read(reading, 65536)
            except OSError:
                data = b""
            if not data:
                os.close(reading)
                return
            self._output.write(data)
            if not serving:
                watched = watched[-len(SERVING) :] + data
                if SERVING in watched:
                    serving = True
                    self._events.put("serving")

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.begun

    def ended(self) -> bool:
        """Reap ended children. Return whether the program itself ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self._process.pid:
                self._process.returncode = code = _code(status)
                self.code = code
        return self.code is not None

    def signal(self, number: int) -> None:
        """Send a signal to the program itself, which forwards it as it sees fit."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the end. Return whether it ended. Other events stay in the queue."""
        deadline = time.monotonic() + seconds
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.code is not None

    def settle(self) -> None:
        """Wait briefly for the rest of the output. Processes that it left may hold its output open."""
        self._pump.join(0.5)

    def end_all(self, grace: float) -> None:
        """End the program and all processes that it left: SIGTERM, then SIGKILL after `grace` seconds.

        A killed HIP process may leave GPU memory occupied, so SIGKILL comes last.
        """
        signalled: set[int] = set()
        deadline = time.monotonic() + grace
        while True:
            self.ended()
            left = descendants()
            if not left:
                break
            late = time.monotonic() >= deadline
            for pid in left:
                if late or pid not in signalled:
                    signalled.add(pid)
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
            if late and time.monotonic() > deadline + grace:
                self._output.say(f"processes {sorted(left)} do not end, not even when killed")
                break
            time.sleep(0.02)
        self._pump.join(2)


def adopt_orphans() -> None:
    """Make processes whose parent ended our children, if the kernel supports it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Return the process ids of this process's descendants that have not ended."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stream:
                # The name, in parentheses, may contain anything; state and parent follow it.
                state, parent = stream.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _code(status: int) -> int:
    """Return the exit code as a shell reports it: 128 + n for signal n."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
