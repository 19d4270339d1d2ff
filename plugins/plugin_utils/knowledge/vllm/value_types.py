# SPDX-License-Identifier: Apache-2.0
"""Check values in the JSON of a configuration against the types that annotations in vLLM's source ask for.

pydantic reads this JSON, and converts what can be converted without loss: "3" is a whole number, 1 is true. Values of
annotations that are not described here are accepted.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_NUMBER = re.compile(
    r"\s*[+-]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*|\s*[+-]?(inf|infinity|nan)\s*", re.IGNORECASE
)
_WHOLE = re.compile(r"\s*[+-]?\d[\d_]*(\.0*)?\s*")
_WORDS = frozenset(("true", "false", "1", "0", "yes", "no", "on", "off", "t", "f", "y", "n"))
_MEANING = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list",
    "List": "a list", "set": "a list", "tuple": "a list", "dict": "a map", "Dict": "a map", "None": "null",
}  # fmt: skip
_PLURALS = {"int": "whole numbers", "float": "numbers", "str": "texts", "dict": "maps"}
_OBJECT = "Config"
"""The end of the names of configuration classes, also of those whose fields are not listed."""
_WRAPPERS = ("Annotated", "InitVar", "Final", "Required")
_AMONG: Mapping[str, tuple[Callable[[float, float], bool], str]] = {
    "ge": (lambda value, limit: value >= limit, "at least"),
    "gt": (lambda value, limit: value > limit, "above"),
    "le": (lambda value, limit: value <= limit, "at most"),
    "lt": (lambda value, limit: value < limit, "below"),
    "multiple_of": (lambda value, limit: value % limit == 0, "a multiple of"),
}


@functools.cache
def parse_annotation(kind: str) -> ast.expr | None:
    """Return the tree of an annotation; None if the text is not an expression."""
    try:
        return ast.parse(kind, mode="eval").body
    except SyntaxError:
        return None


def choices(kind: str) -> tuple[Any, ...] | None:
    """Return what a value may be, null left out; None if the annotation is more than a list of texts or numbers."""
    node = parse_annotation(kind)
    if node is None or not (members := [item for item in _members(node) if not _is_none(item)]):
        return None
    if not all(_head(item) == "Literal" for item in members):
        return None
    return tuple(dict.fromkeys(value for item in members for value in _values(item) if value is not None))


def names(kind: str) -> tuple[str, ...]:
    """Return the members of the enumeration that a value names in any case; empty if the annotation has none."""
    node = parse_annotation(kind)
    found = [item for item in _members(node) if _head(item) == "Enum"] if node is not None else []
    return tuple(value for item in found for value in _values(item))


def takes_null(kind: str) -> bool:
    """Return whether null is one of the alternatives."""
    node = parse_annotation(kind)
    return node is None or any(_is_none(item) for item in _members(node))


def class_of(kind: str, classes: Mapping[str, Any]) -> str | None:
    """Return the class that a map is read into; None if the annotation has none of these."""
    node = parse_annotation(kind)
    heads = [_head(item) for item in _members(node)] if node is not None else []
    return next((head for head in heads if head in classes), None)


def mismatch(kind: str, value: Any, limits: Mapping[str, float], nested: Mapping[str, Any]) -> str:
    """Return what is wrong with a value, as the end of "X is …"; empty if nothing is.

    nested: classes whose fields are checked one by one.
    """
    node = parse_annotation(kind)
    if node is None:
        return ""
    if not _fits(node, value, nested):
        meant = list(dict.fromkeys(_meaning(item, nested) for item in _members(node)))
        return f"not {' or '.join(item for item in meant if item)}"
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    for name, limit in limits.items():
        holds, words = _AMONG[name]
        if not holds(value, limit):
            return f"not {words} {limit:g}"
    return ""


def _members(node: ast.expr) -> list[ast.expr]:
    """Return the alternatives of an annotation."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_members(node.left), *_members(node.right)]
    if isinstance(node, ast.Subscript):
        head, inner = _head(node), _inner(node)
        if head == "Union":
            return [member for item in inner for member in _members(item)]
        if head == "Optional":
            return [*_members(inner[0]), ast.Constant(None)]
        if head in _WRAPPERS:
            return _members(inner[0])
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _members(tree) if (tree := parse_annotation(node.value)) is not None else [node]
    return [node]


def _head(node: ast.expr) -> str:
    target = node.value if isinstance(node, ast.Subscript) else node
    return ast.unparse(target).rpartition(".")[2]


def _inner(node: ast.expr) -> list[ast.expr]:
    if not isinstance(node, ast.Subscript):
        return []
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _values(node: ast.expr) -> list[Any]:
    return [item.value for item in _inner(node) if isinstance(item, ast.Constant)]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _meaning(node: ast.expr, nested: Mapping[str, Any]) -> str:
    if _head(node) == "Literal":
        return f"one of {', '.join(str(item) for item in _values(node))}"
    inner = _inner(node)
    kind = _MEANING.get(_head(node), "")
    if kind in ("a list", "a map") and len(inner) == (1 if kind == "a list" else 2):
        parts = (_PLURALS.get(_head(item), "") for item in _members(inner[-1]))
        listed = " or ".join(part for part in parts if part)
        return f"{kind} of {listed}" if listed else kind
    return "a map" if _head(node) in nested or _head(node).endswith(_OBJECT) else kind


def _fits(node: ast.expr, value: Any, nested: Mapping[str, Any]) -> bool:
    return any(_fits_one(item, value, nested) for item in _members(node))


def _fits_one(node: ast.expr, value: Any, nested: Mapping[str, Any]) -> bool:
    head, inner = _head(node), _inner(node)
    if _is_none(node):
        return value is None
    if head in nested:
        return isinstance(value, Mapping)
    if head == "Enum":
        return isinstance(value, (str, int))
    if head == "Literal":
        return any(
            value == item and isinstance(value, bool) == isinstance(item, bool) for item in _values(node)
        )
    if head in ("dict", "Dict"):
        return isinstance(value, Mapping) and (
            len(inner) < 2 or all(_fits(inner[1], item, nested) for item in value.values())
        )
    if head in ("list", "List", "set", "tuple"):
        if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
            return False
        return len(inner) != 1 or all(_fits(inner[0], item, nested) for item in value)
    return _scalar(head, value)


def _scalar(head: str, value: Any) -> bool:
    if head in ("str", "Path"):
        return isinstance(value, str)
    if head.endswith(_OBJECT):
        return isinstance(value, Mapping)
    if head == "bool":
        return value in (0, 1) if isinstance(value, (int, float)) else str(value).lower() in _WORDS
    if head in ("int", "float"):
        if isinstance(value, str):
            return bool((_WHOLE if head == "int" else _NUMBER).fullmatch(value))
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return whole or (head == "float" and isinstance(value, float))
    return True
