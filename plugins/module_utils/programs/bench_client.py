# SPDX-License-Identifier: Apache-2.0
"""Run vLLM's benchmark client once, and record its output and CPU time; bench_job.py decides which runs there are."""

from __future__ import annotations

import contextlib
import os
import resource
import runpy
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..benchmarks.bench_results import number

_LOG_BYTES = 32 * 1024  # of a run's output that are kept
_SAMPLE_SECONDS = 0.2
_STOPPED = 143
_children: list[subprocess.Popen[bytes]] = []
_stopping = threading.Event()


@dataclass(frozen=True)
class ClientRun:
    """One run of the client: its exit code, the end of its output, and (clock, CPU time) during the run, in seconds.

    The clock is time.perf_counter, which is also that of vLLM's `start_times`.
    """

    code: int
    log: str
    cpu: Sequence[tuple[float, float]]


def cpu_share(samples: Sequence[tuple[float, float]], result: Any) -> float | None:
    """Return the client's CPU time per second of the measurement itself; None if its duration is not known.

    The measurement begins with the first request. Releases that do not write `start_times` end with the measurement.
    """
    seconds = number(result.get("duration")) if isinstance(result, dict) else None
    if not seconds or len(samples) < 2:
        return None
    starts = [value for value in result.get("start_times") or () if number(value) is not None]
    begin = min(starts) if starts else samples[-1][0] - seconds
    begin = max(begin, samples[0][0])
    end = min(begin + seconds, samples[-1][0])
    return round((_at(samples, end) - _at(samples, begin)) / (end - begin), 3) if end > begin else None


def _at(samples: Sequence[tuple[float, float]], clock: float) -> float:
    """Return the CPU time at a moment, interpolated."""
    for (before, low), (after, high) in zip(samples, samples[1:]):
        if clock <= after:
            return low + (high - low) * (clock - before) / (after - before) if after > before else high
    return samples[-1][1]


class _CpuSampler(threading.Thread):
    """Records the process's CPU time until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples = [cpu_now()]
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            self.samples.append(cpu_now())

    def stop(self) -> list[tuple[float, float]]:
        self._ended.set()
        self.join()
        return [*self.samples, cpu_now()]


def cpu_now() -> tuple[float, float]:
    """Return (clock, CPU time of this process and its ended children), in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(item.ru_utime + item.ru_stime for item in used)


def run_client(cell: Mapping[str, Any], words: Sequence[str], output: str) -> ClientRun:
    """Run vLLM's client with its output in a file.

    Importing vLLM takes longer than a short run, so runs of a served instance share this process: the command `vllm` is
    a small Python script, which is executed repeatedly. An offline benchmark holds GPUs, and has a process of its own,
    as has a program that is not Python; the CPU time of such a process is known for the whole run only.
    """
    own = list(words[1:] if os.path.basename(words[0]).startswith("python") else words)  # python3 SCRIPT …
    path = shutil.which(own[0]) or own[0]
    with _output_to(output):
        if cell["kind"] == "serve" and _is_python(path):
            sampler = _CpuSampler()
            sampler.start()
            code = _in_process(path, own[1:])
            cpu = sampler.stop()
        else:
            before = cpu_now()
            code = _in_child(words)
            cpu = [before, cpu_now()]
    return ClientRun(code, _end_of(output), cpu)


def _is_python(path: str) -> bool:
    try:
        with open(path, "rb") as stream:
            return b"python" in stream.read(
                512
            )  # if a path is too long for the shebang, it is in the second line
    except OSError:
        return False


def _in_process(path: str, arguments: Sequence[str]) -> int:
    sys.argv = [path, *arguments]
    before = list(sys.path)
    if path.endswith(".py"):  # the client of an older release imports files next to it
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.path[:] = before
    return 0


def _in_child(words: Sequence[str]) -> int:
    try:
        child = subprocess.Popen(words)
    except OSError as error:
        sys.stdout.write(f"{words[0]}: {error}\n")
        return 127
    _children.append(child)
    code = child.wait()
    if _stopping.is_set():
        os._exit(_STOPPED)
    _children.remove(child)
    return code


@contextlib.contextmanager
def _output_to(path: str) -> Iterator[None]:
    """Send what this process and its children print to a file."""
    kept = _flushed((1, 2))
    with open(path, "wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        _flushed(())
        for descriptor, copy in zip((1, 2), kept):
            os.dup2(copy, descriptor)
            os.close(copy)


def _flushed(descriptors: Sequence[int]) -> list[int]:
    sys.stdout.flush()
    sys.stderr.flush()
    return [os.dup(descriptor) for descriptor in descriptors]


def _end_of(path: str) -> str:
    with open(path, "rb") as stream:
        stream.seek(max(0, os.path.getsize(path) - _LOG_BYTES))
        return stream.read().decode("utf-8", "replace")


def leave(_number: int, _frame: Any) -> None:
    """End when Docker stops the container: finished runs are written.

    A process that holds GPUs ends by itself before that.
    """
    if not _children:
        os._exit(_STOPPED)
    _stopping.set()
    for child in _children:
        child.terminate()
