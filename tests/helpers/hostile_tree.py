# SPDX-License-Identifier: Apache-2.0
"""Directories as a container's root may leave them, and what lies outside of them, which must stay as it is."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c", "config.json", "README.md", "..x", "ä", "new\nline")
FILE, DIRECTORY, LINK, HARD_LINK, PIPE, SOCKET = "file", "directory", "link", "hard link", "pipe", "socket"
OUTSIDE = ("{outside}/secret", "{outside}", "/etc/passwd", "/nowhere", "/proc/self/root", "../../../../etc")
INSIDE = ("a", "a/b", "./c", "..", "../a", ".", "../config.json")


@dataclass(frozen=True)
class Item:
    """Something to make. where: directory of the tree, by the number of one that is there by then."""

    kind: str
    name: str
    where: int
    target: str = ""
    mode: int = 0o600


def items(
    kinds: tuple[str, ...] = (FILE, DIRECTORY, LINK, HARD_LINK, PIPE, SOCKET),
) -> st.SearchStrategy[list[Item]]:
    """Draw a tree."""
    modes = st.sampled_from((0o600, 0o644, 0o755, 0o000, 0o777, 0o4755, 0o2755, 0o6777))
    item = st.builds(
        Item,
        st.sampled_from(kinds),
        st.sampled_from(NAMES),
        st.integers(0, 9),
        st.sampled_from((*OUTSIDE, *INSIDE)),
        modes,
    )
    return st.lists(item, max_size=8)


def build(top: Path, outside: Path, wanted: list[Item]) -> dict[str, str]:
    """Make a tree, and return the kind of what has each path below it."""
    top.mkdir()
    made: dict[str, str] = {}
    directories = [""]
    for number, item in enumerate(wanted):
        where = directories[item.where % len(directories)]
        path = os.path.join(where, item.name)
        full = top / path
        if path in made:
            continue
        kind = item.kind
        if kind == FILE:
            full.write_text(f"content {number}")
            full.chmod(item.mode)
        elif kind == DIRECTORY:
            full.mkdir()
            directories.append(path)
        elif kind == LINK:
            full.symlink_to(item.target.format(outside=outside))
        elif kind == HARD_LINK:
            files = sorted(name for name, known in made.items() if known in (FILE, HARD_LINK))
            source = top / files[item.where % len(files)] if files else outside / "secret"
            os.link(source, full)
            if files:
                made[str(source.relative_to(top))] = HARD_LINK
        elif kind == PIPE:
            os.mkfifo(full)
        else:
            _socket(full)
        made[path] = kind
    return made


def _socket(path: Path) -> None:
    """Make a socket; the name may be longer than an address can be."""
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(before)


def outside_of(top: Path) -> Path:
    """Make a directory with a secret and other things beside the tree, and return it."""
    place = top / "outside"
    (place / "directory").mkdir(parents=True)
    (place / "secret").write_text("root:$6$secret")
    (place / "secret").chmod(0o600)
    (place / "directory" / "key").write_text("key")
    (place / "directory").chmod(0o700)
    return place


def state(top: Path) -> dict[str, Any]:
    """Return what everything below a directory is: mode, owner, and content or target."""
    found: dict[str, Any] = {}
    for directory, names, files in os.walk(top):
        for name in (".", *names, *files):
            path = Path(directory) / name
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                content: Any = path.read_bytes()
            else:
                content = os.readlink(path) if stat.S_ISLNK(status.st_mode) else None
            key = str(path.relative_to(top))
            found[key] = (status.st_mode, status.st_uid, status.st_gid, content)
    return found
