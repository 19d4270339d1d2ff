# SPDX-License-Identifier: Apache-2.0
"""Environment files as a shell reads them, and the secrets in them."""

from __future__ import annotations

import re
import shlex

from ..common.redact import MASK, is_secret_name


def env_assignments(text: str) -> dict[str, str]:
    """Return the variables that a shell environment file sets (NAME=value, `export` allowed, quotes removed)."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = re.match(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$", line)
        if not match:
            continue
        found[match.group(1)] = _first_word(match.group(2))
    return found


def _first_word(text: str) -> str:
    """Return what a shell reads after NAME=. A # starts a comment only after a blank."""
    words = shlex.shlex(text, posix=True)
    vars(words).update(whitespace_split=True, commenters="")
    try:
        word = words.get_token() or ""
    except ValueError:  # an unclosed quote: keep the text unchanged
        return text
    return "" if text[:1].isspace() and word.startswith("#") else word


def env_secrets(text: str) -> list[str]:
    """Return the values of the secret variables in an environment file."""
    return [value for name, value in env_assignments(text).items() if value and is_secret_name(name)]


def mask_env(text: str) -> str:
    """Mask the values of secret variables in an environment file; leave everything else unchanged."""

    def mask(line: str) -> str:
        match = re.match(r"(\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=)", line)
        return match.group(1) + MASK if match and is_secret_name(match.group(2)) else line

    return "\n".join(mask(line) for line in text.split("\n"))
