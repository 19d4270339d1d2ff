# SPDX-License-Identifier: Apache-2.0
"""The operator's private key, which stays on the control node."""

from __future__ import annotations

from pathlib import Path

from ....module_utils.common.errors import FleetError, Problem
from . import signature

OPTIONS = ("signing_key_file", "signing_key_password")
"""Options of modules that stay on the control node."""
VARIABLE = "quantize_signing_key_file"


def read_signing_key(
    signing_key_file: object, signing_key_password: object = ""
) -> tuple[bytes, bytes | None]:
    """Return the private key and its password, b"" without one. Raise FleetError for a key that is unusable."""
    if not signing_key_file:
        return b"", None
    path = Path(str(signing_key_file)).expanduser()
    try:
        text = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}."
        raise FleetError([Problem((VARIABLE,), what, "Name a private key on this machine.")]) from None
    if mode & 0o077:
        raise FleetError([Problem((VARIABLE,), f"{path} can be read by others.", f"chmod 600 {path}")])
    password = str(signing_key_password or "").encode() or None
    signature.public_key_of(text, password)
    return text, password
