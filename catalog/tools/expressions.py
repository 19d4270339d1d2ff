# SPDX-License-Identifier: Apache-2.0
"""Conditions on arguments as checks.py derives them: how they are built, joined and simplified."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any

from catalog.tools.sources import Module, Sources

Expr = Any
"""A fact by its name, a list with an operator first, or None for what is not known."""

TRUE: Expr = ["=", True]
FALSE: Expr = ["=", False]
NONE: Expr = ["=", None]
SIDE, TEST = 60, 40
"""Larger values of a choice, and larger conditions of one, are taken for unknown."""


def constant(value: object) -> Expr:
    """A value; None, what is not known, where JSON has no such value."""
    try:
        return json.loads(json.dumps(["=", value]))
    except (TypeError, ValueError):
        return None


def present(name: str, there: Expr = TRUE) -> Expr:
    """An object of a class, and whether it is there."""
    return ["object", name, there]


def is_object(expr: Expr) -> bool:
    """Whether it is an object, there or not."""
    return isinstance(expr, list) and expr[0] == "object"


def maker(expr: Expr) -> str:
    """The class of an object."""
    return str(expr[1])


def presence(expr: Expr) -> Expr:
    """Whether an object is there."""
    return expr[2]


def inverse(expr: Expr) -> Expr:
    """Not."""
    if expr is None:
        return None
    if isinstance(expr, list) and expr[0] == "=":
        return FALSE if expr[1] else TRUE
    if is_object(expr):
        return inverse(presence(expr))
    return expr[1] if isinstance(expr, list) and expr[0] == "not" else ["not", expr]


def both(*parts: Expr) -> Expr:
    """And, without what is true anyway."""
    flat: list[Expr] = []
    for part in parts:
        item = presence(part) if is_object(part) else part
        inner = item[1:] if isinstance(item, list) and item[0] == "and" else [item]
        flat += [one for one in inner if one != TRUE and one not in flat]
    if FALSE in flat:
        return FALSE
    if not flat:
        return TRUE
    return flat[0] if len(flat) == 1 else ["and", *flat]


def choice(test: Expr, then: Expr, other: Expr) -> Expr:
    """One of two values; an object keeps under which condition it is there."""
    if then == other or test == TRUE:
        return then
    if test == FALSE:
        return other
    if is_object(then) or is_object(other):
        held = maker(then if is_object(then) else other)
        return present(held, choice(test, _there(then), _there(other)))
    test = None if size(test) > TEST else test
    then, other = _assuming(test, then, 2), _assuming(test, other, 3)
    if then is None and other is None:
        return None
    if then == other:
        return then
    if then == TRUE and other == FALSE:
        return test
    if then == FALSE and other == TRUE:
        return inverse(test)
    return ["if", test, then, other]


def _decided(test: Expr, then: Expr, other: Expr) -> Expr:
    """A choice of which both sides are true or false."""
    if FALSE in (then, other):
        return both(test, then) if other == FALSE else both(inverse(test), other)
    if TRUE in (then, other):
        return either(test, other) if then == TRUE else either(inverse(test), then)
    return choice(test, then, other)


def _assuming(test: Expr, side: Expr, place: int) -> Expr:
    """One side of a choice, where the test is decided; None where it is too long to be of use."""
    side = simplified(side, decided(test, place == 2), truth=False)
    return None if size(side) > SIDE else side


_ANSWERS = ("==", "in", "is", "<", "<=", ">", ">=", "not", "isinstance", "startswith", "endswith")
Decided = dict[str, bool]
"""Conditions, as JSON text, that are known to hold or not to."""


def decided(expr: Expr, holds: bool) -> Decided:
    """What follows from a condition that holds, or does not."""
    if expr is None or not isinstance(expr, (str, list)):
        return {}
    sign = expr[0] if isinstance(expr, list) else ""
    if sign == "not":
        return decided(expr[1], not holds)
    found = {json.dumps(expr): holds}
    if sign == ("and" if holds else "or"):
        for part in expr[1:]:
            found |= decided(part, holds)
    return found


def simplified(expr: Expr, known: Decided, truth: bool = True) -> Expr:
    """The same with what is decided left out. truth: only whether it is true matters, not its value."""
    if not known or not isinstance(expr, (str, list)) or is_object(expr):
        return expr
    sign = expr[0] if isinstance(expr, list) else ""
    found = known.get(json.dumps(expr)) if truth or sign in _ANSWERS else None
    if found is not None:
        return TRUE if found else FALSE
    if sign in ("", "=", "enum", "given", "any"):
        return expr
    inner = [
        sign in ("and", "or", "not") or (sign == "if" and (truth or place == 0)) for place in range(len(expr))
    ]
    parts = [simplified(part, known, inner[place]) for place, part in enumerate(expr[1:])]
    if parts == expr[1:]:
        return expr
    return _BUILT[sign](*parts) if sign in _BUILT else operation(sign, *parts)


def together(*parts: Expr) -> Expr:
    """And, where what the first parts decide shortens the others."""
    whole, known = both(*parts), {}
    if not isinstance(whole, list) or whole[0] != "and":
        return whole
    found = []
    for part in sorted(whole[1:], key=size):
        found.append(simplified(part, known))
        known |= decided(found[-1], holds=True)
    again = both(*found)
    return again if size(again) >= size(whole) else together(again)


def operation(sign: str, *parts: Expr) -> Expr:
    """Arithmetic or a comparison; unknown where a part is. A choice of constants is compared side by side."""
    if any(part is None or is_object(part) for part in parts):
        return None
    if len(parts) == 2 and sign in ("==", "in", "is"):
        first, second = parts
        if _fixed(first) and _fixed(second):
            return _compared(sign, first, second)
        for chosen, fixed in ((first, second), (second, first)):
            if _fixed(fixed) and isinstance(chosen, list) and chosen[0] == "if" and _leaf(chosen):
                sides = (operation(sign, *_placed(side, fixed, chosen is first)) for side in chosen[2:])
                return _decided(chosen[1], *sides)
    return [sign, *parts]


def _placed(side: Expr, fixed: Expr, first: bool) -> tuple[Expr, Expr]:
    return (side, fixed) if first else (fixed, side)


def _fixed(expr: Expr) -> bool:
    """Whether it is a constant or a member of an enumeration."""
    return isinstance(expr, list) and expr[0] in ("=", "enum")


def _leaf(expr: Expr) -> bool:
    """Whether one of the values of a choice is fixed."""
    if isinstance(expr, list) and expr[0] == "if":
        return _leaf(expr[2]) or _leaf(expr[3])
    return _fixed(expr)


def _compared(sign: str, first: Expr, second: Expr) -> Expr:
    if sign == "in" and (second[0] == "enum" or not isinstance(second[1], (str, list, dict))):
        return None
    if first[0] == second[0]:
        return constant(first[1] in second[1] if sign == "in" else first[1] == second[1])
    return FALSE if NONE in (first, second) and sign != "in" else [sign, first, second]


def _there(expr: Expr) -> Expr:
    if is_object(expr):
        return presence(expr)
    return FALSE if expr == NONE else None


def either(*parts: Expr) -> Expr:
    """Or, without what is false anyway."""
    flat: list[Expr] = []
    for part in parts:
        item = presence(part) if is_object(part) else part
        inner = item[1:] if isinstance(item, list) and item[0] == "or" else [item]
        flat += [one for one in inner if one != FALSE and one not in flat]
    if TRUE in flat:
        return TRUE
    if not flat:
        return FALSE
    return flat[0] if len(flat) == 1 else ["or", *flat]


_BUILT: dict[str, Callable[..., Expr]] = {"and": both, "or": either, "not": inverse, "if": choice}


def size(expr: Expr) -> int:
    """How many operators and facts it has."""
    return 1 + sum(size(item) for item in expr[1:]) if isinstance(expr, list) and expr[0] != "=" else 1


def vague(expr: Expr) -> bool:
    """Whether a part is not known."""
    return expr is None or (
        isinstance(expr, list) and expr[0] not in ("=", "enum") and any(map(vague, expr[1:]))
    )


def provable(expr: Expr, told: Callable[[str], bool]) -> bool:
    """Whether facts that can be had are able to make it true."""
    return _possible(expr, told)[0]


def _possible(expr: Expr, told: Callable[[str], bool]) -> tuple[bool, bool]:
    """Whether it can be shown to be true, and to be false."""
    if expr is None:
        return False, False
    if isinstance(expr, str):
        return told(expr), told(expr)
    sign, *parts = expr
    if sign == "=":
        return bool(parts[0]), not parts[0]
    if sign == "enum":
        return True, False
    if sign == "any":
        item, seq, inner = parts
        found = _possible(inner, lambda fact: fact == item or told(fact))
        there = any(_possible(seq, told))
        return there and found[0], there
    if sign == "given":
        told_default = _possible(parts[1], told)
        return (True, True) if told(parts[0]) else told_default
    if sign == "if":
        test, then, other = (_possible(item, told) for item in parts)
        return (
            (test[0] and then[0]) or (test[1] and other[0]) or (then[0] and other[0]),
            (test[0] and then[1]) or (test[1] and other[1]) or (then[1] and other[1]),
        )
    found = [_possible(item, told) for item in parts]
    if sign == "not":
        return found[0][1], found[0][0]
    if sign == "and":
        return all(item[0] for item in found), any(item[1] for item in found)
    if sign == "or":
        return any(item[0] for item in found), all(item[1] for item in found)
    known = all(any(item) for item in found)
    return known, known


def member_of(sources: Sources, module: Module, node: ast.Attribute) -> Expr:
    """A member of an enumeration; None where the name is none."""
    found = sources.resolve(module, node.value.id) if isinstance(node.value, ast.Name) else None
    if found is None or not isinstance(found[1], ast.ClassDef):
        return None
    enumeration = any("Enum" in ast.unparse(base) for base in found[1].bases)
    return ["enum", node.attr] if enumeration else None
