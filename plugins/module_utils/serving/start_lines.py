# SPDX-License-Identifier: Apache-2.0
"""What vLLM measured at startup; later plans use it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..generation_store.store import now_text

START_FILE = "start.json"  # node_state reads it
_TEXTS = (
    "KV cache size: ",
    " blocks: ",
    "KV cache memory: ",
    "weights take ",
    "weights took ",
    "loading took ",
    "Maximum concurrency",
)


def start_text(container: str, memory: Mapping[str, Any], log: str) -> str:
    """Return the file's text; "" for none. memory: SERVER's."""
    lines: dict[str, None] = {}
    for line in log.splitlines():
        places = [line.find(text) for text in _TEXTS if text in line]
        if places:
            lines[line[max(0, min(places) - 16) :][:300]] = None
    data = {**memory, "container": container, "at": now_text(), "lines": [*lines][-40:]}
    return json.dumps(data) if lines else ""
