# SPDX-License-Identifier: Apache-2.0
"""Check keys inside the JSON of configuration flags: --compilation-config, --speculative-config, …"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ....module_utils.common.errors import suggest
from ....module_utils.engines.versions import Release, Timeline
from .findings import BAD_CHOICE, BAD_VALUE, GONE, NO_EFFECT, NOT_YET, UNKNOWN, Finding
from .flag_values import token
from .forks import Changes, apply_changes
from .value_types import choices, class_of, mismatch, names, takes_null


@dataclass(frozen=True)
class Field:
    """A field: its annotation in vLLM's source, its limits, and whether a validator converts a value before that."""

    type: str
    limits: Mapping[str, float]
    before: bool


def _of_fork(_name: str, parent: Field | None, item: Changes) -> Field:
    return Field(str(item.get("type", parent.type if parent else "")), {}, before=False)


@dataclass(frozen=True)
class ConfigKeys:
    """The fields of one release's configuration classes. Data: catalog/vllm/configs.json and parser.yml.

    changes: by class, what differs in a fork.
    """

    release: Release
    line: Timeline
    classes: Mapping[str, Mapping[str, Any]]
    unknown_keys: Mapping[str, Any]
    types_since: str
    changes: Mapping[str, Changes] = field(default_factory=dict)

    def of_flag(self, flag: str) -> str | None:
        """Return the class that a flag's JSON is parsed into, or None if the catalogue does not know it."""
        named = [name for name, item in self.classes.items() if flag in item["flags"]]
        return next((name for name in named if self.fields(name)), named[0] if named else None)

    def fields(self, name: str) -> Mapping[str, Field]:
        """Return the fields of a class in this release; none of an unknown class."""
        return self._fields.get(name, {})

    @cached_property
    def holders(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """Return the fields (class, name) that hold an object of each class."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name, fields in self._fields.items():
            for key, item in fields.items():
                if inner := class_of(item.type, self.classes):
                    found.setdefault(inner, []).append((name, key))
        return found

    @cached_property
    def _fields(self) -> dict[str, dict[str, Field]]:
        index, line = self.release.index, self.line
        found = {
            name: {
                key: Field(
                    line.value(entry.get("type", ()), index, ""),
                    line.value(entry.get("limits", ()), index, {}),
                    line.value(entry.get("before", ()), index, False),
                )
                for key, entry in item["fields"].items()
                if line.within(entry["present"], index)
            }
            for name, item in self.classes.items()
        }
        return {
            name: apply_changes(fields, self.changes.get(name, {}), _of_fork)
            for name, fields in found.items()
        }

    def refuses(self, name: str) -> bool:
        """Return whether an unknown key stops vLLM; otherwise vLLM drops it silently."""
        rules = self.unknown_keys.get(name, self.unknown_keys["default"])
        history = [(rule["since"], rule["does"]) for rule in rules]
        return bool(self.line.value(history, self.release.index, "ignore") == "refuse")

    def check(self, flag: str, value: Mapping[str, Any]) -> Finding | None:
        """Return the first problem of a flag's JSON; None if there is none or its class is unknown."""
        name = self.of_flag(flag)
        return None if name is None else self._check(name, value, flag)

    def _check(self, name: str, value: Mapping[str, Any], where: str) -> Finding | None:
        fields = self.fields(name)
        if not fields:
            return None
        first: Finding | None = None
        for key, item in value.items():
            place = f"{where}.{key}"
            if key not in fields:
                found: Finding | None = self._absent(name, key, place, fields)
            else:
                found = self._value(fields[key], item, place)
            if found is not None and found.is_error:
                return found
            first = first or found
        return first

    def _absent(self, name: str, key: str, place: str, fields: Mapping[str, Field]) -> Finding:
        version, index = self.release.requested, self.release.index
        strict = self.refuses(name)
        status, what = UNKNOWN, f"is not a key of {name} in vLLM {version}"
        entry = self.classes[name]["fields"].get(key)
        if entry is not None:
            coming = [since for since, _unused in entry["present"] if self.line.order[since] > index]
            ended = [
                end for _unused, end in entry["present"] if end is not None and self.line.order[end] <= index
            ]
            if ended:
                status, what = GONE, f"was removed in vLLM {ended[-1]}, and this is {version}"
            elif coming:
                status, what = NOT_YET, f"came with vLLM {coming[0]}, and this is {version}"
        if not strict:
            return Finding(place, NO_EFFECT, f"{what}; this release silently drops it", "Remove it.")
        return Finding(place, status, what, suggest(key, fields), "", self.release.exact)

    def _value(self, field: Field, value: Any, place: str) -> Finding | None:
        inner = class_of(field.type, self.classes) if isinstance(value, Mapping) else None
        if inner:
            return self._check(inner, value, place)
        if self.line.order[self.types_since] > self.release.index:
            return None
        version, known = self.release.requested, choices(field.type)
        listed = names(field.type) if field.before and isinstance(value, str) else ()
        if listed and value.upper() not in listed and value.lower() != "auto":
            what = f"{value!r} is not valid in vLLM {version}"
            return Finding(place, BAD_CHOICE, what, suggest(value.upper(), listed), "", self.release.exact)
        if known is not None and not isinstance(value, (Mapping, list)):
            near = _plain(value) if field.before else str(value)
            if near in {_plain(item) if field.before else str(item) for item in known}:
                return None
            if value is None and takes_null(field.type):
                return None
            what = f"{token(value)} is not valid in vLLM {version}"
            texts = [str(item) for item in known]
            return Finding(place, BAD_CHOICE, what, suggest(value, texts), "", self.release.exact)
        converted = field.before and isinstance(value, str) and not class_of(field.type, self.classes)
        wrong = "" if converted else mismatch(field.type, value, field.limits, self.classes)
        if not wrong:
            return None
        what = f"{token(value)} is {wrong}, which vLLM {version} refuses"
        return Finding(place, BAD_VALUE, what, "Correct the value.", "", self.release.exact)


def _plain(value: Any) -> str:
    """Return a choice as vLLM compares it where it accepts any case, and dashes for underscores."""
    return str(value).lower().replace("-", "_")
