# SPDX-License-Identifier: Apache-2.0
"""Evaluate the catalogue's conditions, in recipes, refusals and checks: this is their only interpreter.

Use `holds(condition, facts)`. A condition has one of two forms, and each may contain the other:

* a map, as people write it: every entry must hold. A key is the name of a fact; its value is the value that the fact
  has, a list of such values (a fact that is a list has one of them), or a map of tests (`TESTS`, and `not`). Other keys
  are `since` and `until` (releases), `forks`, `repositories` (patterns), `any`, `all` (lists of conditions) and `not`;
* a list with an operator first, a fact by its name, or None for what is not known, as in catalog/vllm/checks.json;
  catalog/tools/checks.py describes it. Rules use it to compare facts with each other.

Facts may be unknown. A condition holds only if it holds whatever the unknown ones are.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ....module_utils.common.errors import suggest
from .repositories import matches_pattern

Condition = Any
"""A map, a fact by its name, a list with an operator first, or None for what is not known."""


class _Unknown:
    """The value of what is not known."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = _Unknown()
ITEM = "item."
"""The prefix of the names of a sequence's items, which are not facts of a start."""
THERE = object()
"""A value that is there and not None, of which nothing else is known."""

Facts = Callable[[str], Any]
"""Returns the value of a fact, or UNKNOWN. `release` is a Release, and `line` the Timeline that it is in."""
SPAN = ("since", "until", "forks")
"""Keys of a map with which the fact `release` is compared."""

_TYPES: Mapping[str, type] = {
    "int": int, "str": str, "float": float, "bool": bool, "list": list, "dict": dict,
}  # fmt: skip
_TEXTS = ("lower", "upper", "startswith", "endswith", "count")
"""Methods of texts and lists, of which the first argument is the object."""
_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "+": operator.add, "-": operator.sub,
    "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "/": operator.truediv,
}  # fmt: skip


