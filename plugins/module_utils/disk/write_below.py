# SPDX-License-Identifier: Apache-2.0
"""Write a file below a directory in which a container writes as root; beneath.py says what that means."""

from __future__ import annotations

import contextlib
import os
import secrets

from .beneath import NO_LINK, directory_below, refusal


def write_below(top: str, path: str, text: str, mode: int) -> None:
    """Replace a file atomically; missing directories are made. What is on disk under its name is complete."""
    parent, name = os.path.split(path)
    temporary = f".{name[:200]}.{secrets.token_hex(8)}"
    with directory_below(top, parent, make=True) as inside:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o600, dir_fd=inside)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                os.fchmod(descriptor, mode)
                stream.write(text.encode())
                stream.flush()
                os.fsync(descriptor)
            try:
                os.replace(temporary, name, src_dir_fd=inside, dst_dir_fd=inside)
            except IsADirectoryError as error:
                raise refusal(os.path.join(top, path), "is a directory") from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=inside)
        os.fsync(inside)
