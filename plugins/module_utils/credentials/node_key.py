# SPDX-License-Identifier: Apache-2.0
"""The key of a node's instances, as instance_key.py explains it."""

from __future__ import annotations

import os
import re

from ..common.files import read_text
from ..common.paths import KEYS_DIR

VARIABLE = "VLLM_API_KEY"
NAME = "instances"
_LINE = re.compile(rf"^{VARIABLE}=(\S+)$", re.MULTILINE)


def node_key(directory: str = KEYS_DIR) -> str:
    """Return the node's key, or "" if it has none. Only root can read it."""
    found = _LINE.search(read_text(os.path.join(directory, NAME)) or "")
    return found.group(1) if found else ""
