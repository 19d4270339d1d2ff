# SPDX-License-Identifier: Apache-2.0
"""Files on a node, written so that no reader ever sees half of one."""

from __future__ import annotations

import contextlib
import os
import tempfile


def read_text(path: str) -> str | None:
    """Return a file's text with its line ends unchanged; None if the file does not exist."""
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write_atomic(path: str, text: str | bytes, mode: int) -> None:
    """Replace a file atomically: the new text is on disk, with its mode, before it takes the name."""
    directory = os.path.dirname(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(text.encode() if isinstance(text, str) else text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def sync_directory(directory: str) -> None:
    """Bring a directory's names to disk: a file that is new or gone there is so after a crash too."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private(directory: str) -> None:
    """Create a directory, and any missing parents, accessible to their owner only."""
    missing = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another thread was quicker
            os.mkdir(path, 0o700)
    os.chmod(missing[0] if missing else directory, 0o700)
