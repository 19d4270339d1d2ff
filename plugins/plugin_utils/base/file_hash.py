# SPDX-License-Identifier: Apache-2.0
"""The hash of a file on the control node."""

from __future__ import annotations

import hashlib
from pathlib import Path


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content in hex digits. Raise OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
