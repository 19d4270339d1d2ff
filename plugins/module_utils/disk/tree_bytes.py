# SPDX-License-Identifier: Apache-2.0
"""How much is below a directory, whatever is there and whatever changes meanwhile."""

from __future__ import annotations

import os
import stat

from ..common.module_main import NodeError
from .untrusted_tree import walk


def file_bytes(path: str) -> int:
    """Return the size of a file; 0 if it does not exist (any more)."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def tree_bytes(directory: str) -> int:
    """Return the bytes of the files below a directory, or of a file; 0 if it does not exist. Links count nothing."""
    size = 0
    try:
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            return os.lstat(directory).st_size
        for entry in walk(directory):
            size += entry.status.st_size if entry.is_kind(stat.S_IFREG) else 0
    except (FileNotFoundError, NodeError):  # removed or replaced meanwhile: what was seen so far
        return size
    return size
