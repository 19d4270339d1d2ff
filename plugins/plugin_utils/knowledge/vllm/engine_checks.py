# SPDX-License-Identifier: Apache-2.0
"""What vLLM checks when it configures its engine, behind its parser, and find arguments that would not pass.

The conditions are in catalog/vllm/checks.json, derived from the sources of each release; nothing here reads a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..rules.conditions import THERE, UNKNOWN, Condition, evaluate, holds, names, reasons, with_fact
from .env_vars import EnvTable
from .flag_values import Value, convert, token
from .flags import Flag, FlagTable

_SIGNS = {"<": "is below", "<=": "is not above", ">": "is above", ">=": "is not below"}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_ON = ("1", "true")


@dataclass(frozen=True)
class Check:
    """One condition under which a release stops, and the function of vLLM that checks it."""

    condition: Condition
    at: str


@dataclass(frozen=True)
class Refusal:
    """What would stop vLLM: in words, with the arguments that take part, those first that were given."""

    what: str
    at: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class EngineFacts:
    """What is known of a start: flags ("--name" → value), variables, the platform, and facts of the model.

    open: flags whose value is decided elsewhere. v1: whether the V1 engine runs, where VLLM_USE_V1 is not set.
    """

    table: FlagTable
    variables: EnvTable
    args: Mapping[str, Value]
    env: Mapping[str, str]
    platform: str
    model: Mapping[str, Any]
    open: frozenset[str] = frozenset()
    v1: bool | None = None

    def __call__(self, fact: str) -> Any:
        """Return the value of a fact, or UNKNOWN."""
        kind, _dot, name = fact.partition(".")
        if kind == "EngineArgs":
            return self._argument("--" + name.replace("_", "-"))
        if kind == "env":
            return self._variable(name)
        if kind == "model":
            return self.model.get(name, UNKNOWN)
        if kind == "platform":
            return self._platform(name)
        return self._key(kind, name)

    def given(self, fact: str) -> bool:
        """Return whether the value of a fact was chosen, and is not a default."""
        kind, _dot, name = fact.partition(".")
        if kind == "EngineArgs":
            return "--" + name.replace("_", "-") in self.args
        if kind == "env":
            return name in self.env
        return kind not in ("model", "platform") and self._key(kind, name) is not UNKNOWN

    def _argument(self, name: str) -> Any:
        flag = self.table.flags.get(name)
        if flag is None or name in self.open:
            return UNKNOWN
        if name in self.args:
            return _plain(flag, self.args[name])
        if flag.default is None and flag.type.startswith(("config", "level")) and not flag.type.endswith("?"):
            return THERE
        return flag.default

    def _variable(self, name: str) -> Any:
        known = self.variables.variables.get(name)
        if known is None:
            return UNKNOWN
        text = self.env.get(name)
        if text is None and name == "VLLM_USE_V1":
            return UNKNOWN if self.v1 is None else self.v1
        if text is None:
            return known.default if known.default is not None or known.type != "flag" else UNKNOWN
        if known.type in ("flag", "one", "word", "int_bool"):
            return text.lower() in _ON
        return text if known.type in ("text", "choice") else UNKNOWN

    def _platform(self, name: str) -> Any:
        if (
            self.platform not in ("rocm", "cpu", "cuda")
            or not name.startswith("is_")
            or name.endswith("available")
        ):
            return UNKNOWN
        kinds = {"rocm": ("rocm", "cuda_alike"), "cuda": ("cuda", "cuda_alike"), "cpu": ("cpu",)}
        return name.removeprefix("is_") in kinds[self.platform]

    def _key(self, name: str, key: str) -> Any:
        """Return a key of the JSON from which an object is made; UNKNOWN where it is not given."""
        held = self._object(name, 0)
        return held[key] if isinstance(held, Mapping) and key in held else UNKNOWN

    def _object(self, name: str, depth: int) -> Any:
        classes = self.table.configs.classes
        if name not in classes or depth > 3:
            return None
        for flag in classes[name]["flags"]:
            value = self._argument(flag)
            if isinstance(value, Mapping):
                return value
        for other, key in self.table.configs.holders.get(name, ()):
            held = self._object(other, depth + 1)
            if isinstance(held, Mapping) and isinstance(held.get(key), Mapping):
                return held[key]
        return None


def _plain(flag: Flag, value: Value) -> Any:
    """Return a value as vLLM's parser gives it."""
    if isinstance(value, str) and flag.kind not in ("switch", "toggle", "list", "append"):
        try:
            return convert(flag.type, value) if flag.kind != "bool" else value.lower() == "true"
        except ValueError:
            return UNKNOWN
    if isinstance(value, (list, tuple)) and flag.kind in ("list", "append"):
        try:
            return [convert(flag.type, item) if isinstance(item, str) else item for item in value]
        except ValueError:
            return UNKNOWN
    return [value] if flag.kind in ("list", "append") and value is not None else value


