# SPDX-License-Identifier: Apache-2.0
"""Derive the JSON of a dataclass from its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

# What stands in braces behind a type goes into the schema.
Text = Annotated[str, {"minLength": 1}]
Count = Annotated[int, {"minimum": 0}]
_SCALARS = (str, int, float, type(None))
_PLAIN = {*_SCALARS, bool}


class JsonRecord:
    """A dataclass whose JSON has its fields as keys: tuples become lists, and records in it have their own form.

    `class Fit(JsonRecord, hide=("notes",), omit=("between",), add=("size",))`: `hide` names fields that no JSON has,
    `omit` those that it has unless they are empty, and `add` properties that it has as well. A class whose JSON differs
    in more, as by a rounded number, says so in a to_json of its own. `make generate` writes schemas from all of this.
    """

    _hide: ClassVar[tuple[str, ...]] = ()
    _omit: ClassVar[tuple[str, ...]] = ()
    _add: ClassVar[tuple[str, ...]] = ()
    _read: ClassVar[tuple[int, tuple[str, ...], bool] | None] = None

    def __init_subclass__(
        cls, hide: tuple[str, ...] = (), omit: tuple[str, ...] = (), add: tuple[str, ...] = ()
    ) -> None:
        cls._hide, cls._omit, cls._add, cls._read = hide, omit, add, None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        count, nested, extra = self._read or self._read_fields()
        found = self.__dict__.copy()
        while len(found) > count:  # cached properties come after the fields
            found.popitem()
        if extra:
            for name in (*self._hide, *[name for name in self._omit if not found[name]]):
                del found[name]
            for name in self._add:
                found[name] = getattr(self, name)
        for name in nested:
            if name in found:
                found[name] = plain(found[name])
        return found

    @classmethod
    def _read_fields(cls) -> tuple[int, tuple[str, ...], bool]:
        """Return the number of fields, those whose values are not plain already, and whether keys go or come."""
        names, hints = [item.name for item in fields(cls)], get_type_hints(cls)  # type: ignore[arg-type]
        nested = tuple(name for name in names if not _scalar(hints[name]))
        cls._read = len(names), nested, bool(cls._hide or cls._omit or cls._add)
        return cls._read


def _scalar(hint: Any) -> bool:
    origin = get_origin(hint)
    return (
        hint in _PLAIN
        or origin is Literal
        or (origin in (Union, UnionType) and all(map(_scalar, get_args(hint))))
    )


def plain(value: Any) -> Any:
    """Return the value of a field as plain data."""
    if isinstance(value, _SCALARS):  # Ansible's own texts and numbers included
        return value
    if isinstance(value, (tuple, list)):
        return [item if type(item) in _PLAIN else plain(item) for item in value]
    if isinstance(value, (dict, Mapping)):
        return {key: item if type(item) in _PLAIN else plain(item) for key, item in value.items()}
    return value.to_json()
