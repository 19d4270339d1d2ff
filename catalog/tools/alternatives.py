# SPDX-License-Identifier: Apache-2.0
"""Walk what is made of a JSON once for each value of the key that decides the most, and join what was found.

The checks of speculative decoding branch on the method so often that one walk for all would end in conditions too long
to be of use.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from catalog.tools.expressions import NONE, TRUE, Expr, both, constant, either, inverse, size, vague

DECIDING = {"SpeculativeConfig": ("method", "model")}
"""The key of which every value has a walk of its own, and the one of which it only matters whether it is given."""
SHORT, LONGEST = 8, 60
"""Longer values, of one walk and of all together, are taken for unknown; comparing them makes them short again."""

Found = tuple[Expr, str]


def alternatives(name: str, kind: str) -> list[tuple[Expr, dict[str, Expr]]]:
    """The conditions, and what the attributes then are; none where one walk does. kind: of the deciding key."""
    if name not in DECIDING:
        return []
    key, other = (f"{name}.{item}" for item in DECIDING[name])
    found: list[tuple[Expr, dict[str, Expr]]] = []
    for value in (None, *_texts(kind)):
        for absent in (True, False):
            there = ["is", _key(other), NONE]
            condition = both(_is(key, [value]), there if absent else inverse(there))
            found.append((condition, {key: constant(value), other: NONE if absent else _key(other)}))
    return found if len(found) > 2 else []


def _texts(kind: str) -> list[str]:
    """The members of the Literal in an annotation."""
    tree = ast.parse(kind, mode="eval") if kind else ast.Module([], [])
    inner = [node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript) and _literal_type(node)]
    items = [item for part in inner for item in (part.elts if isinstance(part, ast.Tuple) else [part])]
    return [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]


def _literal_type(node: ast.Subscript) -> bool:
    return ast.unparse(node.value).rpartition(".")[2] == "Literal"


def _key(key: str) -> Expr:
    return ["given", key, NONE]


def _is(key: str, values: Sequence[str | None], known: Sequence[str | None] = ()) -> Expr:
    """Whether a key has one of some values; true where these are all, and told by the others where these are fewer."""
    others = [value for value in known if value not in values]
    if known and not others:
        return TRUE
    if known and len(others) < len(values):
        return inverse(_is(key, others))
    return ["==", _key(key), ["=", values[0]]] if len(values) == 1 else ["in", _key(key), ["=", list(values)]]


def joined(
    before: Mapping[str, Expr], ends: Sequence[tuple[Expr, Mapping[str, Expr]]], name: str
) -> dict[str, Expr]:
    """What the attributes are after all walks."""
    found = dict(before)
    values_of_key = every([condition for condition, _ in ends], name)
    for attribute in {key for _, env in ends for key in env if key.startswith(f"{name}.")}:
        groups: dict[str, list[Found]] = {}
        values: dict[str, Expr] = {}
        for condition, env in ends:
            value = env.get(attribute)
            text = json.dumps(value := None if vague(value) or size(value) > SHORT else value)
            groups.setdefault(text, []).append((condition, ""))
            values[text] = value
        order = sorted(groups, key=lambda text: len(groups[text]))
        result = values[order[-1]]
        for text in reversed(order[:-1]):
            reached = either(*(condition for condition, _ in merged(groups[text], {name: values_of_key})))
            result = ["if", reached, values[text], result]
        found[attribute] = result if size(result) < LONGEST else None
    return found


def every(conditions: Sequence[Expr], name: str) -> list[str | None]:
    """All values of the deciding key."""
    key = f"{name}.{DECIDING[name][0]}"
    parts = [part for condition in conditions for part in condition[1:] if _value(part, key)]
    return list(dict.fromkeys(part[2][1] for part in parts))


def merged(found: Sequence[Found], known: Mapping[str, Sequence[str | None]]) -> list[Found]:
    """Conditions that differ in the values of deciding keys only become one. known: all values by class."""
    for name, values in known.items():
        key, other = (f"{name}.{item}" for item in DECIDING[name])
        there = ["is", _key(other), NONE]

        def named(part: Expr, key: str = key) -> list[Any]:
            return [part[2][1]] if _value(part, key) else []

        def whether(part: Expr, there: Expr = there) -> list[Any]:
            return [part == there] if part in (there, inverse(there)) else []

        found = _grouped(found, named, lambda kept, key=key, values=values: _is(key, kept, values))
        found = _grouped(
            found,
            whether,
            lambda kept, there=there: TRUE if len(kept) > 1 else there if kept[0] else inverse(there),
        )
    return list(found)


def _grouped(
    found: Sequence[Found], values: Callable[[Expr], list[Any]], again: Callable[[list[Any]], Expr]
) -> list[Found]:
    """One condition for those that only differ in a part that has one of some values."""
    groups: dict[str, tuple[list[Any], list[Expr], str]] = {}
    for condition, at in found:
        parts = condition[1:] if isinstance(condition, list) and condition[0] == "and" else [condition]
        mine = [part for part in parts if values(part)]
        rest = [part for part in parts if part not in mine] if len(mine) == 1 else parts
        text = json.dumps([sorted(map(json.dumps, rest)), at, len(mine) == 1])
        entry = groups.setdefault(text, ([], rest, at))
        entry[0].extend(values(mine[0]) if len(mine) == 1 else [])
    return [
        (both(*([again(list(dict.fromkeys(kept)))] if kept else []), *rest), at)
        for kept, rest, at in groups.values()
    ]


def _value(part: Expr, key: str) -> bool:
    return isinstance(part, list) and part[0] == "==" and part[1] == _key(key) and part[2][0] == "="
