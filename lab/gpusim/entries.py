# SPDX-License-Identifier: Apache-2.0
"""What a tree of sysfs is made of: directories, links and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import kernel
from .state import Holder, Node

Writer = Callable[[Node, str, Sequence[Holder]], kernel.Outcome]


class SysfsError(OSError):
    """An attribute that answers with an error instead of contents."""


@dataclass(frozen=True)
class Link:
    target: str


@dataclass(frozen=True)
class File:
    """An attribute: `read` gives its text; `write` what a write to it does, None for read-only ones.

    `live` ones follow the processes, can answer with an error, or can be written.
    """

    read: Callable[[], str | bytes]
    mode: int = 0o444
    write: Writer | None = None
    live: bool = False

    def data(self) -> bytes:
        content = self.read()
        return content if isinstance(content, bytes) else content.encode()


class Dir:
    """A directory; live ones are built anew each time, or are too large to build before asked for."""

    def __init__(self, build: Callable[[], dict[str, Entry]], live: bool = False) -> None:
        self._build = build
        self.live = live
        self._entries: dict[str, Entry] | None = None

    @property
    def entries(self) -> dict[str, Entry]:
        if self.live or self._entries is None:
            self._entries = self._build()
        return self._entries


Entry = Dir | File | Link


def text(value: object) -> File:
    """A file with one line that only changes with the state."""
    return File(lambda: f"{value}\n")


def live(read: Callable[[], str]) -> File:
    """A file that is asked for each time."""
    return File(read, live=True)


def folder(**entries: Entry) -> Dir:
    """A directory of these entries."""
    return Dir(lambda: dict(entries))
