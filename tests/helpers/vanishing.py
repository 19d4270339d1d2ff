# SPDX-License-Identifier: Apache-2.0
"""Files that others remove while they are looked at: what a directory listed is gone when it is opened."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Vanishing:
    """Counts listings below a directory; after the one of number `at`, all that it listed is gone."""

    def __init__(self, top: Path, at: int) -> None:
        self.top, self.at, self.count = top, at, 0

    def listed(self, place: str) -> None:
        """Note a listing of a directory."""
        if Path(place).resolve().is_relative_to(self.top):
            self.count += 1
            if self.count == self.at:
                for entry in list(_SCANDIR(place)):
                    with contextlib.suppress(FileNotFoundError):
                        remove = shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.unlink
                        remove(entry.path)


_LISTDIR, _SCANDIR = os.listdir, os.scandir


@contextlib.contextmanager
def vanishing(monkeypatch: pytest.MonkeyPatch, top: Path, at: int) -> Iterator[Vanishing]:
    """Let what a listing below `top` returns be gone, for the listing of number `at`; 0 for none."""
    found = Vanishing(top.resolve(), at)

    def place(given: Any) -> str:
        return os.readlink(f"/proc/self/fd/{given}") if isinstance(given, int) else os.fspath(given)

    def listdir(given: Any = ".") -> list[str]:
        names = _LISTDIR(given)
        with patched(False):
            found.listed(place(given))
        return names

    @contextlib.contextmanager
    def patched(on: bool) -> Iterator[None]:
        with monkeypatch.context() as inside:
            inside.setattr(os, "listdir", listdir if on else _LISTDIR)
            inside.setattr(os, "scandir", scandir if on else _SCANDIR)
            yield

    class Entries(list[Any]):
        """Entries as os.scandir() gives them."""

        def __enter__(self) -> Iterator[Any]:
            return iter(self)

        def __exit__(self, *_unused: object) -> None:
            return None

        def __next__(self) -> Any:  # os.walk() asks it one by one
            if not self:
                raise StopIteration
            return self.pop(0)

        def close(self) -> None:
            """Close nothing."""

    def scandir(given: Any = ".") -> Any:
        with _SCANDIR(given) as entries:
            listed = Entries(entries)
        with patched(False):
            found.listed(place(given))
        return listed

    with patched(True):
        yield found
