# SPDX-License-Identifier: Apache-2.0
"""List the variables that operators may set; the only source is the roles' argument_specs.yml."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.checker import Checker
from ...knowledge.catalog.files import read_yaml
from .text_forms import convert_value

ROLES = Path(__file__).resolve().parents[4] / "roles"


@dataclass(frozen=True)
class PublicVariable:
    """A variable of a role.

    default: None if it has none. choices: () if any value of the type is valid. elements: the type of a list's items.
    """

    name: str
    role: str
    type: str
    default: Any = None
    choices: tuple[str, ...] = ()
    elements: str = ""

    @property
    def option(self) -> dict[str, Any]:
        """Return the option for the argument_spec of a module that receives the variable."""
        return {"type": self.type, **({} if self.default is None else {"default": self.default})}


def declared_variables(role: str, specs: Mapping[str, Any]) -> Iterator[PublicVariable]:
    """Yield the variables of all entry points of a role's argument_specs."""
    for entry in specs.values():
        for name, option in (entry.get("options") or {}).items():
            choices = tuple(option.get("choices", ()))
            kind, elements = option.get("type", "str"), option.get("elements", "")
            yield PublicVariable(name, role, kind, option.get("default"), choices, elements)


@functools.cache
def public_variables() -> Mapping[str, PublicVariable]:
    """Return all variables by name. The roles' files are read once."""
    paths = sorted(ROLES.glob("*/meta/argument_specs.yml"))
    found = (declared_variables(path.parents[1].name, read_yaml(path)["argument_specs"]) for path in paths)
    return {variable.name: variable for variables in found for variable in variables}


def typed_value(name: str, value: Any) -> Any:
    """Return a variable's value, a text converted to the declared type."""
    variable = public_variables().get(name)
    return convert_value(value, variable.type, variable.elements) if variable else value


class HostVariables:
    """A host's values of some variables, each checked when it is read; None counts as not set.

    A variable that is not set has its default, which is not checked.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self.check = Checker()
        self._given = variables

    def __getitem__(self, name: str) -> Any:
        """Return the unchecked value, of the declared type where it has such a form."""
        given = self._given.get(name)
        return self._default(name) if given is None else typed_value(name, given)

    def boolean(self, name: str) -> bool:
        """Return the value of a boolean."""
        return self.check.boolean(self[name], (name,), self._default(name))

    def integer(self, name: str, low: int, high: int) -> int:
        """Return the value of an integer from `low` to `high`."""
        return self.check.integer(self[name], (name,), self._default(name), low, high)

    def text(self, name: str, pattern: str = "", meaning: str = "") -> str:
        """Return the value of a text that matches `pattern` (described to people as `meaning`).

        The default is returned unchecked, and may be empty.
        """
        value, default = self[name], self._default(name)
        return default if value == default else self.check.text(value, (name,), default, pattern, meaning)

    def choice(self, name: str, choices: Sequence[str] = ()) -> str:
        """Return a value that is one of `choices`, or of the declared choices, or the default."""
        value, default = self[name], self._default(name)
        valid = choices or public_variables()[name].choices
        return default if value == default else self.check.choice(value, (name,), default, valid)

    def _default(self, name: str) -> Any:
        return public_variables()[name].default
