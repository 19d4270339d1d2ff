# SPDX-License-Identifier: Apache-2.0
"""Make a JSON schema of types.

A JsonRecord or a TypedDict is an object of its fields and of nothing else, and stands in `$defs` under its own name.
What is said of a field is the comment behind or above it, or what the docstring says after `field: `.
Annotated[int, {"minimum": 1}] adds to what the type says; the value of a Literal is one of those it names.
"""

from __future__ import annotations

import inspect
import io
import json
import re
import textwrap
import tokenize
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, NotRequired, get_args, get_origin, get_type_hints

Schema = dict[str, Any]
WIDTH = 118
SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


class Definitions:
    """The schemas of classes, by name. written_as: the TypedDict of a dataclass whose JSON is not its fields."""

    def __init__(self, written_as: Mapping[type, Any]) -> None:
        self.found: dict[str, Schema] = {}
        self._classes: dict[str, Any] = {}
        self._written_as = written_as

    def of(self, hint: Any) -> Schema:
        """Return the schema of values of a type."""
        origin, args = get_origin(hint), get_args(hint)
        if origin is NotRequired:
            return self.of(args[0])
        if origin is Annotated:
            return {**self.of(args[0]), **args[1]}
        if hint is Any:
            return {}
        if origin is None and hint in SCALARS:
            return {"type": SCALARS[hint]}
        if origin is Literal:
            return {"const": args[0]} if len(args) == 1 else {"enum": list(args)}
        if origin in (typing.Union, types.UnionType):
            return self._any_of([self.of(item) for item in args])
        if origin is tuple and args[-1] is not Ellipsis:
            ends = {"minItems": len(args), "maxItems": len(args)}
            same = all(item == args[0] for item in args)
            items = {"items": self.of(args[0])} if same else {"prefixItems": [self.of(item) for item in args]}
            return {"type": "array", **items, **ends}
        if origin and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(args[1])}
        if origin and issubclass(origin, Sequence):
            return {"type": "array", "items": self.of(args[0])}
        hint = self._written_as.get(hint, hint)
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", hint.__name__).lower()
        if self._classes.setdefault(name, hint) is not hint:
            raise ValueError(f"two classes of the schema are called {name}")
        if name not in self.found:
            self.found[name] = {}  # a class may be part of itself
            self.found[name] = self.object_of(hint)
        return {"$ref": f"#/$defs/{name}"}

    def object_of(self, cls: Any) -> Schema:
        """Return the schema of a class."""
        hints = _hints(cls)
        said = descriptions(cls, hints)
        more = {name: {"description": said[name]} if name in said else {} for name in hints}
        return {
            "type": "object",
            "required": [name for name, hint in hints.items() if get_origin(hint) is not NotRequired],
            "additionalProperties": False,
            "properties": {name: {**more[name], **self.of(hint)} for name, hint in hints.items()},
        }

    @staticmethod
    def _any_of(found: list[Schema]) -> Schema:
        """Return a schema of several, of which at most one is null."""
        if all(list(item) == ["type"] for item in found):
            return {"type": [item["type"] for item in found]}
        if len(found) == 2 and "enum" in found[0] and found[1] == {"type": "null"}:
            return {"enum": [*found[0]["enum"], None]}
        if len(found) == 2 and isinstance(found[0].get("type"), str) and found[1] == {"type": "null"}:
            return {**found[0], "type": [found[0]["type"], "null"]}
        return {"anyOf": found}


def _hints(cls: Any) -> dict[str, Any]:
    """Return the keys of a class, with the types of their values; NotRequired where a key may be missing."""
    hints = get_type_hints(cls, include_extras=True)
    if not is_dataclass(cls):
        return hints
    found = {item.name: hints[item.name] for item in fields(cls) if item.name not in cls._hide}
    for name in cls._omit:  # where the key is there, its value is not empty
        present = [item for item in get_args(found[name]) if item is not type(None)]
        union = isinstance(found[name], types.UnionType)
        found[name] = NotRequired[
            Literal[True] if found[name] is bool else present[0] if union else found[name]
        ]
    return found | {name: get_type_hints(getattr(cls, name).fget)["return"] for name in cls._add}


def descriptions(cls: Any, names: Collection[str]) -> dict[str, str]:
    """Return what is said of each key, as sentences."""
    found = {**_of_docstring(inspect.getdoc(cls) or "", names), **_of_comments(cls)}
    for name in getattr(cls, "_add", ()):
        found[name] = (inspect.getdoc(getattr(cls, name)) or "").removeprefix("Return ")
    return {name: text[0].upper() + text[1:].removesuffix(".") + "." for name, text in found.items()}


def _of_docstring(text: str, names: Collection[str]) -> dict[str, str]:
    """Return what stands behind "field: " or "field, other: ", up to the next of them."""
    name = "|".join(map(re.escape, names))
    parts = re.split(
        rf"(?:^|(?<=[.;] )|(?<=\n)\s*)((?:{name})(?:, (?:{name}))*): ", text.replace("\n", " \n")
    )
    found = {}
    for heads, body in zip(parts[1::2], parts[2::2], strict=True):
        said = " ".join(body.partition("\n \n")[0].split()).rstrip(";")
        found |= dict.fromkeys(heads.split(", "), said)
    return found


def _of_comments(cls: Any) -> dict[str, str]:
    """Return the comment behind each field, or those above it."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # made by a call
        return {}
    found: dict[str, str] = {}
    above: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("# ")
            field = re.match(r"    (\w+): ", token.line)
            if field:
                found[field[1]] = text
            else:
                above.append(text)
        elif token.type == tokenize.NEWLINE:
            field = re.match(r"    (\w+): ", token.line)
            if field and above:
                found[field[1]] = " ".join(above)
            above = []
    return found


def schema(
    title: str, cls: Any, written_as: Mapping[type, Any] | None = None, description: str = ""
) -> Schema:
    """Return the schema of a file whose content is an object of this class."""
    definitions = Definitions(written_as or {})
    made = definitions.object_of(cls)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **({"description": description} if description else {}),
        **made,
        "$defs": dict(sorted(definitions.found.items())),
    }


def as_text(value: Any, indent: int = 0, before: int = 0) -> str:
    """Return JSON in which all that fits into a line is on one. before: characters of the line that are taken."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + before + len(line) <= WIDTH or not value or not isinstance(value, (dict, list)):
        return line
    inner = indent + 2
    if isinstance(value, dict):
        keys = {key: f"{json.dumps(key)}: " for key in value}
        items = [keys[key] + as_text(item, inner, len(keys[key])) for key, item in value.items()]
    else:
        items = [as_text(item, inner) for item in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    space = "\n" + " " * inner
    return f"{first}{space}{f',{space}'.join(items)}\n{' ' * indent}{last}"
