# SPDX-License-Identifier: Apache-2.0
"""The parts of a sysfs tree: directories, links and files."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from ..driver import kernel
from ..machine.state import Holder, Node

Writer = Callable[[Node, str, Sequence[Holder]], kernel.Outcome]


class SysfsError(OSError):
    """An attribute that answers with an error instead of contents."""


@dataclass(frozen=True)
class Link:
    target: str


@dataclass(frozen=True)
class File:
    """An attribute: `read` returns its text, `write` carries out a write, None for read-only ones.

    `live` attributes depend on processes, can answer with an error, or can be written. A write to one that is `alone`
    needs no list of processes and changes only live attributes.
    """

    read: Callable[[], str | bytes]
    mode: int = 0o444
    write: Writer | None = None
    live: bool = False
    alone: bool = False

    def data(self) -> bytes:
        content = self.read()
        return content if isinstance(content, bytes) else content.encode()


class Dir:
    """A directory; live ones are rebuilt for each access, or are too large to build in advance.

    `fixed`: while this value stays the same, so do all entries that are not live.
    """

    def __init__(
        self, build: Callable[[], dict[str, Entry]], live: bool = False, fixed: Hashable = None
    ) -> None:
        self._build = build
        self.live = live
        self.fixed = fixed
        self._entries: dict[str, Entry] | None = None

    @property
    def entries(self) -> dict[str, Entry]:
        if self.live or self._entries is None:
            self._entries = self._build()
        return self._entries

    def child(self, name: str) -> Entry | None:
        """Return the entry of a name, None if there is none."""
        return self.entries.get(name)


class Numbered(Dir):
    """A directory of many entries `prefix`0, `prefix`1 …, each created on demand, and of a few others."""

    def __init__(
        self, prefix: str, count: int, make: Callable[[int], Entry], others: dict[str, Entry], fixed: Hashable
    ) -> None:
        super().__init__(lambda: others | {f"{prefix}{n}": make(n) for n in range(count)}, fixed=fixed)
        self._prefix, self._count, self._make, self._others = prefix, count, make, others

    def child(self, name: str) -> Entry | None:
        number = name.removeprefix(self._prefix)
        if (
            number != name
            and number.isdigit()
            and int(number) < self._count
            and name == f"{self._prefix}{int(number)}"
        ):
            return self._make(int(number))
        return self._others.get(name)


Entry = Dir | File | Link


def text(value: object) -> File:
    """Return a file with one line that only changes with the state."""
    return File(lambda: f"{value}\n")


def live(read: Callable[[], str]) -> File:
    """Return a file that is evaluated for each access."""
    return File(read, live=True)


def folder(**entries: Entry) -> Dir:
    """Return a directory of these entries."""
    return Dir(lambda: dict(entries))
