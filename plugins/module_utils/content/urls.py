# SPDX-License-Identifier: Apache-2.0
"""URLs that an operator gives, and that end up in command lines, plans and messages: they hold no account."""

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
