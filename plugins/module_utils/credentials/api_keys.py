# SPDX-License-Identifier: Apache-2.0
"""API keys in the form in which HAProxy looks them up: as SHA-256 digests. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

HASHED = "sha256:"
"""Begins a key of which only the SHA-256 is known, as fetched from a load balancer."""


def keys_map(keys: Mapping[str, str]) -> str:
    """Return the text of keys.map: per line a key's SHA-256, in the form of HAProxy's `hex`, and the name to log."""
    return "".join(f"{_digest(str(key))} {name}\n" for name, key in sorted(keys.items()))


def _digest(key: str) -> str:
    if key.startswith(HASHED):
        return key[len(HASHED) :].upper()
    return hashlib.sha256(key.encode()).hexdigest().upper()


def key_marks(text: str) -> list[str]:
    """Return a fingerprint of each key in keys.map, by the rule of observe/balancer.py."""
    return [line[:12] for line in text.splitlines() if line]
