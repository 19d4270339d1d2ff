# SPDX-License-Identifier: Apache-2.0
"""vLLM's API server as its supervisor sees it: the guard in it, and the figures of its /metrics."""

from __future__ import annotations

import contextlib
import http.client
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

GUARD_VARIABLE = "INSTINCT_GUARD"
"""The variable by which the guard (programs/guard.py) finds the byte that says whether the instance is leaving."""
STAYING, LEAVING = b"0", b"1"
# Figures that move only when the engine works. The API server alone changes others, such as those of ended requests.
_PROGRESS = tuple(
    f"vllm:{name}".encode()
    for name in (
        "prompt_tokens", "generation_tokens", "iteration_tokens", "kv_cache_usage", "gpu_cache_usage",
        "num_requests_running", "num_requests_waiting", "num_preemptions",
    )
)  # fmt: skip
_WORKING = (b"vllm:num_requests_running", b"vllm:num_requests_waiting")
_GENERATED = b"vllm:generation_tokens_total"
_ANSWER_BYTES = 8 << 20


@dataclass(frozen=True)
class Look:
    """One answer of /metrics. progress: the lines that move when the engine works; empty if it reports none.

    generated: whether it ever generated a token. working: whether it has requests. balancers: how many load balancers
    send it requests; None without a guard.
    """

    progress: tuple[bytes, ...]
    generated: bool
    working: bool
    balancers: int | None


class GuardSwitch:
    """Tells the guard that the instance is leaving. It needs no disk: the file has its one byte from the start."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        for directory in ("/dev/shm", None):
            with contextlib.suppress(OSError):
                self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - as long as it lives
                self._file.write(STAYING)
                return

    def environment(self, env: Mapping[str, str], library: str) -> dict[str, str]:
        """Return vLLM's environment: with it, vLLM finds the guard, and the guard this switch."""
        found = {**env, "PYTHONPATH": os.pathsep.join(filter(None, (library, env.get("PYTHONPATH", ""))))}
        if self._file is not None:
            found[GUARD_VARIABLE] = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        return found

    def leave(self) -> None:
        """From now on /health answers 503."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._file.fileno(), LEAVING, 0)


class Engine:
    """The API server of a `vllm serve` command line, on this host."""

    def __init__(self, argv: Sequence[str]) -> None:
        host = word_after(argv, "--host") or "127.0.0.1"
        self._host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        port = word_after(argv, "--port") or "8000"
        self._port = int(port) if port.isdigit() else 0

    def look(self, seconds: float) -> Look | None:
        """Ask for its figures; None if it does not answer within the time."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        try:
            connection.request("GET", "/metrics", headers={"Connection": "close"})
            answer = connection.getresponse()
            text = answer.read(_ANSWER_BYTES)
            requests = _number(answer.headers.get("x-instinct-requests"))
            balancers = _number(answer.headers.get("x-instinct-balancers"))
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        lines = [line for line in text.splitlines() if line.startswith(b"vllm:") and b"_created" not in line]
        return Look(
            tuple(line for line in lines if line.startswith(_PROGRESS)),
            _sum(lines, (_GENERATED,)) > 0,
            bool(requests) or _sum(lines, _WORKING) > 0,
            balancers,
        )


def word_after(argv: Sequence[str], flag: str) -> str:
    """Return the value of a flag; "" without it."""
    found = ""
    for word, following in zip(argv, [*argv[1:], ""]):
        if word == flag:
            found = following
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def _sum(lines: Sequence[bytes], names: tuple[bytes, ...]) -> float:
    total = 0.0
    for line in lines:
        if line.startswith(names):
            with contextlib.suppress(ValueError):
                total += float(line.rpartition(b" ")[2])
    return total


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
