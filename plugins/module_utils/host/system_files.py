# SPDX-License-Identifier: Apache-2.0
"""Files below a node's root that modules change: where this process sees them, and how a text gets there."""

from __future__ import annotations

import os
from typing import Any

ROOT = "/"


def local(path: str) -> str:
    """Return the path at which this process sees a path of the node."""
    return ROOT.rstrip("/") + path


def replace_text(module: Any, path: str, text: str) -> None:
    """Write a file of the node as a whole, by renaming; a new one can be read by everyone."""
    temporary = os.path.join(module.tmpdir, os.path.basename(path))
    with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(text)
    if not os.path.exists(local(path)):
        os.makedirs(os.path.dirname(local(path)), mode=0o755, exist_ok=True)
        os.chmod(temporary, 0o644)
    module.atomic_move(temporary, local(path))
