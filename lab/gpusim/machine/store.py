# SPDX-License-Identifier: Apache-2.0
"""The storage of the node's state: a JSON file that all simulated parts share, or memory for tests."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from .state import Node, StateError, from_json, to_json

T = TypeVar("T")
Change = Callable[[Node], tuple[Node, T]]


class Store(Protocol):
    """Reads and changes the node; a change starts from the newest state and is visible to all."""

    def read(self) -> Node: ...

    def change(self, fn: Change[T], tell: bool = True) -> T: ...


class MemoryStore:
    """A node in memory."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def read(self) -> Node:
        return self.node

    def change(self, fn: Change[T], tell: bool = True) -> T:
        self.node, answer = fn(self.node)
        return answer


class FileStore:
    """The node in a file, replaced atomically, so that readers need no lock.

    Reading costs a stat if nothing has changed. Changes hold a lock file. After each one, still under the lock,
    `changed` is called with the new node to update sysfs and the device nodes; `tell=False` skips that for changes that
    affect live entries only.
    """

    def __init__(self, path: Path, changed: Callable[[Node], None] | None = None) -> None:
        self.path = path
        self.changed = changed
        self._thread = threading.RLock()
        self._seen: tuple[tuple[int, int, int], Node] | None = None

    def read(self) -> Node:
        try:
            with open(self.path, "rb") as f:
                stat = os.fstat(f.fileno())
                stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
                seen = self._seen
                if seen is None or seen[0] != stamp:
                    seen = (stamp, from_json(f.read().decode()))
                    self._seen = seen
                return seen[1]
        except FileNotFoundError:
            raise StateError(f"{self.path}: no simulated GPUs here; start them with `serve`") from None

    def write(self, node: Node) -> None:
        """Replace the state without reading the old one."""
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}.{threading.get_ident()}")
        new.write_text(to_json(node))
        new.chmod(0o644)
        new.replace(self.path)

    def change(self, fn: Change[T], tell: bool = True) -> T:
        with self._thread, open(self.path.with_suffix(".lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = self.read()
            after, answer = fn(before)
            if after != before:
                self.write(after)
                if tell and self.changed is not None:
                    self.changed(after)
            return answer
