# SPDX-License-Identifier: Apache-2.0
"""What a host is taken apart into: parts that are there, each with what removes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Callable

from ..disk.beneath import remove_tree
from ..observe.source import listing


@dataclass(frozen=True)
class Part:
    """Something of the toolkit's on a host. text: the action that removes it, for people."""

    text: str
    remove: Callable[[], object]


def file_part(path: str) -> Part:
    """Return the part of a file, a link or a directory."""
    return Part(f"remove {path}", lambda: remove_path(path))


def remove_path(path: str) -> None:
    """Remove a file, a link (and not what it leads to), or a directory; do nothing if it does not exist."""
    if os.path.isdir(path) and not os.path.islink(path):
        remove_tree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def tree_parts(top: str, kept: Iterable[str]) -> Iterator[Part]:
    """Yield a directory's entries but the kept ones, which are paths below it, and the directory if nothing is kept.

    What is mounted there stays mounted, and a link in place of the directory stays a link: only what they contain goes.
    No link below it is followed.
    """
    if not os.path.isdir(top):
        return
    stays = [path for path in kept if os.path.lexists(os.path.join(top, path))]
    if not (stays or os.path.islink(top) or any(map(os.path.ismount, _places(top)))):
        yield file_part(top)
        return
    for name in sorted(listing(top)):
        path = os.path.join(top, name)
        below = [item.partition("/")[2] for item in stays if item.split("/")[0] == name]
        if "" in below or (below and os.path.islink(path)):
            continue
        if below or os.path.ismount(path):
            yield from tree_parts(path, below)
        else:
            yield file_part(path)


def _places(top: str) -> list[str]:
    return [top, *(os.path.join(top, name) for name in listing(top))]
