# SPDX-License-Identifier: Apache-2.0
"""Collect flags and variables in the order in which they are decided, each with the source of the decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...knowledge.vllm.flag_values import Value, token
from ..desired.reasons import Reason


@dataclass(frozen=True)
class SettingConflict:
    """A flag or variable that is already decided differently."""

    subject: str
    wanted: Value
    held: Value


class Decisions:
    """The decisions so far. Maps of one flag are merged; a decided value never changes.

    meaning: what a variable's text is read as, so that "True" does not contradict "1".
    """

    def __init__(self, meaning: Callable[[str, str], object] = lambda name, text: text) -> None:
        self._meaning = meaning
        self.args: dict[str, Value] = {}
        self.env: dict[str, str] = {}
        self.reasons: list[Reason] = []

    def conflict(self, args: Mapping[str, Value], env: Mapping[str, str]) -> SettingConflict | None:
        """Return the first of these that contradicts an earlier decision, or None."""
        for name, value in args.items():
            if name in self.args and not _agree(self.args[name], value):
                return SettingConflict(name, value, self.args[name])
        for name, text in env.items():
            if name in self.env and self._meaning(name, self.env[name]) != self._meaning(name, text):
                return SettingConflict(name, text, self.env[name])
        return None

    def add(self, args: Mapping[str, Value], env: Mapping[str, str], reason: str, source: str) -> None:
        """Decide these, in which `conflict` must have found none; what was decided earlier keeps its reason."""
        for name, given in args.items():
            value, held = _ordered(given), self.args.get(name)
            if isinstance(held, Mapping) and isinstance(value, Mapping):
                self.args[name] = _ordered(_merged(held, value))
            elif name in self.args:
                continue
            else:
                self.args[name] = value
            self.reasons.append(Reason(name, value_text(value), reason, source))
        for name, text in env.items():
            if name not in self.env:
                self.env[name] = text
                self.reasons.append(Reason(name, text, reason, source))

    def copy(self) -> Decisions:
        """Return decisions that can be continued on trial."""
        found = Decisions(self._meaning)
        found.args, found.env, found.reasons = dict(self.args), dict(self.env), list(self.reasons)
        return found

    def drop(self, name: str) -> None:
        """Take a variable back."""
        self.reasons = [item for item in self.reasons if item.setting != name]
        self.env.pop(name, None)

    def put(self, name: str, value: Value, reason: str, source: str) -> None:
        """Replace the value of a flag."""
        self.reasons = [item for item in self.reasons if item.setting != name]
        self.args.pop(name, None)
        self.add({name: value}, {}, reason, source)


def _agree(held: Value, value: Value) -> bool:
    if isinstance(held, Mapping) and isinstance(value, Mapping):
        return all(key not in held or _agree(held[key], item) for key, item in value.items())
    return bool(held == value and isinstance(held, bool) == isinstance(value, bool))


def _ordered(value: Value) -> Value:
    """Return maps sorted by key, so that the order in which they were written does not change the command."""
    if isinstance(value, Mapping):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return type(value)(map(_ordered, value)) if isinstance(value, (list, tuple)) else value


def _merged(a: Mapping[str, Value], b: Mapping[str, Value]) -> dict[str, Value]:
    result = dict(a)
    for key, value in b.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            result[key] = _merged(old, value)
        else:
            result[key] = value
    return result


def value_text(value: Value) -> str:
    """Return a value as the plan explains it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return " ".join(token(item) for item in value)
    return token(value)
