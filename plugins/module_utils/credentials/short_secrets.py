# SPDX-License-Identifier: Apache-2.0
"""Refuse secrets that could not be kept out of messages."""

from __future__ import annotations

from collections.abc import Mapping

from ..common.module_main import NodeError
from ..common.redact import MIN_LENGTH


def refuse_short_secrets(named: Mapping[str, str | None]) -> None:
    """Raise NodeError for a secret so short that masking it would mangle every message."""
    for name, value in named.items():
        if value and len(value.strip()) < MIN_LENGTH:
            raise NodeError(
                f"{name} has fewer than {MIN_LENGTH} characters: that is too short for a real secret, which could not "
                f"be kept out of messages. Give the whole value, or leave {name} out."
            )
