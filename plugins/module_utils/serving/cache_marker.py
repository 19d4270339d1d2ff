# SPDX-License-Identifier: Apache-2.0
"""The marker in an instance's cache directory: the key of what is there. It is deleted with the caches."""

from __future__ import annotations

import json
import re

from ..common.module_main import NodeError
from ..disk.beneath import read_below
from ..disk.write_below import write_below

MARKER = "warm.json"
KEY = re.compile(r"[0-9a-f]{32}")
_BYTES = 4096


def warm_key(directory: str) -> str:
    """Return the key of what is in a cache directory; "" if unknown. A container may have written anything there."""
    try:
        key = str(json.loads(read_below(directory, MARKER, _BYTES) or "")["key"])
    except (NodeError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return key if KEY.fullmatch(key) else ""


def mark(directory: str, key: str, sha256: str) -> None:
    """Record what was packed from a cache directory, or restored into it."""
    write_below(directory, MARKER, json.dumps({"key": key, "sha256": sha256}) + "\n", 0o600)