def engine_checks(data: Mapping[str, Any], table: FlagTable) -> tuple[Check, ...]:
    """Return the checks of one release."""
    index, line = table.release.index, table.line
    return tuple(
        Check(json.loads(text), line.value(entry["at"], index, ""))
        for text, entry in data["checks"].items()
        if line.within(entry["present"], index)
    )


def refusals(checks: Sequence[Check], facts: EngineFacts) -> Iterator[Refusal]:
    """Yield what would stop vLLM, where something that was chosen takes part."""
    for check in checks:
        if holds(check.condition, facts):
            parts = list(reasons(check.condition, facts))
            listed = dict.fromkeys(name for part in parts for name in names(part))
            given = [name for name in listed if facts.given(name)]
            if given:
                others = [name for name in listed if name not in given and name.startswith("EngineArgs.")]
                words = dict.fromkeys(text for part in parts if (text := _words(part, facts)))
                yield Refusal(" and ".join(words), check.at, tuple(map(_named, (*given, *others))))


def _named(fact: str) -> str:
    """Return the name by which the operator knows a fact."""
    kind, _dot, name = fact.partition(".")
    return name if kind in ("EngineArgs", "env", "model", "platform") else f"{kind}'s {name}"


def _words(part: Condition, facts: Callable[[str], Any]) -> str:
    """Return a comparison or a fact in words; empty for what goes without saying."""
    sign, denied = (part[0], False) if isinstance(part, list) else ("", False)
    if sign == "not":
        part, denied = part[1], True
        sign = part[0] if isinstance(part, list) else ""
    if sign in ("", "given"):
        return _switched(part, evaluate(part, facts))
    if sign in _OPPOSITE and denied:
        sign = _OPPOSITE[sign]
    if sign in _SIGNS:
        return f"{_side(part[1], facts)} {_SIGNS[sign]} {_side(part[2], facts)}"
    if sign == "is":
        return f"{_subject(part[1])} is {'given' if denied else 'not given'}"
    if sign == "any":
        return _entry(part, facts, denied)
    if sign in ("==", "in"):
        words = {"==": ("is", "is not"), "in": ("is one of", "is none of")}[sign][denied]
        other = _side(part[2], facts)
        return (
            _side(part[1], facts)
            if sign == "==" and not denied
            else f"{_side(part[1], facts)} {words} {other}"
        )
    return ""


def _entry(part: Condition, facts: Callable[[str], Any], denied: bool) -> str:
    """Return the entries of a list that are refused, in words."""
    name, items = part[1], evaluate(part[2], facts)
    wrong = [item for item in items if denied or holds(part[3], with_fact(name, item, facts))]
    return f"{_subject(part[2])} has {', '.join(map(token, wrong))}"


def _switched(part: Condition, value: Any) -> str:
    name = _subject(part)
    if isinstance(value, bool) or value is None:
        return f"{name} is {'on' if value else 'off'}"
    return f"{name} is {'given' if value else 'empty'}"


def _subject(part: Condition) -> str:
    found = list(dict.fromkeys(names(part)))
    return _named(found[0]) if found else "it"


def _side(part: Condition, facts: Callable[[str], Any]) -> str:
    value = evaluate(part, facts)
    found = list(dict.fromkeys(names(part)))
    shown = ", ".join(str(item) for item in value if item != "") if isinstance(value, list) else token(value)
    if not found:
        return shown
    if len(found) > 1 and isinstance(part, list) and part[0] in ("*", "//", "%", "+", "-"):
        return f"{f' {part[0]} '.join(map(_named, found))} ({shown})"
    return f"{_named(found[0])} {shown}"
