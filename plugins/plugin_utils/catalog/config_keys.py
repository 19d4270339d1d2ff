# SPDX-License-Identifier: Apache-2.0
"""Check keys inside the JSON of configuration flags: --compilation-config, --speculative-config, …"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...module_utils.common.errors import suggest
from ...module_utils.common.versions import Release, Timeline
from .findings import BAD_CHOICE, GONE, NO_EFFECT, NOT_YET, UNKNOWN, Finding
from .forks import Changes, changed

_LITERAL = re.compile(r"Literal\[([^\]]*)\]")
_CLASS = re.compile(r"[A-Z][A-Za-z0-9]*Config")


@dataclass(frozen=True)
class ConfigKeys:
    """The fields of one release's configuration classes. Data: catalog/vllm/configs.json and parser.yml.

    changes: by class, what a fork has otherwise.
    """

    release: Release
    line: Timeline
    classes: Mapping[str, Mapping[str, Any]]
    unknown_keys: Mapping[str, Any]
    changes: Mapping[str, Changes] = field(default_factory=dict)

    def of_flag(self, flag: str) -> str | None:
        """Return the class that a flag's JSON is parsed into, or None if the catalogue does not know it."""
        return next((name for name, item in self.classes.items() if flag in item["flags"]), None)

    def fields(self, name: str) -> dict[str, str]:
        """Return the fields of a class in this release, with their types as in vLLM's source."""
        index = self.release.index
        found = {
            key: str(self.line.value(entry.get("type", ()), index, ""))
            for key, entry in self.classes[name]["fields"].items()
            if self.line.within(entry["present"], index)
        }
        return changed(found, self.changes.get(name, {}), lambda _name, _old, item: str(item.get("type", "")))

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

    def _absent(self, name: str, key: str, place: str, fields: Mapping[str, str]) -> Finding:
        version, index = self.release.requested, self.release.index
        strict = self.refuses(name)
        status, what = UNKNOWN, f"is no key of {name} in vLLM {version}"
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

    def _value(self, kind: str, value: Any, place: str) -> Finding | None:
        if isinstance(value, Mapping):
            inner = next((name for name in _CLASS.findall(kind) if name in self.classes), None)
            return self._check(inner, value, place) if inner else None
        literal = _LITERAL.search(kind)
        rest = _LITERAL.sub("", kind).replace("Optional", "").replace("None", "").strip("[]| ")
        if literal is None or rest or value is None:
            return None
        choices = [item.strip().strip("'\"") for item in literal[1].split(",")]
        if str(value) in choices:
            return None
        what = f"{value!r} is not valid in vLLM {self.release.requested}"
        return Finding(place, BAD_CHOICE, what, suggest(value, choices), "", self.release.exact)
