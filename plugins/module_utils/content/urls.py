# SPDX-License-Identifier: Apache-2.0
"""URLs in command lines, plans and messages: addresses in them, and accounts that must not be."""

from __future__ import annotations

_SSH = ("ssh", "git+ssh", "ssh+git", "sftp")


def holds_account(url: str) -> bool:
    """Return whether a URL holds a user or a token; of ssh, whose user is not secret, whether it holds a password.

    An @ counts wherever it is: programs do not agree on where an account ends that has a / in it.
    """
    scheme, found, rest = url.partition("://")
    if not found:  # a path, or user@host:path as ssh has it
        return ":" in url.partition("@")[0] and "@" in url
    if scheme.strip().lower() in _SSH:
        return ":" in rest.rpartition("@")[0]
    return "@" in rest


def with_brackets(address: str) -> str:
    """Return an address as it is written before a port."""
    return f"[{address}]" if ":" in address else address
