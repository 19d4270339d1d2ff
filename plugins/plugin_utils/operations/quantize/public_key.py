# SPDX-License-Identifier: Apache-2.0
"""The operator's public key, and whether it signed a model's manifest."""

from __future__ import annotations

from pathlib import Path

from ....module_utils.common.errors import FleetError, Problem
from . import signature


def read_public_key(name: str) -> bytes:
    """Return the key of quantize_public_key_file, b"" if none is named. Raise FleetError."""
    if not name:
        return b""
    path = Path(name).expanduser()
    try:
        return path.read_bytes()
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}."
        fix = "Name a public key on this machine."
        raise FleetError([Problem(("quantize_public_key_file",), what, fix)]) from None


def signed_by(key: bytes, text: str, statement: str) -> str:
    """Return the fingerprint of the key that signed a statement, "" without a key. Raise BadSignature."""
    if not key:
        return ""
    if not text:
        raise signature.BadSignature("it is not signed, but quantize_public_key_file requires a signature")
    return signature.verify(text, statement, key)