def read_map(value: Any) -> Mapping[str, Any] | None:
    """Return a map, or the one that a JSON text holds; None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, Mapping) else None


def _count(value: Any) -> bool:
    """Return whether a value is a whole number, or a text or a fraction that means one."""
    if isinstance(value, str):
        return value.strip().lstrip("+-").isdigit()
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


KINDS: Mapping[str, Callable[[Any], bool]] = {
    "map": lambda value: isinstance(value, Mapping),
    "json map": lambda value: read_map(value) is not None,
    "list": lambda value: isinstance(value, (list, tuple)),
    "text": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "count": _count,
    "map of counts": lambda value: isinstance(value, Mapping) and all(map(_count, value.values())),
}


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _mentions(value: Any, words: Sequence[str]) -> bool:
    return any(word in text for text in _items(value) for word in words)


TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "min": lambda value, least: bool(value >= least),
    "max": lambda value, most: bool(value <= most),
    "below": lambda value, limit: bool(value < limit),
    "given": lambda value, wanted: (value is not None) == wanted,
    "empty": lambda value, wanted: (not value) == wanted,
    "is": lambda value, kind: KINDS[kind](value),
    "like": lambda value, pattern: any(re.match(pattern, str(item)) for item in _items(value)),
    "mentions": _mentions,
    "keys": lambda value, names: set(value) == set(names),
}
"""What a map may test a fact with: limits; whether it is there, or empty; its kind; a regular expression that it, or an
item of it, begins with; words of which it, or an item of it, has one; the keys of a map."""


def holds(condition: Condition, facts: Facts) -> bool:
    """Return whether a condition is certain to hold."""
    return truth(evaluate(condition, facts)) is True


def truth(value: Any) -> bool | None:
    """Return whether a value counts as true; None if that is unknown."""
    if value is UNKNOWN or value is THERE:
        return None
    return bool(value)


def evaluate(condition: Condition, facts: Facts) -> Any:
    """Return the value of a condition, or UNKNOWN."""
    if condition is None:
        return UNKNOWN
    if isinstance(condition, str):
        return facts(condition)
    if isinstance(condition, Mapping):
        return _map(condition, facts)
    sign, *parts = condition
    if sign == "=":
        return parts[0]
    if sign == "enum":
        return _Member(parts[0])
    if sign == "given":
        value = facts(parts[0])
        return evaluate(parts[1], facts) if value is UNKNOWN else value
    if sign in ("and", "or"):
        return _joined(sign == "or", (truth(evaluate(part, facts)) for part in parts))
    if sign == "not":
        known = truth(evaluate(parts[0], facts))
        return UNKNOWN if known is None else not known
    if sign == "if":
        return _chosen(parts, facts)
    if sign == "any":
        return _quantified(parts, facts)
    return _computed(sign, [evaluate(part, facts) for part in parts])


def _map(condition: Mapping[str, Any], facts: Facts) -> Any:
    """Return whether all entries of a map hold, or UNKNOWN; the span of releases, which is cheap, comes first."""
    if ("since" in condition or "until" in condition or "forks" in condition) and not _released(
        condition, facts
    ):
        return False
    unknown = False
    for name, wanted in condition.items():
        if name in SPAN:
            continue
        special = _SPECIAL.get(name)
        passes = special(wanted, facts) if special else _passes(facts(name), wanted)
        if passes is False:
            return False
        unknown = unknown or passes is None
    return UNKNOWN if unknown else True


_SPECIAL: Mapping[str, Callable[[Any, Facts], bool | None]] = {
    "any": lambda parts, facts: truth(_joined(True, (truth(evaluate(part, facts)) for part in parts))),
    "all": lambda parts, facts: truth(_joined(False, (truth(evaluate(part, facts)) for part in parts))),
    "not": lambda part, facts: truth(evaluate(["not", part], facts)),
    "repositories": lambda patterns, facts: matches_pattern(facts("repository"), patterns),
}
"""Keys of a map that are not facts."""


def _released(condition: Mapping[str, Any], facts: Facts) -> bool:
    """Return whether the release is one of the forks that are named, or in the span, where there is one."""
    release = facts("release")
    if "forks" in condition:
        if release.fork in condition["forks"]:
            return True
        if "since" not in condition and "until" not in condition:
            return False
    inside: bool = facts("line").inside(condition.get("since"), condition.get("until"), release.index)
    return inside


def _passes(value: Any, wanted: Any) -> bool | None:
    """Return whether a fact's value is as wanted; None if that is unknown."""
    if value is UNKNOWN or value is THERE:
        return None
    if isinstance(wanted, list):
        return any(item in wanted for item in value) if isinstance(value, (list, tuple)) else value in wanted
    if isinstance(wanted, dict):
        return truth(_joined(False, (_passed(value, name, limit) for name, limit in wanted.items())))
    return bool(value == wanted)


def _passed(value: Any, test: str, limit: Any) -> bool | None:
    if test == "not":
        passes = _passes(value, limit)
        return None if passes is None else not passes
    try:
        return TESTS[test](value, limit)
    except TypeError:
        return None


def with_fact(name: str, value: Any, facts: Facts) -> Facts:
    """Return the facts with one more: an item of a sequence, by the name that the condition gives it."""
    return lambda fact: value if fact == name else facts(fact)


def _quantified(parts: Sequence[Condition], facts: Facts) -> Any:
    name, items, inner = parts[0], evaluate(parts[1], facts), parts[2]
    if not isinstance(items, (list, tuple, str, Mapping)):
        return UNKNOWN
    return _joined(True, (truth(evaluate(inner, with_fact(name, item, facts))) for item in items))


