# SPDX-License-Identifier: Apache-2.0
"""Read a node's small files: an absent file is None, an unreadable one is recorded as a problem."""

from __future__ import annotations

import os

ABSENT = (2, 20)  # ENOENT, ENOTDIR: the node does not have it
EPERM = 1


class Source:
    """Reads files under a root. An absent file is None; an unreadable one is None and a problem."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")
        self.problems: list[dict[str, str]] = []

    def problem(self, what: str, error: object) -> None:
        """Record that `what` could not be read."""
        if isinstance(error, OSError) and error.strerror:
            error = error.strerror
        self.problems.append({"what": what, "error": str(error)})

    def text(self, path: str, limit: int = 1 << 20) -> str | None:
        """Return the file's text without surrounding white space; read at most `limit` bytes."""
        try:
            fd = os.open(self.root + path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts = []
                while limit > 0 and (part := os.read(fd, min(limit, 65536))):
                    parts.append(part)
                    limit -= len(part)
                    if path.startswith("/sys/"):  # a page at once
                        break
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno == EPERM and "compute_partition" in path:
                self.problem(path, f"{error.strerror}: the GPU is being reset")
            elif error.errno not in ABSENT:
                self.problem(path, error)
            return None
        return b"".join(parts).decode("utf-8", "replace").strip()

    def peek(self, path: str) -> str | None:
        """Return text() without recording a problem: drivers refuse some files (the speed of a downed link)."""
        count = len(self.problems)
        found = self.text(path)
        del self.problems[count:]
        return found

    def number(self, path: str, base: int = 10) -> int | None:
        """Return the file's whole number."""
        text = self.text(path)
        if not text:
            return None
        try:
            return int(text, base)
        except ValueError:
            self.problem(path, f"not a number: {text[:40]!r}")
            return None

    def names(self, path: str) -> list[str]:
        """Return the directory's entries, sorted."""
        try:
            return sorted(os.listdir(self.root + path))
        except OSError as error:
            if error.errno not in ABSENT:
                self.problem(path, error)
            return []

    def exists(self, path: str) -> bool:
        """Return whether `path` exists."""
        return os.path.exists(self.root + path)


def pairs(text: str | None, separator: str | None = None) -> dict[str, str]:
    """Return the first two words of every line as a map, for files like KFD's and os-release."""
    words = (line.split(separator, 1) for line in (text or "").splitlines())
    return {word[0].strip(): word[1].strip() for word in words if len(word) == 2}


def integer(text: str | None) -> int | None:
    """Return a text of digits as a number, None for anything else."""
    return int(text) if text and text.isdigit() else None


def listing(directory: str) -> list[str]:
    """Return the entries of a directory, sorted; none if it does not exist."""
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
