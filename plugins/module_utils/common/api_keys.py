# SPDX-License-Identifier: Apache-2.0
"""API keys as HAProxy looks them up: by their SHA-256. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def keys_map(keys: Mapping[str, str]) -> str:
    """keys.map: a line per key, its SHA-256 as HAProxy's converter `hex` writes it, and its name, which is logged."""
    lines = (
        f"{hashlib.sha256(str(key).encode()).hexdigest().upper()} {name}\n"
        for name, key in sorted(keys.items())
    )
    return "".join(lines)
