# SPDX-License-Identifier: Apache-2.0
"""The attention backend of a server: the planned one, and those that the log of its start proves. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.module_main import NodeError

ATTENTION_FILE = "attention.json"  # in the instance's directory: a Proof
_LINE_LENGTH = 300


@dataclass(frozen=True)
class ExpectedBackend:
    """SERVER's key `attention`: the planned backend, and by backend the texts of a log that prove it."""

    planned: str
    lines: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Proof:
    """What the log of a container proved.

    container: its id. running: backends in the order of their first lines, empty where no line was found. line: the
    one that proves the first of them.
    """

    container: str
    planned: str
    running: tuple[str, ...]
    line: str = ""

    @property
    def differs(self) -> bool:
        """Return whether another backend than the planned one was proved.

        A model can have several: one of them suffices.
        """
        return bool(self.running) and self.planned not in self.running

    def to_text(self) -> str:
        """Return the text of the file."""
        data = {
            "container": self.container,
            "planned": self.planned,
            "running": list(self.running),
            "line": self.line,
        }
        return json.dumps(data) + "\n"

    @classmethod
    def from_text(cls, text: str, container: str) -> Proof | None:
        """Return a file's proof; None if it is another container's, or not a proof."""
        try:
            data = json.loads(text)
            of, planned, running = (
                str(data["container"]),
                str(data["planned"]),
                tuple(map(str, data["running"])),
            )
            line = str(data.get("line") or "")
        except (ValueError, KeyError, TypeError):
            return None
        return cls(of, planned, running, line) if of == container else None


def parse_expected(server: str, data: Any) -> ExpectedBackend | None:
    """Return a server's key `attention`; None for none. Raise NodeError for anything else."""
    if not data:
        return None
    try:
        lines = {str(name): tuple(map(str, texts)) for name, texts in data["lines"].items()}
        return ExpectedBackend(str(data["planned"]), lines)
    except (AttributeError, KeyError, TypeError) as error:
        raise NodeError(
            f"servers[{server}]: attention needs planned, and lines: lists of texts by backend."
        ) from error


def proven_backends(lines: Mapping[str, Sequence[str]], log: Iterable[str]) -> dict[str, str]:
    """Return the backends that a log proves, each with its first line, in the order of these lines."""
    found: dict[str, str] = {}
    for line in log:
        for backend, texts in lines.items():
            if backend not in found and any(text in line for text in texts):
                found[backend] = line.strip()[:_LINE_LENGTH]
    return found


def proof_of(expected: ExpectedBackend, container: str, log: str) -> Proof:
    """Return what a container's log proves."""
    found = proven_backends(expected.lines, log.splitlines())
    return Proof(container, expected.planned, tuple(found), next(iter(found.values()), ""))


def warnings(proofs: Mapping[str, Proof]) -> list[str]:
    """Return a sentence for each pair of backends that differ; `proofs` are by server."""
    groups: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for name, proof in proofs.items():
        if proof.differs:
            groups.setdefault((proof.running, proof.planned), []).append(name)
    return [
        f"{', '.join(names)} {'runs' if len(names) == 1 else 'run'} attention backend {', '.join(running)}, not the "
        f"planned {planned} (log line: {proofs[names[0]].line})."
        for (running, planned), names in groups.items()
    ]
