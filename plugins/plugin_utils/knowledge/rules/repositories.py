# SPDX-License-Identifier: Apache-2.0
"""Compare the names of repositories with the patterns of the catalogue."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

_WILDCARD = re.compile(r"[*?\[]")


def matches_pattern(repository: str, patterns: Iterable[str]) -> bool:
    """Return whether a repository matches one of the patterns, ignoring case; only the last part of a path counts."""
    name = repository.lower()
    if name.startswith("/"):
        name = "local/" + name.rstrip("/").rpartition("/")[2]
    return any(
        _matches(name, pattern.lower())
        or (name.startswith("local/") and _matches(name[6:], pattern.lower().rpartition("/")[2]))
        for pattern in patterns
    )


def _matches(name: str, pattern: str) -> bool:
    """Return what fnmatch says; it compiles each pattern, so only those with the same first letters are tried."""
    return name.startswith(_WILDCARD.split(pattern, maxsplit=1)[0]) and fnmatch.fnmatchcase(name, pattern)
