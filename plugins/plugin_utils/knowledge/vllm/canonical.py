# SPDX-License-Identifier: Apache-2.0
"""Convert a flag's value into the one form of its release: what its parser would make of the text.

A number in quotes is a number, the JSON text or the Python literal of a map is the map, a level of compilation is the
map with that level. A value that the release refuses stays as it is, for the check of the flags to report.
"""

from __future__ import annotations

import re

from .flag_values import Value, convert
from .flags import Flag, FlagTable, spellings

LEVEL = "O"
_LEVELED = ("level|literal", "level|config")
_NUMBER = re.compile(r"[0-9]{1,9}")
_WORDS = {"true": True, "false": False}


def canonical_flag(table: FlagTable, key: str, value: Value) -> tuple[str, Value]:
    """Return an option and its value in the one form that decisions compare.

    The option is the flag's own name; a negated one has the opposite value. An unknown one is kept.
    """
    if key == LEVEL:
        return _level(table, value)
    hit = table.get(key)
    if hit is None:
        return spellings(key)[0], value
    flag, positive = hit
    if not positive and isinstance(value, bool):
        return flag.name, not value
    return (flag.name, canonical_value(table, flag, value)) if positive else (spellings(key)[0], value)


def canonical_value(table: FlagTable, flag: Flag, value: Value) -> Value:
    """Return a value as the parser converts it, or as it is where the parser refuses it."""
    if isinstance(value, (list, tuple)):
        return type(value)(canonical_value(table, flag, item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool) and flag.type.rstrip("?") in _LEVELED:
        return {"level": value}
    if not isinstance(value, str) or not flag.takes_value or value.lower() == "auto":
        return value
    if flag.kind == "bool":
        return _WORDS.get(value.lower(), value)
    try:
        found = convert(flag.type, value, table.since("json_sizes_since"))
    except ValueError:
        return value
    if found is None:  # the default in words is the operator's decision too
        return value
    return {"level": found} if isinstance(found, int) and flag.type.rstrip("?") in _LEVELED else found


def _level(table: FlagTable, value: Value) -> tuple[str, Value]:
    """Return what -O with a level means in a release; before it had a meaning of its own, it is an alias."""
    history = [(entry["since"], entry["meaning"]) for entry in table.parser["short_o"]]
    meaning = table.line.value(history, table.release.index, "compilation-config.level")
    name, _dot, key = str(meaning).partition(".")
    number = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
    found: Value = {key: number} if key else number
    return f"--{name}", found