class _Member(str):
    """A member of an enumeration, which JSON names in any case."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.upper() == other.upper()

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _joined(decisive: bool, values: Iterator[bool | None]) -> Any:
    unknown = False
    for value in values:
        if value is decisive:
            return decisive
        unknown = unknown or value is None
    return UNKNOWN if unknown else not decisive


def _chosen(parts: Sequence[Condition], facts: Facts) -> Any:
    test = truth(evaluate(parts[0], facts))
    if test is not None:
        return evaluate(parts[1 if test else 2], facts)
    one, other = evaluate(parts[1], facts), evaluate(parts[2], facts)
    same = one is other or (
        one is not THERE and other is not THERE and type(one) is type(other) and one == other
    )
    return one if same else UNKNOWN


def _computed(sign: str, values: Sequence[Any]) -> Any:
    if sign == "is":
        return UNKNOWN if values[0] is UNKNOWN else values[0] is values[1]
    if any(value is UNKNOWN or value is THERE for value in values):
        return UNKNOWN
    try:
        if sign == "==":
            return _equal(*values)
        if sign == "in":
            return any(_equal(values[0], item) for item in values[1])
        if sign == "len":
            return len(values[0])
        if sign in ("max", "min"):
            return max(*values) if sign == "max" else min(*values)
        if sign == "set":
            return list(dict.fromkeys(values[0]))
        if sign == "mentions":
            return _mentions(*values)
        if sign == "only":
            return [item for item in values[0] if item in values[1]]
        if sign == "join":
            return " and ".join(map(str, values[0]))
        if sign == "suggest":
            return suggest(*values)
        if sign == "at":
            return values[0][values[1]]
        if sign == "isinstance":
            return isinstance(values[0], _TYPES[values[1]])
        if sign in _TEXTS:
            given = [tuple(item) if isinstance(item, list) else item for item in values[1:]]
            return getattr(values[0], sign)(*given)
        return _BINARY[sign](*values)
    except (TypeError, ValueError, ZeroDivisionError, LookupError, AttributeError):
        return UNKNOWN


def _equal(a: Any, b: Any) -> Any:
    """Return whether two values are equal; UNKNOWN for an enumeration's member and a number."""
    if isinstance(a, _Member) != isinstance(b, _Member) and not all(isinstance(item, str) for item in (a, b)):
        return False if a is None or b is None else UNKNOWN
    return b == a if isinstance(b, _Member) else a == b


def names(condition: Condition) -> Iterator[str]:
    """Yield the facts in a condition, in order."""
    if isinstance(condition, str):
        if not condition.startswith(ITEM):
            yield condition
    elif isinstance(condition, Mapping):
        for name, wanted in condition.items():
            if name in ("any", "all", "not"):
                for part in [wanted] if name == "not" else wanted:
                    yield from names(part)
            elif name not in SPAN:
                yield name
    elif isinstance(condition, Sequence) and condition[0] not in ("=", "enum"):
        for part in condition[1:]:
            yield from names(part)


def reasons(condition: Condition, facts: Facts) -> Iterator[Condition]:
    """Yield the parts of a condition that make it hold, each a comparison or a fact."""
    if not isinstance(condition, list) or condition[0] not in ("and", "or", "if", "not"):
        if condition is not None:
            yield condition
        return
    sign, *parts = condition
    if sign == "and":
        for part in parts:
            yield from reasons(part, facts)
    elif sign == "or":
        yield from reasons(next((part for part in parts if holds(part, facts)), None), facts)
    elif sign == "if":
        test = truth(evaluate(parts[0], facts))
        if test is not None:
            yield from reasons(parts[0] if test else ["not", parts[0]], facts)
        yield from reasons(parts[2 if test is False else 1], facts)
    else:
        yield from _denied(parts[0], facts)


def _denied(condition: Condition, facts: Facts) -> Iterator[Condition]:
    """Yield the parts of a condition that make it fail."""
    sign = condition[0] if isinstance(condition, list) else ""
    if sign == "and":
        yield from _denied(next((part for part in condition[1:] if holds(["not", part], facts)), None), facts)
    elif sign == "or":
        for part in condition[1:]:
            yield from _denied(part, facts)
    elif sign == "not":
        yield from reasons(condition[1], facts)
    elif sign == "if":
        test = truth(evaluate(condition[1], facts))
        if test is not None:
            yield from reasons(condition[1] if test else ["not", condition[1]], facts)
        yield from _denied(condition[3 if test is False else 2], facts)
    else:
        yield ["not", condition]
