# SPDX-License-Identifier: Apache-2.0
"""The hash that identifies a deployed artefact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping


def canonical(value: object) -> str:
    """Return JSON text that is the same for equal values: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def spec_hash(files: Mapping[str, str]) -> str:
    """Return the SHA-256 of {file name: text}. observe/instances.py repeats this rule, to import less."""
    return hashlib.sha256(canonical(dict(files)).encode()).hexdigest()


def text_hash(text: str) -> str:
    """Return the SHA-256 of one file's text."""
    return hashlib.sha256(text.encode()).hexdigest()
