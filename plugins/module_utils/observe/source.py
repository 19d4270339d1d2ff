# SPDX-License-Identifier: Apache-2.0
"""Reading a node's small files: what is absent is None, what cannot be read is noted as a problem."""

from __future__ import annotations

import os

ABSENT = (2, 20)  # ENOENT, ENOTDIR: the node does not have it
EPERM = 1


class Source:
    """Reads files under a root. What is absent is None; what cannot be read is None and a problem."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")
        self.problems: list[dict[str, str]] = []

    def problem(self, what: str, error: object) -> None:
        """Note that `what` could not be read."""
        if isinstance(error, OSError) and error.strerror:
            error = error.strerror
        self.problems.append({"what": what, "error": str(error)})

    def text(self, path: str, limit: int = 1 << 20) -> str | None:
        """The file's text without white space at its ends; at most `limit` bytes are read."""
        try:
            fd = os.open(self.root + path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts = []
                while limit > 0:
                    part = os.read(fd, min(limit, 65536))
                    if not part:
                        break
                    parts.append(part)
                    limit -= len(part)
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
        """As text(), where drivers refuse what they do not know (the speed of a link that is down): no problem."""
        count = len(self.problems)
        found = self.text(path)
        del self.problems[count:]
        return found

    def number(self, path: str, base: int = 10) -> int | None:
        """The file's whole number."""
        text = self.text(path)
        if not text:
            return None
        try:
            return int(text, base)
        except ValueError:
            self.problem(path, f"not a number: {text[:40]!r}")
            return None

    def names(self, path: str) -> list[str]:
        """The directory's entries, sorted."""
        try:
            return sorted(os.listdir(self.root + path))
        except OSError as error:
            if error.errno not in ABSENT:
                self.problem(path, error)
            return []

    def exists(self, path: str) -> bool:
        """Whether there is something at `path`."""
        return os.path.exists(self.root + path)


def pairs(text: str | None, separator: str | None = None) -> dict[str, str]:
    """The first two words of every line, as KFD's and os-release's files have them."""
    words = (line.split(separator, 1) for line in (text or "").splitlines())
    return {word[0].strip(): word[1].strip() for word in words if len(word) == 2}


def integer(text: str | None) -> int | None:
    """Text of digits as a number; anything else is None."""
    return int(text) if text and text.isdigit() else None


def listing(directory: str) -> list[str]:
    """Entries of a directory, sorted; none when it is not there."""
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
