# SPDX-License-Identifier: Apache-2.0
"""API keys in the form in which HAProxy looks them up: as SHA-256 digests. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def keys_map(keys: Mapping[str, str]) -> str:
    """Return the text of keys.map: per line a key's SHA-256, in the form of HAProxy's `hex`, and the name to log."""
    lines = (
        f"{hashlib.sha256(str(key).encode()).hexdigest().upper()} {name}\n"
        for name, key in sorted(keys.items())
    )
    return "".join(lines)
