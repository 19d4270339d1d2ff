# SPDX-License-Identifier: Apache-2.0
"""Copy a file of root's to where the connection's user reads it, and nobody else does."""

from __future__ import annotations

import contextlib
import os
import shutil


def export_copy(source: str, target: str) -> None:
    """Copy a file into a directory of the connection's user, for the owner of that directory alone; replace another."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    owner = os.stat(os.path.dirname(target))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(source, "rb") as content, os.fdopen(os.open(target, flags, 0o600), "wb") as copy:
        shutil.copyfileobj(content, copy, 2**20)
        os.fchown(copy.fileno(), owner.st_uid, owner.st_gid)
