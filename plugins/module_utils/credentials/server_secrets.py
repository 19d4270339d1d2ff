# SPDX-License-Identifier: Apache-2.0
"""The secrets in a module's parameter `servers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .env_files import env_secrets


def secrets_of(servers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the secret values in the servers' environment files, which must never be printed."""
    found: list[str] = []
    for data in servers:
        item = (data.get("files") or {}).get("env") if isinstance(data, Mapping) else None
        text = item.get("text") if isinstance(item, Mapping) else None
        if isinstance(text, str):
            found += env_secrets(text)
    return found
