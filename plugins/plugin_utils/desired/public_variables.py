# SPDX-License-Identifier: Apache-2.0
"""The variables that operators may set: the one list of them, from the roles' argument_specs.yml."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..catalog.checker import Checker
from ..catalog.load import read_yaml

ROLES = Path(__file__).resolve().parents[3] / "roles"


@dataclass(frozen=True)
class Variable:
    """A variable of a role. default None: it has none. choices (): any value of the type."""

    name: str
    role: str
    type: str
    default: Any = None
    choices: tuple[str, ...] = ()

    @property
    def option(self) -> dict[str, Any]:
        """As an option in the argument_spec of a module that is given the variable."""
        return {"type": self.type, **({} if self.default is None else {"default": self.default})}


def declared(role: str, specs: Mapping[str, Any]) -> Iterator[Variable]:
    """The variables of all entry points of a role's argument_specs."""
    for entry in specs.values():
        for name, option in (entry.get("options") or {}).items():
            choices = tuple(option.get("choices", ()))
            yield Variable(name, role, option.get("type", "str"), option.get("default"), choices)


@functools.cache
def public_variables() -> Mapping[str, Variable]:
    """All of them, by name. Reads the roles' files, once."""
    paths = sorted(ROLES.glob("*/meta/argument_specs.yml"))
    found = (declared(path.parents[1].name, read_yaml(path)["argument_specs"]) for path in paths)
    return {variable.name: variable for variables in found for variable in variables}


class HostVariables:
    """What a host has of some variables, each checked when it is read; one that is None is not set.

    A variable that is not set has its default, which is right by definition.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self.check = Checker()
        self._given = variables

    def __getitem__(self, name: str) -> Any:
        """The value, unchecked."""
        given = self._given.get(name)
        return self._default(name) if given is None else given

    def boolean(self, name: str) -> bool:
        """True or false."""
        return self.check.boolean(self[name], (name,), self._default(name))

    def integer(self, name: str, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        return self.check.integer(self[name], (name,), self._default(name), low, high)

    def text(self, name: str, pattern: str = "", meaning: str = "") -> str:
        """Text that matches `pattern` (told to people as `meaning`); or the default, which may be empty."""
        value, default = self[name], self._default(name)
        return default if value == default else self.check.text(value, (name,), default, pattern, meaning)

    def choice(self, name: str, choices: Sequence[str] = ()) -> str:
        """One of `choices`, or of those that are declared; or the default."""
        value, default = self[name], self._default(name)
        valid = choices or public_variables()[name].choices
        return default if value == default else self.check.choice(value, (name,), default, valid)

    def _default(self, name: str) -> Any:
        return public_variables()[name].default
