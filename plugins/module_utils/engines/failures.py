# SPDX-License-Identifier: Apache-2.0
"""Classify the failure of a vLLM server by its log: the decisive line, the kind of failure, the next step.

Signatures tell failures apart. They are data (failure_signatures.py), which a program in a container reads from a
file. Without signatures, the exit code and the last exception remain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

LINE_LIMIT = 600  # characters of the decisive line that are reported
READ_LIMIT = 4096  # characters of a line that are read: patterns take quadratic time on some texts
SIGNATURES_FILE = "failure_signatures.json"
SCHEMA = 1


@dataclass(frozen=True)
class Diagnosis:
    """Why a server failed. kind: a short machine-readable name; line: the decisive log line; next_step: what to do."""

    kind: str
    line: str
    next_step: str


UNSPECIFIC = ("unknown", "python_exception")
"""Kinds that name no cause."""


@dataclass(frozen=True)
class Signature:
    """Regular expressions for a kind of failure; one match in a line is enough."""

    kind: str
    patterns: tuple[str, ...]
    next_step: str


# Lines that only propagate a failure which an earlier line explains.
_WRAPPERS = re.compile(
    r"Engine core initialization failed|Engine process failed to start|EngineCore failed to start"
    r"|WorkerProc initialization failed|EngineDeadError|EngineCore encountered an issue"
    r"|Worker failed with error|See (?:root cause|stack trace)|ContextTerminated|CancelledError"
    r"|^(?:SystemExit|KeyboardInterrupt|BrokenPipeError|ConnectionResetError|EOFError)\b|: cancelled$"
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Fault|Warning)(?::\s.*|$)")
_WARNING = re.compile(r"^[\w.]*Warning\b")

_SOURCE = re.compile(r'^(?:    |  File ")')
_PYDANTIC = re.compile(r" \[type=[a-z_]+, input_value=.*$")
# ECMA-48: control sequences (colours, cursor, screen), operating system commands (title, clipboard), other escapes.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|[ -/]*[0-~])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PROCESS = re.compile(r"^(?:\([^()]*pid=\d+[^()]*\)\s?)+")
_STAMP = re.compile(
    r"^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?\s+\[?[\w./]+:\d+\]\s?"
)

_NEXT_EXCEPTION = (
    "The whole log is kept in the instance's directory; the lines above this one show where it came from."
)
NEXT_ILLEGAL_INSTRUCTION = (
    "The image was built for another CPU or GPU. Use an image built for this node's architecture."
)
NEXT_KILLED = (
    "A process of the engine was killed. dmesg | grep -i 'killed process' says whether the node ran out "
    "of memory; then lower the host memory use (fewer instances, runtime.memory)."
)
_NEXT_UNKNOWN = "The log does not say why. Read all of it; VLLM_LOGGING_LEVEL=DEBUG in env makes it say more."


def clean(line: str) -> str:
    """Remove what a terminal would obey, progress bars, process name and time stamp; keep a line's indentation."""
    return _STAMP.sub("", _PROCESS.sub("", _shown(line)))


def _shown(line: str) -> str:
    """Return what a terminal shows of a log line at its end, of limited length, and without control characters."""
    line = _ESCAPE.sub("", line.rstrip().rsplit("\r", 1)[-1][:READ_LIMIT])
    return _CONTROL.sub("", line)


def classify(
    signatures: Sequence[Signature], text: str, exit_code: int | None = None, oom_killed: bool = False
) -> Diagnosis:
    """Diagnose why a server did not start, from its log, its exit code and Docker's OOMKilled.

    Signatures are ordered: an earlier one is a cause, which may produce the texts of later ones.
    """
    lines = [line for line in (clean(raw) for raw in text.split("\n")) if line.strip()]
    if oom_killed:
        return _diagnosis(
            "killed",
            _last_line(lines),
            "The container used more memory than runtime.memory allows and was killed. Raise or drop the "
            "limit.",
        )
    # A traceback quotes the source: `raise LocalEntryNotFoundError(` names an error that may not have occurred.
    output = [line for line in lines if not _SOURCE.match(line)]
    for signature in signatures:
        pattern = re.compile("|".join(f"(?:{one})" for one in signature.patterns))
        # Warnings of Python's warnings module quote harmless texts that look like errors.
        for line in [*output, *lines]:
            if pattern.search(line) and not _WARNING.match(line):
                return _diagnosis(signature.kind, line, signature.next_step)
    if exit_code == 132:
        return _diagnosis("illegal_instruction", _last_line(lines), NEXT_ILLEGAL_INSTRUCTION)
    if exit_code == 137:
        return _diagnosis("killed", _last_line(lines), NEXT_KILLED)
    raised = [line for line in lines if _EXCEPTION.match(line) and not _WARNING.match(line)]
    own = [line for line in raised if not _WRAPPERS.search(line)]
    if raised:
        return _diagnosis("python_exception", (own or raised)[-1], _NEXT_EXCEPTION)
    return _diagnosis("unknown", _last_line(lines), _NEXT_UNKNOWN)


def to_text(signatures: Sequence[Signature]) -> str:
    """Format signatures as a JSON file."""
    return json.dumps({"schema": SCHEMA, "signatures": [vars(item) for item in signatures]}, indent=1) + "\n"


def tail(text: str, lines: int = 20) -> list[str]:
    """Return the last non-empty lines of a log; of a progress bar, its last state."""
    shown = (_shown(raw) for raw in text.split("\n"))
    return [line for line in shown if line.strip()][-lines:]


def _diagnosis(kind: str, line: str, next_step: str) -> Diagnosis:
    line = _PYDANTIC.sub("", line.strip())
    return Diagnosis(kind, line if len(line) <= LINE_LIMIT else line[:LINE_LIMIT] + " …", next_step)


def _last_line(lines: list[str]) -> str:
    return " | ".join(line.strip() for line in lines[-2:]) if lines else "the log is empty"
