# SPDX-License-Identifier: Apache-2.0
"""Free space on a node's disks, and human-readable sizes."""

from __future__ import annotations

import os


def existing_parent(path: str) -> str:
    """Return the path itself, or the nearest parent directory that exists."""
    while not os.path.exists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def free_bytes(path: str) -> int:
    """Return the free space in bytes of the file system that holds, or will hold, `path`."""
    space = os.statvfs(existing_parent(path))
    return space.f_bavail * space.f_frsize


def human_size(size: float) -> str:
    """Return a number of bytes in human-readable form."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} bytes"
