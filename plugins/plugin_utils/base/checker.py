# SPDX-License-Identifier: Apache-2.0
"""Check plain data (as parsed from YAML) strictly: every mistake becomes a Problem, and checking continues."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ...module_utils.common.errors import Path, Problem, suggest
from ...module_utils.content.urls import holds_account

T = TypeVar("T")

SIZE = re.compile(r"^(\d+)([kmgt]?)b?$", re.IGNORECASE)
BOOLEANS = ("true", "false", "yes", "no", "on", "off")
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def kind(value: object) -> str:
    """Return a readable name of the value's type."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, Mapping):
        return "a map"
    return "a list" if isinstance(value, Sequence) else type(value).__name__


class Checker:
    """Collects problems. Every method returns the checked value, or its default after recording a problem."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def wrong(self, path: Path, what: str, fix: str = "") -> None:
        """Record a problem."""
        self.problems.append(Problem(path, what, fix))

    def mapping(self, value: Any, path: Path, known: Sequence[str] | None = None) -> dict[str, Any]:
        """Check a map with text keys; with `known`, any other key is a problem."""
        if not isinstance(value, Mapping):
            self.wrong(path, f"must be a map, not {kind(value)}.")
            return {}
        result: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                self.wrong(path, f"key {key!r} must be text, not {kind(key)}.", "Put it in quotes.")
            elif known is not None and key not in known:
                self.wrong((*path, key), "unknown key.", suggest(key, known))
            else:
                result[key] = item
        return result

    def listing(self, value: Any, path: Path) -> list[Any]:
        """Check a list."""
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
            fix = (
                "Begin each entry with a dash: - …"
                if isinstance(value, Mapping)
                else "Write [ … ] around it."
            )
            self.wrong(path, f"must be a list, not {kind(value)}.", "" if value is None else fix)
            return []
        return list(value)

    def text(self, value: Any, path: Path, default: str = "", pattern: str = "", meaning: str = "") -> str:
        """Check a non-empty text that matches `pattern` (`meaning` describes it in messages)."""
        if not isinstance(value, str):
            quotable = isinstance(value, (bool, int, float))
            self.wrong(path, f"must be text, not {kind(value)}.", "Put it in quotes." if quotable else "")
            return default
        if not value.strip():
            self.wrong(path, "must not be empty.")
            return default
        if pattern and not re.fullmatch(pattern, value):
            self.wrong(path, f"{value!r} is not valid.", f"It must be {meaning}.")
            return default
        return str(value)

    def url(self, value: Any, path: Path, pattern: str, meaning: str) -> str:
        """Check a URL without credentials; the message does not repeat one that has them."""
        if isinstance(value, str) and holds_account(value):
            fix = "Write the URL without a user, password or token."
            self.wrong(path, "contains credentials.", fix)
            return ""
        return self.text(value, path, "", pattern, meaning)

    def texts(self, value: Any, path: Path) -> tuple[str, ...]:
        """Check a list of non-empty texts."""
        items = self.listing(value, path)
        found = tuple(self.text(item, (*path, index)) for index, item in enumerate(items))
        return tuple(item for item in found if item)

    def integer(self, value: Any, path: Path, default: int, low: int, high: int) -> int:
        """Check an integer from `low` to `high`."""
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(path, f"must be a whole number, not {kind(value)}.")
            return default
        if not low <= value <= high:
            self.wrong(path, f"{int(value)} is out of range.", f"It must be from {low} to {high}.")
            return default
        return int(value)

    def boolean(self, value: Any, path: Path, default: bool) -> bool:
        """Check a boolean; YAML's yes/no arrive as booleans, texts are problems."""
        if not isinstance(value, bool):
            fix = "Write it without quotes." if isinstance(value, str) and value.lower() in BOOLEANS else ""
            self.wrong(path, f"must be true or false, not {kind(value)}.", fix)
            return default
        return bool(value)

    def choice(self, value: Any, path: Path, default: str, choices: Sequence[str]) -> str:
        """Check one of `choices`."""
        if not isinstance(value, str) or value not in choices:
            shown = repr(value) if isinstance(value, str) else kind(value)
            self.wrong(path, f"{shown} is not valid.", f"Valid: {', '.join(choices)}.")
            return default
        return str(value)

    def size(self, value: Any, path: Path, default: int) -> int:
        """Check a size: bytes, as a number or as text with a binary unit ("16g")."""
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return int(value)
        found = SIZE.match(value) if isinstance(value, str) else None
        if not found or not int(found.group(1)):
            self.wrong(path, f"{value!r} is not a size.", "Write bytes, or a number with k, m, g or t: 16g.")
            return default
        return int(found.group(1)) * UNITS[found.group(2).lower()]


class KeyReader:
    """Reads the values of a map by key, each checked as Checker does; a missing key has its default."""

    def __init__(self, check: Checker, values: Mapping[str, Any], path: Path) -> None:
        self.check = check
        self.values = values
        self.path = path

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def require(self, *keys: str) -> None:
        """Record a problem for each key that is missing."""
        for key in keys:
            if key not in self.values:
                self.check.wrong(self.path, f"the key {key} is missing.", f"Add {key}: to it.")

    def parse(self, key: str, default: T, parse: Callable[[Any, Path], T]) -> T:
        """Return what a function makes of a value and its path."""
        return parse(self.values[key], (*self.path, key)) if key in self.values else default

    def text(self, key: str, pattern: str = "", meaning: str = "", default: str = "") -> str:
        """Check a non-empty text; after a problem it is empty."""
        return self.parse(
            key, default, lambda value, path: self.check.text(value, path, "", pattern, meaning)
        )

    def texts(self, key: str) -> tuple[str, ...]:
        """Check a list of non-empty texts."""
        return self.parse(key, (), self.check.texts)

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        """Check an integer from `low` to `high`."""
        return self.parse(
            key, default, lambda value, path: self.check.integer(value, path, default, low, high)
        )

    def boolean(self, key: str, default: bool) -> bool:
        """Check a boolean."""
        return self.parse(key, default, lambda value, path: self.check.boolean(value, path, default))

    def choice(self, key: str, default: str, choices: Sequence[str]) -> str:
        """Check one of `choices`."""
        return self.parse(key, default, lambda value, path: self.check.choice(value, path, default, choices))

    def size(self, key: str, default: int) -> int:
        """Check a size in bytes."""
        return self.parse(key, default, lambda value, path: self.check.size(value, path, default))
