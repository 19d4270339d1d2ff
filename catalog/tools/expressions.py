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
SIDE = 30
"""Larger values of a choice are taken for unknown."""


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
    if expr == TRUE:
        return FALSE
    if expr == FALSE:
        return TRUE
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


def _assuming(test: Expr, side: Expr, place: int) -> Expr:
    """One side of a choice, where the test is decided; None where it is too long to be of use."""
    if isinstance(side, list) and side[0] == "if" and side[1] == test:
        side = side[place]
    return None if size(side) > SIDE else side


def operation(sign: str, *parts: Expr) -> Expr:
    """Arithmetic or a comparison; unknown where a part is."""
    if any(part is None or is_object(part) for part in parts):
        return None
    values = [part[1] for part in parts if isinstance(part, list) and part[0] == "="]
    if len(values) == 2 and sign in ("==", "in", "is"):
        return constant(values[0] in values[1] if sign == "in" else values[0] == values[1])
    return [sign, *parts]


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


def size(expr: Expr) -> int:
    """How many operators and facts it has."""
    return 1 + sum(size(item) for item in expr[1:]) if isinstance(expr, list) and expr[0] != "=" else 1


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
