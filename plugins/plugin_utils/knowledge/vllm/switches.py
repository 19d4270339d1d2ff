# SPDX-License-Identifier: Apache-2.0
"""Find switches that have no effect next to the others; catalog/vllm/switches.yml says what each needs.

The data is given; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .env_vars import EnvTable, meaning
from .findings import NO_EFFECT, Finding
from .flag_values import Value
from .flags import FlagTable

_OFF = (False, None, "NONE", "None", "", 0)


@dataclass(frozen=True)
class Setup:
    """What switches are compared with: flags ("--name" → value), variables, and facts by the names of switches.yml.

    A fact that is not known is missing.
    """

    args: Mapping[str, Value]
    env: Mapping[str, str]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Switches:
    """The rules of one release."""

    rules: tuple[Mapping[str, Any], ...]
    flags: FlagTable
    env: EnvTable

    def idle(self, name: str, setup: Setup) -> Finding | None:
        """Return why a switch of the setup has no effect; None if it is off, or if nothing it needs is missing."""
        value = self._value(name, setup)
        for rule in self.rules:
            if name in rule["switches"] and _counts(rule, value) and not self._met(rule["needs"], setup):
                what = f"has no effect: {rule['because']}"
                return Finding(
                    name, NO_EFFECT, what, rule["do"], rule["source"], self.flags.release.exact, harmless=True
                )
        return None

    def named(self, setup: Setup) -> Iterable[str]:
        """Return the switches that a setup names and that have rules."""
        known = dict.fromkeys(name for rule in self.rules for name in rule["switches"])
        return [name for name in known if self._value(name, setup, False) is not None]

    def _met(self, needs: Mapping[str, Any], setup: Setup) -> bool:
        for name, wanted in needs.items():
            have = (
                self._value(name, setup) if name.isupper() or name.startswith("-") else setup.facts.get(name)
            )
            if have is None and not name.startswith("-"):
                continue
            if isinstance(wanted, Mapping):
                met = wanted.get("min", have) <= have <= wanted.get("max", have)
            elif isinstance(wanted, bool):
                met = bool(have) == wanted
            else:
                met = have in wanted
            if not met:
                return False
        return True

    def _value(self, name: str, setup: Setup, default: bool = True) -> Any:
        """Return the value of a variable, a flag, or a key of a flag's map, as vLLM reads it."""
        if not name.startswith("-"):
            if name in setup.env:
                return meaning(self.env, name, setup.env[name])
            variable = self.env.variables.get(name)
            return variable.default if default and variable else None
        flag, *keys = name.split(".")
        value = setup.args.get(flag)
        if value is None and default and not keys and flag in self.flags.flags:
            value = self.flags.flags[flag].default
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def switches_of(data: Mapping[str, Any], flags: FlagTable, env: EnvTable) -> Switches:
    """Return the rules that apply to a release."""
    line, index = flags.line, flags.release.index
    rules = (rule for rule in data["rules"] if line.inside(rule.get("since"), rule.get("until"), index))
    return Switches(tuple(rules), flags, env)


def _counts(rule: Mapping[str, Any], value: Any) -> bool:
    return value in rule["values"] if "values" in rule else value not in _OFF
