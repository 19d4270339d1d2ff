# SPDX-License-Identifier: Apache-2.0
"""Hash what a node's state has of small files."""

from __future__ import annotations


def sha256(data: bytes) -> str:
    """Return the hash of a few kilobytes in hexadecimal digits.

    It is made by Python's own implementation where there is one: hashlib loads OpenSSL, a twentieth of what a node's
    state costs.
    """
    try:
        from _sha2 import sha256 as of  # type: ignore[import-not-found, unused-ignore]  # since Python 3.12
    except ImportError:
        try:
            from _sha256 import sha256 as of  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            from hashlib import sha256 as of
    return str(of(data).hexdigest())
